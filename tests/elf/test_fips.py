# SPDX-License-Identifier: Apache-2.0
"""The code that FIPS mode hashes is between the symbols that the linker puts around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.elf.fips import hashed_code
from gotrace.elf.image import ElfImage
from gotrace.elf.symtab import symbol_value
from tests.elf.binaries import small, without_section_headers
from tests.toolchains import Toolchain, each_since, require


def hashed(path: Path) -> tuple[int, int]:
    with ElfImage.open(path) as image:
        return hashed_code(image)


@each_since(24)
@pytest.mark.parametrize("mode", ["default", "pie", "external-pie", "arm64", "arm64-pie"])
def test_the_range_is_between_symbols(toolchain: Toolchain, mode: str) -> None:
    with ElfImage.open(small(toolchain, mode)) as image:
        names = ("go:textfipsstart", "go:textfipsend")
        assert hashed_code(image) == tuple(symbol_value(image, name) for name in names)


@each_since(24)
@pytest.mark.parametrize("mode", ["default", "pie"])
def test_the_range_without_symbols(toolchain: Toolchain, mode: str, tmp_path: Path) -> None:
    """Symbols are in no code and move none."""
    stripped = small(toolchain, "stripped" if mode == "default" else f"stripped-{mode}")
    known = hashed(small(toolchain, mode))
    assert hashed(stripped) == known
    assert hashed(without_section_headers(stripped, tmp_path / "bare")) == known


def test_older_programs_hash_nothing() -> None:
    assert hashed(small(require("1.23"))) == (0, 0)
