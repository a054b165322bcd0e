# SPDX-License-Identifier: Apache-2.0
"""Compare the release in the build information with what ``go version`` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.elf.buildinfo import GoVersion, compiler_version, main_module, recorded_version
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.elf.binaries import MODES, small, without_section_headers
from tests.elf.truth import run
from tests.toolchains import FIXTURES, Toolchain, build, every_toolchain, newest, require


def said_by_go(toolchain: Toolchain, binary: Path) -> str:
    """Return the release that ``go version`` prints."""
    return run([toolchain.go, "version", binary], env=toolchain.env()).strip().rpartition(": ")[2]


@every_toolchain
@pytest.mark.parametrize("mode", MODES)
def test_build_info_is_that_of_go_version(toolchain: Toolchain, mode: str, tmp_path: Path) -> None:
    binary = small(toolchain, mode)
    # The newest go reads what every release wrote.
    said = said_by_go(newest(), binary)
    for path in (binary, without_section_headers(binary, tmp_path / "bare")):
        with ElfImage.open(path) as image:
            recorded = recorded_version(image)
        assert recorded is not None
        assert recorded.text == said == f"go{toolchain.version}"
        assert f"{recorded.major}.{recorded.minor}" == toolchain.minor


@every_toolchain
def test_the_main_module_is_that_of_go_version(toolchain: Toolchain) -> None:
    binary = small(toolchain, "default")
    lines = run([newest().go, "version", "-m", binary], env=newest().env()).splitlines()
    said = next(line.split("\t")[2] for line in lines if line.startswith("\tmod\t"))
    with ElfImage.open(binary) as image:
        # Before, build information had the module by a pointer.
        assert main_module(image) == (said if toolchain.minor != "1.15" else None)


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_release_of_a_plugin(minor: str) -> None:
    """Those of older releases have no build information: DWARF tells."""
    toolchain = require(minor)
    flags = ["-buildmode=plugin"]
    binary = build(FIXTURES / "live_plugin", toolchain, flags=flags, name="live_plugin.so")
    with ElfImage.open(binary) as image:
        told = (load_functions(image).go_version, compiler_version(image))
    assert [version and version.text for version in told] == [f"go{toolchain.version}"] * 2


def test_a_c_program_has_none() -> None:
    with ElfImage.open("/bin/sh") as image:
        assert recorded_version(image) is None
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
