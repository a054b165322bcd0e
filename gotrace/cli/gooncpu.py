# SPDX-License-Identifier: Apache-2.0
"""gooncpu: where CPU time goes, by function, by stack and by group of goroutines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import ONE_OF, Conflict, Needs, check_options
from gotrace.cli.cpu_options import GooncpuOptions
from gotrace.cli.options import (
    OptionParser,
    add_command_options,
    add_interval_options,
    add_watching_options,
    new_parser,
    parse,
    positive,
)
from gotrace.cli.stack_options import STACK_CONFLICTS, add_stack_options
from gotrace.session.choices import HERTZ

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


_CONFLICTS = (
    *STACK_CONFLICTS,
    Conflict("-g", "--stacks", ONE_OF),
    Conflict("-g", "--by", ONE_OF),
    Conflict(
        "--off",
        "--in PATTERN --stacks --by -i",
        "--off is for all of the run: leave out --in, PATTERN, --stacks, --by and -i",
    ),
    Needs("--force", "--off", "--force is for --off: give both, or leave it out"),
)


def _parser() -> OptionParser[GooncpuOptions]:
    parser = new_parser(
        "gooncpu",
        "Sample where the threads of a Go program spend CPU time, added up in the kernel.",
        _EPILOG,
        GooncpuOptions,
    )
    add_command_options(parser)
    parser.add_argument(
        "-F",
        "--frequency",
        type=positive,
        metavar="HERTZ",
        default=HERTZ,
        help=f"samples a second of each CPU (default {HERTZ})",
    )
    parser.add_argument(
        "-g", "--goroutines", action="store_true", help="by group of goroutines, not by function"
    )
    parser.add_argument(
        "--by",
        dest="label",
        metavar="LABEL",
        help="by a pprof label of the goroutines, such as '$label(\"user\")', not by function",
    )
    parser.add_argument("--stacks", action="store_true", help="by stack, not by function")
    parser.add_argument(
        "-K", "--kernel", action="store_true", help="with the kernel's own functions"
    )
    parser.add_argument(
        "--in",
        dest="inside",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only time within calls of such functions; only * is special (may be repeated)",
    )
    parser.add_argument(
        "--off",
        action="store_true",
        help="all of goroutines' time, by group: running, runnable, system calls, waiting",
    )
    parser.add_argument(
        "--force", action="store_true", help="use --off whatever it takes of the program's time"
    )
    add_stack_options(parser)
    add_interval_options(parser)
    add_watching_options(parser, has_budget=False)
    parser.add_argument(
        "functions",
        metavar="PATTERN",
        nargs="*",
        help="only such functions in the table; only * is special",
    )
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, options.pprof, bool(options.named.command), options.quiet)
    check_options(parser, options, _CONFLICTS)
    from gotrace.cli.sampling import sample

    return sample(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gooncpu", _run, sys.argv[1:] if arguments is None else arguments)
