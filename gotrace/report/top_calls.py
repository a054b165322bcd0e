# SPDX-License-Identifier: Apache-2.0
"""Write the single calls of a live program's snapshots: requests, and a function's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gotrace.calls import StackFrame
from gotrace.live.model import FunctionCalls, SlowRequest
from gotrace.report.calls import (
    Clock,
    Columns,
    LineStyle,
    TimeStyle,
    bracket_of,
    call_text,
)
from gotrace.report.durations import duration
from gotrace.report.goroutines import spoken
from gotrace.report.requests import request_lines
from gotrace.report.table import fitted
from gotrace.report.top import ScreenLine
from gotrace.text import counted, printable

_BAR = 24  # columns
_MOST = 12  # callers that have a line
_LEAST = 20  # columns of a call


def _clock(epoch: int) -> Clock:
    return Clock(TimeStyle.TIME_OF_DAY, 0, epoch)


def slow_lines(rows: Sequence[SlowRequest], width: int) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each request, of that ``width`` at most."""
    wide = max(_LEAST, (width - 22) // 2)
    head = f"{'DURATION':>9} {'AT':<8}  {'REQUEST':<{wide}} MOSTLY"
    lines = []
    for row in rows:
        call = row.traced.root.call
        at = _clock(row.epoch_ns).text(call.end_ns)[:8]
        text = call.message
        if text is None:
            text = call_text(call, LineStyle(wide + Columns().width, short=True))
        part, mostly = row.mostly, ""
        if part is not None and row.duration_ns:
            what = part.what.removeprefix("blocked: ")
            mostly = f"{100 * part.ns // row.duration_ns}% {what} "
            mostly += fitted(printable(spoken(part.function)), width - 22 - wide - len(mostly))
        line = f"{duration(row.duration_ns):>9} {at}  {printable(text):<{wide}.{wide}} {mostly}"
        lines.append(ScreenLine(line.rstrip()))
    return head, lines


def tree_lines(row: SlowRequest, width: int) -> list[ScreenLine]:
    """Return the tree of a request and its critical path, as ``gotrace tree`` writes them."""
    style = LineStyle(max(_LEAST, width), short=True)
    lines = [
        ScreenLine(line.rstrip("\n"))
        for line in request_lines(row.traced, _clock(row.epoch_ns), style)
    ]
    if row.is_cut:
        text = counted("its {:,} call{s} are too many to be kept here", row.calls)
        lines.append(ScreenLine(f"{text}: gotrace tree shows them"))
    return lines


def calls_lines(calls: FunctionCalls, width: int) -> list[ScreenLine]:
    """Return lines on a function's calls: the parts of their time, callers, the latest calls."""
    text = f"{counted('{:,} call{s}', calls.calls)} looked at in {calls.seconds:.0f}s"
    if calls.lost:
        text += f", {calls.lost:,} more lost"
    lines = [ScreenLine(text)]
    if not calls.calls:
        return lines
    if calls.parts:
        lines += [ScreenLine(""), ScreenLine(f"{'TIME':>9} {'SHARE':>6}  WHERE THE TIME WENT")]
        lines += _parts(calls.parts, calls.ns)
    lines += [ScreenLine(""), ScreenLine(f"{'CALLS':>9} {'SHARE':>6}  CALLED BY")]
    for one in calls.callers[:_MOST]:
        share = f"{100 * one.calls / calls.calls:.1f}%"
        lines.append(ScreenLine(f"{one.calls:>9,} {share:>6}  {_place(one.frame)}"))
    if more := len(calls.callers) - _MOST:
        lines += [ScreenLine(f"and {more:,} more")] if more > 0 else []
    lines += [ScreenLine(""), ScreenLine(f"{'TIME':<15} {'DURATION':<9} {'GOID':<8} LATEST CALLS")]
    clock = _clock(calls.epoch_ns)
    for call in calls.traced:
        took = duration(call.duration_ns) if call.duration_ns is not None else ""
        text = f"{clock.text(call.end_ns):<15} {took:<9} {call.goid:<8} "
        style = LineStyle(max(_LEAST, width - len(text)), short=True)
        lines.append(ScreenLine(text + printable(bracket_of(call)) + call_text(call, style)))
    return lines


def _parts(parts: Mapping[str, int], whole: int) -> list[ScreenLine]:
    lines = []
    for name, ns in parts.items():
        share = ns / whole if whole else 0.0
        bar = "*" * round(_BAR * share)
        lines.append(
            ScreenLine(f"{duration(ns):>9} {f'{100 * share:.1f}%':>6}  {printable(name):<24} {bar}")
        )
    return lines


def _place(frame: StackFrame | None) -> str:
    if frame is None:
        return "(not known)"
    return printable(f"{frame.function} at {frame.file}:{frame.line}")
