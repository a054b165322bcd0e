# SPDX-License-Identifier: Apache-2.0
"""gotop: the state of a running program now, on a screen or as batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import Needs, check_options
from gotrace.cli.options import OptionParser, new_parser, parse_plain
from gotrace.cli.top_options import GotopOptions

_EPILOG = """\
examples:
  gotop -p 1234                         a screen; h shows the keys
  gotop -p shop                         by name, all processes that have it
  gotop -f 'main.(*Store).*' -p 1234    with calls, p50, p99 and errors of these functions
  gotop -r main.handle -p 1234          with the slowest requests that begin there
  gotop -b -n 3 -i 1 --json -p 1234     three times, a second apart, for a script
"""


_CONFLICTS = (Needs("-n --top --json", "-b", "-n, --top and --json are for batches: give -b"),)


def _parser() -> OptionParser[GotopOptions]:
    text = "Show what a running Go program is doing now: goroutines, collector, waits and calls."
    return new_parser("gotop", text, _EPILOG, GotopOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse_plain(parser, arguments)
    check_options(parser, options, _CONFLICTS)
    from gotrace.cli.snapshots import show

    return show(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gotop", _run, sys.argv[1:] if arguments is None else arguments)
