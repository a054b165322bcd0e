# SPDX-License-Identifier: Apache-2.0
"""Requests as Python objects: trees of calls, saved as JSON and loaded from it.

Reading takes neither BPF nor root, on any system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from gotrace.arguments import held_to_annotations
from gotrace.calls import Call, from_row
from gotrace.errors import GotraceError, UsageError
from gotrace.profiles.execution import (
    ExecutionFile,
    Recorded,
    Region,
    StateChange,
    Written,
    is_execution_trace,
)
from gotrace.profiles.perfetto import PerfettoFile, Slice, is_perfetto
from gotrace.profiles.write import real_path
from gotrace.records import dataclass
from gotrace.requests.critical import PathPart
from gotrace.results.lines import lines_of
from gotrace.text import counted
from gotrace.values.python import as_json


class _Timed(Protocol):
    """The properties of a call that are needed here."""

    @property
    def goid(self) -> int: ...

    @property
    def duration_ns(self) -> int | None: ...


C = TypeVar("C", bound=_Timed)
D = TypeVar("D", bound=_Timed)


@dataclass(frozen=True, slots=True)
class Node(Generic[C]):
    """A call that was made for a request, and those that were made for it in turn.

    ``edge`` says what makes it one: "call", in the goroutine of the call above it; "go", in a
    goroutine that was started there; "item", by a goroutine that has received something from there;
    "context", by its own argument. ``start_ns`` is when it was entered, since the root was.
    ``children`` are in the order in which they were. ``handed`` has, if that was asked for, the
    goroutines through which the work has come to its own, and when each let go of it.
    """

    call: C
    edge: str
    start_ns: int
    children: tuple[Node[C], ...] = ()
    handed: tuple[tuple[int, int], ...] = ()

    @property
    def goid(self) -> int:
        """Return the number of its goroutine."""
        return self.call.goid

    @property
    def duration_ns(self) -> int:
        """Return how long it took."""
        return self.call.duration_ns or 0

    @property
    def self_ns(self) -> int:
        """Return its duration without that of the calls within it, in its goroutine."""
        return self.duration_ns - sum(
            child.duration_ns
            for child in self.children
            if child.edge == "call" and child.goid == self.goid
        )

    def walk(self) -> Iterator[Node[C]]:
        """Yield the node and all nodes below it, outer ones first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def mapped(self, made_of: Callable[[C], D]) -> Node[D]:
        """Return the same tree of other calls."""
        # Without recursion, as all here: calls can be nested deeply.
        made: dict[int, Node[D]] = {}
        for each in reversed(list(self.walk())):
            children = tuple(made.pop(id(child)) for child in each.children)
            made[id(each)] = Node(
                made_of(each.call), each.edge, each.start_ns, children, each.handed
            )
        return made[id(self)]


