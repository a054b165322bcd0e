# SPDX-License-Identifier: Apache-2.0
"""All options by command: a spelling means the same wherever it is, except for a few."""

from __future__ import annotations

import importlib
from collections import defaultdict

from tests.cli.test_options import TOOLS

#: Spellings with several meanings, which the commands of other projects have as well.
_SEVERAL = {
    "--function": "each function, or in gotop one",
    "--goroutine": "each goroutine, or in gostacks one",
    "-F": "each function, or a frequency, as in perf",
    "-Z": "how much of texts is compared, or shown",
    "-f": "folded stacks, or in gotop a function",
    "-g": "each goroutine, groups of them, or one",
    "-r": "regular expressions, or in gotop requests",
    "-v": "values are whole, or more is said",
    "--state": "what is added up, or who is shown",
}


def meanings() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the field and the name of the value of each spelling, by command."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for tool in TOOLS:
        parser = importlib.import_module(f"gotrace.cli.{tool}")._parser()
        for action in parser._actions:
            for spelling in action.option_strings:
                found[spelling][tool] = (action.dest, str(action.metavar))
    return found


def test_a_spelling_means_the_same_in_all_commands() -> None:
    table = meanings()
    width = max(map(len, table))
    for spelling, by_tool in sorted(table.items()):
        print(f"{spelling:{width}}", *(by_tool.get(tool, ("-", ""))[0] for tool in TOOLS))
    several = {one for one, by_tool in table.items() if len({*by_tool.values()}) > 1}
    assert several <= _SEVERAL.keys() | {"--by"}
    assert _SEVERAL.keys() - {"-Z", "--state", "-v"} <= several
    assert len(table["-o"]) == 8 and len({*table["-d"].values(), *table["-i"].values()}) == 2
    # A label is an expression.
    assert {metavar for _, metavar in table["--by"].values()} == {"EXPR[,EXPR]", "LABEL"}
