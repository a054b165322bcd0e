# SPDX-License-Identifier: Apache-2.0
"""The options of commands whose results are stacks: folded on standard output, and as files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gotrace.cli.conflicts import ONE_OF, Conflict
from gotrace.cli.options import ForceOptions, SummaryOptions
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import write_profile
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.text import printable

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


def wants_stacks(options: StackOptions) -> bool:
    """Return whether anything is written of the whole run."""
    return bool(_folds_whole(options) or options.pprof or options.speedscope)


def _folds_whole(options: StackOptions) -> bool:
    return options.folded and options.interval is None


def fold(output: Output, profile: StackProfile) -> None:
    """Print folded stacks."""
    output.out.write(folded(profile))
    output.out.flush()


def write_stacks(options: StackOptions, output: Output, profile: StackProfile, what: str) -> None:
    """Write the profiles of the whole run; ``what`` says how much they have."""
    if _folds_whole(options):
        fold(output, profile)
    for path, make in ((options.pprof, None), (options.speedscope, speedscope)):
        if path:
            write_profile(path, profile, make)
            text = f"wrote {what} to {printable(path)}"
            output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
