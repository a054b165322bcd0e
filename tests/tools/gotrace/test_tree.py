# SPDX-License-Identifier: Apache-2.0
"""Requests are held to what a program knows: each of its calls is given its request's number."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.session.trace import buffer_pages
from tests.toolchains import BUILD_MODES, FIXTURES, build, newest, require
from tests.tools.harness import Fixture, of_kind, tool

ROOT = "main.handle(id int, ctx context.Context, work func(ctx context.Context, id int)) int"
PATTERNS = (
    "main.job(id int, name string) int",
    "main.outer(id int, name string) int",
    "main.contextJob(ctx context.Context, id int, name string) int",
)
#: How work is handed on, and of how many requests; nothing says whose work those of "signals" have
#: done.
KINDS = (
    *("fan-out", "lazy-pool", "backlog", "pipeline", "fan-in", "cond", "connections"),
    *("semaphores", "non-blocking", "timers", "reused", "stream", "given", "shared", "flights"),
    *("web", "web-2", "pulled", "pulled-pool", "locked"),
)
#: Ways of which edges alone do not say whose call is whose.
HELD = (
    *("batched", "noted", "ordered", "unbounded", "dispatched", "notices", "tokens", "drained"),
    *("polled", "kicked", "cond-started", "answers", "reset-timers", "reused-channels"),
)
#: Ways in which what is handed over seems to say whose work it is, and is another's: some requests
#: wait for their work.
MISLEADING = (
    *("leaky", "leaky-clients", "leaky-tokens", "filled", "filled-go", "filled-pointers"),
    *("after-default", "after-defaults", "after-close", "after-cond", "go-batched"),
    *("told-children", "rearmed", "after-func", "kept-context", "kept-contexts", "counted"),
    *("kicked-once", "kicked-between", "asking"),
)
#: The same if nobody waits, and the least share of the jobs that is attributed even so. The silent
#: ways of the others are known to be wrong, or are these.
SILENT = {
    **dict.fromkeys(("leaky-silent", "leaky-tokens-silent", "kept-contexts-silent"), 0.75),
    **dict.fromkeys(("filled-silent", "after-default-silent", "after-defaults-silent"), 0.0),
    **dict.fromkeys(("after-close-silent", "kept-context-silent", "kicked-between-silent"), 0.25),
    **dict.fromkeys(("after-cond-silent", "go-batched-silent", "counted-silent"), 0.0),
    **dict.fromkeys(("kicked-once-silent", "rearmed-silent", "after-func-silent"), 0.0),
}
LEAST_MISLEADING = {
    **dict.fromkeys(("leaky", "leaky-clients", "leaky-tokens", "kept-contexts", "asking"), 0.75),
    **dict.fromkeys(("after-default", "after-defaults", "after-close", "after-cond"), 0.25),
    "kicked-between": 0.25,
    **SILENT,
}
REQUESTS = 400
FEW = 120
LEAST = 0.99
#: The least share of the jobs of a kind. A context's address that is used again while a request is
#: open says nothing: how many of "given" have such a one is the allocator's choice.
LEAST_OF = dict.fromkeys(KINDS, 0.95) | {"given": 0.7}


@dataclass
class Found:
    """What became of the jobs of one kind."""

    truth: dict[str, int] = field(default_factory=dict)
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    edges: Counter[str] = field(default_factory=Counter)


def play(program: Path, kinds: tuple[str, ...], requests: int) -> tuple[dict[str, Found], Any]:
    """Have a program make requests, and return what was found of each kind, and the tally."""
    found = {kind: Found() for kind in kinds}
    bounds: list[tuple[int, str]] = []
    with Fixture([program]) as fixture, gotrace.attach(fixture.ready) as go:
        stream = go.requests(ROOT, *PATTERNS, force=True, lossy=True)

        def work() -> None:
            last = 0
            for kind in kinds:
                fixture.say(f"{kind} {requests}")
                truth, _ = fixture.read_until("truth ")
                found[kind].truth = json.loads(truth)
                last += found[kind].truth["requests"]
                bounds.append((last, kind))
            stream.stop()

        player = threading.Thread(target=work)
        player.start()
        seen = list(stream)
        player.join()
        tally = stream.tally
        assert stream.lost == {}
        fixture.say()
    for request in seen:
        number = request.root.call.args["id"]
        of = found[next(kind for last, kind in bounds if number <= last)]
        for node in request.nodes():
            name = node.call.function
            if name == "main.handle":
                continue
            if node.call.args["id"] != number:
                of.wrong.append(f"{node.call.args} by {node.edge} in {number}")
            elif name == "main.job":
                of.right += 1
                of.edges[node.edge] += 1
    assert tally.lost == tally.unwanted == 0
    assert len(seen) == sum(one.truth["requests"] for one in found.values())
    made = sum(one.truth["calls"] for one in found.values())
    assert tally.nodes - len(seen) + tally.unattributed + tally.late == made
    return found, tally


@pytest.mark.live
@pytest.mark.parametrize(
    "minor",
    [
        "1.27",
        pytest.param("1.19", marks=pytest.mark.slow),
        *(pytest.param(f"1.{minor}", marks=pytest.mark.thorough) for minor in range(21, 27)),
    ],
)
def test_a_goroutine_of_the_runtime_works_for_nobody(minor: str) -> None:
    """Whichever request has needed it first: the calls of finalizers were that request's."""
    program = build(FIXTURES / "live_finalized", require(minor))
    with Fixture([program]) as fixture, gotrace.attach(fixture.ready) as go:
        stream = go.requests("main.handle", "main.job", force=True)
        made: list[Any] = []

        def work() -> None:
            made.append(fixture.work("go"))
            stream.stop()

        player = threading.Thread(target=work)
        player.start()
        seen = [[node.call.args["id"] for node in one.nodes()] for one in stream]
        player.join()
        (jobs,) = made
        assert sorted(seen) == [[number + 1] for number in range(jobs)]
        assert stream.tally.unattributed == jobs
        fixture.finish()


