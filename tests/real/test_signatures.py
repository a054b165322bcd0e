# SPDX-License-Identifier: Apache-2.0
"""Signatures in the method tables of stripped programs, with DWARF of the same build as referee."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from tests.gotypes.test_from_methods import compare
from tests.real.report import figures
from tests.real.sources import OTHERS, SOURCES, built


@pytest.mark.parametrize("name", [source.name for source in (*SOURCES, *OTHERS)])
def test_signatures_in_tables_are_those_of_dwarf(name: str, tmp_path: Path) -> None:
    """All differences are explained by what DWARF leaves out."""
    stripped = tmp_path / name
    subprocess.run(["strip", "-o", stripped, built(name)], check=True)
    with Binary(ElfImage.open(built(name))) as whole, Binary(ElfImage.open(stripped)) as bare:
        assert whole.dwarf is not None and bare.dwarf is None
        counts = compare(whole, bare)
    figures(f"signatures: {name}", **counts)
    assert counts["in tables"] > counts["functions"] / 10
    lacking = sum(count for says, count in counts.items() if says.startswith("DWARF "))
    assert counts["equal"] + lacking == counts["in tables"]
