# SPDX-License-Identifier: Apache-2.0
"""Trace several programs at once, whose functions have the same names and whose runtimes differ."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gotrace
from tests.toolchains import BUILD_MODES, FIXTURES, build, require
from tests.tools.harness import Fixture, Json, Result, of_kind, run_tool, text_counts, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

#: Programs by name: the release that builds each, and how often it makes its calls.
PROGRAMS = {"cart": ("1.19", 5), "shop": ("1.27", 7)}
OLDEST = {"barn": ("1.15", 2), **PROGRAMS}
NAMES = ("main.price", "main.down", "main.recovers")


@contextmanager
def started(
    directory: Path, programs: dict[str, tuple[str, int]], mode: str = "default"
) -> Iterator[dict[str, Fixture]]:
    fixtures: dict[str, Fixture] = {}
    try:
        for name, (minor, _) in programs.items():
            built = build(FIXTURES / "live_programs", require(minor), flags=BUILD_MODES[mode])
            path = Path(shutil.copy(built, directory / name))
            fixtures[name] = Fixture([path])
        yield fixtures
    finally:
        for fixture in fixtures.values():
            fixture.__exit__(None, None, None)


def run(
    directory: Path,
    command: str,
    *words: str,
    programs: dict[str, tuple[str, int]] = PROGRAMS,
    mode: str = "default",
) -> tuple[dict[str, Json], Result]:
    """Trace programs at work by their processes; return what each knows of its calls."""
    with started(directory, programs, mode) as fixtures:
        pids = " ".join(str(fixture.ready) for fixture in fixtures.values())
        with tool(command, "-p", pids, *words) as tracing:
            truth = {
                name: fixture.work(str(programs[name][1])) for name, fixture in fixtures.items()
            }
            result = tracing.end()
        assert all(fixture.finish() == 0 for fixture in fixtures.values())
    assert result.status == 0, result.errors
    return truth, result


def calls(truth: dict[str, Json], *names: str) -> dict[tuple[str, str], int]:
    return {(program, name): found[name] for program, found in truth.items() for name in names}


def rows(result: Result, kind: str) -> dict[tuple[str, str], int]:
    return {(row["program"], row["func"]): row["count"] for row in of_kind(result, kind)}


def test_calls_are_counted_by_program(tmp_path: Path) -> None:
    truth, result = run(tmp_path, "gofunccount", "--json", *NAMES)
    assert rows(result, "count") == calls(truth, *NAMES)
    truth, result = run(tmp_path, "gofunccount", "--top", "2", *NAMES)
    assert text_counts(result) == {
        f"{name}:main.down": found["main.down"] for name, found in truth.items()
    }


def test_calls_are_counted_by_file(tmp_path: Path) -> None:
    with started(tmp_path, PROGRAMS) as fixtures:
        words = [f"{tmp_path / name}:main.price" for name in fixtures]
        with tool("gofunccount", "--json", *words) as counting:
            truth = {name: one.work(str(PROGRAMS[name][1])) for name, one in fixtures.items()}
            result = counting.end()
    assert rows(result, "count") == calls(truth, "main.price")


@pytest.mark.parametrize("mode", ["default", "pie"])
def test_calls_are_measured_by_program(tmp_path: Path, mode: str) -> None:
    """Goroutines are found, and their panics, in runtimes of three kinds."""
    words = ("--json", "-F", *NAMES, "main.fails")
    truth, result = run(tmp_path, "gofunclatency", *words, programs=OLDEST, mode=mode)
    assert rows(result, "histogram") == calls(truth, *NAMES)
    (unwound,) = (row for row in of_kind(result, "summary") if row["what"] == "unwound")
    assert unwound["calls"] == sum(found["main.fails"] for found in truth.values())
    assert of_kind(result, "lost") == []


def test_functions_of_a_program_are_measured_together(tmp_path: Path) -> None:
    truth, result = run(tmp_path, "gofunclatency", "--json", "-g", "main.price", "main.down")
    rows = of_kind(result, "histogram") + of_kind(result, "rest")
    assert {row["func"] for row in rows} == {None}
    assert sums(rows) == Counter(
        {name: found["main.price"] + found["main.down"] for name, found in truth.items()}
    )


def sums(rows: list[Json]) -> Counter[str]:
    """Return the calls of each program."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row["program"]] += row["count"]
    return found


def test_goroutines_are_those_of_their_programs(tmp_path: Path) -> None:
    truth, result = run(
        tmp_path, "gofunclatency", "--json", "-F", "-g", "main.price", programs=OLDEST
    )
    found: Counter[tuple[str, str]] = Counter()
    for row in of_kind(result, "histogram"):
        found[row["program"], row["func"]] += row["count"]
        assert row["goid"] > 0
        assert re.search(r"\[main\.work\.func1, created at main\.go:\d+\]$", row["goroutine"])
    assert found == calls(truth, "main.price")


def test_values_are_those_of_each_program_s_types(tmp_path: Path) -> None:
    truth, result = run(tmp_path, "gotrace", "--json", "main.place", programs=OLDEST)
    lines = of_kind(result, "call")
    assert Counter((row["program"], row["func"]) for row in lines) == calls(truth, "main.place")
    for row in lines:
        new = row["program"] == "shop"
        value = row["args"]["o"]
        assert value["Customer"] == row["results"]["$ret"] == ("new" if new else "old")
        assert ("Weight" in value) is not new


