# SPDX-License-Identifier: Apache-2.0
"""Calls as Python objects: of a live trace, or read back from the JSON of one.

Values are those of ``gotrace.values.python``. Reading takes neither BPF nor root, on any system.
"""

from __future__ import annotations

import datetime
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gotrace.arguments import held_to_annotations
from gotrace.errors import GotraceError
from gotrace.records import dataclass
from gotrace.results.lines import Recordable, lines_of, recording, write_lines
from gotrace.values.python import GoError, MapKey, Unavailable, as_json, from_json


class LostCalls(GotraceError):
    """Calls missing from an iteration; raised at its end.

    ``lost`` says how many, by what became of them: the ``what`` of docs/json.md.
    """

    def __init__(self, lost: Mapping[str, int]) -> None:
        self.lost = dict(lost)
        parts = ", ".join(f"{what}: {calls}" for what, calls in self.lost.items())
        super().__init__(
            f"{sum(self.lost.values())} calls are missing ({parts}): trace fewer functions, add a"
            " predicate, or pass lossy=True"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return LostCalls, (self.lost,)


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One function of a stack, and where in it the call is."""

    function: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class LongestWait:
    """The longest time that a call was in one state but running.

    ``waker`` is the goroutine that ended it, 0 where the runtime itself did (a timer, the network),
    None where it was not a wait; ``waker_function`` is what that was in, outside of the runtime and
    what is built on it. ``stack`` is the waiting goroutine's, or its own in a system call or in C,
    innermost first.
    """

    part: str
    ns: int
    waker: int | None
    waker_function: str | None
    stack: Sequence[StackFrame]


@dataclass(frozen=True, slots=True)
class Why:
    """Parts of a call's time in ns by name, largest first, which add up to it.

    ``changes`` is how often the runtime has changed the goroutine's state meanwhile.
    """

    parts: Mapping[str, int]
    changes: int = 0
    longest: LongestWait | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function.

    ``time_ns`` is when it returned, in ns since 1970; when it was entered, where only that was
    seen; when that was seen, where it ended without a return: then ``unwound`` is ``"panic"`` or
    ``"goexit"``. ``args`` and ``results`` are by name; ``results`` is None where the call did not
    return or only its entry was seen. ``duration_ns`` is None where only its entry was seen.
    ``stack`` is innermost first, None when not asked for; ``stack_cut``: it has more frames.
    ``message`` is the probe's own format, filled in. ``probe_hits`` is how often probes were hit
    within the call, ``probe_ns`` what part of its duration that took, None where not known.
    ``why`` is what the time went into, None where that was not asked for. ``program`` is the name
    of the function's program, None where only one is traced.
    """

    function: str
    args: Mapping[str, Any]
    results: Mapping[str, Any] | None
    duration_ns: int | None
    time_ns: int
    pid: int
    tid: int
    goid: int
    file: str | None = None
    line: int | None = None
    stack: Sequence[StackFrame] | None = None
    stack_cut: bool = False
    message: str | None = None
    unwound: str | None = None
    probe_hits: int | None = None
    probe_ns: int | None = None
    why: Why | None = None
    program: str | None = None

    @property
    def error(self) -> GoError | Unavailable | None:
        """Return the error that the call returned, its last result; None where there is none.

        A last result that could not be read is Unavailable, which is not None: it may be an error.
        """
        last = next(reversed([*(self.results or {}).values()]), None)
        return last if isinstance(last, GoError | Unavailable) else None

    def to_dict(self) -> dict[str, Any]:
        """Return a flat row for a table: values as ``args.NAME`` and ``results.NAME``.

        They are what JSON knows: a struct is a dict, an error its message, a time its text, bytes
        are text or hex digits, what could not be read is None.
        """
        row: dict[str, Any] = {
            "time_ns": self.time_ns,
            "pid": self.pid,
            "tid": self.tid,
            "goid": self.goid,
            "function": self.function,
            "duration_ns": self.duration_ns,
            "error": _plain(self.error),
            "unwound": self.unwound,
        }
        row |= {f"args.{name}": _plain(value) for name, value in self.args.items()}
        row |= {f"results.{name}": _plain(value) for name, value in (self.results or {}).items()}
        if self.program is not None:
            row["program"] = self.program
        if self.message is not None:
            row["message"] = self.message
        if self.stack is not None:
            row["stack"] = [frame.function for frame in self.stack]
        return row

    def to_json(self) -> str:
        """Return the call on one line, as ``gotrace --json`` writes it and ``read`` reads it."""
        return json.dumps(self.to_row(), separators=(",", ":")) + "\n"

    def to_row(self) -> dict[str, Any]:
        """Return the call as JSON has it: ``from_row`` makes a call of that."""
        results = self.results
        row: dict[str, Any] = {
            "kind": "call",
            "ts_ns": self.time_ns,
            "pid": self.pid,
            "tid": self.tid,
            "goid": self.goid,
            "func": self.function,
            "args": {name: as_json(value) for name, value in self.args.items()},
            "results": None if results is None else {n: as_json(v) for n, v in results.items()},
            "duration_ns": self.duration_ns,
            "file": self.file,
            "line": self.line,
        }
        if self.stack is not None:
            row["stack"] = _frames(self.stack)
        if self.stack_cut:
            row["stack_cut"] = True
        for name in ("message", "unwound", "probe_hits", "probe_ns", "program"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        if self.why is not None:
            row["why"] = _why_row(self.why)
        return row


def _frames(stack: Sequence[StackFrame]) -> list[dict[str, Any]]:
    return [{"func": each.function, "file": each.file, "line": each.line} for each in stack]


def _why_row(why: Why) -> dict[str, Any]:
    longest, fields = why.longest, None
    if longest is not None:
        waker = {"goid": longest.waker, "func": longest.waker_function}
        fields = {
            "part": longest.part,
            "ns": longest.ns,
            "waker": None if longest.waker is None else waker,
            "stack": _frames(longest.stack),
        }
    return {"parts": dict(why.parts), "changes": why.changes, "longest": fields}


#: Classes of values, some of which are of subclasses here.
_PLAIN: tuple[Any, ...] = (bool, int, float, str)


def _plain(value: Any) -> Any:
    """Return a value made of Python's own types alone."""
    if value is None or isinstance(value, Unavailable):
        return None
    for own in _PLAIN:
        if isinstance(value, own):
            return own(value)
    if isinstance(value, Mapping):
        if any(isinstance(key, MapKey) for key in value):
            return [[_plain(key), _plain(inner)] for key, inner in value.items()]
        return {_plain_key(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return value.hex() if "\ufffd" in text else text
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


def _plain_key(key: Any) -> Any:
    """Return a map's key as a plain object that can be a key: of what holds others, its text."""
    plain = _plain(key)
    return str(key) if isinstance(plain, dict | list) else plain


@held_to_annotations
def read(source: str | os.PathLike[str] | Iterable[str], *, lossy: bool = False) -> Iterator[Call]:
    """Yield the calls of a trace that ``gotrace --json`` wrote: a file's, or some lines'.

    A file whose name ends in ``.gz`` is compressed, as ``gotrace -o`` writes it.

    Lines of other kinds are passed over. Raises LostCalls at the end where the trace says that
    calls are missing, unless ``lossy``; GotraceError where a file cannot be read, a line is not of
    such a trace, or all results are of another command.
    """
    if isinstance(source, str | os.PathLike):
        with lines_of(source, "gotrace --json") as lines:
            yield from _calls(lines, os.fspath(source), lossy)
    else:
        yield from _calls(source, "the trace", lossy)


@held_to_annotations
def write(
    path: str | os.PathLike[str], results: Recordable | Iterable[Call] | Iterable[Recordable]
) -> None:
    """Write calls to a file that ``read`` reads, compressed if its name ends in ``.gz``.

    Results are written as their own ``write`` does; those of all intervals of a run are one
    recording. Raises GotraceError if the file cannot be written.
    """
    write_lines(path, results.lines() if isinstance(results, Recordable) else _lines(results))


def _lines(results: Iterable[Call] | Iterable[Recordable]) -> Iterator[str]:
    rest: Iterator[Any] = iter(results)
    for one in rest:
        if isinstance(one, Recordable):
            yield from recording(chain([one], rest))
        else:
            yield one.to_json()


def _calls(lines: Iterable[str], name: str, lossy: bool) -> Iterator[Call]:
    lost: Counter[str] = Counter()
    other: dict[str, Any] | None = None
    has_calls = False
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"
        row = _row(line, place)
        if row.get("kind") == "call":
            has_calls = True
            yield from_row(row, place)
        elif row.get("kind") == "lost":
            if not isinstance(row.get("what"), str) or not isinstance(row.get("calls"), int):
                raise GotraceError(f"{place}: not a line of gotrace --json: no number of calls")
            lost[row["what"]] += row["calls"]
        elif row.get("kind") not in _FRAME:
            other = other or row
    if other is not None and not has_calls:
        raise GotraceError(f"{name}: no calls of gotrace, but {_described(other)}")
    if lost and not lossy:
        raise LostCalls(lost)


#: Kinds of lines that any command writes.
_FRAME = ("attached", "detached", "exited", "lost", "moved", "summary", "warning")


def _described(row: Mapping[str, Any]) -> str:
    """Return the results that a row is of, and what reads them."""
    from gotrace.results.kinds import kind_of

    kind = kind_of(row)
    tool = row.get("of") if row.get("kind") == "merged" else kind and kind.tool
    if tool is not None:
        return f"results of {tool}: gotrace.merge and gotrace.diff read them"
    if row.get("kind") == "request":
        return "requests of gotrace tree: gotrace.load reads them"
    return f"lines of the kind {json.dumps(row.get('kind'))[:40]}"


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise GotraceError(f"{place}: not a line of gotrace --json: {error}") from error
    if not isinstance(row, dict):
        raise GotraceError(f"{place}: not a line of gotrace --json: not an object")
    return row


def from_row(row: Mapping[str, Any], place: str) -> Call:
    """Return the call of a row; ``place`` is where that is. Raises GotraceError if it is none."""
    try:
        results, stack = row["results"], row.get("stack")
        return Call(
            row["func"],
            {name: from_json(value) for name, value in row["args"].items()},
            None if results is None else {name: from_json(v) for name, v in results.items()},
            row["duration_ns"],
            row["ts_ns"],
            row["pid"],
            row["tid"],
            row["goid"],
            row["file"],
            row["line"],
            None if stack is None else [StackFrame(f["func"], f["file"], f["line"]) for f in stack],
            row.get("stack_cut", False),
            row.get("message"),
            row.get("unwound"),
            row.get("probe_hits"),
            row.get("probe_ns"),
            _why(row["why"]) if "why" in row else None,
            row.get("program"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GotraceError(f"{place}: not a call as gotrace --json writes it: {error!r}") from error


def _why(row: Mapping[str, Any]) -> Why:
    longest, wait = row["longest"], None
    if longest is not None:
        waker = longest["waker"]
        wait = LongestWait(
            longest["part"],
            longest["ns"],
            waker and waker["goid"],
            waker and waker["func"],
            [StackFrame(f["func"], f["file"], f["line"]) for f in longest["stack"]],
        )
    return Why(dict(row["parts"]), row["changes"], wait)
