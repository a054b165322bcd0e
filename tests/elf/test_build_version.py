# SPDX-License-Identifier: Apache-2.0
"""Tell the Go release of binaries whose build information was taken out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gotrace.elf.buildinfo import recorded_version
from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from tests.elf.binaries import MODES, small, without_build_info, without_section_headers
from tests.toolchains import Toolchain, every_toolchain, newest, require

#: Releases at both ends of the formats of the variable and of the function table.
RELEASES = ("1.15", "1.19", "newest")


def release(name: str) -> Toolchain:
    return newest() if name == "newest" else require(name)


def version(path: Path) -> str | None:
    with ElfImage.open(path) as image:
        assert recorded_version(image) is None
        found = load_functions(image).go_version
    return None if found is None else found.text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RELEASES)
def test_release_is_known_without_build_information(name: str, mode: str, tmp_path: Path) -> None:
    toolchain = release(name)
    wiped = without_build_info(small(toolchain, mode), tmp_path / "wiped")
    told = subprocess.run([toolchain.go, "version", wiped], capture_output=True, text=True)
    assert toolchain.version not in told.stdout
    assert version(wiped) == f"go{toolchain.version}"


@every_toolchain
def test_every_release(toolchain: Toolchain, tmp_path: Path) -> None:
    wiped = without_build_info(small(toolchain, "stripped"), tmp_path / "wiped")
    assert version(wiped) == f"go{toolchain.version}"


def test_nothing_but_segments_is_needed(tmp_path: Path) -> None:
    wiped = without_build_info(small(newest(), "stripped-pie"), tmp_path / "wiped")
    bare = without_section_headers(wiped, tmp_path / "bare")
    assert version(bare) == f"go{newest().version}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("go1.17", id="other format"),
        pytest.param("no1.19", id="no release"),
        pytest.param("go2.19", id="unknown language"),
        pytest.param("go1.x9", id="no number"),
    ],
)
def test_text_that_cannot_be_right_is_not_believed(text: str, tmp_path: Path) -> None:
    binary = small(require("1.19"), "stripped")
    with ElfImage.open(binary) as image:
        length = len(str(load_functions(image).go_version.text))  # type: ignore[union-attr]
    changed = text.encode().ljust(length, b".") if "x" in text else f"{text}.10"[:length].encode()
    assert version(without_build_info(binary, tmp_path / "wiped", changed)) is None


def test_build_information_comes_first() -> None:
    with ElfImage.open(small(newest())) as image:
        recorded = recorded_version(image)
        table: FunctionTable = load_functions(image)
        assert table.go_version is not None and recorded is not None
        assert table.go_version.text == recorded.text
