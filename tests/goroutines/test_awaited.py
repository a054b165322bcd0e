# SPDX-License-Identifier: Apache-2.0
"""What goroutines wait for: channels as the program itself knows them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.goroutines import lock_places
from tests.goroutines.cores import write_core
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, of_kind, run_tool

Json = dict[str, Any]

AWAITED = FIXTURES / "live_awaited"
#: The fields of a method's receiver that it waits for, by their elements.
DESK = {"main.job": "main.desk.in", "struct {}": "main.desk.quit"}
#: Channels know their timers since then.
TIMERS = (1, 23)


def own_function(row: Json) -> str:
    names = [frame["func"] for frame in row["stack"] if frame["func"].startswith("main.")]
    return names[0] if names else ""


def truth_of(toolchain: Toolchain, truth: Json) -> dict[str, list[Json]]:
    """Return the channels of each function, in the order in which the tools have them."""
    release = tuple(map(int, toolchain.minor.split(".")))
    return {
        function: sorted(
            (
                {
                    **{key.lower(): value for key, value in channel.items()},
                    "timer": channel["Timer"] and release >= TIMERS,
                    # len() and cap() of a timer's channel say 0 since then, whatever it has
                    "cap": 1 if channel["Timer"] else channel["Cap"],
                    "field": DESK.get(channel["Elem"]) if "desk" in function else None,
                }
                for channel in channels
            ),
            key=lambda one: (one["direction"], one["elem"], int(one["address"], 16)),
        )
        for function, channels in truth["Channels"].items()
    }


@pytest.mark.live
def test_beyond_what_is_looked_at_no_variable_names_a_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many bytes of the data are looked at, and of an object to which a variable points."""
    with Fixture([build(AWAITED, newest())]) as fixture:
        with gotrace.attach(fixture.ready) as go:

            def lock() -> str | None:
                (one,) = go.goroutines("main.lockLaidOut")
                return one.lock

            assert lock() == "main.laidOut.mu"
            for limit, lower in (("_MAX_DATA", 0), ("_MAX_OBJECT", 8)):
                with monkeypatch.context() as lowered:
                    lowered.setattr(lock_places, limit, lower)
                    assert lock() is None, limit
        assert fixture.finish() == 0


@pytest.mark.live
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie"])
def test_channels_are_those_that_the_program_waits_for(toolchain: Toolchain, mode: str) -> None:
    program = build(AWAITED, toolchain, flags=BUILD_MODES[mode])
    with Fixture([program]) as fixture:
        result = run_tool("gostacks", "--json", "-p", str(fixture.ready))
        truth = truth_of(toolchain, fixture.work("dump"))
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = of_kind(result, "goroutine")
    found = Counter(own_function(row) for row in rows)
    assert found["main.pool"] == 5 and truth.keys() <= found.keys()
    for row in rows:
        if own_function(row) in truth:
            known = truth[own_function(row)]
            fields = [channel["field"] for channel in row["channels"]]
            if "desk" in own_function(row) and (mode == "stripped" or toolchain.minor == "1.15"):
                assert fields in ([channel["field"] for channel in known], [None, None])
                known = [{**channel, "field": None} for channel in known]
                row["channels"] = [{**channel, "field": None} for channel in row["channels"]]
            assert row["channels"] == known, own_function(row)
            awaits = ("chan", row["channels"][0]["address"]) if row["awaits"] else (None, None)
            assert (row["awaits"], row["address"]) == awaits


@pytest.mark.live
@each_toolchain
def test_channels_are_those_of_the_stack_that_is_printed(toolchain: Toolchain) -> None:
    """A goroutine that waits in two functions by turns has in each what that waits for."""
    wanted = {"main.waitEven": {"main.even"}, "main.waitOdd": {"main.odd"}}
    seen: Counter[str] = Counter()
    with Fixture([build(AWAITED, toolchain)]) as fixture:
        pid = fixture.ready
        before = fixture.work("dump")["Turns"]
        with gotrace.attach(pid) as go:
            for _ in range(200):
                for one in go.goroutines("main.busy"):
                    function = next((f.function for f in one.stack if "wait" in f.function), "")
                    if one.channels:
                        seen[function] += 1
                        assert {channel.elem for channel in one.channels} == wanted[function]
        assert fixture.work("dump")["Turns"] > before
        assert fixture.finish() == 0
    assert set(seen) == wanted.keys()


#: The locks that an optimized program of the register ABI proves: by the function that waits.
PROVEN = {"(*shelf).write", "(*crew).join"}
#: Those that symbols and DWARF prove as well, and those that Go 1.15 and 1.16 do.
BY_DWARF = {"lockLaidOut", "register", "readAll", "(*shelf).read"}
IN_MEMORY = {"(*book).add", "(*ledger).post"}
UNPROVEN = {"lockAny"}


