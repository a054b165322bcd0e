# SPDX-License-Identifier: Apache-2.0
"""Arguments of parked goroutines: what is shown is what was passed, or nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gotrace.goroutines.spills import Slots
from tests.elf.test_debug_files import Stripped
from tests.goroutines.cores import write_core
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, of_kind, run_tool

Json = dict[str, Any]

CALLS = range(1, 6)
FUNCTIONS = {
    *("liveScalars", "between", "liveShapes", "liveMany", "deadScalars", "movedScalars"),
    *("keptByReference", "(*point).liveMethod", "point.liveValueMethod", "loops"),
}


def text(n: int) -> str:
    return "t" * (n % 7) + str(n)


def passed(function: str, n: int) -> Json:
    """Return the arguments of a function's n-th call, by the fixture's own rules."""
    known: Json = {"n": n, "s": text(n)}
    if function == "liveScalars":
        known |= {"b": n % 2 == 0, "u": n, "f": n / 4, "m": text(n)}
    elif function == "deadScalars":
        known |= {"b": n % 2 == 0}
    elif function == "liveMany":
        known |= {name: n + more for more, name in enumerate("abcdefghijk", 1)}
    elif function in ("liveShapes", "movedScalars"):
        known |= {"list": [n, n + 1, n + 2][: n % 4 % 3 + 1], "v": {"x": n, "y": -n}}
        known |= {"array": [n, n + 1, n + 2]}
        known |= {"l": {"numbers": {"$elements": [n * i for i in range(8)], "$len": 12}}}
    elif function == "point.liveValueMethod":
        known |= {"p": {"x": n, "y": -n}}
    return known


def frames(rows: list[Json]) -> list[tuple[str, Json]]:
    found = [
        (frame["func"].removeprefix("main."), frame)
        for row in rows
        for frame in row["stack"]
        if frame["func"].removeprefix("main.") in FUNCTIONS
    ]
    assert len(found) == len(CALLS) * len(FUNCTIONS)
    return found


def check(rows: list[Json]) -> int:
    """Hold what is shown to what was passed in one of the calls; return how much is shown."""
    count = 0
    for function, frame in frames(rows):
        shown = frame.get("arguments", {})
        values = {name: value for name, value in shown.items() if "$pointer" not in str(value)}
        assert shown.keys() - values.keys() <= {"p"}
        assert any(
            all(passed(function, n).get(name) == value for name, value in values.items())
            for n in CALLS
        ), (function, shown)
        count += len(shown)
    return count


def read(program: Path) -> list[Json]:
    with Fixture([program]) as fixture:
        words = ("--args", "--json", "-p", str(fixture.ready), "main.park")
        result = run_tool("gostacks", *words)
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return of_kind(result, "goroutine")


@each_toolchain
def test_optimized_programs_show_what_is_certain(toolchain: Toolchain) -> None:
    rows = read(build(FIXTURES / "live_arguments", toolchain))
    assert check(rows) >= 5 * 15
    for function, frame in frames(rows):
        if function == "liveMany":
            assert len(frame["arguments"]) == 12 and frame["all_arguments"] is True


def test_unoptimized_programs_show_nearly_all() -> None:
    flags = BUILD_MODES["unoptimized"]
    rows = read(build(FIXTURES / "live_arguments", newest(), flags=flags))
    assert check(rows) >= 5 * 25
    by_name = dict(frames(rows))
    assert by_name["liveShapes"]["all_arguments"] is True
    assert by_name["(*point).liveMethod"]["arguments"].keys() == {"p", "n", "s"}


@pytest.mark.parametrize(("mode", "least"), [("pie", 75), ("stripped", 0)])
def test_other_builds(mode: str, least: int) -> None:
    rows = read(build(FIXTURES / "live_arguments", newest(), flags=BUILD_MODES[mode]))
    assert check(rows) >= least


def test_core_files_have_them_too(tmp_path: Path) -> None:
    program = build(FIXTURES / "live_arguments", newest())
    core = tmp_path / "core"
    with Fixture([program]) as fixture:
        write_core(fixture.ready, core)
        assert fixture.finish() == 0
    result = run_tool("gostacks", "--args", "--json", "--core", core, program, "main.park")
    assert check(of_kind(result, "goroutine")) >= 75


def test_stripped_programs_have_them_by_their_debug_file(tmp_path: Path) -> None:
    made = Stripped(tmp_path, build(FIXTURES / "live_arguments", newest()), link=False)
    core = tmp_path / "core"
    with Fixture([made.program]) as fixture:
        write_core(fixture.ready, core)
        sources = ["-p", str(fixture.ready)], ["--core", core, made.program]
        for source in sources:
            words = ("gostacks", "--args", "--json", *source, "main.park", "--debug-file")
            assert check(of_kind(run_tool(*words, made.debug), "goroutine")) >= 75
            refused = run_tool(*words, made.program)
            assert refused.status == 2, refused.errors
            assert refused.errors.count("\n") == 1 and "no debugging information" in refused.errors
        assert fixture.finish() == 0


@pytest.mark.live
@pytest.mark.parametrize("name", ["gooffcpu", "gooncpu", "goalloc"])
def test_other_commands_take_a_debug_file_of_the_program_alone(name: str, tmp_path: Path) -> None:
    made = Stripped(tmp_path, build(FIXTURES / "live_arguments", newest()), link=False)
    other = build(FIXTURES / "live_arguments", newest(), flags=["-ldflags=-X main.x=y"])
    with Fixture([made.program]) as fixture:
        words = (name, "-d", "0.1", "-p", str(fixture.ready), "--debug-file")
        taken = run_tool(*words, made.debug)
        assert taken.status == 0 and "debug" not in taken.errors, taken.errors
        refused = run_tool(*words, other)
        assert refused.status == 2 and refused.errors.count("\n") == 1
        assert f"{other} is not the debug file of {made.program}: its build ID is" in refused.errors
        assert fixture.finish() == 0


def test_text_has_them_between_parentheses() -> None:
    with Fixture([build(FIXTURES / "live_arguments", newest())]) as fixture:
        result = run_tool("gostacks", "--args", "-p", str(fixture.ready), "main.liveMany")
        plain = run_tool("gostacks", "-a", "-p", str(fixture.ready), "main.liveMany")
        assert fixture.finish() == 0
    shown = [line for line in result.lines if line.startswith("main.liveMany(")]
    rest = "".join(f", {name}={1 + n}" for n, name in enumerate("abcdefghijk", 1))
    assert f"main.liveMany(n=1{rest})\n" in shown and len(shown) == len(CALLS)
    assert [line for line in plain.lines if line.startswith("main.liveMany(")] == [
        "main.liveMany(...)\n"
    ] * len(CALLS)


FRAME = "55 4889e5 4883ec20"  # push, mov, sub
SAVE = "48 89442438"  # mov %rax,0x38(%rsp)
CALL = "e8 00000000"
END = "4883c420 5d c3 0000000000"


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        (f"{SAVE} {CALL} 488b442438", True),  # saved, read again
        (f"{CALL} {SAVE}", False),  # saved later: RAX is another value by then
        (f"{SAVE} {CALL} {SAVE}", False),  # written again
        (f"{SAVE} {CALL} 48c744243800000000", False),  # by a constant
        (f"{SAVE} {CALL} 48ff442438", False),  # incremented
        (f"{SAVE} {CALL} 0f11442430", False),  # together with its neighbour
        (f"{SAVE} {CALL} 488d442438", False),  # its address is taken
        (f"{SAVE} {CALL} 4883442438 01", False),  # added to
        (f"{SAVE} {CALL} 48837c2438 01 4839442438 480faf442438", True),  # only looked at
        (f"{SAVE} {CALL} 4889442440 4889442430", True),  # its neighbours are written
        (f"48895c2440 {SAVE} {CALL}", True),  # saved after another one
        (f"48 895c2438 {CALL}", False),  # another register is saved there
    ],
)
def test_an_argument_is_kept_where_nothing_else_is_written(body: str, is_kept: bool) -> None:
    slots = Slots(bytes.fromhex(f"493b6610 7630 {FRAME} {body} {END}"))
    assert slots.is_kept(0x38, 8, register=0) is is_kept
