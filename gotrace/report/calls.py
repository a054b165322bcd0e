# SPDX-License-Identifier: Apache-2.0
"""Render traced calls: lines in the manner of bcc's trace, or JSON lines.

Each call is one JSON object on a line of its own. Its keys, always in this order:

=============  ===================================================================================
kind           ``"call"``
ts_ns          when the call returned (when it was entered, if only that was seen; when it was seen
               to have been unwound, if it did not return), ns since 1970
pid, tid       process and thread, as numbers
goid           the goroutine's number; 0 where the caller is not a goroutine
func           the function's full name
args           object, parameter name to value, the receiver first. Unnamed and blank parameters
               are ``arg1``, ``arg2``..., by their position
results        object, result name to value, an unnamed one ``$ret``, several ``$ret1``,
               ``$ret2``..., by their position; null when only the entry was seen, or the call did
               not return
duration_ns    from entry to return; null when only the entry was seen
file, line     where the function is declared; null when not known
stack          array of {func, file, line}, innermost first; only when stacks were asked for
stack_cut      true where the stack has more frames than are shown; only then
message        the user's own format, filled in; only when there is one
unwound        ``"panic"`` or ``"goexit"``, what ended the call; only when it did not return
probe_hits     how often probes were hit within the call; null when only the entry was seen
probe_ns       what part of duration_ns tracing took, an estimate; null when only the entry was
               seen, or where the probes' cost could not be measured
why            what the time went into, see ``gotrace.report.why``; only when that was asked for
=============  ===================================================================================

Values are those of ``gotrace.values.to_json.to_json``. Keys may be added in later releases, always
after these; none will be removed or change its meaning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import Enum

from gotrace.calls import Why
from gotrace.gotypes.symbols import elide_type_arguments
from gotrace.report.latencies import duration
from gotrace.report.why import bracket
from gotrace.session.decode import DecodedCall, TracedFunction
from gotrace.session.events import Unwinding
from gotrace.text import printable
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import Value
from gotrace.values.to_json import to_json

__all__ = [
    "CALL_HEADING",
    "NO_DURATION",
    "TEXT_PREFIX",
    "Clock",
    "TimeStyle",
    "json_line",
    "place_of",
    "shown_name",
    "text_line",
]

#: The columns' heads, with the newline that every line made here has.
CALL_HEADING = f"{'TIME':<15} {'PID':<8} {'TID':<8} {'GOID':<8} {'DURATION':<9} CALL\n"
#: What all lines begin with, to be filled with time, pid, tid, goid and duration.
TEXT_PREFIX = "%-15s %-8d %-8d %-8d %-9s "
#: The DURATION of calls that were seen at their entry only.
NO_DURATION = "-"

_INDENT = " " * 8
#: What is shown in place of the results of a call that did not return.
_UNWOUND = {Unwinding.PANIC: "panicked", Unwinding.GOEXIT: "ended by runtime.Goexit"}


class TimeStyle(Enum):
    """What the TIME column can show."""

    TIME_OF_DAY = "time of day"
    SINCE_START = "seconds since the start"


class Clock:
    """A conversion of the kernel's times, CLOCK_MONOTONIC in nanoseconds, to what is shown."""

    def __init__(self, style: TimeStyle, start: int, epoch: int) -> None:
        """Take the times, on the kernel's clock, of the run's start and of 1970 (negative)."""
        self.epoch = epoch
        self._style = style
        self._start = start
        self._second = -1
        self._shown = ""

    @classmethod
    def started_now(cls, style: TimeStyle) -> Clock:
        """Return the clock of a run that starts at this moment."""
        start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return cls(style, start, start - time.time_ns())

    def text(self, moment: int) -> str:
        """Return a moment as the TIME column shows it, to the microsecond, cut not rounded."""
        if self._style is TimeStyle.SINCE_START:
            second, rest = divmod(max(moment - self._start, 0), 1_000_000_000)
            return f"{second}.{rest // 1000:06d}"
        second, rest = divmod(moment - self.epoch, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._shown = time.strftime("%H:%M:%S", time.localtime(second))
        return f"{self._shown}.{rest // 1000:06d}"


def shown_name(function: TracedFunction) -> str:
    """Return the name as Go's stack dumps have it, with ``[...]`` for type arguments."""
    return elide_type_arguments(function.name)


def place_of(function: TracedFunction) -> str:
    """Return `` at FILE:LINE``, nothing when that is not known."""
    return _place(function.file, function.line)


def text_line(call: DecodedCall, clock: Clock) -> str:
    """Return a call as a line, and its stack as lines below."""
    took = NO_DURATION if call.duration_ns is None else duration(call.duration_ns)
    prefix = TEXT_PREFIX % (clock.text(call.end_ns), call.pid, call.tid, call.goid, took)
    lines = [prefix + _bracket(call) + (_call(call) if call.message is None else _message(call))]
    for frame in call.stack or ():
        lines.append(
            _INDENT + elide_type_arguments(frame.function) + _place(frame.file, frame.line)
        )
    if call.stack_cut:
        lines.append(_INDENT + "...")
    return "".join(printable(line) + "\n" for line in lines)


def _bracket(call: DecodedCall) -> str:
    """Return what the call's time went into, nothing where that was not asked for."""
    why = call.why
    if why is None or call.duration_ns is None:
        return ""
    longest, woken = why.longest, ""
    if longest is not None and longest.waker:
        woken = f"woken by goroutine {longest.waker}"
        if longest.waker_function:
            woken += f" {elide_type_arguments(longest.waker_function)}"
    part = longest.part if longest else None
    return bracket(why.parts, call.duration_ns, part, woken) + " "


def _why_fields(why: Why) -> dict[str, object]:
    longest = why.longest
    if longest is None:
        return {"parts": why.parts, "changes": why.changes, "longest": None}
    waker = None
    if longest.waker is not None:
        waker = {"goid": longest.waker, "func": longest.waker_function}
    stack = [{"func": f.function, "file": f.file, "line": f.line} for f in longest.stack]
    fields = {"part": longest.part, "ns": longest.ns, "waker": waker, "stack": stack}
    return {"parts": why.parts, "changes": why.changes, "longest": fields}


def json_line(call: DecodedCall, clock: Clock) -> str:
    """Return a call as a JSON object on one line: see the module's description."""
    function = call.function
    results = None
    if call.results is not None:
        results = _values(function.result_labels, call.results)
    fields: dict[str, object] = {
        "kind": "call",
        "ts_ns": call.end_ns - clock.epoch,
        "pid": call.pid,
        "tid": call.tid,
        "goid": call.goid,
        "func": function.name,
        "args": _values(function.parameter_labels, call.args),
        "results": results,
        "duration_ns": call.duration_ns,
        "file": function.file,
        "line": function.line,
    }
    if call.stack is not None:
        fields["stack"] = [
            {"func": frame.function, "file": frame.file, "line": frame.line} for frame in call.stack
        ]
    if call.stack_cut:
        fields["stack_cut"] = True
    if call.message is not None:
        fields["message"] = printable(call.message)
    if call.unwound is not None:
        fields["unwound"] = call.unwound.value
    fields["probe_hits"], fields["probe_ns"] = call.probe_hits, call.probe_ns
    if call.why is not None:
        fields["why"] = _why_fields(call.why)
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _call(call: DecodedCall) -> str:
    names = call.function.parameter_labels
    pairs = [f"{name}={go_syntax(value)}" for name, value in zip(names, call.args, strict=True)]
    text = f"{shown_name(call.function)}({', '.join(pairs)})"
    if call.unwound is not None:
        text += f" {_UNWOUND[call.unwound]}"
    elif call.results:
        shown = ", ".join(map(go_syntax, call.results))
        text += f" = {shown}" if len(call.results) == 1 else f" = ({shown})"
    return text + place_of(call.function)


def _message(call: DecodedCall) -> str:
    ended = "" if call.unwound is None else f" ({_UNWOUND[call.unwound]})"
    return f"{shown_name(call.function)} {call.message}{ended}"


def _place(file: str | None, line: int | None) -> str:
    return f" at {file.rsplit('/', 1)[-1]}:{line}" if file else ""


def _values(names: Sequence[str], values: Sequence[Value]) -> dict[str, object]:
    return {name: to_json(value) for name, value in zip(names, values, strict=True)}