@pytest.mark.live
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie", "unoptimized"])
def test_names_of_locks(toolchain: Toolchain, mode: str) -> None:
    """A name is the program's own, and there is none of a lock of which nothing is proven."""
    program = build(AWAITED, toolchain, flags=BUILD_MODES[mode])
    with Fixture([program]) as fixture:
        result = run_tool("gostacks", "--json", "-p", str(fixture.ready))
        groups = "".join(run_tool("gostacks", "-p", str(fixture.ready)).lines)
        truth = fixture.work("dump")["Locks"]
        assert fixture.finish() == 0
    rows_of = of_kind(result, "goroutine")
    rows = [row for row in rows_of if row["awaits"] not in (None, "chan")]
    named = set()
    for row in rows:
        function = own_function(row).removeprefix("main.")
        wanted = "main.shelf.once" if "start" in function else truth[row["address"]]
        assert row["lock"] in (wanted, None), function
        named |= {function} if row["lock"] else set()
    assert len(rows) == 18 and not named & UNPROVEN
    assert named >= PROVEN
    assert named >= BY_DWARF or mode == "stripped"
    # One sleeps with a lock. Main has the others, and none of their methods is suspected.
    holds = re.findall(r"goroutine (\d+) may hold it: it is in (\S+), which has it in", groups)
    flushing = {row["goid"] for row in rows_of if own_function(row) == "main.(*book).flush"}
    assert {int(goid) for goid, _ in holds} == (flushing if "(*book).add" in named else set())
    assert {method for _, method in holds} <= {"main.(*book).flush"}
    assert named >= IN_MEMORY or (toolchain.minor != "1.15" and mode != "unoptimized")


@pytest.mark.live
def test_texts() -> None:
    with Fixture([build(AWAITED, newest())]) as fixture:
        pid = str(fixture.ready)
        groups = "".join(run_tool("gostacks", "-p", pid).lines)
        one_by_one = "".join(run_tool("gostacks", "-a", "-p", pid).lines)
        truth = truth_of(newest(), fixture.work("dump"))
        assert fixture.finish() == 0
    two = {one["direction"]: one["address"] for one in truth["main.selectTwo"]}
    text = (
        f"<-chan time.Time {two['receive']} (timer) or chan<- main.job {two['send']} (len 8, cap 8)"
    )
    assert f"\n  1 waits for {text}\nmain.selectTwo(" in groups
    assert f" [select, {text}]:\nmain.selectTwo(" in one_by_one
    fields = [f"<-chan {elem} 0x\\w+ \\({field}\\)" for elem, field in DESK.items()]
    assert re.search(f"\n  1 waits for {' or '.join(fields)}\n", groups)
    assert "\n  5 wait for <-chan main.job or <-chan struct {}\nmain.pool(" in groups
    address = truth["main.receiveOne"][0]["address"]
    assert f"\n  1 waits for <-chan []uint8 {address} (len 0, cap 3)\nmain.receiveOne(" in groups
    # Readers of Go's dumps take the first bracket for the end.
    assert f" [chan receive, <-chan {address} (len 0, cap 3)]:\nmain.receiveOne(" in one_by_one
    assert re.search(r"\n  1 waits for sync\.WaitGroup 0x\w+ \(main\.crew\.wg\)\n", groups)
    assert re.search(r" \[\S+, sync\.WaitGroup 0x\w+ \(main\.crew\.wg\)\]:\n", one_by_one)
    (many,) = re.findall(r"waits for (.*)\nreflect\.", groups)
    assert many.endswith(" or 2 others") and many.count(" or ") == 8


@pytest.mark.live
def test_channels_in_a_core_file(tmp_path: Path) -> None:
    program = build(AWAITED, newest(), flags=BUILD_MODES["stripped"])
    with Fixture([program]) as fixture:
        truth = truth_of(newest(), fixture.work("dump"))
        core = tmp_path / "core"
        write_core(fixture.ready, core)
        assert fixture.finish() == 0
    result = run_tool("gostacks", "--json", "--core", str(core), str(program))
    rows = {own_function(row): row for row in of_kind(result, "goroutine")}
    for function, channels in truth.items():
        assert rows[function]["channels"] == channels


@pytest.mark.live
def test_a_recipe_stands_for_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "desk.txt").write_text(
        "description: desks\nneeds: main\n\nprobe: main.(*desk).serve\nby: $func\n\n"
        "probe: main.noSuch\nby: $func\n"
    )
    monkeypatch.setenv("GOTRACE_RECIPES", str(tmp_path))
    with Fixture([build(AWAITED, newest())]) as fixture:
        pid = str(fixture.ready)
        rows = of_kind(run_tool("gostacks", "--json", "-p", pid, "@desk"), "goroutine")
        assert [own_function(row) for row in rows] == ["main.(*desk).serve"]
        waits = run_tool("gooffcpu", "--open", "--json", "-d", "0.1", "-p", pid, "--in", "@desk")
        assert {own_function(row) for row in of_kind(waits, "wait")} <= {"main.(*desk).serve"}
        none = run_tool("gostacks", "-p", pid, "@sql")
        assert (none.status, none.lines) == (3, []) and none.errors.endswith(
            " has no function of @sql\n"
        )
        assert fixture.finish() == 0


@pytest.mark.live
def test_who_is_not_shown_proves_the_name_of_a_lock_as_well() -> None:
    with Fixture([build(AWAITED, newest(), flags=BUILD_MODES["unoptimized"])]) as fixture:
        lines = run_tool("gostacks", "-p", str(fixture.ready), "main.lockSame").lines
        assert re.search(r"waits for sync\.Mutex 0x\w+ \(main\.ledger\.Mutex\)\n", "".join(lines))
        assert fixture.finish() == 0
