# SPDX-License-Identifier: Apache-2.0
"""gotrace as a library, on programs that know of their own calls."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.session.open_calls import Diagnostic
from tests.covered import covered_calls
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, code_of
from tests.tools.trace import program

pytestmark = pytest.mark.live

_HANGS = 60  # seconds


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    with Fixture([program()]) as fixture:
        yield fixture


def assert_detached(pid: int, code: bytes) -> None:
    """Wait until a process has its own code and no breakpoints in it."""
    patience = time.monotonic() + _HANGS
    pause = threading.Event()
    while code_of(pid) != code:
        assert time.monotonic() < patience, "there are still probes"
        pause.wait(0.02)


def test_calls_have_their_values_results_and_errors(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        calls = go.trace("main.try00", "main.outcome", "main.touch", depth=3, stacks=True)
        before = time.time_ns()
        tried = fixture.work("tries")["Tried"]
        after = time.time_ns()
        calls.stop()
        by_name: dict[str, list[gotrace.Call]] = {}
        for call in calls:
            by_name.setdefault(call.function, []).append(call)
    assert len(by_name["main.try00"]) == tried
    for call in by_name["main.try00"]:
        number = call.args["id"]
        assert call.args["n"] == number * 37 - 900
        assert call.args["f"] == number / 4 - 3
        assert call.args["ok"] is (number % 3 == 0)
        request = call.args["r"]
        if number % 11 == 10:
            assert request is None
        else:
            assert request.Method == ("GET", "POST")[number % 2]
            assert request.Sizes == [number, -number, number * number]
            assert (request.URL is None) is (number % 5 == 0)
        assert call.pid == fixture.ready
        assert before <= call.time_ns <= after
        assert call.duration_ns is not None and 0 < call.duration_ns < after - before
        assert call.stack is not None and call.stack[-1].function == "runtime.goexit"
        assert call.file is not None and call.file.endswith("tries.go")
    for call in by_name["main.outcome"]:
        refused = call.args["id"] % 4 == 1
        assert (str(call.error) if call.error else None) == ("refused" if refused else None)
        assert call.results is not None
        assert call.results["$ret1"] == ("" if refused else f"answer {call.args['n']}")


def test_predicates_formats_and_limits(fixture: Fixture) -> None:
    code = code_of(fixture.ready)
    with gotrace.attach(fixture.ready) as go:
        calls = go.trace('main.try00 (n > 0) "%d of %s", n, r.Method', limit=3)
        fixture.work("tries")
        found = list(calls)
        assert [call.message for call in found] == ["25 of POST", "62 of GET", "99 of POST"]
        assert calls.lost == {}
        assert_detached(fixture.ready, code)  # the session is still open
        with pytest.raises(StopIteration):
            next(calls)


def test_leaving_the_loop_detaches(fixture: Fixture) -> None:
    code = code_of(fixture.ready)
    with gotrace.attach(fixture.ready) as go:
        calls = go.trace("main.echo")
        assert code_of(fixture.ready) != code
        fixture.work("goroutines")
        for _ in calls:
            break
        del calls
        assert_detached(fixture.ready, code)
        with pytest.raises(ZeroDivisionError):
            for _ in working(go.trace("main.echo"), fixture):
                raise ZeroDivisionError
        assert_detached(fixture.ready, code)
        go.trace("main.echo").close()
        assert_detached(fixture.ready, code)
        kept = go.trace("main.echo")
    with pytest.raises(gotrace.UsageError, match="this trace is closed"):
        next(kept)
    assert_detached(fixture.ready, code)


def test_what_is_used_after_its_block_says_so(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        with go.trace("main.echo", seconds=0.1) as calls:
            assert list(calls) == []
        assert list(calls) == []  # it had ended
    for use in (
        lambda: go.trace("main.echo"),
        lambda: go.count("main.echo"),
        lambda: go.latency("main.echo"),
        lambda: go.functions("main.echo"),
        lambda: go.goroutines(),
        lambda: go.waits(),
    ):
        with pytest.raises(gotrace.UsageError, match="this session is closed"):
            use()


def test_a_stop_before_the_probes_are_attached_counts(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        go.stop()
        assert go.count("main.echo") == {}
        assert go.count("main.echo", seconds=0.1, ready=lambda: fixture.work("goroutines"))
        go.stop()  # of a run that has ended: the next one is another
        assert go.count("main.echo", seconds=0.1, ready=lambda: fixture.work("goroutines"))


def test_what_cannot_be_found_is_an_error(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        for look in (go.goroutines, go.waits):
            with pytest.raises(gotrace.NoMatchError, match=r"main\.nope"):
                look("main.nope")
        for measure, name in ((go.count, "count"), (go.latency, "latency")):
            with pytest.raises(
                gotrace.UsageError, match=rf"{name}\(\) takes '\(n > 1\)' only with"
            ):
                measure("main.echo (n > 1)")
        with pytest.raises(gotrace.UsageError, match="wait for 'sleeep': reasons are 'sleep'"):
            go.waits(reasons=["sleeep"])
        with pytest.raises(gotrace.UsageError, match=r"reasons=\['sleep'\]"):
            go.waits(reasons="sleep")
        times = go.latency("main.echo", seconds=0.1)
        assert not times and times["main.echo"].count == 0
        with pytest.raises(KeyError):
            times["main.nope"]


def working(calls: gotrace.CallStream, fixture: Fixture) -> Iterator[gotrace.Call]:
    """Have the fixture make calls and pass them on."""
    fixture.work("goroutines")
    yield from calls


def test_calls_end_with_the_target_and_with_the_time(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        assert list(go.trace("main.echo", seconds=0.1)) == []
        calls = go.trace("main.echo")
        echoed = fixture.work("goroutines")["Echoed"]
        assert fixture.finish() == 0
        assert len(list(calls)) == echoed


def test_losses_are_raised_at_the_end(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with gotrace.attach(fixture.ready) as go:
        for lossy in (False, True):
            calls = go.trace("main.nest", lossy=lossy)
            lost = dict.fromkeys(Diagnostic, 0) | {Diagnostic.EVENTS_LOST: 5}
            monkeypatch.setattr(calls._tracer, "diagnostics", lambda lost=lost: lost)
            fixture.work("tries")
            calls.stop()
            if lossy:
                assert list(calls) == []
            else:
                with pytest.raises(gotrace.LostCalls, match="5 calls are missing"):
                    list(calls)
            assert calls.lost == {"events_lost": 5}


def test_sessions_in_threads_do_not_meet(fixture: Fixture) -> None:
    """Off the main thread, several at once, each sees its own process alone."""

    def trace(traced: Fixture, order: str, name: str) -> list[gotrace.Call]:
        with gotrace.attach(traced.ready) as go:
            calls = go.trace(name)
            attached.wait(_HANGS)
            traced.work(order)
            calls.stop()
            return list(calls)

    attached = threading.Barrier(2)
    with Fixture([program()]) as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(trace, fixture, "goroutines", "main.echo")
        second = pool.submit(trace, other, "order", "main.ordered")
        echoed, ordered = first.result(_HANGS), second.result(_HANGS)
        assert (len(echoed), {call.pid for call in echoed}) == (1200, {fixture.ready})
        assert (len(ordered), {call.pid for call in ordered}) == (4000, {other.ready})
        assert [call.time_ns for call in ordered] == sorted(call.time_ns for call in ordered)


def test_two_traces_of_one_session(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        both = go.trace("main.try0*"), go.trace("main.outcome")
        tried = fixture.work("tries")["Tried"]
        go.stop()
        names = [Counter(call.function for call in calls) for calls in both]
    assert names[0] == {f"main.try0{number}": tried for number in range(10)}
    assert set(names[1]) == {"main.outcome"}


def test_counts_and_latencies_are_exact(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:

        def work() -> None:
            fixture.work("order")
            go.stop()

        counts = go.count("main.ordered", "main.echo", ready=work)
        assert counts == {"main.ordered": 4000}
        assert counts["main.echo"] == 0
        assert "<td>main.ordered</td><td>4,000</td>" in counts._repr_html_()
        times = go.latency("main.ordered", "main.echo", ready=work)
        assert {name: found.count for name, found in times.items()} == {"main.ordered": 4000}
        found = times["main.ordered"]
        assert found.minimum <= found.percentile(0.5) <= found.maximum <= found.sum
        by_goroutine = go.latency("main.ordered", by_goroutine=True, ready=work)
        assert [times.count for times in by_goroutine.values()] == [2000, 2000]
        assert {(g.function, g.pid) for g in by_goroutine} == {("main.ordered", fixture.ready)}
        assert len({goroutine.goid for goroutine in by_goroutine}) == 2


def test_calls_that_did_not_return_are_told(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        truth: dict[str, int] = {}

        def work() -> None:
            truth.update(fixture.work("crash"))
            go.stop()

        with pytest.warns(gotrace.TracingWarning, match="^20000 calls did not return, unwound by"):
            times = go.latency("main.crashed", ready=work)
        assert truth["Crashed"] == 20000
        assert times["main.crashed"].count == truth["Calls"] - truth["Crashed"]
        with pytest.warns(gotrace.TracingWarning, match="^20000 calls did not return, unwound by"):
            groups = go.count("main.crashed", by="$ret > 0", ready=work)
        assert sum(group.calls for group in groups) == truth["Calls"] - truth["Crashed"]


def test_intervals_are_of_one_attachment(fixture: Fixture) -> None:
    code, truths = code_of(fixture.ready), []
    with gotrace.attach(fixture.ready) as go:
        every: tuple[gotrace.IntervalStream[Any], ...] = (
            go.count("main.try00", interval=0.3),
            go.latency("main.try00", interval=0.3),
            go.count("main.try00", by="n > 0", interval=0.3),
            go.latency("main.try00", of="n", interval=0.3),
            go.latency("main.try00", by_goroutine=True, interval=0.3),
        )
        for _ in range(3):  # what comes in an interval is in no other one
            truths.append(fixture.work("tries")["Tried"])
            counts, times, groups, values, tasks = (next(one) for one in every)
            found = [
                counts["main.try00"],
                times["main.try00"].count,
                sum(group.calls for group in groups),
                sum(group.values.count for group in values),
                sum(one.count for one in tasks.values()),
            ]
            assert found == [truths[-1]] * len(every)
        for one in every:
            one.stop()
            assert len(list(one)) == 1  # the rest
        assert_detached(fixture.ready, code)
        for counted in go.count("main.try00", interval=0.1):
            assert not counted
            break
        assert_detached(fixture.ready, code)
        for measured in (go.waits, go.on_cpu, go.syscalls, go.wall):
            assert list(measured(interval=0.2, seconds=0.5, lossy=True))
        with pytest.raises(gotrace.UsageError, match="interval is 0"):
            go.count("main.try00", interval=0)


def test_asyncio_iterates_and_cancellation_detaches(fixture: Fixture) -> None:
    code = code_of(fixture.ready)

    async def watch(go: gotrace.Session) -> list[gotrace.Call]:
        calls = go.trace("main.try00", limit=3)
        ticks = asyncio.create_task(asyncio.sleep(0))  # other tasks go on
        fixture.work("tries")
        found = [call async for call in calls]
        assert ticks.done()
        async for counts in go.count("main.try00", interval=0.1):
            assert not counts
            break
        waiting = asyncio.create_task(anext(go.trace("main.try00")))
        while code_of(fixture.ready) == code:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return found

    with gotrace.attach(fixture.ready) as go:
        assert len(asyncio.run(watch(go))) == 3
        assert_detached(fixture.ready, code)


def test_a_command_is_traced_from_its_first_call() -> None:
    """The fixture's child calls a function seven times and ends."""
    command = [str(build(FIXTURES / "live_brief", newest())), "child"]
    with gotrace.start(command) as go:
        assert [call.args["who"] for call in go.trace("main.brief")] == ["child"] * 7
        assert go.wait() == 0
    with gotrace.start(command) as go:
        assert go.count("main.*") == {"main.main": 1, "main.brief": 7}
        assert go.wait() == 0
    with gotrace.start(command) as go:
        pid = go.pid  # never released: ended with the session
    with pytest.raises(gotrace.GotraceError, match="there is no process"):
        gotrace.attach(pid or 0)


