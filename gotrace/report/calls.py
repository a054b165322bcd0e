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
=============  ===================================================================================

Values are those of ``gotrace.values.to_json.to_json``. Keys may be added in later releases, always
behind these; none will be removed or change its meaning.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from gotrace.gotypes.symbols import elide_type_arguments
from gotrace.report.latencies import duration
from gotrace.text import printable
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import Value
from gotrace.values.to_json import to_json

__all__ = [
    "CALL_HEADING",
    "NO_DURATION",
    "TEXT_PREFIX",
    "CallRow",
    "Clock",
    "Frame",
    "TimeStyle",
    "TracedFunction",
    "json_line",
    "text_line",
]

#: The columns' heads, with the newline that every line made here has.
CALL_HEADING = f"{'TIME':<15} {'PID':<8} {'TID':<8} {'GOID':<8} {'DURATION':<9} CALL\n"
#: What all lines begin with, to be filled with time, pid, tid, goid and duration.
TEXT_PREFIX = "%-15s %-8d %-8d %-8d %-9s "
#: The DURATION of calls that were seen at their entry only.
NO_DURATION = "-"

_INDENT = " " * 8
#: What stands in the place of the results of a call that did not return.
_UNWOUND = {"panic": "panicked", "goexit": "ended by runtime.Goexit"}


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """What all calls of a function have in common.

    ``parameters`` (the receiver first) and ``results`` are the names of the values captured, as
    debug information gives them: empty, ``_`` and ``~r0`` are no names. ``file`` and ``line``
    tell where the function is declared.
    """

    name: str
    parameters: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None

    @property
    def shown_name(self) -> str:
        """Return the name as Go's stack dumps have it, with ``[...]`` for type arguments."""
        return elide_type_arguments(self.name)

    @property
    def parameter_labels(self) -> tuple[str, ...]:
        """Return a name for each parameter, none of them twice."""
        return _labels(self.parameters, _argument_label)

    @property
    def result_labels(self) -> tuple[str, ...]:
        """Return a name for each result, none of them twice."""
        return _labels(self.results, _result_label)

    @property
    def place(self) -> str:
        """Return `` at FILE:LINE``, nothing when that is not known."""
        return _place(self.file, self.line)


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a stack, and where in it the call is."""

    function: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call, decoded.

    ``ended`` is when it returned, or was entered where only that was seen, as CLOCK_MONOTONIC in
    ns. ``args`` and ``results`` go with the function's names; ``results`` and ``duration`` (ns)
    are None when only the entry was seen. ``unwound`` is what ended the call where it did not
    return: ``panic`` or ``goexit``. ``stack`` is innermost first, None when not asked for.
    ``stack_cut``: it has more frames. ``message`` is the user's own format, filled in: it takes the
    place of the values in a line. ``probe_hits`` is how often probes were hit within the call,
    ``probe_ns`` what part of its duration that took, as an estimate.
    """

    function: TracedFunction
    ended: int
    pid: int
    tid: int
    goid: int
    args: Sequence[Value]
    results: Sequence[Value] | None = None
    duration: int | None = None
    stack: Sequence[Frame] | None = None
    message: str | None = None
    stack_cut: bool = False
    unwound: str | None = None
    probe_hits: int | None = None
    probe_ns: int | None = None


class TimeStyle(Enum):
    """What the TIME column can show."""

    TIME_OF_DAY = "time of day"
    SINCE_START = "seconds since the start"


class Clock:
    """Turn the kernel's times, CLOCK_MONOTONIC in nanoseconds, into what is shown."""

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


def text_line(row: CallRow, clock: Clock) -> str:
    """Return a call as a line, and its stack as lines below."""
    took = NO_DURATION if row.duration is None else duration(row.duration)
    prefix = TEXT_PREFIX % (clock.text(row.ended), row.pid, row.tid, row.goid, took)
    lines = [prefix + (_call(row) if row.message is None else _message(row))]
    for frame in row.stack or ():
        lines.append(
            _INDENT + elide_type_arguments(frame.function) + _place(frame.file, frame.line)
        )
    if row.stack_cut:
        lines.append(_INDENT + "...")
    return "".join(printable(line) + "\n" for line in lines)


def json_line(row: CallRow, clock: Clock) -> str:
    """Return a call as a JSON object on one line: see the module's description."""
    function = row.function
    results = None
    if row.results is not None:
        results = _values(function.result_labels, row.results)
    fields: dict[str, object] = {
        "kind": "call",
        "ts_ns": row.ended - clock.epoch,
        "pid": row.pid,
        "tid": row.tid,
        "goid": row.goid,
        "func": function.name,
        "args": _values(function.parameter_labels, row.args),
        "results": results,
        "duration_ns": row.duration,
        "file": function.file,
        "line": function.line,
    }
    if row.stack is not None:
        fields["stack"] = [
            {"func": frame.function, "file": frame.file, "line": frame.line} for frame in row.stack
        ]
    if row.stack_cut:
        fields["stack_cut"] = True
    if row.message is not None:
        fields["message"] = printable(row.message)
    if row.unwound is not None:
        fields["unwound"] = row.unwound
    fields["probe_hits"], fields["probe_ns"] = row.probe_hits, row.probe_ns
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _call(row: CallRow) -> str:
    names = row.function.parameter_labels
    pairs = [f"{name}={go_syntax(value)}" for name, value in zip(names, row.args, strict=True)]
    text = f"{row.function.shown_name}({', '.join(pairs)})"
    if row.unwound is not None:
        text += f" {_UNWOUND[row.unwound]}"
    elif row.results:
        shown = ", ".join(map(go_syntax, row.results))
        text += f" = {shown}" if len(row.results) == 1 else f" = ({shown})"
    return text + row.function.place


def _message(row: CallRow) -> str:
    ended = "" if row.unwound is None else f" ({_UNWOUND[row.unwound]})"
    return f"{row.function.shown_name} {row.message}{ended}"


def _place(file: str | None, line: int | None) -> str:
    return f" at {file.rsplit('/', 1)[-1]}:{line}" if file else ""


def _values(names: Sequence[str], values: Sequence[Value]) -> dict[str, object]:
    return {name: to_json(value) for name, value in zip(names, values, strict=True)}


def _argument_label(index: int, count: int) -> str:
    return f"arg{index + 1}"


def _result_label(index: int, count: int) -> str:
    return "$ret" if count == 1 else f"$ret{index + 1}"


@functools.lru_cache(maxsize=1024)
def _labels(names: tuple[str, ...], unnamed: Callable[[int, int], str]) -> tuple[str, ...]:
    """Name what has no name by its position, and what has a name that is taken as well."""
    labels: list[str] = []
    for index, name in enumerate(names):
        label = name if name not in ("", "_") and not name.startswith("~") else ""
        label = label or unnamed(index, len(names))
        while label in labels:
            label += "'"
        labels.append(label)
    return tuple(labels)
