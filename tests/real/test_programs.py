# SPDX-License-Identifier: Apache-2.0
"""Real programs: their functions and all of their sites, against what other tools read there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.elf.buildinfo import recorded_version
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.real.fetch import PROGRAMS, Program, program
from tests.real.report import figures
from tests.real.walk import functions_of, gosym, walk

each_program = pytest.mark.parametrize("wanted", PROGRAMS, ids=lambda wanted: wanted.id)


@each_program
def test_functions_and_sites_of_a_real_program(wanted: Program) -> None:
    path: Path = program(wanted.id)
    with ElfImage.open(path) as image:
        table = load_functions(image)
        functions = functions_of(table)
        truth = gosym(path)
        start = functions[0].entry
        assert [(f.entry - start, f.name) for f in functions] == truth
        found = walk(image, functions)
        known = recorded_version(image)
        pie = image.is_pie
    figures(
        wanted.id,
        go=known.text if known else "unknown",
        pie=pie,
        functions=len(functions),
        instructions=found.instructions,
        forms={form.value: count for form, count in found.forms.items()},
        returns=found.returns,
        resolved=len(found.resolved),
        problems=dict(found.problems),
    )
    assert found.wrong == []
    assert found.missed == []
    assert sum(found.forms.values()) > 0.99 * len(functions)
