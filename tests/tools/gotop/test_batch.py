# SPDX-License-Identifier: Apache-2.0
"""Batches of gotop: the same numbers as gostacks, gooffcpu and gofunclatency print."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, Json, of_kind, run_tool, tool

TOP = FIXTURES / "live_top"


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
        with tool("gotop", "-b", "-d", "1000", "--json", *attach, "-p", pid) as top:
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
def test_text_has_the_head_and_the_tables() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        fixture.work("leak 50")
        result = run_tool("gotop", "-b", "-n", "2", "-d", "0.05", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    text = "".join(result.lines)
    assert text.count("nothing is attached") == 2
    assert text.count("main.forget") == 2
    assert "51 goroutines: 50 waiting" in text or "51 goroutines: 51 waiting" in text
    assert "goal" in text and result.errors == ""


@pytest.mark.live
def test_several_processes_and_an_end() -> None:
    program = build(TOP, newest())
    with Fixture([program]) as one, Fixture([program]) as other:
        pids = f"{one.ready} {other.ready}"
        result = run_tool("gotop", "-b", "-n", "1", "--json", "-p", pids)
        assert [row["pid"] for row in of_kind(result, "program")] == [one.ready, other.ready]
        words = ("-b", "-d", "0.05", "--json", "-f", "main.work", "-p", pids)
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
