# SPDX-License-Identifier: Apache-2.0
"""Compare dumps of programs at rest with what their own runtime.Stack writes."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gotrace.goroutines.dump import Dump
from gotrace.goroutines.groups import grouped
from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.model import DumpedGoroutine, Frame
from gotrace.report.goroutines import spoken, write_goroutines
from gotrace.target.target import Target
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, require
from tests.tools.harness import Fixture

PARKED = FIXTURES / "live_parked"
PARKED_CGO = FIXTURES / "live_parked_cgo"

_HEADER = re.compile(r"goroutine (\d+) \[([^\]]*)\]:")
#: runtime._TracebackMaxFrames, tracebackInnerFrames + tracebackOuterFrames
_MAX_PRINTED = 100


@dataclass(frozen=True)
class Printed:
    """A goroutine in what runtime.Stack writes: frames are (function, place in the source)."""

    status: str
    is_locked: bool
    frames: list[tuple[str, str]]
    is_elided: bool
    created_by: tuple[str, str] | None
    parent: int


def parse(text: str) -> dict[int, Printed]:
    """Return the goroutines of a dump by their ids."""
    found = {}
    for part in text.strip().split("\n\n"):
        header, *lines = part.split("\n")
        match = _HEADER.fullmatch(header)
        assert match, header
        status, *more = match[2].split(", ")
        # Go adds this to other reasons of a bubble's goroutines as well.
        status = status.removesuffix(" (durable)")
        frames: list[tuple[str, str]] = []
        created, parent, elided = None, 0, False
        calls = iter(lines)
        for call in calls:
            if call.endswith("frames elided..."):
                elided = True
                continue
            place = next(calls).strip().split(" fp=")[0]
            if call.startswith("created by "):
                name, _, goid = call.removeprefix("created by ").partition(" in goroutine ")
                created, parent = (name, place), int(goid or 0)
            else:
                frames.append((re.sub(r"\([^()]*\)$", "", call), place))
        locked = "locked to thread" in more
        found[int(match[1])] = Printed(status, locked, frames, elided, created, parent)
    return found


def place_of(frame: Frame) -> str:
    offset = "" if frame.offset is None else f" +{frame.offset:#x}"
    return f"{frame.file}:{frame.line}{offset}"


def as_printed(dump: Dump, goroutine: DumpedGoroutine) -> Printed:
    """Return what Go would print of a goroutine in a dump."""
    frames = [frame for frame in dump.program.frames(goroutine.stack) if frame.is_shown]
    if not frames:
        frames = list(dump.program.frames(goroutine.stack))
    creation = dump.program.creation(goroutine.created_by)
    is_printed = creation is not None and creation.is_shown and goroutine.goid != 1
    return Printed(
        goroutine.status.removesuffix(" (durable)"),
        goroutine.is_locked_to_thread,
        [(spoken(frame.function), place_of(frame)) for frame in frames],
        False,
        (spoken(creation.function), place_of(creation)) if creation and is_printed else None,
        goroutine.parent if is_printed else 0,
    )


def differences(own: dict[int, Printed], dump: Dump) -> Iterator[str]:
    """Yield what differs, but for the goroutine that writes its dump, which waited before."""
    ours = {goroutine.goid: goroutine for goroutine in dump.goroutines if not goroutine.is_system}
    if ours.keys() != own.keys():
        yield f"goroutines {ours.keys() ^ own.keys()}"
    writers = {goid for goid, printed in own.items() if printed.status == "running"}
    if len(writers) != 1:
        yield f"writers {writers}"
    for goid in own.keys() & ours.keys() - writers:
        theirs, mine = own[goid], as_printed(dump, ours[goid])
        if not ours[goid].is_whole:
            yield f"goroutine {goid}: not followed to its end"
        if len(mine.frames) > _MAX_PRINTED:
            # Since Go 1.21 the 50 innermost and outermost, before that the 100 innermost, with
            # those of the runtime, which are not printed.
            printed = len(theirs.frames)
            tail = 50 if theirs.is_elided and printed == _MAX_PRINTED else 0
            frames = mine.frames[: printed - tail] + mine.frames[len(mine.frames) - tail :]
            if not 90 < printed <= _MAX_PRINTED:
                yield f"goroutine {goid}: {printed} frames of {len(mine.frames)}"
            mine = dataclasses.replace(mine, frames=frames, is_elided=theirs.is_elided)
        if mine != theirs:
            pairs = zip(vars(mine).items(), vars(theirs).values(), strict=True)
            yield f"goroutine {goid}: {[(name, a, b) for (name, a), b in pairs if a != b]}"


def take(pid: int) -> Dump:
    target = Target.of(pid, None)
    try:
        with LiveGoroutines(target) as live:
            dump = live.take()
            for goroutine in dump.goroutines:  # while its files are open
                dump.program.frames(goroutine.stack)
                dump.program.creation(goroutine.created_by)
            return dump
    finally:
        target.close()


@pytest.mark.live
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie", "unoptimized"])
def test_dump_is_what_the_program_itself_writes(toolchain: Toolchain, mode: str) -> None:
    program = build(PARKED, toolchain, flags=BUILD_MODES[mode])
    with Fixture([program]) as fixture:
        dump = take(fixture.ready)
        truth = fixture.work("dump")
        assert fixture.finish() == 0
    assert check_dump(truth, dump) > 25


@pytest.mark.live
@pytest.mark.parametrize("minor", ["1.27", pytest.param("1.25", marks=pytest.mark.thorough)])
def test_goroutines_of_a_bubble(minor: str) -> None:
    """Their waits have reasons of their own, such as "sync.WaitGroup.Wait (durable)"."""
    with Fixture([build(FIXTURES / "live_parked_bubble", require(minor))]) as fixture:
        dump = take(fixture.ready)
        truth = fixture.work("dump")
        assert fixture.finish() == 0
    assert check_dump(truth, dump) == 8
    assert sum(one.reason.endswith(" (durable)") for one in dump.goroutines) == 5


def check_dump(truth: dict[str, Any], dump: Dump) -> int:
    """Hold a dump to what the program writes itself; return of how many goroutines."""
    own = parse(truth["Stacks"])
    assert "\n".join(differences(own, dump)) == ""
    assert dump.moved == 0
    awaited = {
        frame.function: f"{goroutine.awaited.type} {goroutine.awaited.address:#x}"
        for goroutine in dump.goroutines
        if goroutine.awaited
        for frame in dump.program.frames(goroutine.stack)
    }
    wanted = truth["Addresses"]
    assert {name: awaited.get(name) for name in wanted} == wanted
    return len(own)


def quit_with_all_frames(fixture: Fixture) -> dict[int, Printed]:
    """End a fixture with the dump that Go writes with GOTRACEBACK=system, and return that."""
    fixture.signal(signal.SIGQUIT)
    assert fixture.wait() == 2
    parts = fixture.errors.split("\n\n")
    goroutines = [part for part in parts if re.match(r"goroutine [1-9]", part)]
    text = "\n\n".join(goroutines)
    return parse(re.sub(r"^(goroutine \d+) gp=\S+ m=\S+( mp=\S+)?", r"\1", text, flags=re.M))


@pytest.mark.live
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "unoptimized"])
def test_all_frames_are_those_of_go_s_dump_with_all(toolchain: Toolchain, mode: str) -> None:
    """Wrappers too, and the runtime's functions and goroutines, which may have gone on since."""
    program = build(PARKED, toolchain, flags=BUILD_MODES[mode])
    with Fixture([program], env={**os.environ, "GOTRACEBACK": "system"}) as fixture:
        dump = take(fixture.ready)
        own = quit_with_all_frames(fixture)
    text = io.StringIO()
    write_goroutines(text, dump.program, dump.goroutines, system=True)
    ours = parse(text.getvalue())
    for goid, printed in own.items():
        if printed.is_elided:  # of more than 100 the innermost are printed in any release
            mine = ours[goid].frames[: _MAX_PRINTED // 2]
            ours[goid] = dataclasses.replace(printed, frames=mine)
            own[goid] = dataclasses.replace(printed, frames=printed.frames[: _MAX_PRINTED // 2])
    users = {one.goid for one in dump.goroutines if not one.is_system}
    assert {goid: ours[goid] for goid in users} == {goid: own[goid] for goid in users}
    assert sum(ours[goid] == own.get(goid) for goid in ours.keys() - users) >= 2
    names = {name for printed in ours.values() for name, _ in printed.frames}
    wrapped = {
        frame.function
        for goroutine in dump.goroutines
        for frame in dump.program.frames(goroutine.stack)
        if frame.is_elided
    }
    assert wrapped and {spoken(name) for name in wrapped} <= names
    for system in (True, False):
        groups = grouped(dump, dump.goroutines, system)
        seen = {frame.function for group in groups for frame in group.key[2]}
        assert wrapped <= seen if system else not wrapped & seen


def assert_same(command: list[Path], at_least: int, functions: set[str]) -> None:
    """Hold a dump of a ready fixture to its own; ``functions`` must be in it."""
    with Fixture(command) as fixture:
        dump = take(fixture.ready)
        own = parse(fixture.work("dump")["Stacks"])
        assert fixture.finish() == 0
    assert len(own) >= at_least
    assert "\n".join(differences(own, dump)) == ""
    seen = {
        frame.function
        for goroutine in dump.goroutines
        for frame in dump.program.frames(goroutine.stack)
    }
    assert functions - seen == set()


@pytest.mark.live
@each_toolchain
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="dynamic"),
        pytest.param(("-buildmode=pie", "-ldflags=-s -w"), id="pie"),
        pytest.param(("-ldflags=-s -w -linkmode=external -extldflags=-static",), id="static"),
    ],
)
def test_goroutines_in_c_and_called_by_c(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    program = build(PARKED_CGO, toolchain, flags=flags, env={"CGO_ENABLED": "1"})
    assert_same([program], 4, {"main.waitInC", "main.waitInCallback", "main.goWaits"})


@pytest.mark.live
@each_toolchain
def test_goroutines_of_a_library_in_a_c_program(toolchain: Toolchain, tmp_path: Path) -> None:
    flags = ["-buildmode=c-shared", "-ldflags=-s -w"]
    env = {"CGO_ENABLED": "1"}
    library = build(PARKED_CGO, toolchain, flags=flags, env=env, name="live_parked.so")
    host = tmp_path / "host"
    source = FIXTURES / "live_parked_host" / "main.c"
    subprocess.run(["gcc", "-O1", "-o", host, source, "-ldl"], check=True)
    assert_same([host, library], 4, {"main.waitInC", "main.waitInCallback", "main.goWaits"})


@pytest.mark.live
@each_toolchain
def test_frames_of_a_plugin(toolchain: Toolchain) -> None:
    flags = ["-buildmode=plugin"]
    plugin = build(FIXTURES / "live_parked_plugin", toolchain, flags=flags, name="parked.so")
    host = build(FIXTURES / "live_parked_plugin_host", toolchain)
    with Fixture([host, plugin]) as fixture:
        dump = take(fixture.ready)
        own = parse(fixture.work("dump")["Stacks"])
        assert fixture.finish() == 0
    assert "\n".join(differences(own, dump)) == ""
    (waiting,) = (one for one in dump.goroutines if one.reason == "chan send")
    names = [frame.function.split("/")[-1] for frame in dump.program.frames(waiting.stack)]
    assert any(name.endswith(".inPlugin") for name in names), names
