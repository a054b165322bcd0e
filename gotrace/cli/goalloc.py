# SPDX-License-Identifier: Apache-2.0
"""goalloc: which functions allocate memory, by function, by stack and by group of goroutines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import OptionParser, new_parser, parse
from gotrace.cli.stack_options import GoallocOptions

_EPILOG = """\
examples:
  goalloc -p 1234 -d 5                      which functions allocate, for five seconds
  goalloc -p 1234 -d 5 'main.*'             only the program's own functions in the table
  goalloc -p 1234 --in 'main.(*Store).*'    only within calls of these functions
  goalloc -p 1234 -d 5 -g                   by the go statements that have made the goroutines
  goalloc -p 1234 -d 5 --by '$label("user")'   by a pprof label of the goroutines
  goalloc -p 1234 -d 5 --stacks --top 3     the stacks that allocate most
  goalloc -p 1234 -i 5 --top 5              every five seconds
  goalloc -p 1234 -d 5 -o x.pb.gz           for go tool pprof
  goalloc -p 1234 --heap                    what is in use, by the runtime's own profile
  goalloc --heap --core core ./server       of a process that has ended
  goalloc -p 1234 -d 5 -o x.html            a flame graph, for any browser
"""


def _parser() -> OptionParser[GoallocOptions]:
    text = "Sample which functions of a Go program allocate memory, added up in the kernel."
    return new_parser("goalloc", text, _EPILOG, GoallocOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    if options.heap:
        from gotrace.cli.heap import heap

        return heap(options)
    from gotrace.cli.sampling import allocations

    return allocations(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("goalloc", _run, sys.argv[1:] if arguments is None else arguments)
