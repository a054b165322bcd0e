# SPDX-License-Identifier: Apache-2.0
"""gotrace: show calls of Go functions as they happen, with arguments, results and durations."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import (
    OptionParser,
    add_return_options,
    add_run_options,
    add_target_options,
    add_why_options,
    new_parser,
    parse,
    positive,
    seconds,
    size,
)
from gotrace.cli.trace_options import GotraceOptions
from gotrace.session.choices import MAX_STACK_FRAMES, MAX_TEXT_BYTES

_EPILOG = """\
A probe is a function, or a pattern in which only * is special, then perhaps a predicate, a format
and what to fill it with:
  [BINARY:]PATTERN [(PREDICATE)] ["FORMAT", EXPR...]

examples:
  gotrace -p 1234 'main.(*Store).Get'                    arguments, results, duration
  gotrace -p 1234 'main.(*Store).Get (len(key) > 10)'    only some calls, filtered in the kernel
  gotrace -p 1234 'main.handle ($duration > 10ms)'       slow calls with their arguments
  gotrace -p 1234 'main.handle "%s %s", r.Method, r.URL.Path'
  gotrace -p 1234 @http.server                           a recipe: see gotrace --recipes
  gotrace -p 1234 --why main.handle                      and what the time went into
  gotrace -p 1234 -U main.flush                          with the goroutine's stack
  gotrace -p 1234 -d 5 -o x.pb.gz main.flush             who calls it, for go tool pprof
  gotrace -p 1234 -d 5 -o x.html main.flush              the same as a picture, for any browser
  gotrace 'main.add(x int, y int) int' -- ./stripped     a signature where there is no DWARF
"""

_MAX_ELEMENTS = 64  # of which each may take a block of the payload, and it has 64


def _parser() -> OptionParser[GotraceOptions]:
    text = "Show calls of Go functions as they happen, with their values."
    parser = new_parser("gotrace", text, _EPILOG, GotraceOptions)
    add_target_options(parser, "PROBE", "a function, with predicate and format: see below")
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument("-t", "--time", action="store_true", help="seconds since the start")
    clock.add_argument("-T", "--timestamp", action="store_true", help="time of day (the default)")
    parser.add_argument("-C", "--cpu", action="store_true", help="print the CPU, in a first column")
    parser.add_argument("-U", "--user-stack", action="store_true", help="print the user stack")
    parser.add_argument(
        "--stack-depth",
        type=positive,
        metavar="N",
        help=f"print N return addresses of the stack; implies -U, which prints up to"
        f" {MAX_STACK_FRAMES}",
    )
    parser.add_argument(
        "-f",
        "--folded",
        action="store_true",
        help="print how many calls were made from each stack, folded, when the run ends",
    )
    parser.add_argument(
        "--tree",
        metavar="ROOT",
        help="show each call of ROOT, a probe, as a request: with the calls of PROBE that are made"
        " for it, in any goroutine (without PROBE: the program's own)",
    )
    parser.add_argument(
        "--critical",
        action="store_true",
        help="with --tree, show what made each request as long as it was",
    )
    parser.add_argument(
        "--flight",
        type=seconds,
        metavar="TIME",
        help="keep the latest calls and states of goroutines, and write those of so long to a file,"
        " such as -o x-%%n.trace, whenever --when holds",
    )
    parser.add_argument(
        "--when",
        action="append",
        default=[],
        metavar="CONDITION",
        help="with --flight, write the file when such a call ends, a probe; or: panic,"
        " 'signal TERM' (may be repeated)",
    )
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="with --flight, keep no more than this: 64M (default 256M, or an eighth of what is"
        " free)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write all calls and states of goroutines to the file of -o, such as x.trace",
    )
    parser.add_argument("--goid", type=positive, metavar="N", help="only calls of this goroutine")
    parser.add_argument("--tid", type=positive, metavar="N", help="only calls on this thread")
    parser.add_argument("-M", "--max-events", type=positive, metavar="N", help="end after N calls")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print values whole, and what receivers and pointers to large structs lead to",
    )
    parser.add_argument(
        "-Z",
        "--string-size",
        type=positive,
        metavar="BYTES",
        help=f"most bytes to show of a string or slice of bytes (default 256,"
        f" no more than {MAX_TEXT_BYTES:,}); implies -v",
    )
    parser.add_argument(
        "--elements",
        type=positive,
        metavar="N",
        help=f"most elements to show of a slice, array or map (default 8,"
        f" no more than {_MAX_ELEMENTS}); implies -v",
    )
    parser.add_argument(
        "--depth",
        type=int,
        choices=range(6),
        metavar="N",
        help="pointers to follow, one from the other, 0 to 5 (default 1); implies -v",
    )
    parser.add_argument("--entry", action="store_true", help="report calls when they are entered")
    parser.add_argument(
        "--no-fp",
        action="store_true",
        help="leave float registers alone: reading them sends the thread SIGURG, as Go itself does",
    )
    add_why_options(parser)
    add_run_options(parser)
    add_return_options(parser)
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="check what tracing needs here, with -p also of that process, and trace nothing",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the BPF programs that these tools usually load, keep them, and trace nothing",
    )
    parser.add_argument(
        "--recipes",
        action="store_true",
        help="list the recipes, @NAME; with -p mark those whose functions the process has",
    )
    return parser


def _run(arguments: Sequence[str]) -> int:
    options = parse(_parser(), arguments)
    if options.doctor:
        from gotrace.cli.doctor import run_doctor

        return run_doctor(options)
    if options.compile:
        from gotrace.cli.compile import run_compile

        return run_compile(options)
    if options.recipes:
        from gotrace.cli.recipes import list_recipes

        return list_recipes(options)
    from gotrace.cli.tracing import trace

    return trace(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gotrace", _run, sys.argv[1:] if arguments is None else arguments)
