# SPDX-License-Identifier: Apache-2.0
"""gooncpu: where CPU time goes, by function, by stack and by group of goroutines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import OptionParser, new_parser, parse
from gotrace.cli.stack_options import GooncpuOptions

_EPILOG = """\
examples:
  gooncpu -p 1234 -d 5                      which functions take its CPU time, for five seconds
  gooncpu -p 1234 -d 5 'main.*'             only the program's own functions in the table
  gooncpu -p 1234 --in 'main.(*Store).*'    only within calls of these functions
  gooncpu -p 1234 -d 5 -g                   by the go statements that have made the goroutines
  gooncpu -p 1234 -d 5 --by '$label("user")'   by a pprof label of the goroutines
  gooncpu -p 1234 -d 5 --stacks --top 3     the stacks that take most
  gooncpu -p 1234 -d 5 -K                   with the kernel's functions
  gooncpu -p 1234 -F 999 -i 1 --top 5       more samples, every second
  gooncpu -p 1234 -d 5 --off                all of goroutines' time, waits included
  gooncpu -p 1234 -d 5 -o x.pb.gz           for go tool pprof
  gooncpu -d 5 -o x.html -p 1234   a flame graph, for any browser
"""


def _parser() -> OptionParser[GooncpuOptions]:
    text = "Sample where the threads of a Go program spend CPU time, added up in the kernel."
    return new_parser("gooncpu", text, _EPILOG, GooncpuOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    from gotrace.cli.sampling import sample

    return sample(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gooncpu", _run, sys.argv[1:] if arguments is None else arguments)
