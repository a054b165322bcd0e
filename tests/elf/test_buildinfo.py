"""Compare the build information with what ``go version -m`` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.elf.buildinfo import GoVersion, compiler_version, read_build_info
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.elf.binaries import MODES, small, without_section_headers
from tests.elf.truth import run
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest, require


def go_version_m(toolchain: Toolchain, binary: Path) -> dict[str, list[str]]:
    """Return the lines by their first word; the release's is "version"."""
    head, *lines = run([toolchain.go, "version", "-m", binary], env=toolchain.env()).splitlines()
    said: dict[str, list[str]] = {"version": [head.rpartition(": ")[2]]}
    for line in lines:
        kind, _, rest = line.strip().partition("\t")
        said.setdefault(kind, []).append(rest)
    return said


@each_toolchain
@pytest.mark.parametrize("mode", MODES)
def test_build_info_is_that_of_go_version(toolchain: Toolchain, mode: str, tmp_path: Path) -> None:
    binary = small(toolchain, mode)
    # The newest go reads what every release wrote.
    said = go_version_m(newest(), binary)
    for path in (binary, without_section_headers(binary, tmp_path / "bare")):
        with ElfImage.open(path) as image:
            info = read_build_info(image)
        assert info is not None and info.go_version is not None
        assert info.go_version.text == said["version"][0] == f"go{toolchain.version}"
        assert f"{info.go_version.major}.{info.go_version.minor}" == toolchain.minor
        assert [info.path] == said["path"]
        module, version = said["mod"][0].split("\t")[:2]
        assert (info.module_path, info.module_version) == (module, version)
        expected = dict(setting.split("=", 1) for setting in said.get("build", []))
        unquoted = {key: value.strip('"') for key, value in expected.items()}
        assert info.settings == unquoted


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_release_of_a_plugin(minor: str) -> None:
    """Those of older releases have no build information: DWARF tells."""
    toolchain = require(minor)
    flags = ["-buildmode=plugin"]
    binary = build(FIXTURES / "live_plugin", toolchain, flags=flags, name="live_plugin.so")
    with ElfImage.open(binary) as image:
        told = (load_functions(image).go_version, compiler_version(image))
    assert [version and version.text for version in told] == [f"go{toolchain.version}"] * 2


def test_quoted_settings_are_unquoted() -> None:
    toolchain = newest()
    text = 'a "quoted" \\ back\tslash'
    binary = build(FIXTURES / "elf_small", toolchain, flags=[f"-ldflags=-X 'main.text={text}'"])
    (line,) = [
        line for line in go_version_m(toolchain, binary)["build"] if line.startswith("-ldflags=")
    ]
    assert line.startswith('-ldflags="') and '\\"' in line
    with ElfImage.open(binary) as image:
        info = read_build_info(image)
    assert info is not None
    assert info.settings["-ldflags"] == f"-X 'main.text={text}'"


def test_a_c_program_has_none() -> None:
    with ElfImage.open("/bin/sh") as image:
        assert read_build_info(image) is None
        assert compiler_version(image) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go1.21.13", (1, 21, 13)),
        ("go1.22rc1", (1, 22, 0)),
        ("go1.9", (1, 9, 0)),
        ("devel go1.23-7a5f7c1d3e Tue Mar 5 10:00:00 2024 +0000", (1, 23, 0)),
        ("go1.24.1+auto", (1, 24, 1)),
        ("go1.21.3 X:boringcrypto", (1, 21, 3)),
    ],
)
def test_versions_are_parsed(text: str, expected: tuple[int, int, int]) -> None:
    version = GoVersion.parse(text)
    assert version is not None
    assert (version.major, version.minor, version.patch) == expected
    assert version.text == text


@pytest.mark.parametrize("text", ["", "devel +5c6e2cdc1d", "unknown", "go", "go1", "gogo1.x"])
def test_text_without_a_release_is_no_version(text: str) -> None:
    assert GoVersion.parse(text) is None


def test_versions_are_ordered_by_minor_release() -> None:
    early, late = GoVersion.parse("go1.9.7"), GoVersion.parse("go1.17.3")
    assert early is not None and late is not None
    assert early < late
    assert late >= GoVersion(1, 17) and late <= GoVersion(1, 17) and late == GoVersion(1, 17)
    assert GoVersion(2, 0) > late
