# SPDX-License-Identifier: Apache-2.0
"""Run gotrace assert."""

from __future__ import annotations

from gotrace.cli.options import OptionParser, new_parser
from gotrace.cli.request_options import AssertOptions

_EPILOG = """\
An assertion is a function or a pattern, perhaps with a predicate, and a bound:
  PROBE == N, PROBE <= N, PROBE >= N   calls of the whole run
  PROBE <= N per ROOT                  calls made for each call of ROOT, in any goroutine
  PROBE <= N in ROOT                   calls made within each call of ROOT, in its goroutine
  FIRST before PROBE per ROOT          each call of PROBE has one of FIRST that had ended before it

exit status: 0 all hold; 4 one does not; 5 one cannot be decided; 3 one is about nothing that is
there or was called; that of the command if it fails

examples:
  gotrace assert 'regexp.MustCompile == 0' -- ./server.test
  gotrace assert 'database/sql.(*DB).QueryContext <= 3 per main.handle' -- ./server.test
  gotrace assert -p 1234 -d 10 'main.call ($error != nil) <= 2 per main.handle'
"""


def parser() -> OptionParser[AssertOptions]:
    """Return the parser of the words after ``assert``."""
    text = "Check how often functions are called, in a run or for each call of a root."
    return new_parser("gotrace assert", text, _EPILOG, AssertOptions)


def run(options: AssertOptions) -> int:
    """Run the subcommand, and return the exit status. Raises GotraceError."""
    from gotrace.cli.asserting import check

    return check(options)
