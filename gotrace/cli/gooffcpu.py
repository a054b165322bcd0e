# SPDX-License-Identifier: Apache-2.0
"""gooffcpu: where goroutines wait, for how long, why, and who wakes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import OptionParser, new_parser, parse
from gotrace.cli.stack_options import GooffcpuOptions

_EPILOG = """\
examples:
  gooffcpu -p 1234 -d 5                      where its goroutines wait, for five seconds
  gooffcpu -p 1234 --in @http.server         only within requests
  gooffcpu -p 1234 --in 'main.(*Store).*'    only within calls of these functions
  gooffcpu -p 1234 --reason 'sync.*'         only for locks
  gooffcpu -p 1234 --wakers                  with the stacks of those who end waits
  gooffcpu -p 1234 --state runnable          waits for a CPU: scheduling delay
  gooffcpu -p 1234 --state syscall --names   system calls by name, with their errors
  gooffcpu -p 1234 --open -d 5               those that have not ended after that as well
  gooffcpu -p 1234 -i 5 --top 3              every five seconds
  gooffcpu -p 1234 -d 5 -o x.pb.gz           for go tool pprof
  gooffcpu -d 5 -o x.html -p 1234   a flame graph, for any browser
"""


def _parser() -> OptionParser[GooffcpuOptions]:
    text = "Add up how long goroutines of a Go program wait, by stack, reason and waker."
    return new_parser("gooffcpu", text, _EPILOG, GooffcpuOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    from gotrace.cli.waiting import add_up

    return add_up(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gooffcpu", _run, sys.argv[1:] if arguments is None else arguments)
