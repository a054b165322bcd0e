# SPDX-License-Identifier: Apache-2.0
"""Run gotrace record."""

from __future__ import annotations

from gotrace.cli.options import OptionParser, new_parser
from gotrace.cli.request_options import RecordOptions

_EPILOG = """\
examples:
  gotrace record -p 1234 -d 5 -o x.trace                       for go tool trace
  gotrace record -p 1234 -o x.pftrace 'main.(*Store).*'        for ui.perfetto.dev
"""


def parser() -> OptionParser[RecordOptions]:
    """Return the parser of the words after ``record``."""
    text = "Write all calls and states of goroutines to a file, until the run ends."
    return new_parser("gotrace record", text, _EPILOG, RecordOptions)


def run(options: RecordOptions) -> int:
    """Run the subcommand, and return the exit status. Raises GotraceError."""
    from gotrace.cli.recordings import record

    return record(options)
