# SPDX-License-Identifier: Apache-2.0
"""gofunccount: count calls of Go functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import CountOptions, OptionParser, new_parser, parse

_EPILOG = """\
examples:
  gofunccount -p 1234 'main.*'                    count the program's own functions
  gofunccount -p 1234 'net/http.(*Transport).*'   the methods of a type
  gofunccount -i 1 -T -p 1234 main.handle         print every second
  gofunccount -d 10 --top 20 /usr/bin/dockerd:'*'  all processes that run this file
  gofunccount 'main.*' -- ./server -listen :8080  start a program and count from its first call
  gofunccount -p 1234 --by key 'main.(*Store).Get'   one row for each key
  gofunccount -p 1234 -f runtime.mallocgc > x.folded   who calls it, for a flame graph
  gofunccount --inlined -p 1234 'main.*'          calls that are inlined, too
  gofunccount -l -p 1234 'main.*'                 list what would be counted
"""


def _parser() -> OptionParser[CountOptions]:
    text = "Count calls of Go functions, exactly and cheaply."
    return new_parser("gofunccount", text, _EPILOG, CountOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    if options.by:
        from gotrace.cli.by import count_by

        return count_by(options)
    from gotrace.cli.counting import count

    return count(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofunccount", _run, sys.argv[1:] if arguments is None else arguments)
