# SPDX-License-Identifier: Apache-2.0
"""gotop: the state of a running program now, on a screen or as batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import Needs, check_options
from gotrace.cli.options import OptionParser, new_parser, parse_plain, positive, seconds
from gotrace.cli.top_options import GotopOptions

_EPILOG = """\
examples:
  gotop -p 1234                         a screen; h shows the keys
  gotop -p shop                         by name, all processes that have it
  gotop -f 'main.(*Store).*' -p 1234    with calls, p50, p99 and errors of these functions
  gotop -r main.handle -p 1234          with the slowest requests that begin there
  gotop -b -n 3 -d 1 --json -p 1234     three times, a second apart, for a script
"""


_CONFLICTS = (Needs("-n --top --json", "-b", "-n, --top and --json are for batches: give -b"),)


def _parser() -> OptionParser[GotopOptions]:
    parser = new_parser(
        "gotop",
        "Show what a running Go program is doing now: goroutines, collector, waits and calls.",
        _EPILOG,
        GotopOptions,
    )
    parser.add_argument(
        "-p",
        "--pid",
        action="append",
        dest="processes",
        default=[],
        metavar="PROCESS",
        help="watch this process, by its number or name, or container:ID; several by a list or a"
        " name that they share",
    )
    parser.add_argument(
        "-d",
        "--delay",
        type=seconds,
        default=1.0,
        metavar="TIME",
        help="look this often: 1 (second, the default), 500ms",
    )
    parser.add_argument(
        "-w", "--waits", action="store_true", help="attach what adds waits up at the start"
    )
    parser.add_argument(
        "-f",
        "--function",
        dest="functions",
        action="append",
        default=[],
        metavar="PATTERN",
        help="measure calls of such functions from the start; only * is special (may be repeated)",
    )
    parser.add_argument(
        "-r",
        "--requests",
        metavar="ROOT",
        help="trace requests from the start: the calls of ROOT, as gotrace --tree ROOT shows them",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="attach -w, -f and -r whatever they take of the program's time",
    )
    parser.add_argument(
        "-b", "--batch", action="store_true", help="print results one after the other, no screen"
    )
    parser.add_argument(
        "-n", "--number", type=positive, metavar="N", help="end after N results, with -b"
    )
    parser.add_argument(
        "--top", type=positive, metavar="N", help="print only the N largest of each table, with -b"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, with -b")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse_plain(parser, arguments)
    check_options(parser, options, _CONFLICTS)
    from gotrace.cli.snapshots import show

    return show(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gotop", _run, sys.argv[1:] if arguments is None else arguments)
