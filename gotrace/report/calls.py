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
cpu            the CPU on which it was reported; only when that was asked for and is known
program        the function's program; only where several programs are traced
caller, at     the function that the call is made in, and file:line; only of an inlined call, which
               has no values
=============  ===================================================================================

Values are those of ``gotrace.values.to_json.to_json``. Keys may be added in later releases, always
after these; none will be removed or change its meaning.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Sequence
from enum import Enum
from typing import TextIO

from gotrace.calls import Why
from gotrace.gotypes.symbols import elide_type_arguments, short_name
from gotrace.records import dataclass, replace
from gotrace.report.colour import Colour, of_duration, paint, wants_colour
from gotrace.report.durations import duration
from gotrace.report.table import columns_of
from gotrace.report.why import bracket
from gotrace.session.decode import DecodedCall, TracedFunction
from gotrace.session.events import Unwinding
from gotrace.text import in_program, printable
from gotrace.values.fit_width import bare, cut_to_fit, without_large, without_package
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import ErrorValue, Value
from gotrace.values.to_json import to_json

DURATION_WIDTH = 9
_ROWS = 2  # of a terminal, for one call
#: The DURATION of calls that were seen at their entry only.
NO_DURATION = "-"

_INDENT = " " * 8
_INLINED = "<unavailable: inlined here>"
#: The words in place of the results of a call that did not return.
_UNWOUND = {Unwinding.PANIC: "panicked", Unwinding.GOEXIT: "ended by runtime.Goexit"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns before a call: time, goroutine and duration always, the others as they say.

    A terminal has 80 columns: of one process the number says nothing, and threads serve any
    goroutine.
    """

    pid: bool = True
    tid: bool = True
    cpu: bool = False

    @property
    def template(self) -> str:
        """Return the beginning of a line, to be filled with the moment and ``numbers``."""
        return f"{'%-4s ' * self.cpu}%-15s {'%-8d ' * (self.pid + self.tid)}%-10d "

    def heading(self, last: str) -> str:
        """Return the heads, with the newline that every line made here has."""
        names = [("CPU", 4)] * self.cpu + [("TIME", 15)] + [("PID", 8)] * self.pid
        names += [("TID", 8)] * self.tid + [("GOID", 10), ("DURATION", DURATION_WIDTH)]
        return "".join(f"{name:<{width}} " for name, width in names) + f"{last}\n"

    def prefix(self, moment: str, pid: int, tid: int, goid: int, cpu: int | None = None) -> str:
        """Return the beginning of a line; the duration follows."""
        numbers = [*[pid] * self.pid, *[tid] * self.tid, goid]
        cpus = ["-" if cpu is None else str(cpu)] * self.cpu
        return self.template % (*cpus, moment, *numbers)

    @property
    def width(self) -> int:
        """Return the columns before a call, where no number is wider than its own."""
        return len(self.heading("")) - 1


class TimeStyle(Enum):
    """The contents of the TIME column."""

    TIME_OF_DAY = "time of day"
    SINCE_START = "seconds since the start"


class Clock:
    """A conversion of the kernel's times, CLOCK_MONOTONIC in nanoseconds, to those shown."""

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
        return cls(style, start, _epoch())

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


def _epoch() -> int:
    """Return when 1970 was on the kernel's clock: of some readings of both the quickest."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        since_1970 = time.time_ns()
        passed = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
        readings.append((passed, before + passed // 2 - since_1970))
    return min(readings)[1]


#: The first ones are slow: their code is not in the CPU's cache.
_CLOCK_READINGS = 5


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How calls are written as text.

    ``width`` is what a call's line may have: values are cut to fit, and pointers to large structs
    not followed; None shows all. ``short``: names without the beginning of import paths. Of a line
    that is longer than a terminal's ``row`` names are short, addresses have no types, and where
    functions are declared is left out.
    """

    width: int | None = None
    short: bool = False
    colour: bool = False
    columns: Columns = Columns()
    row: int | None = None
    places: bool = True

    @classmethod
    def on(
        cls, out: TextIO, width: int | None, short: bool, columns: Columns | None = None
    ) -> LineStyle:
        """Return the style of lines to a stream; ``width`` is for a file or a pipe."""
        row = None if width is None else columns_of(out)
        width = _ROWS * row if row is not None else width
        return cls(width, short, wants_colour(out), columns or Columns(), row)

    def name(self, name: str) -> str:
        """Return a function's name as Go's stack dumps have it, ``[...]`` for type arguments."""
        return short_name(elide_type_arguments(name)) if self.short else elide_type_arguments(name)

    def paint(self, text: str, colour: Colour | None) -> str:
        return paint(text, colour) if self.colour else text

    def duration(self, nanoseconds: int | None) -> str:
        """Return a duration as it fills its column."""
        shown = NO_DURATION if nanoseconds is None else duration(nanoseconds)
        return self.paint(f"{shown:<{DURATION_WIDTH}}", of_duration(nanoseconds))


PLAIN = LineStyle()


def place_of(function: TracedFunction) -> str:
    """Return `` at FILE:LINE``, nothing when that is not known."""
    return _place(function.file, function.line)


def text_line(call: DecodedCall, clock: Clock, style: LineStyle = PLAIN) -> str:
    """Return a call as a line, and its stack as lines below."""
    moment = clock.text(call.end_ns)
    prefix = style.columns.prefix(moment, call.pid, call.tid, call.goid, call.cpu)
    prefix += style.duration(call.duration_ns) + " "
    shown = call_text(call, style)
    lines = [prefix + printable(bracket_of(call)) + shown]
    for frame in call.stack or ():
        place = _place(frame.file, frame.line)
        lines.append(_INDENT + printable(style.name(frame.function) + place))
    if call.stack_cut:
        lines.append(_INDENT + "...")
    return "".join(line + "\n" for line in lines)


def call_text(call: DecodedCall, style: LineStyle = PLAIN, before: int | None = None) -> str:
    """Return a call without when and where it was made: its values, or its format filled in.

    ``before`` is how much of the line is taken, None for the columns of the style.
    """
    before = style.columns.width if before is None else before
    if call.message is None:
        return _call(call, style, before)
    text = _message(call, style)
    is_long = style.row is not None and before + len(text) > style.row
    return _message(call, replace(style, short=True)) if is_long else text


#: The functions by which those that name a system call, or one of C, do it.
_ENTERS = re.compile(r"runtime[./]|internal/runtime/|syscall\.(Raw)?[Ss]yscall|0x")


def bracket_of(call: DecodedCall) -> str:
    """Return the parts of the call's time, "" if they were not asked for."""
    why = call.why
    if why is None or call.duration_ns is None:
        return ""
    longest, woken = why.longest, ""
    if longest is not None and longest.waker:
        woken = f"woken by goroutine {longest.waker}"
        if longest.waker_function:
            woken += f" {elide_type_arguments(longest.waker_function)}"
    elif longest is not None and longest.waker is None:
        entered = next((f.function for f in longest.stack if not _ENTERS.match(f.function)), None)
        woken = f"in {elide_type_arguments(entered)}" if entered else ""
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
    if call.cpu is not None:
        fields["cpu"] = call.cpu
    if function.program is not None:
        fields["program"] = function.program
    if function.at is not None:
        fields["caller"], fields["at"] = function.at.caller, function.at.position
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _call(call: DecodedCall, style: LineStyle, before: int) -> str:
    """Return a call in Go's syntax, in the style's width where that is possible."""
    values = [*call.args, *(call.results or ())]
    if style.width is not None:
        values = list(map(without_large, values))
    texts = [printable(go_syntax(value)) for value in values]
    if style.width is None and not style.colour:
        return _framed(call, texts, style)
    plain = replace(style, colour=False) if style.colour else style
    text = _framed(call, texts, plain)
    if style.row is not None and before + len(text) > style.row:
        style, plain = (replace(one, short=True, places=False) for one in (style, plain))
        values = list(map(bare, values))
        texts = [without_package(printable(go_syntax(value))) for value in values]
        text = _framed(call, texts, plain)
    over = 0 if style.width is None else before + len(text) - style.width
    if over > 0:
        texts = cut_to_fit(values, texts, over)
    elif not style.colour:
        return text
    if style.colour:
        errors = [Colour.ERROR if isinstance(value, ErrorValue) else None for value in values]
        texts = list(map(paint, texts, errors))
    return _framed(call, texts, style)


def _framed(call: DecodedCall, texts: Sequence[str], style: LineStyle) -> str:
    """Return a call whose values, those of the results last, show as ``texts``."""
    names = call.function.parameter_labels
    pairs = [f"{name}={text}" for name, text in zip(_clean(names), texts, strict=False)]
    if call.function.at is not None:
        shown = ", ".join(pairs) if call.function.is_described else _INLINED
        return f"{name_of(call.function, style)}({shown}) in {printable(call.function.at.text)}"
    text = f"{name_of(call.function, style)}({', '.join(pairs)})"
    if call.unwound is not None:
        text += f" {style.paint(_UNWOUND[call.unwound], Colour.ERROR)}"
    elif call.results:
        text += f" = {call.function.shown_results(texts[len(call.args) :])}"
    place = _clean_place(call.function.file, call.function.line) if style.places else ""
    return text + place


@functools.lru_cache(maxsize=1024)
def _clean(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(printable, names))


@functools.lru_cache(maxsize=1024)
def _clean_place(file: str | None, line: int | None) -> str:
    return printable(_place(file, line))


@functools.lru_cache(maxsize=1024)
def _clean_name(program: str | None, name: str, style: LineStyle) -> str:
    return style.paint(printable(in_program(program, style.name(name))), Colour.NAME)


def name_of(function: TracedFunction, style: LineStyle) -> str:
    """Return a function's name in a style, with its program's where several are traced."""
    return _clean_name(function.program, function.name, style)


def _message(call: DecodedCall, style: LineStyle) -> str:
    ended = ""
    if call.unwound is not None:
        ended = f" ({style.paint(_UNWOUND[call.unwound], Colour.ERROR)})"
    return f"{name_of(call.function, style)} {printable(call.message or '')}{ended}"


def _place(file: str | None, line: int | None) -> str:
    return f" at {file.rsplit('/', 1)[-1]}:{line}" if file else ""


def _values(names: Sequence[str], values: Sequence[Value]) -> dict[str, object]:
    return {name: to_json(value) for name, value in zip(names, values, strict=True)}
