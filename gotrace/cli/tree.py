# SPDX-License-Identifier: Apache-2.0
"""Run gotrace tree."""

from __future__ import annotations

from gotrace.cli.options import OptionParser, new_parser
from gotrace.cli.request_options import TreeOptions

_EPILOG = """\
examples:
  gotrace tree -p 1234 main.handle 'main.(*Store).*'           with these calls
  gotrace tree -p 1234 --critical 'main.handle ($duration > 10ms)'
  gotrace tree -p 1234 -d 5 -o x.trace main.handle             for go tool trace
"""


def parser() -> OptionParser[TreeOptions]:
    """Return the parser of the words after ``tree``."""
    text = (
        "Show each call of a function as a request: with the calls made for it, in any goroutine."
    )
    return new_parser("gotrace tree", text, _EPILOG, TreeOptions)


def run(options: TreeOptions) -> int:
    """Run the subcommand, and return the exit status. Raises GotraceError."""
    from gotrace.cli.trees import tree

    return tree(options)
