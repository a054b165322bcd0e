# SPDX-License-Identifier: Apache-2.0
"""What docs/stability.md calls stable does not go without a word."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gotrace
from gotrace.assertions.verdicts import BoundOutcome
from gotrace.cli.habits import SUBCOMMANDS
from gotrace.errors import GotraceError, NoMatchError, UsageError
from gotrace.fleet.config import SCHEMA
from gotrace.fleet.ctl import ctl_parser
from gotrace.fleet.gotraced import _parser as gotraced_parser
from gotrace.fleet.telemetry.conventions import FAMILIES
from gotrace.results.kinds import KINDS
from tests.fleet.test_docs import own_metrics
from tests.test_docs import parser_of, subcommand_parser

#: A name a line, in order. Names are added before a release (``python -m tests.test_stable``); one
#: goes only if docs/stability.md allows it.
LIST = Path(__file__).with_name("stable.txt")
CLONE = Path(__file__).parent.parent


def options(command: str, parser: Any) -> Iterator[str]:
    """Yield the options of a command, and the words of its own commands."""
    for action in parser._actions:
        for option in action.option_strings:
            yield f"option {command} {option}"
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from options(f"{command} {word}", inner)


def keys(within: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of gotraced's configuration."""
    for name, below in schema.get("properties", {}).items():
        yield f"key {within}{name}"
        yield from keys(f"{within}{name}.", below)
    if "items" in schema:
        yield from keys(within, schema["items"])


def surface() -> set[str]:
    """Return the names that there are."""
    tools = sorted(path.name for path in (CLONE / "tools").glob("go*") if path.name != "gotraced")
    found = {name for tool in tools for name in options(tool, parser_of(tool))}
    for word in SUBCOMMANDS:
        found.update(options(f"gotrace {word}", subcommand_parser(word)))
    found.update(options("gotraced", gotraced_parser()))
    found.update(options("gotraced ctl", ctl_parser(argparse.ArgumentParser)))
    found.update(f"library {name}" for name in gotrace.__all__)
    for kind in KINDS.values():
        found.add(f"kind {kind.name}")
        names = {field.name for field in (*kind.keys, *kind.sums)} | {*kind.derived}
        found.update(f"field {kind.name}.{name}" for name in names)
    for error in (GotraceError, UsageError, NoMatchError):
        found.add(f"status {error.exit_code} {error.__name__}")
    found.update(f"status {each.status} {each.name}" for each in BoundOutcome)
    found.update(keys("", SCHEMA))
    found.update(f"metric {name}" for name in own_metrics())
    found.update(f"metric {family.name}" for family in FAMILIES)
    return found


def test_nothing_that_is_stable_is_gone() -> None:
    listed = LIST.read_text().splitlines()
    assert listed == sorted(set(listed)), "the list is in order: python -m tests.test_stable"
    assert set(listed) - surface() == set()
    of = {line.split()[0] for line in listed}
    assert of == {"option", "library", "kind", "field", "status", "key", "metric"}


if __name__ == "__main__":
    kept = set(LIST.read_text().splitlines()) if LIST.exists() else set()
    LIST.write_text("".join(f"{line}\n" for line in sorted(kept | surface())))