def test_all_processes_that_run_a_file(fixture: Fixture) -> None:
    with gotrace.path(program()) as go, Fixture([program()]) as other:
        calls = go.trace("main.nest", "main.echo")
        fixture.work("goroutines")
        other.work("goroutines")
        calls.stop()
        assert Counter(call.pid for call in calls) == {fixture.ready: 1200, other.ready: 1200}
        with pytest.raises(gotrace.GotraceError, match="wait\\(\\) needs a command"):
            go.wait()


def test_functions_of_a_recipe(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        assert "runtime.gopanic" in {function.name for function in go.functions("@panics")}
        with pytest.raises(gotrace.UsageError, match="there is no recipe @nothing"):
            go.functions("@nothing")


def test_functions_say_where_they_are(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        functions = go.functions("main.try0*", "main.nest", "main.nes*", exclude=["main.try01"])
        names = [function.name for function in functions]
        assert sorted(names) == [
            "main.nest",
            *(f"main.try0{number}" for number in range(10) if number != 1),
        ]
        (nest,) = (function for function in functions if function.name == "main.nest")
        assert nest.file is not None and nest.file.endswith("main.go")
        assert (nest.inlined, nest.line is not None) == (0, True)


def test_errors_are_those_of_the_commands(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        for use in (go.functions, go.trace, go.count, go.latency):
            with pytest.raises(gotrace.GotraceError, match=r"main\.Nest"):
                use("main.Nest")
            with pytest.raises(gotrace.GotraceError, match=r"main\.Nest"):
                use("main.nest", "main.Nest")  # one of several
            with pytest.raises(gotrace.GotraceError, match="no functions were given"):
                use()
        with pytest.raises(gotrace.GotraceError, match="no_such"):
            go.trace("main.nest (no_such > 1)")
        with pytest.raises(gotrace.GotraceError, match="limit is 0"):
            go.trace("main.nest", limit=0)
        with pytest.raises(gotrace.GotraceError, match=r"limit is 1\.5"):
            go.trace("main.nest", limit=1.5)  # type: ignore[arg-type]
        with pytest.raises(gotrace.UsageError, match=r"exclude=\['main\.fast'\]"):
            go.count("main.nest", exclude="main.fast", seconds=0.1)
        with pytest.raises(gotrace.NoMatchError, match="no_such"):
            go.count("main.no_such", seconds=0.1)
        with pytest.raises(gotrace.GotraceError, match="seconds is -1"):
            go.count("main.nest", seconds=-1)
        with pytest.raises(gotrace.UsageError, match="budget is -1: give a part of one CPU"):
            go.count("main.nest", budget=-1)
        with pytest.raises(gotrace.UsageError, match="depth is 9: give 0 to 5"):
            go.trace("main.nest", depth=9)
        with pytest.raises(gotrace.UsageError, match="why=True divides time: leave out of"):
            go.latency("main.nest", of="n", why=True)
    with gotrace.path(program()) as every:
        with pytest.raises(gotrace.UsageError, match=r"live\(\) needs a running process"):
            every.live()
        for ask in (every.on_cpu, every.waits):
            with pytest.raises(gotrace.UsageError, match=r"needs? one process: use attach\(pid\)"):
                ask(seconds=1)
    with pytest.raises(gotrace.GotraceError, match="no_such_program"):
        gotrace.start(["no_such_program"])
    with pytest.raises(gotrace.UsageError, match=r"without a shell: start\(\['ls', '-l'\]\)"):
        gotrace.start("ls -l")


def test_what_is_not_traced_is_a_warning(fixture: Fixture) -> None:
    with gotrace.attach(fixture.ready) as go:
        inlined = next(found for found in go.functions("main.*", "sync.*") if found.inlined)
        with pytest.warns(gotrace.TracingWarning) as caught:
            go.latency(inlined.name, seconds=0.1)
    start = f"{inlined.name} is also inlined in {inlined.inlined} place"
    # Python 3.12 and newer warn of forks besides.
    [own] = [one for one in caught if one.category is gotrace.TracingWarning]
    assert str(own.message).startswith(start)
    assert own.filename == __file__


HANDLER = "main.(*Store).handleGet"


def test_deeper_values_of_a_handler_have_room(tmp_path: Path) -> None:
    """The example of docs/api.md: neither the receiver nor the ResponseWriter takes it all."""
    path = shutil.copy(build(FIXTURES / "trace_server", newest()), tmp_path)
    usual = handled(path, {})
    for more in ({"depth": 2}, {"depth": 5, "string_size": 1792}):
        call = handled(path, more)
        request = call.args["r"]
        assert (request.Method, request.URL.Path) == ("GET", "/get/42")
        assert request.RequestURI == usual.args["r"].RequestURI == "/get/42"
        assert len(call.args["s"]["items"]) > 0


def handled(path: Path | str, more: dict[str, int]) -> gotrace.Call:
    with Fixture([path]) as fixture:
        with gotrace.attach(fixture.ready) as go:
            (call,) = working(go.trace(HANDLER, limit=1, **more), fixture)  # type: ignore[arg-type]
        return call


def test_a_session_shows_what_it_is_of() -> None:
    with Fixture([program()]) as fixture:
        with gotrace.attach(fixture.ready) as go:
            assert repr(go) == f"<gotrace.Session of process {fixture.ready}>"
        assert repr(go) == f"<gotrace.Session of process {fixture.ready}, closed>"
        with gotrace.path(program()) as all_of_it:
            assert repr(all_of_it) == f"<gotrace.Session of all processes of {program()}>"
        assert fixture.finish() == 0


def test_inlined_calls_are_counted(tmp_path: Path) -> None:
    truth = covered_calls(FIXTURES / "live_inlined", newest(), tmp_path)
    binary = str(build(FIXTURES / "live_inlined", newest()))
    with gotrace.start([binary]) as go:
        named = go.count("main.bump", "main.outside", "main.put[...]")
    assert Counter(named.values()) == Counter(
        [truth["bump"], truth["outside"], truth["put"] // 2, truth["put"] // 2]
    )
    assert named.uncounted == {}
    with gotrace.start([binary]) as go, pytest.warns(gotrace.TracingWarning, match="main.both"):
        matched = go.count("main.*", inlined=True)
    assert matched["main.(*tally).note"] == truth["note"]
    assert 100 <= matched["main.both"] <= truth["both"]
    assert matched.uncounted == {"main.both": 1}
    matched.write(tmp_path / "x.ndjson")
    rows = map(json.loads, (tmp_path / "x.ndjson").read_text().splitlines())
    (row,) = [one for one in rows if one.get("func") == "main.both"]
    assert (row["places"], row["uncounted_places"]) == (1, 1)
    with gotrace.start([binary]) as go, pytest.warns(gotrace.TracingWarning, match="inlined=True"):
        assert "main.bump" not in go.count("main.*")
    with gotrace.path(binary) as go, pytest.raises(gotrace.UsageError, match="no results"):
        go.count("main.bump", by="$ret", inlined=True, seconds=1)
    with gotrace.start([binary]) as go, pytest.warns(gotrace.TracingWarning, match="main.both"):
        grouped = go.count("main.bump", "main.both", by="$caller")
    calls = {(one.function, one.by["$caller"]): one.calls for one in grouped}
    assert calls["main.bump", "main.(*tally).note"] == truth["note"]
    assert calls["main.bump", "main.sum"] == truth["bump"] - truth["note"]
    assert grouped.uncounted == {"main.both": 1}
