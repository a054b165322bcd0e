# SPDX-License-Identifier: Apache-2.0
"""The options of commands whose results are stacks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gotrace.cli.conflicts import ONE_OF, Conflict
from gotrace.cli.options import ForceOptions, SummaryOptions

STACK_CONFLICTS = (
    Conflict("--folded", "--json", ONE_OF),
    Conflict("--top", "--folded"),
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StackOptions(ForceOptions, SummaryOptions):
    """Of commands that add stacks up."""

    pprof: str | None
    speedscope: str | None
    inside: list[str]
    timestamp: bool


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Add the forms that stacks can be had in."""
    parser.add_argument("-f", "--folded", action="store_true", help="print folded stacks, in ns")
    parser.add_argument(
        "-o",
        dest="pprof",
        metavar="FILE",
        help="write a pprof profile of the whole run to this file as well (x.pb.gz), or a page that"
        " shows its flame graph (x.html)",
    )
    parser.add_argument(
        "--speedscope",
        metavar="FILE",
        help="write a flame graph for https://www.speedscope.app to this file as well (x.json)",
    )