def test_lines_name_the_program(tmp_path: Path) -> None:
    words = ("main.price (n < 1)", 'main.place "%s", o.Customer', "main.only*")
    truth, result = run(tmp_path, "gotrace", *words)
    text = "".join(result.lines)
    goroutines = 3
    for name, new in (("cart", False), ("shop", True)):
        price = rf' {name}:main\.price\(key="key0", n=0\) = \(4, nil\) at main\.go:\d+\n'
        assert len(re.findall(price, text)) == goroutines
        place = f" {name}:main.place {'new' if new else 'old'}\n"
        assert text.count(place) == truth[name]["main.place"]
        only = "main.onlyNew" if new else "main.onlyOld"
        assert text.count(f" {name}:{only}(") == truth[name][only]


@pytest.mark.parametrize("command", ["gofunccount", "gofunclatency"])
def test_keys_are_those_of_a_program(tmp_path: Path, command: str) -> None:
    truth, result = run(tmp_path, command, "--json", "--by", "key", "main.price")
    found: Counter[tuple[str, str]] = Counter()
    for row in of_kind(result, "count" if command == "gofunccount" else "histogram"):
        found[row["program"], row["func"]] += row["count"]
        assert re.fullmatch("key[012]", row["by"]["key"])
    assert found == calls(truth, "main.price")


@pytest.mark.parametrize("command", ["gofunccount", "gotrace"])
def test_stacks_begin_with_the_program(tmp_path: Path, command: str) -> None:
    path = tmp_path / "out.speedscope.json"
    truth, _ = run(tmp_path, command, "-o", str(path), "main.price")
    written = json.loads(path.read_text())
    names = [frame["name"] for frame in written["shared"]["frames"]]
    (profile,) = written["profiles"]
    found: Counter[tuple[str, str]] = Counter()
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        stack = [names[frame] for frame in sample]
        assert stack[1:] == ["runtime.goexit", "main.work.func1", "main.price"]
        found[stack[0], stack[-1]] += weight
    assert found == calls(truth, "main.price")


def test_a_pattern_has_to_match_in_one_of_the_programs(tmp_path: Path) -> None:
    with started(tmp_path, PROGRAMS) as fixtures:
        pids = ",".join(str(fixture.ready) for fixture in fixtures.values())
        words = ("--json", "-d", "0.1", "-p", pids)
        partly = run_tool("gofunclatency", *words, "main.onlyNew", "main.price")
        never = run_tool("gofunclatency", *words, "main.onlyNew", "main.nowhere")
        nothing = run_tool("gotrace", *words, "main.nowhere")
    assert partly.status == 0
    (note,) = (
        row["message"] for row in of_kind(partly, "warning") if "no function" in row["message"]
    )
    assert note == f"no function matches 'main.onlyNew' in {tmp_path / 'cart'}"
    assert [row["functions"] for row in of_kind(partly, "attached")] == [3]
    assert (never.status, nothing.status) == (3, 3)
    (named,) = (row["message"] for row in of_kind(never, "warning") if "nowhere" in row["message"])
    assert str(tmp_path / "cart") in named and str(tmp_path / "shop") in named
    assert len(nothing.errors.splitlines()) == 1


def test_where_time_goes_is_asked_of_runtimes_that_are_alike(tmp_path: Path) -> None:
    with started(tmp_path, PROGRAMS) as fixtures:
        pids = ",".join(str(fixture.ready) for fixture in fixtures.values())
        result = run_tool("gofunclatency", "--why", "-p", pids, "main.price")
    (line,) = result.errors.splitlines()
    assert result.status == 1
    assert re.search(r"/cart \(go1\.19\S*\) and \S*/shop \(go1\.27\S*\) differ: trace them", line)
    alike = {"till": ("1.26", 3), "shop": PROGRAMS["shop"]}
    truth, result = run(tmp_path, "gofunclatency", "--json", "--why", "main.price", programs=alike)
    histograms = of_kind(result, "histogram")
    assert rows(result, "histogram") == calls(truth, "main.price")
    for row in histograms:
        assert sum(part["ns"] for part in row["why"]["parts"].values()) == row["sum_ns"]


def test_a_run_ends_with_the_last_of_its_processes(tmp_path: Path) -> None:
    with started(tmp_path, PROGRAMS) as fixtures:
        first, second = fixtures.values()
        with tool(
            "gofunccount", "--json", "-p", f"{first.ready} {second.ready}", "main.price"
        ) as t:
            first.work("1")
            assert first.finish() == 0
            truth = second.work("2")
            assert second.finish() == 0
            result = t.result()
    assert result.status == 0
    (ended,) = of_kind(result, "exited")
    assert ended["pids"] == [first.ready, second.ready]
    assert rows(result, "count")["shop", "main.price"] == truth["main.price"]


def test_the_library_names_programs(tmp_path: Path) -> None:
    with started(tmp_path, PROGRAMS) as fixtures:
        pids = [fixture.ready for fixture in fixtures.values()]
        with gotrace.attach(*pids) as go:
            found = {(function.program, function.name) for function in go.functions("main.price")}
            assert found == {("cart", "main.price"), ("shop", "main.price")}
            with go.trace("main.place") as stream:
                truth = {name: one.work("2") for name, one in fixtures.items()}
                stream.stop()
                seen = Counter((str(call.program), call.function) for call in stream)
            assert seen == calls(truth, "main.place")