@pytest.mark.live
@pytest.mark.parametrize(
    ("minor", "mode"),
    [
        ("1.27", "default"),
        pytest.param("1.27", "stripped", marks=pytest.mark.slow),
        pytest.param("1.27", "pie", marks=pytest.mark.slow),
        pytest.param("1.27", "-gcflags=all=-l", marks=pytest.mark.slow),
        pytest.param("1.23", "default", marks=pytest.mark.slow),
        pytest.param("1.19", "stripped", marks=pytest.mark.slow),
        *(
            pytest.param(minor, "default", marks=pytest.mark.thorough)
            for minor in ("1.21", "1.22", "1.24", "1.25", "1.26")
        ),
    ],
)
def test_no_call_has_a_wrong_parent(minor: str, mode: str) -> None:
    flags = BUILD_MODES.get(mode, (mode,))
    program = build(FIXTURES / "live_requests", require(minor), flags=flags)
    found, _ = play(program, KINDS, REQUESTS)
    wrong = {kind: one.wrong[:3] for kind, one in found.items() if one.wrong}
    assert wrong == {}
    shares = {kind: one.right / one.truth["jobs"] for kind, one in found.items()}
    jobs = sum(one.truth["jobs"] for one in found.values())
    assert sum(one.right for one in found.values()) >= LEAST * jobs
    assert {kind: share for kind, share in shares.items() if share < LEAST_OF[kind]} == {}
    edges = sum((one.edges for one in found.values()), Counter[str]())
    assert set(edges) == {"call", "go", "item"}


