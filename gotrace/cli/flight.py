# SPDX-License-Identifier: Apache-2.0
"""Run gotrace flight."""

from __future__ import annotations

from gotrace.cli.options import OptionParser, new_parser
from gotrace.cli.request_options import FlightOptions

_EPILOG = """\
examples:
  gotrace flight 5s -p 1234 --when 'main.handle ($duration > 1s)' -o slow-%n.trace
  gotrace flight 10s -p 1234 --when panic -o panic.pftrace 'main.*'
"""


def parser() -> OptionParser[FlightOptions]:
    """Return the parser of the words after ``flight``."""
    text = (
        "Keep the latest calls and states of goroutines, and write them whenever a condition holds."
    )
    return new_parser("gotrace flight", text, _EPILOG, FlightOptions)


def run(options: FlightOptions) -> int:
    """Run the subcommand, and return the exit status. Raises GotraceError."""
    from gotrace.cli.recordings import flight

    return flight(options)
