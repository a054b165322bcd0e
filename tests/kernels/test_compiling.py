# SPDX-License-Identifier: Apache-2.0
"""Check the kernel that is compiled: its configuration, and when it is compiled again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.debian import FetchError
from tests.kernels import compiling, images
from tests.kernels.releases import RELEASES, Release, choose_source, names_for
from tests.kernels.test_images import age

SOURCE = "linux-source-6.12"
RELEASE = Release("6.1", "trixie", "6.12.", flavour="arm64-64k", source=SOURCE)


@dataclass
class FakeSource:
    """An apt with one package of a kernel's source, and what is compiled from it."""

    version: str
    wanted: Path
    fails: bool = False
    compiled: list[str] = field(default_factory=list)

    def records(self, prefix: str) -> list[Mapping[str, str]]:
        return [{"Package": SOURCE, "Version": self.version}]

    def download(self, names: Sequence[str], directory: Path) -> list[Path]:
        assert names == (SOURCE,)
        return [directory / "source.deb"]

    def compile(self, package: Path, wanted: Path, tree: Path, image: Path) -> str:
        assert (package.name, wanted) == ("source.deb", self.wanted)
        image.write_bytes(b"half")
        if self.fails:
            raise FetchError("make: killed")
        self.compiled.append(wanted.read_text())
        image.write_bytes(b"whole")
        return f"{self.version}-64k"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fake = FakeSource("6.12.1-1", tmp_path / "wanted.config")
    fake.wanted.write_text("CONFIG_A=y\n")
    monkeypatch.setattr(images, "_apt", lambda suite, arch: fake)
    monkeypatch.setattr(images, "configuration", lambda name: fake.wanted)
    monkeypatch.setattr(images, "compile_kernel", fake.compile)
    return fake


def test_kernel_is_compiled_once(source: FakeSource) -> None:
    first = images.kernel(RELEASE)
    assert (first.image.read_bytes(), first.modules) == (b"whole", ())
    assert first.name == "6.12.1-1-64k"
    age(8)
    assert images.kernel(RELEASE) == first
    assert len(source.compiled) == 1


def test_kernel_is_compiled_again_if_its_configuration_or_source_is_another(
    source: FakeSource,
) -> None:
    images.kernel(RELEASE)
    source.wanted.write_text("CONFIG_B=y\n")
    second = images.kernel(RELEASE)
    source.version = "6.12.2-1"
    age(8)
    third = images.kernel(RELEASE)
    assert source.compiled == ["CONFIG_A=y\n", "CONFIG_B=y\n", "CONFIG_B=y\n"]
    assert third.image.exists() and not second.image.exists()


def test_kernel_of_another_configuration_is_not_taken(source: FakeSource) -> None:
    first = images.kernel(RELEASE)
    source.fails = True
    source.wanted.write_text("CONFIG_B=y\n")
    with pytest.raises(FetchError, match="killed"):
        images.kernel(RELEASE)
    source.wanted.write_text("CONFIG_A=y\n")
    assert images.kernel(RELEASE) == first
    assert first.image.read_bytes() == b"whole"


def test_the_older_kernel_does_if_the_newer_cannot_be_compiled(source: FakeSource) -> None:
    first = images.kernel(RELEASE)
    source.version, source.fails = "6.12.2-1", True
    age(8)
    assert images.kernel(RELEASE) == first


def test_source_that_a_suite_does_not_have() -> None:
    with pytest.raises(FetchError, match=r"no package linux-source-6\.12"):
        choose_source([{"Package": "linux-source", "Version": "6.12.1-1"}], SOURCE)


def test_compiled_kernels_run_if_they_are_named() -> None:
    compiled = [one for one in RELEASES if one.source]
    assert [one.name for one in compiled] == ["64k-arm64"]
    assert not {one.name for one in compiled} & set(names_for("arm64", False))
    for one in compiled:
        wanted = compiling.configuration(one.name).read_text().splitlines()
        settings = [line.partition("=")[0] for line in wanted if line.startswith("CONFIG_")]
        assert len(set(settings)) == len(settings)
        assert all(line.startswith(("CONFIG_", "#")) or not line for line in wanted)


def test_settings_that_depend_on_others() -> None:
    wanted = "# CONFIG_X is not set\nCONFIG_NET=y\nCONFIG_INET=y\n"
    assert compiling.missing(wanted, "CONFIG_NET=y\n") == ["CONFIG_INET=y"]


def test_words_of_another_make_are_not_taken() -> None:
    given = {"MAKEFLAGS": " -- KERNELS=64k-arm64", "MFLAGS": "-s", "HOME": "/root"}
    assert compiling._environment(given) == {"HOME": "/root"}