@dataclass(frozen=True, slots=True)
class Request(Generic[C]):
    """A call of the root, and all calls that were made for it.

    ``unfinished`` is how many goroutines still worked for it when it was given out: their calls
    since then are missing. ``unattributed`` is how many calls of all goroutines could not be
    attributed to any request since the one before it was given out. ``critical`` is the critical
    path, in the order of time, empty if it was not asked for. ``states`` are those of goroutines
    while they worked for it, with times since the root was entered; empty like that.
    """

    root: Node[C]
    unfinished: int = 0
    unattributed: int = 0
    critical: tuple[PathPart, ...] = ()
    states: tuple[StateChange, ...] = ()

    @property
    def duration_ns(self) -> int:
        """Return how long the root's call took."""
        return self.root.duration_ns

    def __repr__(self) -> str:
        """Return how much there is: a notebook shows this."""
        calls = counted("{:,} call{s}", sum(1 for _ in self.nodes()))
        return f"<gotrace.Request: {self.duration_ns:,} ns, {calls}>"

    def nodes(self) -> Iterator[Node[C]]:
        """Yield all nodes, outer ones first."""
        return self.root.walk()

    def mapped(self, made_of: Callable[[C], D]) -> Request[D]:
        """Return the same request of other calls."""
        root = self.root.mapped(made_of)
        return Request(root, self.unfinished, self.unattributed, self.critical, self.states)

    def critical_path(self) -> list[PathPart]:
        """Return the parts of the critical path, largest first, which add up to the duration.

        ``goid`` is that of the first goroutine that has a part of it, and ``goroutines`` says how
        many have. Raises UsageError if it was not recorded.
        """
        if not self.critical and self.duration_ns:
            raise UsageError("the critical path was not recorded: give critical=True")
        alike: dict[tuple[str, str], list[PathPart]] = {}
        for part in self.critical:
            alike.setdefault((part.function, part.what), []).append(part)
        path = [
            PathPart(
                *(function, parts[0].goid, what, sum(part.ns for part in parts)),
                len({part.goid for part in parts}),
            )
            for (function, what), parts in alike.items()
        ]
        return sorted(path, key=lambda part: -part.ns)

    def to_json(self: Request[Call]) -> str:
        """Return a line of JSON, as ``gotrace tree --json`` writes it and ``load`` reads it."""
        row: dict[str, Any] = {
            "kind": "request",
            "root": _row(self.root),
            "unfinished": self.unfinished,
            "unattributed": self.unattributed,
        }
        if self.critical:
            row["critical"] = [
                {"func": part.function, "goid": part.goid, "what": part.what, "ns": part.ns}
                for part in self.critical
            ]
        if self.states:
            row["states"] = self.states
        return json.dumps(row, separators=(",", ":")) + "\n"

    def slices(self: Request[Call], arrows: Iterator[int]) -> Iterator[Slice]:
        """Yield its calls as a viewer of traces shows them; ``arrows`` gives their numbers."""
        root = self.root.call
        began = root.time_ns - self.duration_ns
        ends: dict[int, int] = {}  # arrows that end in a node
        for node in self.nodes():
            begins = []
            for child in node.children:
                if child.edge != "call":
                    begins.append(next(arrows))
                    ends[id(child)] = begins[-1]
            yield slice_of(node, began + node.start_ns, begins, ends.pop(id(node), 0))

    def recorded(self: Request[Call]) -> Recorded:
        """Return its calls and states as an execution trace has them."""
        began = self.root.call.time_ns - self.duration_ns
        regions = []
        above: dict[int, Node[Call]] = {}
        for node in self.nodes():
            regions.append(region_of(node, began + node.start_ns, above.pop(id(node), None)))
            above.update((id(child), node) for child in node.children if child.edge != "call")
        changes = [change._replace(at=began + change.at) for change in self.states]
        return Recorded(self.root.call.pid, regions, changes)

    def save(self: Request[Call], path: str | os.PathLike[str]) -> None:
        """Write the request to a file that ``gotrace.load`` reads, or that other tools do.

        That is ``x.trace`` for ``go tool trace``, ``x.pftrace`` for Perfetto. Raises GotraceError.
        """
        save(path, [self])


def _row(node: Node[Call]) -> dict[str, Any]:
    """Return a tree as JSON has it."""
    rows: dict[int, dict[str, Any]] = {}
    for each in reversed(list(node.walk())):
        rows[id(each)] = {
            "call": each.call.to_row(),
            "edge": each.edge,
            "start_ns": each.start_ns,
            "self_ns": each.self_ns,
            "children": [rows.pop(id(child)) for child in each.children],
        }
    return rows[id(node)]


def slice_of(node: Node[Call], start: int, begins: Sequence[int] = (), ends: int = 0) -> Slice:
    """Return a call as a viewer of traces shows it; ``begins`` and ``ends`` are its arrows."""
    call, row = node.call, node.call.to_row()
    begun = dict(row["args"])
    if call.file is not None:
        begun["position"] = f"{call.file}:{call.line}"
    ended = dict(row["results"] or {})
    if call.message is not None:
        ended["message"] = call.message
    if call.unwound is not None:
        ended["unwound"] = call.unwound
    if call.why is not None:
        ended["why (ns)"] = row["why"]["parts"]
    end = start + node.duration_ns
    return Slice(
        *(call.pid, call.goid, call.function, node.edge, start, end, begun, ended, begins, ends)
    )


def region_of(node: Node[Call], start: int, above: Node[Call] | None = None) -> Region:
    """Return a call as an execution trace has it; ``above``: it was made for that one elsewhere."""
    call = node.call
    begun = [("arguments", _values(call.args))] if call.args else []
    if above is not None:
        text = f"{node.edge}: for {above.call.function} of goroutine {above.goid}"
        begun.insert(0, ("edge", text))
    ended = [("results", _values(call.results))] if call.results else []
    if call.message is not None:
        ended.append(("message", call.message))
    if call.unwound is not None:
        ended.append(("unwound", call.unwound))
    if call.why is not None:
        ended.append(("why (ns)", _values(call.why.parts)))
    return Region(
        *(call.goid, call.tid, call.function, start, start + node.duration_ns),
        *(call.file or "", call.line or 0, begun, ended),
    )