@pytest.mark.live
@pytest.mark.parametrize(
    "minor",
    [
        "1.27",
        pytest.param("1.23", marks=pytest.mark.slow),
        pytest.param("1.19", marks=pytest.mark.slow),
        *(
            pytest.param(minor, marks=pytest.mark.thorough)
            for minor in ("1.21", "1.22", "1.24", "1.25", "1.26")
        ),
    ],
)
def test_a_call_whose_request_is_not_known_is_of_nobody(minor: str) -> None:
    program = build(FIXTURES / "live_requests", require(minor))
    found, _ = play(program, HELD, REQUESTS)
    wrong = {kind: one.wrong[:3] for kind, one in found.items() if one.wrong}
    assert wrong == {}
    # What is known of them is attributed all the same: a timer's reset, and ordinary workers.
    assert found["reset-timers"].right == found["reset-timers"].truth["jobs"]
    for kind, least in (("ordered", 0.4), ("reused-channels", 0.8)):
        assert found[kind].right >= least * found[kind].truth["jobs"]


@pytest.mark.live
@pytest.mark.parametrize(
    "minor",
    [
        "1.27",
        pytest.param("1.23", marks=pytest.mark.slow),
        pytest.param("1.19", marks=pytest.mark.slow),
        *(
            pytest.param(minor, marks=pytest.mark.thorough)
            for minor in ("1.21", "1.22", "1.24", "1.25", "1.26")
        ),
    ],
)
def test_what_is_handed_over_does_not_mislead(minor: str) -> None:
    program = build(FIXTURES / "live_requests", require(minor))
    found, _ = play(program, (*MISLEADING, *SILENT), FEW)
    wrong = {kind: one.wrong[:3] for kind, one in found.items() if one.wrong}
    assert wrong == {}
    shares = {kind: found[kind].right / found[kind].truth["jobs"] for kind in LEAST_MISLEADING}
    least = LEAST_MISLEADING
    assert {kind: share for kind, share in shares.items() if share < least[kind]} == {}


@pytest.mark.live
def test_critical_paths_add_up() -> None:
    """To the nanosecond; and a request that waits for others is what these do."""
    program = build(FIXTURES / "live_requests", newest())
    kinds = ("fan-out", "pipeline", "fan-in", "connections", "timers", "web", "pulled")
    with Fixture([program]) as fixture, gotrace.attach(fixture.ready) as go:
        stream = go.requests(ROOT, *PATTERNS, critical=True, force=True, lossy=True)

        def work() -> None:
            for kind in kinds:
                fixture.say(f"{kind} 20")
                fixture.read_until("truth ")
            stream.stop()

        player = threading.Thread(target=work)
        player.start()
        seen = list(stream)
        player.join()
        fixture.say()
    assert len(seen) == 20 * (len(kinds) + 1)
    for request in seen:
        path = request.critical_path()
        assert sum(part.ns for part in path) == request.duration_ns
        assert sum(part.ns for part in request.critical) == request.duration_ns
        assert [part.ns for part in path] == sorted((part.ns for part in path), reverse=True)
    others = {
        part.function
        for request in seen
        for part in request.critical
        if part.goid != request.root.goid and part.what == "running"
    }
    assert {"main.job", "main.outer"} <= others


@pytest.mark.live
@pytest.mark.parametrize("minor", ["1.19", "1.21"])
def test_paths_wait_for_a_lock_as_long_as_the_program_did(minor: str) -> None:
    """A WaitGroup's wait has no reason of its own up to Go 1.23, but that of locks up to 1.19."""
    program = build(FIXTURES / "live_requests", require(minor))
    with Fixture([program]) as fixture, gotrace.attach(fixture.ready) as go:
        words = (*PATTERNS, "main.locker(id int, which int)")
        stream = go.requests(ROOT, *words, critical=True, force=True)
        truth: dict[str, list[int]] = {}

        def work() -> None:
            fixture.say("contended 800")
            truth.update(json.loads(fixture.read_until("locks ")[0]))
            stream.stop()

        player = threading.Thread(target=work)
        player.start()
        seen = list(stream)
        player.join()
        fixture.say()
    assert len(seen) == len(truth) == 800
    waited = 0
    lock = "blocked: " + ("semacquire" if minor == "1.19" else "sync.Mutex.Lock")
    for request in seen:
        assert sum(part.ns for part in request.critical) == request.duration_ns
        calls = [node.call for node in request.nodes() if node.call.function == "main.locker"]
        lasted = {call.args["which"]: call.duration_ns or 0 for call in calls}
        times: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for part in request.critical:
            is_root = part.goid == request.root.goid
            # The root waits for its worker alone, which the path goes to.
            assert part.function == "main.locker" or not (is_root and "blocked" in part.what), part
            if part.function == "main.locker":
                times[not is_root][part.what] += part.ns
        for which, took in enumerate(truth[str(request.root.call.args["id"])]):
            found = times[which]
            # The path has the worker from when the root waits for it.
            before = lasted[which] - found.total()
            assert (
                found[lock] <= took <= found[lock] + found["running"] + found["runnable"] + before
            )
            waited += found[lock] > 0 and before < took // 8
    assert waited > 400


