# SPDX-License-Identifier: Apache-2.0
"""gooffcpu: where goroutines wait, for how long, why, and who wakes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import Conflict, Needs, check_options
from gotrace.cli.options import (
    OptionParser,
    add_command_options,
    add_interval_options,
    add_watching_options,
    new_parser,
    one_of,
    parse,
)
from gotrace.cli.stack_options import STACK_CONFLICTS, add_stack_options
from gotrace.cli.wait_options import GooffcpuOptions
from gotrace.session.choices import WaitState

_EPILOG = """\
examples:
  gooffcpu -p 1234 -d 5                      where its goroutines wait, for five seconds
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


_NAMES = "--names is for --state syscall, and for calls that have ended"
_CONFLICTS = (
    *STACK_CONFLICTS,
    Needs("--names", "--state=syscall", _NAMES),
    Conflict("--names", "--open", _NAMES),
    Conflict("--names", "--budget", "--budget is for probes, and --names has none"),
    Conflict("--open", "-i", "--open adds waits that are open when the run ends: leave out -i"),
)


def _parser() -> OptionParser[GooffcpuOptions]:
    parser = new_parser(
        "gooffcpu",
        "Add up how long goroutines of a Go program wait, by stack, reason and waker.",
        _EPILOG,
        GooffcpuOptions,
    )
    add_command_options(parser)
    parser.add_argument(
        "--state",
        type=one_of(WaitState, "state"),
        default=WaitState.WAITING,
        metavar="STATE",
        help="what is added up: waiting (default), runnable (for a CPU), syscall",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="with --state syscall: by name, with errors, p50 and p99, as strace -c has it",
    )
    parser.add_argument(
        "--in",
        dest="inside",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only waits within calls of such functions; only * is special (may be repeated)",
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        action="append",
        default=[],
        help="only waits for this reason, in which * is any text (may be repeated)",
    )
    parser.add_argument(
        "--wakers", action="store_true", help="show the stacks of those who end waits as well"
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="count waits that have not ended when the run ends, too, up to then",
    )
    parser.add_argument(
        "--system", action="store_true", help="the runtime's own goroutines and functions as well"
    )
    parser.add_argument(
        "--force", action="store_true", help="run whatever it takes of the program's time"
    )
    add_stack_options(parser)
    add_interval_options(parser)
    add_watching_options(parser)
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, options.pprof, bool(options.named.command), options.quiet)
    check_options(parser, options, _CONFLICTS)
    from gotrace.cli.waiting import add_up

    return add_up(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gooffcpu", _run, sys.argv[1:] if arguments is None else arguments)
