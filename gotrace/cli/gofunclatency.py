# SPDX-License-Identifier: Apache-2.0
"""gofunclatency: measure how long calls of Go functions take."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.cli.options import OptionParser, new_parser, parse

_EPILOG = """\
examples:
  gofunclatency -m --why -d 10 -p 1234 @http.server  how slow is each endpoint, and why
  gofunclatency -p 1234 main.handle               one histogram
  gofunclatency -F -p 1234 'main.*'               one for each function
  gofunclatency -g -p 1234 main.worker            one for each goroutine, the busiest ten
  gofunclatency -i 5 -u -p 1234 main.handle       every five seconds, in microseconds
  gofunclatency --why -p 1234 main.handle         and what the time went into
  gofunclatency --slower 10ms -p 1234 main.handle  print each call of 10 ms and more as well
  gofunclatency --by r.Method -p 1234 main.handle  one for each value of an argument
  gofunclatency --of 'len(p)' -p 1234 os.(*File).Write  of sizes instead of times
  gofunclatency -i 1 -o x.html -p 1234 main.handle  latency over time as a picture, for any browser
  gofunclatency main.parse -- ./tool file.txt     start a program and measure from its first call
"""


def _parser() -> OptionParser[GofunclatencyOptions]:
    text = "Measure how long calls of Go functions take, as histograms."
    return new_parser("gofunclatency", text, _EPILOG, GofunclatencyOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    if options.by or options.of:
        from gotrace.cli.by import measure_by

        return measure_by(options)
    from gotrace.cli.measuring import measure

    return measure(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofunclatency", _run, sys.argv[1:] if arguments is None else arguments)
