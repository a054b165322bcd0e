# SPDX-License-Identifier: Apache-2.0
"""Hold gofunccount's counts against those of programs that know their own, to the last call."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    each_since,
    each_toolchain,
    gccgo_build,
    minor,
    newest,
    program_of,
    require,
)
from tests.tools import gccgo
from tests.tools.harness import (
    Fixture,
    Json,
    Result,
    count_on,
    json_counts,
    of_kind,
    run_tool,
    text_counts,
    tool,
)

pytestmark = pytest.mark.live

METHODS = ("multi", "perf-cookie", "perf-ip")
#: One function of each kind of entry site: perf events take long to go, so a few must do.
FEW = ("main.smallFrame", "main.hugeFrame", "main.leaf")
#: These stand for all releases, each built in all ways.
BUILDS = {("1.15", "pie"), ("1.27", "stripped"), ("1.27", "external")}

program = program_of("live_count")


def assert_exact(truth: Mapping[str, Mapping[str, int]], result: Result) -> None:
    assert result.status == 0, result.errors
    assert json_counts(result, truth["calls"]) == truth["calls"]
    assert of_kind(result, "lost") == []


def assert_inlined_is_named(result: Result, toolchain: Toolchain) -> None:
    (warning,) = [w for w in of_kind(result, "warning") if w.get("what") == "only_inlined"]
    assert warning["names"] == ["main.inlined"]
    advice = "--inlined counts" if minor(toolchain) >= 19 else "build with -gcflags=all=-l"
    assert warning["message"].startswith("main.inlined") and advice in warning["message"]


def at_once(path: Path, *questions: Sequence[str]) -> tuple[Json, list[Result]]:
    """Ask several questions of one run of a program: each sees all calls."""
    with Fixture([path]) as fixture, ExitStack() as stack:
        words = ("--json", "-p", str(fixture.ready))
        runs = [stack.enter_context(tool("gofunccount", *words, *each)) for each in questions]
        truth = fixture.work()
        for run in runs:
            run.signal(signal.SIGINT)
        results = [run.result() for run in runs]
        assert fixture.finish() == 0
    assert [(each.status, each.errors) for each in results if each.status] == []
    return truth, results


@each_toolchain
def test_counts_of_all_kinds_of_functions_are_exact(toolchain: Toolchain) -> None:
    with Fixture([program(toolchain)]) as fixture:
        truth, result = count_on(fixture, "main.*")
        assert fixture.finish() == 0
    assert_exact(truth, result)
    assert of_kind(result, "attached")[0]["attach"] == "multi"
    assert_inlined_is_named(result, toolchain)


@each_toolchain
def test_counts_on_the_lower_rungs_are_exact(toolchain: Toolchain) -> None:
    methods = ("perf-cookie", "perf-ip")
    questions = [("--attach", method, *FEW) for method in methods]
    truth, results = at_once(program(toolchain), *questions)
    few = {"calls": {name: truth["calls"][name] for name in FEW}}
    for result, method in zip(results, methods, strict=True):
        assert_exact(few, result)
        assert of_kind(result, "attached")[0]["attach"] == method


@pytest.mark.parametrize(
    ("minor", "mode"),
    [
        pytest.param(*each, marks=() if each in BUILDS else pytest.mark.thorough)
        for each in product(("1.15", "1.19", "1.27"), ("stripped", "pie", "external"))
    ],
)
def test_counts_are_exact_however_built(minor: str, mode: str) -> None:
    with Fixture([program(require(minor), mode)]) as fixture:
        truth, result = count_on(fixture, "main.*")
        assert fixture.finish() == 0
    assert_exact(truth, result)


@pytest.mark.parametrize("method", METHODS[1:])
def test_position_independent_program_on_the_lower_rungs(method: str) -> None:
    with Fixture([program(newest(), "pie")]) as fixture:
        truth, result = count_on(fixture, "--attach", method, *FEW)
    assert_exact({"calls": {name: truth["calls"][name] for name in FEW}}, result)


@pytest.mark.parametrize(
    ("flags", "method"),
    [*(((), method) for method in METHODS), (("-fno-split-stack",), "multi")],
    ids=[*METHODS, "no-split-multi"],
)
def test_gccgo_counts_are_exact(flags: tuple[str, ...], method: str) -> None:
    gccgo.check_counts(gccgo_build(FIXTURES / "live_gccgo", flags), "--attach", method)


@pytest.mark.parametrize("minor", ["1.15", "1.27"])
def test_functions_of_c_are_counted_beside_those_of_go(minor: str) -> None:
    with Fixture([build(FIXTURES / "live_cgo", require(minor))]) as fixture:
        truth, result = count_on(fixture, "main.*", "c_*")
        assert fixture.finish() == 0
    assert_exact(truth, result)


def test_many_functions_at_once_leave_the_target_right() -> None:
    with Fixture([program()]) as fixture:
        truth, result = count_on(fixture, "*")
        assert fixture.finish() == 0
    assert_exact(truth, result)
    assert of_kind(result, "attached")[0]["functions"] > 1000


@each_toolchain
def test_functions_that_exist_only_inlined_are_named_in_lists(toolchain: Toolchain) -> None:
    path = program(toolchain)
    listed = run_tool("gofunccount", "--json", "-l", f"{path}:main.*")
    assert_inlined_is_named(listed, toolchain)
    (row,) = [one for one in of_kind(listed, "function") if one["func"] == "main.inlined"]
    assert (row["site"], row["address"]) == (None, None)
    assert [place["caller"] for place in row["inlined"]] == ["main.onThread"]
    left_out = run_tool("gofunccount", "-l", "-x", "main.in*", f"{path}:main.*")
    one = run_tool("gofunccount", "-l", f"{path}:main.smallFrame")
    assert "only inlined" not in left_out.errors + one.errors


def test_text_has_the_shape_of_bcc() -> None:
    """While another run counts the same in intervals, which add up to the total."""
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "main.*")
        with (
            tool("gofunccount", *words) as counting,
            tool("gofunccount", "--json", "-i", "0.02", *words) as often,
        ):
            truth = fixture.work()
            often.signal(signal.SIGINT)
            result = counting.end()
            intervals = often.result()
    counted = text_counts(result)
    assert {name: counted[name] for name in truth["calls"]} == truth["calls"]
    assert re.fullmatch(
        r'Tracing \d+ functions for "main\.\*"\.\.\. Hit Ctrl-C to end\.\n', result.lines[0]
    )
    assert result.lines[1].split() == ["FUNC", "COUNT", "SHARE"]
    assert result.lines[-1] == "Detaching...\n"
    numbers = [int(line.split()[-2]) for line in result.lines[2:-1]]
    assert numbers == sorted(numbers) and numbers[0] > 0
    assert_exact(truth, intervals)
    rows = of_kind(intervals, "count")
    assert len({row["ts"] for row in rows}) > 1
    assert all(row["count"] > 0 and row["interval_s"] > 0 for row in rows)


def test_time_of_day_stands_above_each_interval() -> None:
    with Fixture([program()]) as fixture:
        words = ("-T", "-i", "0.02", "-p", str(fixture.ready), "main.leaf")
        with tool("gofunccount", *words) as counting:
            counting.lines_until("no calls")
            counting.lines_until("no calls")
            result = counting.end()
    heads = [at for at, line in enumerate(result.lines) if line == "no calls\n"]
    assert len(heads) >= 2
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\n", result.lines[at - 1]) for at in heads)


def test_duration_ends_the_run() -> None:
    with Fixture([program()]) as fixture:
        result = run_tool("gofunccount", "-d", "0.05", "-p", str(fixture.ready), "main.leaf")
    assert (result.status, result.errors) == (0, "")
    assert [line.split()[0] for line in result.lines] == ["Tracing", "no", "Detaching..."]


def test_options_and_patterns_choose_functions() -> None:
    """Only the star is special in a pattern; a regular expression matches in full."""
    truth, results = at_once(
        program(),
        ("--top", "2", "main.*Frame", "main.bare", "main.work"),
        ("-x", "main.large*", "-x", "main.hugeFrame", "main.*Frame"),
        ("-r", r"main\.\(\*square\)\.\w+|main\.fill(Bloc|Chun)k"),
        ("main.(*square).grow", "main.largest[go.shape.int]"),
        ("main.loop", "main.leaf"),
    )
    calls = truth["calls"]
    top, without, regex, star, no_site = map(json_counts, results)
    assert top == {name: calls[name] for name in ("main.smallFrame", "main.largeFrame")}
    assert set(without) == {"main.smallFrame"}
    square = "main.(*square).grow"
    names = (square, "main.(*square).value", "main.fillBlock", "main.fillChunk")
    assert regex == {name: calls[name] for name in names}
    generic = "main.largest[...]"
    assert star == {square: calls[square], generic: calls[generic] // 3}
    (warning,) = of_kind(results[-1], "warning")
    assert re.match(r"main\.loop: no exact entry site: ", warning["message"])
    assert "main.loop" not in no_site


@each_since(21)
def test_methods_that_are_inlined_into_their_wrappers(toolchain: Toolchain) -> None:
    """One that is not is called by its wrapper, whose calls would be counted twice."""
    path = build(FIXTURES / "live_wrappers", toolchain)
    size, ping = "main.Disk.Size", "main.(*Server).ping"
    every = [(size,), (ping,), (size, "main.(*Disk).Size", ping), ("-r", r"main\..*")]
    truth, (by_name, method, both, pattern) = at_once(path, *every)
    names = {
        "Size": "main.(*Disk).Size",
        "ping": "main.(*Server).ping-fm",
        "Large": "main.Disk.Large",
    }
    counts = {names[method]: count for method, count in truth.items()}
    assert counted(by_name) == {name: n for name, n in counts.items() if "Size" in name}
    assert counted(method) == {name: n for name, n in counts.items() if "ping" in name}
    assert counted(both) == {name: n for name, n in counts.items() if "Large" not in name}
    assert counts.items() <= counted(pattern).items()
    assert "main.(*Disk).Large" not in counted(pattern)
    said = "wrappers stand for functions that are inlined into them, such as"
    assert any(said in row["message"] for row in of_kind(pattern, "warning"))


def counted(result: Result) -> dict[str, int]:
    assert result.status == 0, result.errors
    return {row["func"]: row["count"] for row in of_kind(result, "count") if row["count"]}


def test_requests_are_counted_by_the_patterns_of_their_mux() -> None:
    with Fixture([build(FIXTURES / "live_pool", newest())]) as server:
        words = ("--json", "--by", "method,pattern,route", "-p", str(server.ready), "@http.server")
        with tool("gofunccount", *words) as counting:
            server.work("10")
            rows = of_kind(counting.end(), "count")
        assert server.finish() == 0
    assert [(list(row["by"].values()), row["count"]) for row in rows] == [
        (["POST", "/report", "/report"], 10),
        (["POST", "/users", "/users"], 40),
    ]
