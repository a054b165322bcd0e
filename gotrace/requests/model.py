# SPDX-License-Identifier: Apache-2.0
"""Requests as Python objects: trees of calls, saved as JSON and loaded from it.

Reading takes neither BPF nor root, on any system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from gotrace.calls import Call, from_row
from gotrace.errors import GotraceError, UsageError
from gotrace.profiles.perfetto import PerfettoFile, Slice, is_perfetto
from gotrace.requests.critical import Part

__all__ = ["Node", "Request", "RequestFile", "load", "save"]


class _Timed(Protocol):
    """What is needed of a call here."""

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
    ``children`` are in the order in which they were.
    """

    call: C
    edge: str
    start_ns: int
    children: tuple[Node[C], ...] = ()

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
        """Yield it and all nodes below it, outer ones first."""
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
            made[id(each)] = Node(made_of(each.call), each.edge, each.start_ns, children)
        return made[id(self)]


@dataclass(frozen=True, slots=True)
class Request(Generic[C]):
    """A call of the root, and all calls that were made for it.

    ``unfinished`` is how many goroutines still worked for it when it was given out: their calls
    since then are missing. ``unattributed`` is how many calls of all goroutines could not be
    attributed to any request since the one before it was given out. ``critical`` is the critical
    path, in the order of time, empty if it was not asked for.
    """

    root: Node[C]
    unfinished: int = 0
    unattributed: int = 0
    critical: tuple[Part, ...] = ()

    @property
    def duration_ns(self) -> int:
        """Return how long the root's call took."""
        return self.root.duration_ns

    def nodes(self) -> Iterator[Node[C]]:
        """Yield all nodes, outer ones first."""
        return self.root.walk()

    def mapped(self, made_of: Callable[[C], D]) -> Request[D]:
        """Return the same request of other calls."""
        root = self.root.mapped(made_of)
        return Request(root, self.unfinished, self.unattributed, self.critical)

    def critical_path(self) -> list[Part]:
        """Return what made it as long as it was, largest first: parts that add up to its duration.

        ``goid`` is that of the first goroutine that has a part of it. Raises UsageError if it was
        not recorded.
        """
        if not self.critical and self.duration_ns:
            raise UsageError("the critical path was not recorded: give critical=True")
        sums: dict[tuple[str, str], Part] = {}
        for part in self.critical:
            key = part.function, part.what
            ns = part.ns + (sums[key].ns if key in sums else 0)
            goid = sums[key].goid if key in sums else part.goid
            sums[key] = Part(part.function, goid, part.what, ns)
        return sorted(sums.values(), key=lambda part: -part.ns)

    def to_json(self: Request[Call]) -> str:
        """Return it on one line, as ``gotrace --tree --json`` writes it and ``load`` reads it."""
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
            yield _slice(node, began + node.start_ns, begins, ends.pop(id(node), 0))

    def save(self: Request[Call], path: str | os.PathLike[str]) -> None:
        """Write it to a file that ``gotrace.load`` reads, or to an ``x.pftrace`` for Perfetto.

        Raises GotraceError.
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


def _slice(node: Node[Call], start: int, begins: Sequence[int], ends: int) -> Slice:
    call, row = node.call, node.call.to_row()
    begun = dict(row["args"])
    if call.file is not None:
        begun["position"] = f"{call.file}:{call.line}"
    ended = dict(row["results"] or {})
    if call.unwound is not None:
        ended["unwound"] = call.unwound
    if call.why is not None:
        ended["why (ns)"] = row["why"]["parts"]
    end = start + node.duration_ns
    return Slice(
        *(call.pid, call.goid, call.function, node.edge, start, end, begun, ended, begins, ends)
    )


class RequestFile:
    """A file for Perfetto that requests are added to as they come."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin the file. Raises GotraceError."""
        self._file = PerfettoFile(path)
        self._arrows = count(1)
        self._numbers = count(1)

    def add(self, request: Request[Call]) -> None:
        """Write a request. Raises GotraceError."""
        self._file.add(request.slices(self._arrows), next(self._numbers))

    def close(self) -> None:
        """End the file. Raises GotraceError."""
        self._file.close()


def save(path: str | os.PathLike[str], requests: Iterable[Request[Call]]) -> None:
    """Write requests to a file that ``load`` reads, or to an ``x.pftrace`` for Perfetto.

    Raises GotraceError.
    """
    name = os.fspath(path)
    if is_perfetto(name):
        with closing(RequestFile(name)) as traces:
            for request in requests:
                traces.add(request)
        return
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(request.to_json() for request in requests)
    except OSError as error:
        raise GotraceError(f"cannot write {name}: {error.strerror or error}") from error


def load(path: str | os.PathLike[str]) -> list[Request[Call]]:
    """Return the requests of a file that ``gotrace --tree --json`` or ``save`` wrote.

    Lines of other kinds are passed over. Raises GotraceError if the file cannot be read or a line
    is not of such a file.
    """
    name = os.fspath(path)
    found = []
    try:
        with open(name, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                place = f"{name}:{number}"
                try:
                    row = json.loads(line)
                    if row.get("kind") == "request":
                        root = _node(row["root"], place)
                        parts = tuple(
                            Part(part["func"], part["goid"], part["what"], part["ns"])
                            for part in row.get("critical", ())
                        )
                        counts = row["unfinished"], row["unattributed"]
                        found.append(Request(root, *counts, parts))
                except (ValueError, AttributeError, KeyError, TypeError) as error:
                    text = f"{place}: not a line of gotrace --tree --json: {error!r}"
                    raise GotraceError(text) from error
    except OSError as error:
        raise GotraceError(f"cannot read {name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise GotraceError(f"cannot read {name}: not UTF-8, as gotrace --json writes") from error
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
