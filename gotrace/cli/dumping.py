# SPDX-License-Identifier: Apache-2.0
"""Runs of gostacks: dumps of goroutines."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from gotrace.cli.dump_options import GostacksOptions
from gotrace.cli.run import open_output
from gotrace.errors import GotraceError, NoMatchError
from gotrace.goroutines.core import CoreGoroutines
from gotrace.goroutines.details import WaitsByG
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.groups import GoroutineFilter, GoroutineGroup, GroupKey, changes, grouped
from gotrace.goroutines.live import GoFiles, LiveGoroutines, has_runtime
from gotrace.goroutines.model import DumpedGoroutine
from gotrace.goroutines.profile import profile_of
from gotrace.profiles.folded import folded
from gotrace.profiles.write import write_profile
from gotrace.report.colour import CLEAR
from gotrace.report.goroutines import (
    rest_of_groups,
    summary,
    write_changes,
    write_goroutines,
    write_groups,
    write_json,
    write_table,
)
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.target.target import Target
from gotrace.target.wait import Reason, SignalWaiter
from gotrace.text import counted, printable

if TYPE_CHECKING:
    from gotrace.goroutines.arguments import Arguments

#: Lines of a table where the terminal does not say how many it has, and those around the table.
_LINES, _HEAD = 40, 3
#: A function that the go command alone has.
_GO_RUN = "cmd/go/internal/run.runRun"


def dump(options: GostacksOptions) -> int:
    """Write a dump, or one after the other, and return the exit status."""
    output = open_output(options.files, options.json)
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
            core, binary = options.core
            source = opened.enter_context(CoreGoroutines(core, binary, options.debug_file))
            name = os.path.basename(binary)
        else:
            target = Target.of(options.pid, None)
            target.debug_file = options.debug_file
            opened.callback(target.close)
            source = opened.enter_context(LiveGoroutines(target))
            name = f"process {options.pid}"
        if source.wait_reasons is None:
            text = "why goroutines wait is not shown: runtime.waitReasonStrings was not found"
            output.notice(Notice(NoticeKind.WARNING, text))
        if target is not None and (why := _program_of_go_run(target)):
            text = f"{name} is the go command{why}"
            output.notice(Notice(NoticeKind.WARNING, text, {"pid": options.pid}))
        if target is not None and (options.interval or options.watch):
            _repeat(options, target, source, choice, output, name)
        else:
            gc.disable()  # what one dump makes is needed to the end, and much of it to look at
            taken = source.take()
            chosen = _chosen(taken, choice, target)
            _write(options, source, taken, chosen, output, name)
            _warn_moved(chosen, output)
    return 0


def _program_of_go_run(target: Target) -> str:
    """Return words for the program that the target has started if it is ``go run``, "" if not."""
    with suppress(GotraceError):  # a program without Go code that has loaded a library
        if target.binary(None).functions.rows_named(_GO_RUN):
            return target.started(has_runtime, "runs the program")
    return ""


def _chosen(dump: Dump, choice: GoroutineFilter, target: Target | None) -> list[DumpedGoroutine]:
    """Return the goroutines that are wanted; raise NoMatchError where there are none.

    ``target`` is None if the process has ended.
    """
    chosen = choice.of(dump)
    if not chosen:
        if target is not None:
            GoFiles(target).check_functions(choice.functions)
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
    source: LiveGoroutines | CoreGoroutines,
    dump: Dump,
    chosen: list[DumpedGoroutine],
    output: Output,
    name: str,
) -> None:
    if options.folded or options.files.profiles:
        profile = profile_of(dump, chosen, time.time_ns(), f"goroutines of {name}")
        if options.folded:
            output.out.write(folded(profile))
            output.out.flush()
        for path in options.files.profiles:
            write_profile(path, profile)
            text = f"wrote {counted('{:,} goroutine{s}', len(chosen))} to {printable(path)}"
            output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
    if options.folded or options.only_stacks:
        return
    arguments = source.arguments() if options.args else None
    for form in output.forms:
        _write_form(options, source, dump, chosen, form, name, arguments)


def _write_form(
    options: GostacksOptions,
    source: LiveGoroutines | CoreGoroutines,
    dump: Dump,
    chosen: list[DumpedGoroutine],
    output: Output,
    name: str,
    arguments: Arguments | None,
) -> None:
    waits = partial(source.waits().of, everyone=dump.goroutines)
    if isinstance(output, JsonOutput):
        _write_json(options, dump, chosen, output, waits(chosen), arguments)
    elif options.all or options.goroutine or options.args:
        output.out.write(summary(chosen, name) + "\n")
        chosen.sort(key=lambda goroutine: goroutine.goid)
        shown = chosen[: options.top] if options.top else chosen
        system = options.system
        more = arguments, dump.labels, waits(shown)
        write_goroutines(output.out, dump.program, shown, system, *more)
    else:
        output.out.write(summary(chosen, name) + "\n")
        groups = grouped(dump, chosen, options.system, options.labels)
        write_groups(output.out, groups[: options.top] if options.top else groups, waits)
        _note_rest(options, groups, output)


def _note_rest(options: GostacksOptions, groups: Sequence[GoroutineGroup], output: Output) -> None:
    rest = groups[options.top :] if options.top else ()
    if rest and not isinstance(output, JsonOutput):
        count = sum(len(group.goroutines) for group in rest)
        output.out.write(f"\n{rest_of_groups(count, len(rest))}\n")


def _write_json(
    options: GostacksOptions,
    dump: Dump,
    chosen: list[DumpedGoroutine],
    output: JsonOutput,
    waits: WaitsByG,
    arguments: Arguments | None = None,
) -> None:
    ts = round(time.time(), 6)
    fields = {
        "pid": options.pid,
        "ts": ts,
        "goroutines": len(dump.goroutines),
        "shown": len(chosen),
        "moved": dump.moved,
        "states": [state.value for state in options.state],
        "reason": options.reason,
        "functions": options.patterns,
        "system": options.system,
    }
    output.write("dump", fields)
    chosen.sort(key=lambda goroutine: goroutine.goid)
    write_json(output, dump.program, chosen, arguments, dump.labels, ts, waits)


def _warn_moved(chosen: list[DumpedGoroutine], output: Output) -> None:
    moved = sum(goroutine.has_moved for goroutine in chosen)
    if moved:
        text = counted("{:,} goroutine{s} kept moving while being read: without a stack", moved)
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
    waits = source.waits().of
    with SignalWaiter() as waiter:
        waiter.watch([target.process])
        tick = time.monotonic()
        end = tick + options.duration if options.duration else None
        while True:
            dump = source.take()
            chosen = choice.of(dump)
            groups = grouped(dump, chosen, options.system, options.labels)
            counts = {group.key: len(group.goroutines) for group in groups}
            for form in output.forms:
                if isinstance(form, JsonOutput):
                    _write_json(options, dump, chosen, form, waits(chosen))
                elif options.watch:
                    lines = options.top or _screen_lines() - _HEAD
                    form.out.write(CLEAR if form.out.isatty() else "\n")
                    form.out.write(f"{_clock()} {summary(chosen, name)}\n")
                    write_table(form.out, groups, first or counts, lines)
                elif first is None:
                    form.out.write(f"{_clock()} {summary(chosen, name)}\n")
                    largest = groups[: options.top] if options.top else groups
                    write_groups(form.out, largest, waits)
                    _note_rest(options, groups, form)
                else:
                    changed = changes(before, groups)
                    growth = len(chosen) - sum(before.values())
                    form.out.write(f"\n{_clock()} {growth:+,}: {summary(chosen, name)}\n")
                    shown = changed[: options.top] if options.top else changed
                    now = {group.key: group for group in groups}
                    write_changes(form.out, shown, now, waits)
                form.out.flush()
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
