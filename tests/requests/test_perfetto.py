# SPDX-License-Identifier: Apache-2.0
"""Requests as files for Perfetto, read back by Perfetto's own definition of the format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gotrace.calls import Call
from gotrace.errors import GotraceError
from gotrace.requests.model import Node, Request, load, save
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, tool

pb: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

BEGIN, END = 1, 2
T0 = 1_700_000_000_000_000_000


def call(name: str, goid: int, start: int, length: int, **more: Any) -> Call:
    values: dict[str, Any] = {"args": {}, "results": {}, **more}
    return Call(
        name, duration_ns=length, time_ns=T0 + start + length, pid=7, tid=8, goid=goid, **values
    )


def node(
    name: str, goid: int, start: int, length: int, edge: str, *children: Any, **more: Any
) -> Node[Call]:
    return Node(call(name, goid, start, length, **more), edge, start, children)


@dataclass
class Read:
    """A call as it is in the file."""

    name: str
    track: str
    start: int
    end: int = 0
    shown: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    request: int = 0
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    edge: str = ""


def values(annotation: Any) -> Any:
    which = annotation.WhichOneof("value")
    if annotation.dict_entries:
        return {one.name: values(one) for one in annotation.dict_entries}
    if annotation.array_values:
        return [values(one) for one in annotation.array_values]
    return getattr(annotation, which)


def read(path: Path) -> list[Read]:
    """Return the slices of a file, which nest on each track in the order of time."""
    trace = pb.Trace()
    trace.ParseFromString(path.read_bytes())
    assert trace.packet[0].clock_snapshot.primary_trace_clock == 1
    names: dict[int, str] = {}
    parents: dict[int, int] = {}
    stacks: dict[int, list[Read]] = {}
    found: list[Read] = []
    events = []
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid] = track.name or f"process {track.process.pid}"
            parents[track.uuid] = track.parent_uuid
        if packet.HasField("track_event"):
            assert packet.timestamp_clock_id == 1
            events.append((packet.timestamp, number, packet.track_event))
    for at, _, event in sorted(events, key=lambda one: one[:2]):
        stack = stacks.setdefault(event.track_uuid, [])
        shown = {one.name: values(one) for one in event.debug_annotations}
        if event.type == BEGIN:
            assert names[parents[event.track_uuid]].startswith("process ")
            one = Read(event.name, names[event.track_uuid], at, shown=shown, depth=len(stack))
            one.request, one.edge = event.correlation_id, event.categories[0]
            one.begins, one.ends = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
            stack.append(one)
            found.append(one)
        else:
            assert event.type == END
            one = stack.pop()
            one.end = at
            one.shown |= shown
    assert not any(stacks.values())
    return found


def test_calls_are_slices_of_their_goroutines(tmp_path: Path) -> None:
    values = {"args": {"key": "a\nb", "n": -3}, "results": {"$ret": None}}
    inner = node("main.get", 1, 10, 5, "call", **values, message="of a")
    work = node("main.work", 2, 12, 50, "item", args={"p": {"X": 1, "Y": [True, 0, 2.5]}})
    request = Request(node("main.handle", 1, 0, 30, "call", inner, work))
    request.save(tmp_path / "x.pftrace")
    handle, get, done = read(tmp_path / "x.pftrace")
    assert (handle.name, handle.track, handle.start, handle.end) == (
        "main.handle",
        "goroutine 1",
        T0,
        T0 + 30,
    )
    assert (get.depth, get.start, get.end) == (1, T0 + 10, T0 + 15)
    assert get.shown == {"key": "a\nb", "n": -3, "$ret": "nil", "message": "of a"}
    assert (done.track, done.depth, done.edge) == ("goroutine 2", 0, "item")
    assert done.shown == {"p": {"X": 1, "Y": [True, 0, 2.5]}}
    assert handle.begins == done.ends != () and not get.ends
    assert {one.request for one in (handle, get, done)} == {1}


def grown(
    random: Random, goid: int, start: int, end: int, depth: int, goids: Iterator[int]
) -> list[Node[Call]]:
    """Return calls that lie within a time, one after the other, some handed to others."""
    nodes: list[Node[Call]] = []
    at = start
    while depth and at < end and random.random() < 0.7:
        begin = random.randint(at, end)
        stop = random.randint(begin, end)
        own, edge = goid, "call"
        if random.random() < 0.3:
            own, edge = next(goids), random.choice(["go", "item", "context"])
            stop += random.randint(0, 100)
        children = grown(random, own, begin, stop, depth - 1, goids)
        nodes.append(node(f"main.f{len(nodes)}", own, begin, stop - begin, edge, *children))
        at = max(at, stop if edge == "call" else begin)
    return nodes


@pytest.mark.parametrize("seed", range(50))
def test_any_tree_comes_back(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    goids = iter(range(2, 1 << 20))
    requests = []
    for _ in range(random.randint(1, 5)):
        start, goid = random.randint(0, 10_000), next(goids)
        end = start + random.randint(0, 1000)
        children = grown(random, goid, start, end, 6, goids)
        root = node("main.root", goid, start, end - start, "call", *children)
        requests.append(Request(root))
    path = tmp_path / "x.pftrace"
    shifted = [moved(request) for request in requests]
    save(path, shifted)
    expected = sorted(
        (
            one.call.function,
            f"goroutine {one.goid}",
            one.call.time_ns - one.duration_ns,
            one.call.time_ns,
        )
        for request in shifted
        for one in request.nodes()
    )
    found = read(path)
    assert sorted((one.name, one.track, one.start, one.end) for one in found) == expected
    begun = [flow for one in found for flow in one.begins]
    ended = [flow for one in found for flow in one.ends]
    assert sorted(begun) == sorted(ended) and len(set(begun)) == len(begun)
    assert len(begun) == sum(one.edge != "call" for one in found)


def moved(request: Request[Call]) -> Request[Call]:
    """Return a request whose times are since its root's beginning, as they are in all requests."""
    began = request.root.start_ns

    def since(one: Node[Call]) -> Node[Call]:
        return Node(one.call, one.edge, one.start_ns - began, tuple(map(since, one.children)))

    return Request(since(request.root))


def test_json_is_as_before(tmp_path: Path) -> None:
    request = Request(node("main.handle", 1, 0, 30, "call"))
    save(tmp_path / "x.json", [request])
    assert load(tmp_path / "x.json") == [request]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    request = Request(node("main.handle", 1, 0, 30, "call"))
    with pytest.raises(GotraceError, match=r"cannot write .*x\.pftrace: No such file"):
        request.save(tmp_path / "none" / "x.pftrace")


@pytest.mark.live
def test_requests_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    with Fixture([build(FIXTURES / "live_requests", newest())]) as fixture:
        words = ("tree", "main.handle", "-o", str(path), "-p", str(fixture.ready), "--force")
        with tool("gotrace", *words, "main.job") as running:
            fixture.say("fan-out 20")
            truth, _ = fixture.read_until("truth ")
            result = running.end()
        fixture.say()
    assert f"wrote 20 requests to {path}" in result.errors
    found = read(path)
    jobs = [one for one in found if one.name == "main.job"]
    assert len({one.request for one in found}) == 20
    assert len(jobs) >= 0.99 * json.loads(truth)["jobs"]
    roots = {one.request: one for one in found if one.name == "main.handle"}
    assert all(one.shown["id"] == roots[one.request].shown["id"] for one in jobs)
    assert all(bool(one.ends) == (one.edge != "call") for one in found)
    assert any(one.ends and one.track != roots[one.request].track for one in jobs)