def _values(values: Mapping[str, Any]) -> str:
    """Return values as a log has them: as JSON has them in short, much as Go has them."""
    return ", ".join(
        # Most are numbers, and there may be a million.
        f"{'' if name.startswith('$ret') else f'{name}='}"
        f"{value if type(value) is int else _text(as_json(value))}"
        for name, value in values.items()
    )


def _text(value: Any) -> str:
    """Return a value that JSON has in short."""
    if isinstance(value, Mapping):
        first = next(iter(value), "")
        if first.startswith("$"):  # what JSON has no value for
            what = value[first]
            is_word = isinstance(what, str) and first not in ("$string", "$error")
            return str(what) if is_word else _text(what)
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "nil" if value is None else _encoded(value)


#: An encoder is as dear to make as ten to use.
_encoded = json.JSONEncoder(ensure_ascii=False).encode


class RequestFile:
    """A file for other tools that requests are added to as they come.

    ``x.trace`` is for ``go tool trace``, ``x.pftrace`` for Perfetto.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin the file. Raises GotraceError."""
        self._path = os.fspath(path)
        self._arrows = count(1)
        self._numbers = count(1)
        self._count = 0
        self._execution = ExecutionFile(path) if is_execution_trace(path) else None
        self._perfetto = None if self._execution is not None else PerfettoFile(path)

    def add(self, request: Request[Call]) -> None:
        """Write a request. Raises GotraceError."""
        self._count += 1
        if self._execution is not None:
            self._execution.add(request.recorded())
        if self._perfetto is not None:
            self._perfetto.add(request.slices(self._arrows), next(self._numbers))

    def lost(self, records: int) -> None:
        """Note that so many records are missing between what was added and what comes."""
        if self._execution is not None:
            self._execution.lost(records)

    def close(self) -> None:
        """End the file. Raises GotraceError."""
        for file in (self._execution, self._perfetto):
            if file is not None:
                file.close()

    @property
    def written(self) -> Sequence[Written]:
        """Return the files that were written by now."""
        if self._execution is not None:
            return self._execution.written
        return [Written(self._path, self._count)]


def is_request_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name asks for a ``RequestFile``."""
    return is_execution_trace(path) or is_perfetto(path)


def save(path: str | os.PathLike[str], requests: Iterable[Request[Call]]) -> None:
    """Write requests to a file that ``load`` reads, or that other tools do.

    That is ``x.trace`` for ``go tool trace``, ``x.pftrace`` for Perfetto. Raises GotraceError.
    """
    name = os.fspath(path)
    if is_request_file(name):
        with closing(RequestFile(name)) as traces:
            for request in requests:
                traces.add(request)
        return
    try:
        real_path(name)  # raises for links of other users
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(request.to_json() for request in requests)
    except OSError as error:
        raise GotraceError(f"cannot write {name}: {error.strerror or error}") from error


@held_to_annotations
def load(path: str | os.PathLike[str]) -> list[Request[Call]]:
    """Return the requests of a file that ``gotrace tree --json`` or ``save`` wrote.

    Lines of other kinds are passed over. Raises GotraceError if the file cannot be read or a line
    is not of such a file.
    """
    name = os.fspath(path)
    found = []
    with lines_of(name, "gotrace --json") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{name}:{number}"
            try:
                row = json.loads(line)
                if row.get("kind") == "request":
                    root = _node(row["root"], place)
                    parts = tuple(
                        PathPart(part["func"], part["goid"], part["what"], part["ns"])
                        for part in row.get("critical", ())
                    )
                    counts = row["unfinished"], row["unattributed"]
                    states = tuple(StateChange(*state) for state in row.get("states", ()))
                    found.append(Request(root, *counts, parts, states))
            except (ValueError, AttributeError, KeyError, TypeError) as error:
                text = f"{place}: not a line of gotrace tree --json: {error!r}"
                raise GotraceError(text) from error
    return found


def _node(row: Mapping[str, Any], place: str) -> Node[Call]:
    """Return the tree of a row."""
    order: list[Mapping[str, Any]] = []
    waiting = [row]
    while waiting:
        order.append(waiting.pop())
        waiting += order[-1]["children"]
    made: dict[int, Node[Call]] = {}
    for each in reversed(order):
        children = tuple(made.pop(id(child)) for child in each["children"])
        call = from_row(each["call"], place)
        made[id(each)] = Node(call, each["edge"], each["start_ns"], children)
    return made[id(row)]
