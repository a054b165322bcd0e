# SPDX-License-Identifier: Apache-2.0
"""Run gotrace examine."""

from __future__ import annotations

from gotrace.cli.examine_options import ExamineOptions
from gotrace.cli.options import OptionParser, new_parser

_EPILOG = """\
A finding is something that takes a part of the time of all work. The largest comes first, each
with its number and the command that shows more of it. Then come the things that are fine, a line
each, and those that nobody looked at.

examples:
  gotrace examine -p 1234
  gotrace examine -p shop -d 30 --budget 10%
"""


def parser() -> OptionParser[ExamineOptions]:
    """Return the parser of the words after ``examine``."""
    text = "Say where the time of a running Go program goes, with no other hint."
    return new_parser("gotrace examine", text, _EPILOG, ExamineOptions)


def run(options: ExamineOptions) -> int:
    """Run the subcommand, and return the exit status. Raises GotraceError."""
    from gotrace.cli.examining import examine

    return examine(options)
