# SPDX-License-Identifier: Apache-2.0
"""gofunclatency: measure how long calls of Go functions take."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.cli.options import (
    OptionParser,
    add_interval_options,
    add_key_options,
    add_return_options,
    add_run_options,
    add_sort_option,
    add_target_options,
    add_why_options,
    new_parser,
    parse,
)
from gotrace.cli.options import duration as parse_time
from gotrace.report.order import Order

_EPILOG = """\
examples:
  gofunclatency -p 1234 main.handle               one histogram
  gofunclatency -F -p 1234 'main.*'               one for each function
  gofunclatency -g -p 1234 main.worker            one for each goroutine, the busiest ten
  gofunclatency -i 5 -u -p 1234 main.handle       every five seconds, in microseconds
  gofunclatency --why -p 1234 main.handle         and what the time went into
  gofunclatency --slower 10ms -p 1234 main.handle print each call of 10 ms and more as well
  gofunclatency --by r.Method -p 1234 main.handle one for each value of an argument
  gofunclatency --why -p 1234 @http.server        one for each endpoint, and what the time went into
  gofunclatency --of 'len(p)' -p 1234 os.(*File).Write  of sizes instead of times
  gofunclatency -i 1 -o x.html -p 1234 main.handle  latency over time as a picture, for any browser
  gofunclatency main.parse -- ./tool file.txt     start a program and measure from its first call
"""


def _parser() -> OptionParser[GofunclatencyOptions]:
    text = "Measure how long calls of Go functions take, as histograms."
    parser = new_parser("gofunclatency", text, _EPILOG, GofunclatencyOptions)
    add_target_options(parser)
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("-u", "--microseconds", action="store_true", help="tables in microseconds")
    unit.add_argument("-m", "--milliseconds", action="store_true", help="tables in milliseconds")
    parser.add_argument(
        "-F",
        "--function",
        action="store_true",
        help="one histogram for each function, also if there are more than 10",
    )
    parser.add_argument(
        "-g", "--goroutine", action="store_true", help="one histogram for each goroutine"
    )
    parser.add_argument(
        "--slower",
        type=parse_time,
        metavar="TIME",
        help="also print each call that takes this long, as it returns: 10ms, 200us, 1.5 (seconds)",
    )
    parser.add_argument(
        "--outermost",
        action="store_true",
        help="leave out calls within other traced calls, as of recursive functions",
    )
    add_why_options(parser)
    add_key_options(parser)
    parser.add_argument(
        "--of",
        metavar="EXPR",
        help="histograms of this value instead of the time: a number such as len(p) or $ret",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say whose calls are seen returning elsewhere than before: see --returns",
    )
    add_interval_options(parser)
    add_sort_option(parser, (Order.TOTAL, Order.COUNT, Order.P99, Order.NAME))
    parser.add_argument(
        "--heat",
        action="store_true",
        help="draw latency over time in place of histograms, every second unless -i says otherwise",
    )
    add_run_options(parser)
    add_return_options(parser)
    return parser


def _run(arguments: Sequence[str]) -> int:
    options = parse(_parser(), arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, options.output, options.names_target, options.quiet)
    if options.by or options.of:
        from gotrace.cli.by import measure_by

        return measure_by(options)
    from gotrace.cli.measuring import measure

    return measure(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofunclatency", _run, sys.argv[1:] if arguments is None else arguments)
