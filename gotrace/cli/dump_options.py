# SPDX-License-Identifier: Apache-2.0
"""The options of gostacks, for its parser and its runs."""

from __future__ import annotations

import argparse

from gotrace.cli.conflicts import ONE_OF, Conflict, Needs
from gotrace.cli.options import (
    Heading,
    SummaryOptions,
    duration,
    label,
    one_of,
    positive,
    seconds,
)
from gotrace.goroutines.model import State
from gotrace.records import dataclass


def _state(text: str) -> State:
    """Parse a state; headings show the reasons of those that wait in its place."""
    try:
        return one_of(State, "state")(text)
    except argparse.ArgumentTypeError as error:
        remedy = "what goroutines wait for, as [sleep] in headings, is for --reason"
        raise argparse.ArgumentTypeError(f"{error}; {remedy}") from None


#: The forms of a dump; each is for one by itself.
_FORMS = "--all --json --folded --watch"
_ALL_STACKS = "-o=rows --folded -o=stacks"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GostacksOptions(SummaryOptions):
    """The options of gostacks."""

    NEEDS_ONE = True
    CONFLICTS = (
        Conflict(_FORMS, _FORMS, ONE_OF),
        Conflict("--core", "-i --watch", "a core file does not change: leave out -i and --watch"),
        Needs("-d", "-i --watch", "-d needs -i or --watch"),
        Conflict("-o=profiles", "-i --watch", "{1} is of a single dump: leave out {2}"),
        Conflict("-o=profiles", "-f", "{1} and -f cannot be combined: give one of them"),
        Conflict("--watch", "-o=text -o=json"),
        Conflict(
            "--args",
            "-i --watch -o=stacks -f",
            "--args needs a single dump, as text or with --json",
        ),
        Conflict("-i", "-f -a", "-i prints changes: leave out -a and -f"),
        Conflict("--top", _ALL_STACKS),
        Conflict("--all", "-o=stacks -o=rows"),
        Conflict("--by", f"{_ALL_STACKS} --all --goroutine --args"),
    )

    processes: list[str] = Heading.TARGET.option(
        "-p --pid PROCESS",
        "read this process, by its number or name, or container:ID",
        alone="source",
    )
    core: list[str] | None = Heading.TARGET.option(
        "--core FILE BINARY", "read a core file of a program", alone="source"
    )
    diff: list[str] | None = Heading.TARGET.option(
        "--diff A B",
        "print what changed between two recordings (x.ndjson), the largest change beyond noise"
        " first",
        alone="source",
    )
    patterns: list[str] = Heading.CHOICE.option(
        "PATTERN",
        "only goroutines with such a function on their stack, or one of @RECIPE; only * is special",
    )
    goroutine: list[int] = Heading.CHOICE.option(
        "-g --goroutine GOID", "only this goroutine (may be repeated)", positive
    )
    state: list[State] = Heading.CHOICE.option(
        "--state STATE",
        "only goroutines in this state (may be repeated): "
        + ", ".join(state.value for state in State),
        _state,
    )
    reason: list[str] = Heading.CHOICE.option(
        "--reason TEXT",
        "only goroutines that wait for this reason, in which * is any text (may be repeated)",
    )
    longer: int | None = Heading.CHOICE.option(
        "--longer TIME",
        "only goroutines known to have waited this long, such as 1m30s",
        duration,
    )
    system: bool = Heading.CHOICE.option(
        "--system", "the runtime's own goroutines and functions as well"
    )
    all: bool = Heading.VALUES.option("-a --all", "print each goroutine, as Go's own dumps do")
    args: bool = Heading.VALUES.option(
        "--args",
        "show arguments, where it is certain that a frame has them; implies -a without --json",
    )
    labels: list[str] = Heading.VALUES.option(
        "--by LABEL",
        "keep goroutines apart that have other values of this pprof label, such as"
        " '$label(\"user\")' (may be repeated)",
        label,
    )
    interval: float | None = Heading.RUN.option(
        "-i --interval TIME", "repeat, and print what has changed", seconds
    )
    watch: bool = Heading.RUN.option("--watch", "redraw a table of the largest groups, like top")
    json: bool = Heading.OUTPUT.option("--json", "print one JSON object a goroutine")
    top: int | None = Heading.OUTPUT.option("--top N", "print only the N largest groups", positive)
    #: The process.
    pid: int | None = None
