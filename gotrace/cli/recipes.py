# SPDX-License-Identifier: Apache-2.0
"""List the recipes that there are."""

from __future__ import annotations

from contextlib import ExitStack, closing

from gotrace.cli.options import LookOptions, OptionParser, new_parser
from gotrace.cli.run import make_output
from gotrace.probes.recipes import recipes
from gotrace.report.output import JsonOutput
from gotrace.report.table import columns_of, hanging
from gotrace.session.trace_plan import has_recipe
from gotrace.target.process import one_process
from gotrace.target.target import Target
from gotrace.text import printable


def parser() -> OptionParser[LookOptions]:
    """Return the parser of the words after ``recipes``."""
    text = "List the recipes, @NAME; with -p mark those whose functions the process has."
    return new_parser("gotrace recipes", text, "", LookOptions)


def run(options: LookOptions) -> int:
    """Print each recipe; with a process, whether that has its functions. Return the status."""
    output = make_output(options)
    rows = []
    with ExitStack() as opened:
        target = None
        if options.processes:
            pid = one_process(options.processes, "gotrace recipes looks at")
            target = opened.enter_context(closing(Target.of(pid, None)))
        for recipe in recipes():
            here = None if target is None else has_recipe(target, recipe.name)
            if isinstance(output, JsonOutput):
                fields = {
                    "name": recipe.name,
                    "description": recipe.description,
                    "needs": recipe.needs,
                    "note": recipe.note,
                    "unseen": recipe.unseen,
                    "example": recipe.example,
                    "names": list(dict.fromkeys(n for p in recipe.probes for n, _ in p.names)),
                    "functions": [probe.function for probe in recipe.probes],
                    "here": here,
                }
                output.write("recipe", fields)
                continue
            mark = [] if here is None else ["*" if here else ""]
            rows.append([*mark, *map(printable, (f"@{recipe.name}", recipe.description))])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        before = "".join(
            f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=False)
        )
        output.out.write(hanging(before, row[-1], columns_of(output.out)) + "\n")
    output.out.flush()
    return 0
