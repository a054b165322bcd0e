# SPDX-License-Identifier: Apache-2.0
"""gostacks: the states of all goroutines of a process now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import ONE_OF, Conflict, Needs, check_options
from gotrace.cli.dump_options import GostacksOptions
from gotrace.cli.options import (
    OptionParser,
    add_diff_option,
    duration,
    new_parser,
    one_of,
    parse_plain,
    positive,
    seconds,
)
from gotrace.goroutines.model import State

_EPILOG = """\
examples:
  gostacks -p 1234                     all goroutines, those alike together
  gostacks -a -p 1234                  one by one, as Go's own dumps
  gostacks --longer 1m -p 1234         those that have waited for a minute
  gostacks --reason 'sync.*' -p 1234   those that wait for locks
  gostacks -p 1234 'main.*'            those with a function of the program on their stack
  gostacks --by-label method -p 1234   by the values of a pprof label
  gostacks -i 5 -p 1234                which groups grow: leaks
  gostacks -o x.pb.gz -p 1234          for go tool pprof
  gostacks -o x.html -p 1234           a flame graph, for any browser
  gostacks --core core ./server        of a process that has ended
"""


#: The forms of a dump; each is for one by itself.
_FORMS = "--all --json --folded --output --speedscope --watch"
_ALL_STACKS = "--json --folded --output --speedscope"
_CONFLICTS = (
    Conflict(_FORMS, _FORMS, ONE_OF),
    Conflict("--core", "-i --watch", "a core file does not change: leave out -i and --watch"),
    Needs("-d", "-i --watch", "-d needs -i or --watch"),
    Conflict(
        "--args",
        "-i --watch -o --speedscope -f",
        "--args needs a single dump, as text or with --json",
    ),
    Conflict(
        "-i", "-f -o --speedscope -a", "-i prints changes: leave out -a, -f, -o and --speedscope"
    ),
    Conflict("--top", _ALL_STACKS),
    Conflict("--by-label", f"{_ALL_STACKS} --all --goroutine --args"),
)


def _parser() -> OptionParser[GostacksOptions]:
    parser = new_parser(
        "gostacks",
        "Show what all goroutines of a running program do, without stopping it.",
        _EPILOG,
        GostacksOptions,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-p",
        "--pid",
        action="append",
        dest="processes",
        default=[],
        metavar="PROCESS",
        help="read this process, by its number or name, or container:ID",
    )
    source.add_argument(
        "--core", nargs=2, metavar=("FILE", "BINARY"), help="read a core file of a program"
    )
    add_diff_option(source)
    parser.add_argument(
        "-a", "--all", action="store_true", help="print each goroutine, as Go's own dumps do"
    )
    parser.add_argument(
        "-g",
        "--goroutine",
        type=positive,
        metavar="GOID",
        action="append",
        default=[],
        help="only this goroutine (may be repeated)",
    )
    parser.add_argument(
        "--state",
        type=_state,
        action="append",
        default=[],
        help="only goroutines in this state (may be repeated): "
        + ", ".join(state.value for state in State),
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        action="append",
        default=[],
        help="only goroutines that wait for this reason, in which * is any text (may be repeated)",
    )
    parser.add_argument(
        "--longer",
        type=duration,
        metavar="TIME",
        help="only goroutines known to have waited this long, such as 1m30s",
    )
    parser.add_argument(
        "--system", action="store_true", help="the runtime's own goroutines and functions as well"
    )
    parser.add_argument(
        "--args",
        action="store_true",
        help="show arguments, where it is certain that a frame has them; implies -a without --json",
    )
    parser.add_argument(
        "--by-label",
        metavar="KEY",
        action="append",
        default=[],
        help="keep goroutines apart that have other values of this pprof label (may be repeated)",
    )
    parser.add_argument("--top", type=positive, metavar="N", help="print only the N largest groups")
    parser.add_argument("--json", action="store_true", help="print one JSON object a goroutine")
    parser.add_argument("-f", "--folded", action="store_true", help="print folded stacks")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write a pprof profile to this file (x.pb.gz), or a page that shows its flame graph"
        " (x.html)",
    )
    parser.add_argument(
        "--speedscope",
        metavar="FILE",
        help="write a flame graph for https://www.speedscope.app to this file (x.json)",
    )
    parser.add_argument(
        "-i", "--interval", type=seconds, metavar="SEC", help="repeat, and print what has changed"
    )
    parser.add_argument(
        "--watch", action="store_true", help="redraw a table of the largest groups, like top"
    )
    parser.add_argument(
        "-d", "--duration", type=seconds, metavar="SEC", help="end after SEC seconds"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "patterns",
        metavar="PATTERN",
        nargs="*",
        help="only goroutines with such a function on their stack; only * is special",
    )
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse_plain(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, options.output, bool(options.core or options.patterns))
    if options.processes:
        from gotrace.target.process import one_process

        options = replace(options, pid=one_process(options.processes, "gostacks reads"))
    # JSON has each goroutine anyway.
    check_options(parser, options, _CONFLICTS, besides="-a --all" if options.json else "")
    from gotrace.cli.dumping import dump

    return dump(options)


def _state(text: str) -> State:
    """Parse a state; headings show the reasons of those that wait in its place."""
    try:
        return one_of(State, "state")(text)
    except argparse.ArgumentTypeError as error:
        remedy = "what goroutines wait for, as [sleep] in headings, is for --reason"
        raise argparse.ArgumentTypeError(f"{error}; {remedy}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gostacks", _run, sys.argv[1:] if arguments is None else arguments)
