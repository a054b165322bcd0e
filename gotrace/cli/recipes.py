# SPDX-License-Identifier: Apache-2.0
"""List the recipes that there are, or show some whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from gotrace.cli.options import Heading, LookOptions, OptionParser, new_parser
from gotrace.cli.run import make_output
from gotrace.probes.recipes import Recipe, find_recipe, recipes
from gotrace.records import dataclass
from gotrace.report.output import JsonOutput
from gotrace.report.table import columns_of, hanging
from gotrace.session.trace_plan import has_recipe
from gotrace.target.process import one_process
from gotrace.target.target import Target
from gotrace.text import printable


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RecipesOptions(LookOptions):
    """The options of ``gotrace recipes``."""

    recipes: list[str] = Heading.CHOICE.option("@NAME", "show all of this recipe")


def parser() -> OptionParser[RecipesOptions]:
    """Return the parser of the words after ``recipes``."""
    text = (
        "List the recipes, or show some whole; with -p mark those whose functions the process has."
    )
    return new_parser("gotrace recipes", text, "", RecipesOptions)


def run(options: RecipesOptions) -> int:
    """Print each recipe; with a process, whether that has its functions. Return the status."""
    output = make_output(options)
    chosen = [find_recipe(name.removeprefix("@")) for name in options.recipes]
    rows = []
    with ExitStack() as opened:
        target = None
        if options.processes:
            pid = one_process(options.processes, "gotrace recipes looks at")
            target = opened.enter_context(closing(Target.of(pid, None)))
        for recipe in chosen or recipes():
            here = None if target is None else has_recipe(target, recipe.name)
            if isinstance(output, JsonOutput):
                output.write("recipe", {**_fields(recipe), "here": here})
                continue
            mark = [] if here is None else ["*" if here else ""]
            rows.append([*mark, *map(printable, (f"@{recipe.name}", recipe.description))])
            if chosen:
                rows += [[*("" for _ in mark), "", printable(line)] for line in _lines(recipe)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        before = "".join(
            f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=False)
        )
        output.out.write(hanging(before, row[-1], columns_of(output.out)) + "\n")
    output.out.flush()
    return 0


def _fields(recipe: Recipe) -> dict[str, object]:
    """Return a recipe's row."""
    return {
        "name": recipe.name,
        "description": recipe.description,
        "needs": recipe.needs,
        "note": recipe.note,
        "unseen": recipe.unseen,
        "example": recipe.example,
        "names": _names(recipe),
        "functions": [probe.function for probe in recipe.probes],
    }


def _names(recipe: Recipe) -> Sequence[str]:
    return list(dict.fromkeys(name for probe in recipe.probes for name, _ in probe.names))


def _lines(recipe: Recipe) -> Iterator[str]:
    """Yield the parts of a recipe, and a line to type."""
    if recipe.note:
        yield f"note: {recipe.note}"
    if recipe.unseen:
        yield f"unseen: {recipe.unseen}"
    for function in dict.fromkeys(probe.function for probe in recipe.probes):
        yield f"function: {function}"
    if names := _names(recipe):
        yield f"names for --by and predicates: {', '.join(names)}"
    yield f"--by unless it is given: {' or '.join(dict.fromkeys(p.by for p in recipe.probes))}"
    yield f"type: {recipe.example or f'gotrace @{recipe.name} -p PROCESS'}"
