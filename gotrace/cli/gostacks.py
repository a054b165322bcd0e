# SPDX-License-Identifier: Apache-2.0
"""gostacks: the states of all goroutines of a process now."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import ONE_OF, Conflict, Needs, check_options
from gotrace.cli.options import (
    OptionParser,
    SummaryOptions,
    add_diff_option,
    duration,
    new_parser,
    one_of,
    parse_plain,
    positive,
    seconds,
)
from gotrace.cli.run import make_output
from gotrace.errors import NoMatchError
from gotrace.goroutines.core import CoreGoroutines
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.groups import GoroutineFilter, GoroutineGroup, GroupKey, changes, grouped
from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.model import DumpedGoroutine, State
from gotrace.goroutines.profile import profile_of
from gotrace.profiles.folded import folded
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import write_profile
from gotrace.report.colour import CLEAR
from gotrace.report.goroutines import (
    summary,
    write_changes,
    write_goroutines,
    write_groups,
    write_json,
    write_table,
)
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.target.process import one_process
from gotrace.target.target import Target
from gotrace.target.wait import Reason, SignalWaiter
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.goroutines.arguments import Arguments

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

#: Lines of a table where the terminal does not say how many it has, and those around the table.
_LINES, _HEAD = 40, 3


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


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GostacksOptions(SummaryOptions):
    """The options of gostacks."""

    core: list[str] | None
    all: bool
    goroutine: list[int]
    state: list[State]
    reason: list[str]
    longer: int | None
    system: bool
    args: bool
    by_label: list[str]
    folded: bool
    output: str | None
    speedscope: str | None
    watch: bool
    patterns: list[str]
    #: The process.
    pid: int | None = None


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
        options = replace(options, pid=one_process(options.processes, "gostacks reads"))
    # JSON has each goroutine anyway.
    check_options(parser, options, _CONFLICTS, besides="-a --all" if options.json else "")
    output = make_output(options)
    choice = GoroutineFilter(
        frozenset(options.state),
        tuple(options.reason),
        tuple(options.patterns),
        frozenset(options.goroutine),
        options.longer,
        options.system,
    )
    with ExitStack() as opened:
        source: LiveGoroutines | CoreGoroutines
        target = None
        if options.core:
            source = opened.enter_context(CoreGoroutines(*options.core))
            name = os.path.basename(options.core[1])
        else:
            target = Target.of(options.pid, None)
            opened.callback(target.close)
            source = opened.enter_context(LiveGoroutines(target))
            name = f"process {options.pid}"
        if source.wait_reasons is None:
            text = "why goroutines wait is not shown: runtime.waitReasonStrings was not found"
            output.notice(Notice(NoticeKind.WARNING, text))
        if target is not None and (options.interval or options.watch):
            _repeat(options, target, source, choice, output, name)
        else:
            gc.disable()  # what one dump makes is needed to the end, and much of it to look at
            dump = source.take()
            chosen = _chosen(dump, choice)
            reader = source.arguments() if options.args else None
            _write(options, dump, chosen, output, name, reader)
            _warn_moved(chosen, output)
    return 0


def _state(text: str) -> State:
    """Parse a state; headings show the reasons of those that wait in its place."""
    try:
        return one_of(State, "state")(text)
    except argparse.ArgumentTypeError as error:
        remedy = "what goroutines wait for, as [sleep] in headings, is for --reason"
        raise argparse.ArgumentTypeError(f"{error}; {remedy}") from None


def _chosen(dump: Dump, choice: GoroutineFilter) -> list[DumpedGoroutine]:
    """Return the goroutines that are wanted; raise NoMatchError where there are none."""
    chosen = choice.of(dump)
    if not chosen:
        known = any(goroutine.waiting_ns is not None for goroutine in dump.goroutines)
        if choice.longer is not None and not known:
            raise NoMatchError(
                "no goroutine is known to have waited: how long is known from the first garbage"
                " collection on that sees it wait, and of core files not at all"
            )
        users = sum(not goroutine.is_system for goroutine in dump.goroutines)
        raise NoMatchError(
            f"no goroutine matches ({users:,} of the program,"
            f" {len(dump.goroutines) - users:,} of the runtime)"
        )
    return chosen


def _write(
    options: GostacksOptions,
    dump: Dump,
    chosen: list[DumpedGoroutine],
    output: Output,
    name: str,
    arguments: Arguments | None,
) -> None:
    if isinstance(output, JsonOutput):
        _write_json(options, dump, chosen, output, arguments)
    elif options.output or options.speedscope or options.folded:
        profile = profile_of(dump, chosen, time.time_ns(), f"goroutines of {name}")
        path = options.output or options.speedscope
        if path is None:
            output.out.write(folded(profile))
            output.out.flush()
            return
        write_profile(path, profile, speedscope if options.speedscope else None)
        output.out.write(f"wrote {len(chosen):,} goroutines to {printable(path)}\n")
    elif options.all or options.goroutine or options.args:
        output.out.write(summary(chosen, name) + "\n")
        chosen.sort(key=lambda goroutine: goroutine.goid)
        shown = chosen[: options.top] if options.top else chosen
        system = options.system
        write_goroutines(output.out, dump.program, shown, system, arguments, dump.labels)
    else:
        output.out.write(summary(chosen, name) + "\n")
        groups = grouped(dump, chosen, options.system, options.by_label)
        write_groups(output.out, groups[: options.top] if options.top else groups)
        _note_rest(options, groups, output)


def _note_rest(options: GostacksOptions, groups: Sequence[GoroutineGroup], output: Output) -> None:
    rest = groups[options.top :] if options.top else ()
    if rest and not isinstance(output, JsonOutput):
        count = sum(len(group.goroutines) for group in rest)
        output.out.write(f"\nand {count:,} goroutines in {len(rest):,} other groups\n")


def _write_json(
    options: GostacksOptions,
    dump: Dump,
    chosen: list[DumpedGoroutine],
    output: JsonOutput,
    arguments: Arguments | None = None,
) -> None:
    fields = {
        "pid": options.pid,
        "ts": round(time.time(), 6),
        "goroutines": len(dump.goroutines),
        "shown": len(chosen),
        "moved": dump.moved,
    }
    output.write("dump", fields)
    chosen.sort(key=lambda goroutine: goroutine.goid)
    write_json(output, dump.program, chosen, arguments, dump.labels)


def _warn_moved(chosen: list[DumpedGoroutine], output: Output) -> None:
    moved = sum(goroutine.has_moved for goroutine in chosen)
    if moved:
        text = f"{moved:,} goroutines kept moving while they were read: without their stacks"
        output.notice(Notice(NoticeKind.WARNING, text, {"what": "moved", "goroutines": moved}))


def _repeat(
    options: GostacksOptions,
    target: Target,
    source: LiveGoroutines | CoreGoroutines,
    choice: GoroutineFilter,
    output: Output,
    name: str,
) -> None:
    """Take dumps until the end, and write the first, then the changes."""
    assert target.process is not None
    interval = options.interval or 1.0
    first: dict[GroupKey, int] | None = None
    before: dict[GroupKey, int] = {}
    with SignalWaiter() as waiter:
        waiter.watch([target.process])
        tick = time.monotonic()
        end = tick + options.duration if options.duration else None
        while True:
            dump = source.take()
            chosen = choice.of(dump)
            groups = grouped(dump, chosen, options.system, options.by_label)
            counts = {group.key: len(group.goroutines) for group in groups}
            if isinstance(output, JsonOutput):
                _write_json(options, dump, chosen, output)
            elif options.watch:
                lines = options.top or _screen_lines() - _HEAD
                output.out.write(CLEAR if output.out.isatty() else "\n")
                output.out.write(f"{_clock()} {summary(chosen, name)}\n")
                write_table(output.out, groups, first or counts, lines)
            elif first is None:
                output.out.write(f"{_clock()} {summary(chosen, name)}\n")
                write_groups(output.out, groups[: options.top] if options.top else groups)
                _note_rest(options, groups, output)
            else:
                changed = changes(before, groups)
                growth = len(chosen) - sum(before.values())
                output.out.write(f"\n{_clock()} {growth:+,}: {summary(chosen, name)}\n")
                shown = changed[: options.top] if options.top else changed
                write_changes(output.out, shown, {group.key: group for group in groups})
            output.out.flush()
            before = counts
            first = counts if first is None else first
            tick = max(tick + interval, time.monotonic())
            until = tick if end is None else min(tick, end)
            reason = waiter.wait(until)
            if reason is not Reason.TIME or (end is not None and time.monotonic() >= end):
                break
    if reason is Reason.EXIT:
        pid = target.process.tgid
        output.notice(Notice(NoticeKind.EXITED, f"process {pid} has ended", {"pid": pid}))


def _screen_lines() -> int:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).lines, _HEAD + 1)
    except (OSError, ValueError):
        return _LINES


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gostacks", _run, sys.argv[1:] if arguments is None else arguments)
