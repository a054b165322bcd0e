# SPDX-License-Identifier: Apache-2.0
"""Batches of gotop: the same numbers as gostacks, gooffcpu, gofunclatency and gotrace print."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, Json, of_kind, run_tool, tool, tool_command
from tests.tools.screens import Screen

TOP = FIXTURES / "live_top"
REQUESTS = FIXTURES / "live_requests"
POOL = FIXTURES / "live_pool"


def created(row: Json) -> str:
    return str(row["created_by"] and row["created_by"]["func"])


@pytest.mark.live
@each_toolchain
def test_groups_are_those_of_gostacks(toolchain: Toolchain) -> None:
    with Fixture([build(TOP, toolchain)]) as fixture:
        fixture.work("leak 50")
        top = run_tool("gotop", "-b", "-n", "1", "--json", "-p", str(fixture.ready))
        dump = run_tool("gostacks", "--json", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    assert top.status == 0 and top.errors == ""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in of_kind(top, "group"):
        counts[row["state"], row["reason"], created(row)] += row["count"]
        assert row["growth"] == 0 and not row["leaks"]
    expected = Counter(
        (row["state"], row["reason"], created(row)) for row in of_kind(dump, "goroutine")
    )
    assert counts == expected
    (program,) = of_kind(top, "program")
    assert program["goroutines"] == sum(counts.values())
    assert program["pid"] == fixture.ready and program["go"].startswith(f"go{toolchain.minor}")
    assert program["attached"] == []


@pytest.mark.live
def test_waits_and_calls_are_those_of_the_commands() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        pid = str(fixture.ready)
        attach = ("-w", "-f", "main.work")
        with tool("gotop", "-b", "-i", "1000", "--json", *attach, "-p", pid) as top:
            with tool("gooffcpu", "--json", "-p", pid) as waits:
                with tool("gofunclatency", "-F", "--json", "-p", pid, "main.work") as calls:
                    truth = fixture.work("call 30")
                    counted = calls.end()
                waited = waits.end()
            result = top.end()
        assert fixture.finish() == 0
    assert result.status == 0
    (mine,), (theirs,) = (of_kind(one, "histogram") for one in (result, counted))
    assert mine["func"] == theirs["func"] == "main.work"
    assert mine["count"] == theirs["count"] == truth["calls"] == 30
    assert mine.keys() == theirs.keys()
    (errors,) = of_kind(result, "errors")
    assert (errors["func"], errors["count"]) == ("main.work", truth["errors"])

    def slept(rows: list[Json]) -> list[tuple[str, int, str]]:
        return [
            (row["reason"], row["count"], row["woken_by"])
            for row in rows
            if any(frame["func"] == "main.work" for frame in row["stack"])
        ]

    mine_slept, theirs_slept = slept(of_kind(result, "wait")), slept(of_kind(waited, "wait"))
    assert mine_slept == theirs_slept == [("sleep", 30, "timer")]
    assert of_kind(result, "waits")[0].keys() == of_kind(waited, "waits")[0].keys()


@pytest.mark.live
def test_a_lock_of_requests_is_before_idle_workers() -> None:
    with Fixture([build(POOL, newest())]) as fixture:
        words = ("-b", "-i", "1000", "-w", "-p", str(fixture.ready))
        with tool("gotop", *words) as top:
            truth = fixture.work("20")
            result = top.end()
        assert fixture.finish() == 0
    assert truth["idle_ns"] > 100 * truth["lock_ns"] > 0
    text = "".join(result.lines)
    rows = text[text.index("WAITS/S") :].splitlines()[1:]
    assert re.search(r" sync\.Mutex\.Lock +main\.\(\*store\)\.user ", rows[0]), text
    places = [place(rows, name) for name in ("main.(*pool).next", "main.(*pool).work")]
    in_requests = place(rows, "main.main.func2")  # the handler that sleeps
    assert in_requests < places[0] < places[1], text


@pytest.mark.live
def test_calls_of_a_recipe_are_those_of_gofunclatency() -> None:
    with Fixture([build(POOL, newest())]) as fixture:
        words = ("-b", "-i", "1000", "--json", "-f", "@http.server", "-p", str(fixture.ready))
        with tool("gotop", *words) as top:
            fixture.work("5")
            result = top.end()
        assert fixture.finish() == 0
    counts = {row["by"]["route"]: row["count"] for row in of_kind(result, "histogram")}
    assert counts == {"/users": 20, "/report": 5}, result.lines


def place(rows: list[str], name: str) -> int:
    return next(at for at, row in enumerate(rows) if name in row)


def tree(node: Json) -> Json:
    """Return what two tools see alike of a call and those below it: all but their times."""
    call = node["call"]
    return {
        "call": [call[name] for name in ("func", "goid", "args", "results")],
        "edge": node["edge"],
        "children": [tree(child) for child in node["children"]],
    }


@pytest.mark.live
def test_requests_are_those_of_gotrace() -> None:
    with Fixture([build(REQUESTS, newest())]) as fixture:
        pid = str(fixture.ready)
        words = ("-b", "-i", "1000", "--json", "-r", "main.handle", "-p", pid)
        theirs = ("tree", "main.handle", "--critical", "--json", "-p", pid)
        with tool("gotop", *words) as top, tool("gotrace", *theirs) as tracing:
            truth = {kind: fixture.work(f"{kind} 5") for kind in ("fan-out", "pipeline", "pulled")}
            traced, result = tracing.end(), top.end()
        assert fixture.finish() == 0
    assert result.status == traced.status == 0, result.errors
    mine, others = (
        {row["root"]["call"]["args"]["id"]: row for row in of_kind(one, "request")}
        for one in (result, traced)
    )
    assert len(mine) == sum(kind["requests"] for kind in truth.values()) == 15
    assert {number: tree(row["root"]) for number, row in mine.items()} == {
        number: tree(row["root"]) for number, row in others.items()
    }
    for row in mine.values():
        took = row["root"]["call"]["duration_ns"]
        assert sum(part["ns"] for part in row["critical"]) == took
        assert row.keys() == others[1].keys() and row["unfinished"] == 0
    (requests,) = of_kind(result, "requests")
    longest = sorted(row["root"]["call"]["duration_ns"] for row in mine.values())
    assert (requests["func"], requests["count"]) == ("main.handle", 15)
    assert requests["max_ns"] == longest[-1] and requests["lost"] == requests["cut"] == 0
    assert abs(requests["p50_ns"] / longest[7] - 1) <= 1 / 16
    slowest = [row["root"]["call"]["duration_ns"] for row in of_kind(result, "request")]
    assert slowest == longest[::-1]


@pytest.mark.live
def test_requests_have_a_table() -> None:
    with Fixture([build(REQUESTS, newest())]) as fixture:
        words = ("-b", "-i", "1000", "-r", "main.handle", "-p", str(fixture.ready))
        with tool("gotop", *words) as top:
            fixture.work("fan-out 5")
            result = top.end()
        refused = run_tool("gotop", "-b", "-r", " ", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    assert refused.status == 2 and "no root was given" in refused.errors
    text = "".join(result.lines)
    assert "attached: requests of main.handle (about " in text
    heads, row = text.splitlines()[-3:-1]
    assert heads.split() == ["COUNT", "RATE/S", "P50", "P99", "SLOWEST", "AT", "TREND", "ROOT"]
    assert row.split()[0] == "5" and row.endswith("main.handle")
    assert "hands work on, or waits for it, 0 times a second" in result.errors


@pytest.mark.live
def test_text_has_the_head_and_the_tables() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        fixture.work("leak 50")
        result = run_tool("gotop", "-b", "-n", "2", "-i", "0.05", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    text = "".join(result.lines)
    assert text.count("nothing is attached") == 2
    assert text.count("main.forget") == 2
    assert "51 goroutines: 50 waiting" in text or "51 goroutines: 51 waiting" in text
    assert "goal" in text and result.errors == ""


@pytest.mark.live
def test_a_terminals_lines_have_the_ends_of_names() -> None:
    with Fixture([build(POOL, newest())]) as server:
        with Screen(tool_command("gotop", "-b", "-n", "1", "-p", str(server.ready))) as screen:
            screen.until(r"IO wait +\.\.\S+\.goServe\.func1$")
            assert screen.wait() == 0
        assert server.finish() == 0


@pytest.mark.live
def test_several_processes_and_an_end() -> None:
    program = build(TOP, newest())
    with Fixture([program]) as one, Fixture([program]) as other:
        pids = f"{one.ready} {other.ready}"
        result = run_tool("gotop", "-b", "-n", "1", "--json", "-p", pids)
        assert [row["pid"] for row in of_kind(result, "program")] == [one.ready, other.ready]
        words = ("-b", "-i", "0.05", "--json", "-f", "main.work", "-p", pids)
        with tool("gotop", *words) as watching:
            assert one.finish() == 0
            assert other.finish() == 0
            ended = watching.result()
    assert ended.status == 0
    assert {row["pid"] for row in of_kind(ended, "exited")} == {one.ready, other.ready}


@pytest.mark.live
def test_what_cannot_be_done_is_refused() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        pid = str(fixture.ready)
        result = run_tool("gotop", "-p", pid)
        assert (result.status, result.errors) == (
            1,
            "gotop: there is no terminal to draw on: -b prints results one after the other\n",
        )
        result = run_tool("gotop", "-n", "1", "-p", pid)
        assert (
            result.status == 2 and "-n, --top and --json are for batches: give -b" in result.errors
        )
        result = run_tool("gotop", "-b", "-n", "1", "-f", "main.absent", "-p", pid)
        assert result.status == 3 and "main.absent" in result.errors
        assert fixture.finish() == 0
    assert run_tool("gotop", "-b").status == 2
    assert "there is no process" in run_tool("gotop", "-b", "-p", str(2**22 - 1)).errors