@pytest.mark.live
@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_the_path_of_a_call_that_has_to_collect_waits_as_why_has_it(minor: str) -> None:
    """It waits for the collector, and goes on without having been ready to run."""
    with Fixture([build(FIXTURES / "live_why", require(minor))]) as fixture:
        fixture.work("collects")  # the collector's own goroutines are there then
        words = ("tree", "main.allocates", "--json", "--force", "--critical", "--why")
        with tool("gotrace", *words, "-p", str(fixture.pid), "main.collects") as tracing:
            fixture.work("collects")
            result = tracing.end()
        assert fixture.finish() == 0
    (request,) = of_kind(result, "request")
    found: Counter[str] = Counter()
    for part in request["critical"]:
        found[part["what"]] += part["ns"]
    why = request["root"]["call"]["why"]["parts"]
    waits = {what: ns for what, ns in found.items() if what.startswith("blocked: ")}
    assert "blocked: GC assist marking" in waits
    for what, ns in waits.items():
        reason = what.removeprefix("blocked: ")
        expected = why.get(what, 0) + why.get(f"gc: {reason}", 0)
        assert abs(ns - expected) < 0.05 * expected + 500_000, (what, found, why)


@pytest.mark.live
def test_nobody_knows_whose_work_a_signal_is_for() -> None:
    """A worker that is told that there is work, and does all there is, works for nobody."""
    program = build(FIXTURES / "live_requests", newest())
    found, tally = play(program, ("signals", "cond-stream"), 50)
    assert {kind: (one.wrong, one.right) for kind, one in found.items()} == {
        "signals": ([], 0),
        "cond-stream": ([], 0),
    }
    assert tally.unattributed == 100


@pytest.mark.live
def test_the_command_shows_trees(tmp_path: Path) -> None:
    program = build(FIXTURES / "live_requests", newest())
    file = tmp_path / "x.json"
    words = ("tree", "main.handle", "main.job", "main.outer")
    with Fixture([program]) as fixture:
        with tool("gotrace", *words, "-p", str(fixture.ready)) as tracing:
            fixture.say("fan-out 1")
            fixture.read_until("truth ")
            result = tracing.end()
        with tool("gotrace", *words, "-p", str(fixture.ready), "-o", str(file)) as tracing:
            fixture.say("fan-out 3")
            fixture.read_until("truth ")
            written = tracing.end()
        fixture.say()
    assert written.errors.count("no request") == 0
    lines = [line for line in result.lines if line[:1].isdigit()]
    assert "16 calls in 9 goroutines" in lines[0]
    calls = [line.split(None, 2)[2].rstrip() for line in lines[1:]]
    assert calls[0].split(None, 1)[1].startswith("main.handle(id=1, ctx=(*context.valueCtx)")
    assert calls[1].startswith('main.job(id=1, name="before") = 7 at main.go:')
    assert sum("go: main.job" in call for call in calls) == 4
    assert sum("go: main.outer" in call for call in calls) == 4
    assert sum('main.job(id=1, name="deeper.inside")' in call for call in calls) == 4
    requests = gotrace.load(file)
    assert sorted(request.root.call.args["id"] for request in requests) == [2, 3, 4]
    assert all(len(list(request.nodes())) == 16 for request in requests)
    copied = tmp_path / "copy.json"
    requests[0].save(copied)
    assert [one.to_json() for one in gotrace.load(copied)] == [requests[0].to_json()]


