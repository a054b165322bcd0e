# SPDX-License-Identifier: Apache-2.0
"""The options of gotop, for its parser and its runs."""

from __future__ import annotations

from gotrace.cli.options import Heading, Options, positive, seconds
from gotrace.records import dataclass


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GotopOptions(Options):
    """The options of gotop."""

    processes: list[str] = Heading.TARGET.option(
        "-p --pid PROCESS",
        "watch this process, by its number or name, or container:ID; several by a list or a"
        " name that they share",
    )
    waits: bool = Heading.VALUES.option("-w --waits", "attach what adds waits up at the start")
    functions: list[str] = Heading.VALUES.option(
        "-f --function PATTERN",
        "measure calls of such functions, or of @RECIPE, from the start; only * is special (may be"
        " repeated)",
    )
    requests: str | None = Heading.VALUES.option(
        "-r --requests ROOT",
        "trace requests from the start: the calls of ROOT, as gotrace tree ROOT shows them",
    )
    interval: float = Heading.RUN.option(
        "-i --interval TIME",
        "look this often: 1 (second, the default), 500ms",
        seconds,
        default=1.0,
    )
    number: int | None = Heading.RUN.option(
        "-n --number N", "end after N results, with -b", positive
    )
    batch: bool = Heading.OUTPUT.option(
        "-b --batch", "print results one after the other, no screen"
    )
    top: int | None = Heading.OUTPUT.option(
        "--top N", "print only the N largest of each table, with -b", positive
    )
    json: bool = Heading.OUTPUT.option("--json", "print one JSON object a line, with -b")
    force: bool = Heading.EXPERT.option(
        "--force", "attach -w, -f and -r whatever they take of the program's time"
    )