@pytest.mark.live
@pytest.mark.slow
def test_each_request_is_shown_or_counted() -> None:
    """The tool is stopped until the kernel has no room for records."""
    program = build(FIXTURES / "live_requests", newest())
    with Fixture([program]) as fixture:
        words = ("tree", ROOT, *PATTERNS, "--json", "--force", "-p", str(fixture.ready))
        with tool("gotrace", *words) as tracing:
            for turn, number in enumerate((50, 20000, 50)):
                tracing.signal(signal.SIGSTOP if turn == 1 else signal.SIGCONT)
                fixture.say(f"fan-out {number}")
                fixture.read_until("truth ")
                if turn == 0:
                    tracing.lines_until('{"kind":"request"')
            result = tracing.end()
        fixture.say()
    [row] = [row for row in of_kind(result, "lost") if row["what"] == "requests"]
    shown = {one["root"]["call"]["args"]["id"] for one in of_kind(result, "request")}
    assert len(shown) + row["requests"] == 20100
    # Those before the loss are not spoiled by it.
    assert len(shown & set(range(1, 51))) > 40 and row["requests"] > 0


@pytest.mark.live
@pytest.mark.slow
def test_what_the_kernel_has_room_for_is_not_lost() -> None:
    """The tool is stopped, and then has more at once than it holds for their order.

    That is what one CPU's buffer holds: it may be that the program runs on one CPU all the time.
    """
    program = build(FIXTURES / "live_requests", newest())
    requests = buffer_pages() * os.sysconf("SC_PAGE_SIZE") // 4096  # each is 3,810 bytes of records
    with Fixture([program]) as fixture:
        words = ("tree", ROOT, *PATTERNS, "--json", "--force", "-p", str(fixture.ready))
        with tool("gotrace", *words) as tracing:
            tracing.signal(signal.SIGSTOP)
            fixture.say(f"fan-out {requests}")
            fixture.read_until("truth ")
            tracing.signal(signal.SIGCONT)
            result = tracing.end()
        fixture.say()
    assert of_kind(result, "lost") == [] and len(of_kind(result, "request")) == requests


@pytest.mark.live
@pytest.mark.parametrize("patterns", [(), ("main.*",), ("main.spins",)])
def test_a_root_without_parameters_is_one_of_the_functions(patterns: tuple[str, ...]) -> None:
    """Several probes want its calls then, and show the same."""
    with Fixture([build(FIXTURES / "live_why", newest())]) as fixture:
        place = ("tree", "main.spins", "-p", str(fixture.ready), "--json", "--force")
        with tool("gotrace", *place, *patterns) as tracing:
            fixture.work("spins")
            result = tracing.end()
        assert fixture.finish() == 0
    (request,) = of_kind(result, "request")
    assert request["root"]["call"]["func"] == "main.spins"


@pytest.mark.live
def test_the_programs_own_functions_are_shown() -> None:
    program = build(FIXTURES / "live_requests", newest())
    with Fixture([program]) as fixture:
        words = ("tree", "main.handle", "--json", "-p", str(fixture.ready))
        with tool("gotrace", *words) as tracing:
            fixture.say("fan-in 2")
            fixture.read_until("truth ")
            result = tracing.end()
        fixture.say()
    requests = of_kind(result, "request")
    assert [request["root"]["children"][0]["call"]["func"] for request in requests] == [
        "main.fanIn.func2"
    ] * 2


@pytest.mark.live
def test_a_predicate_of_the_root_chooses_requests() -> None:
    program = build(FIXTURES / "live_requests", newest())
    words = ("tree", "--json", "main.handle (id == 3 && $duration > 1ns)", "main.job")
    with Fixture([program]) as fixture:
        with tool("gotrace", *words, "-p", str(fixture.ready)) as tracing:
            fixture.say("fan-out 5")
            fixture.read_until("truth ")
            result = tracing.end()
        fixture.say()
    [request] = of_kind(result, "request")
    assert request["root"]["call"]["args"]["id"] == 3
    assert len(request["root"]["children"]) == 10
