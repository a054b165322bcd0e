# SPDX-License-Identifier: Apache-2.0
"""Inlined calls in gofunccount: by patterns, of generics and wrappers, in several programs.

Truth are the coverage counters of another build: see ``tests/covered.py``.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from gotrace.sites.inlined import Unproven
from tests.covered import covered_calls
from tests.toolchains import FIXTURES, Toolchain, build, each_since, newest, require
from tests.tools.harness import Process, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

SOURCE = FIXTURES / "live_inlined"


def rows_of(result: Result) -> dict[str, tuple[int, int]]:
    """Return the calls of each function, all instances and wrappers, and its uncounted places."""
    assert result.status == 0, result.errors
    calls: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for row in of_kind(result, "count"):
        name = row["func"].partition("[")[0].rpartition(".")[2]
        calls[name] += row["count"]
        uncounted[name] += row.get("uncounted_places", 0)
    return {name: (calls[name], uncounted[name]) for name in calls}


def counted(binary: Path, *words: str) -> dict[str, tuple[int, int]]:
    words = ("--json", *words)
    return rows_of(run_tool("gofunccount", *words, "--", binary, stdin=subprocess.DEVNULL))


def assert_true(found: dict[str, tuple[int, int]], truth: Counter[str]) -> None:
    """Hold rows against the truth: exact without uncounted places, else at most as many."""
    assert found.keys() == truth.keys()
    for name, (count, uncounted) in found.items():
        assert count <= truth[name] if uncounted else count == truth[name], name
    assert found["both"][1] == 1, "it has a place that is counted now: choose another"


@each_since(19)
def test_a_pattern_counts_inlined_calls_if_asked_to(toolchain: Toolchain, tmp_path: Path) -> None:
    truth, binary = covered_calls(SOURCE, toolchain, tmp_path), build(SOURCE, toolchain)
    assert_true(counted(binary, "--inlined", "main.*"), truth)
    without = counted(binary, "main.*")
    # In Go 1.19 generic functions are not inlined.
    assert without.keys() - {"put"} == truth.keys() - {"bump", "note", "put"}
    assert without["both"] == (100, 0)
    left_out = counted(binary, "--inlined", "-x", "main.b*", "-x", "*put*", "main.*")
    assert left_out.keys() == truth.keys() - {"bump", "both", "put"}


@pytest.mark.parametrize(
    ("attach", "flag"),
    [
        ("multi", "-buildmode=pie"),
        ("multi", "-ldflags=-s -w"),
        ("perf-cookie", "-buildmode=pie"),
        ("perf-ip", "-ldflags=-s -w"),
    ],
)
def test_each_way_of_attaching_and_building(attach: str, flag: str, tmp_path: Path) -> None:
    truth = covered_calls(SOURCE, newest(), tmp_path)
    found = counted(
        build(SOURCE, newest(), flags=(flag,)), "--attach", attach, "--inlined", "main.*"
    )
    assert_true(found, truth)


@pytest.mark.parametrize("words", [("main.disk.Size",), ("main.*",), ("main.disk.Size", "main.*")])
def test_a_wrapper_and_what_is_inlined_in_it_are_one_call(
    words: Sequence[str], tmp_path: Path
) -> None:
    truth = covered_calls(SOURCE, newest(), tmp_path)
    assert counted(build(SOURCE, newest()), "--inlined", *words)["Size"] == (truth["Size"], 0)


def test_names_without_a_wildcard_in_several_programs(tmp_path: Path) -> None:
    """Each build has other places."""
    toolchains = [newest(), require("1.24"), require("1.19")]
    binaries = [build(SOURCE, one) for one in toolchains]
    truth = covered_calls(SOURCE, newest(), tmp_path)
    running = [Process([binary]) for binary in binaries]
    pids = ",".join(str(process.pid) for process in running)
    names = ("main.bump", "main.outside", "main.put[...]")
    with tool("gofunccount", "--json", "-p", pids, *names) as counting:
        for process in running:
            process.say("x")
            assert process.wait() == 0
        result = counting.result()
    found: dict[str, Counter[str]] = {}
    for row in of_kind(result, "count"):
        assert row.get("uncounted_places", 0) == 0
        name = row["func"].partition("[")[0].removeprefix("main.")
        found.setdefault(row["program"], Counter())[name] += row["count"]
    exact = Counter({name: truth[name] for name in ("bump", "outside", "put")})
    assert len(found) == 3
    for program, calls in found.items():
        assert calls == exact, program


def test_each_place_has_a_row_if_asked_for(tmp_path: Path) -> None:
    """Of a function that exists only inlined, and one of its own code; nothing is counted twice."""
    truth, binary = covered_calls(SOURCE, newest(), tmp_path), build(SOURCE, newest())
    words = ("--json", "--places", "--inlined", "main.*")
    result = run_tool("gofunccount", *words, "--", binary, stdin=subprocess.DEVNULL)
    assert_true(rows_of(result), truth)
    rows = {
        (row["func"], row.get("caller"), row.get("at", "").rpartition("/")[2]): row["count"]
        for row in of_kind(result, "count")
    }
    note = "main.(*tally).note"
    assert rows["main.bump", note, "main.go:27"] == rows[note, "main.handle", "main.go:56"]
    assert rows["main.bump", "main.sum", "main.go:44"] == truth["bump"] - truth["note"]
    assert rows["main.both", None, ""] == 100
    assert 0 < rows["main.both", "main.sum", "main.go:46"] <= truth["both"] - 100
    (warning,) = [row for row in of_kind(result, "warning") if row.get("func") == "main.both"]
    assert sum(warning["uncounted"].values()) == 1
    text = run_tool("gofunccount", "--places", "main.bump", "--", binary, stdin=subprocess.DEVNULL)
    assert any(line.startswith("main.bump in main.sum at main.go:44 ") for line in text.lines)


def test_a_list_has_each_place_with_its_reason() -> None:
    """Of a function that exists only inlined, and of one that exists; for gotrace as well."""
    binary = build(SOURCE, newest())
    lines = {
        number: f"{text} at main.go:{number}"
        for number, text in (
            (44, "    main.bump in main.sum"),
            (27, "    main.bump in main.(*tally).note"),
            (46, "    main.both in main.sum"),
        )
    }
    for name in ("gofunccount", "gotrace"):
        listed = run_tool(name, "-l", f"{binary}:main.bump", f"{binary}:main.both")
        assert (listed.status, listed.errors) == (0, "")
        places = [line.rstrip("\n").split("  ") for line in listed.lines if line[0] == " "]
        found = {"  ".join(words[:-1]): words[-1] for words in places}
        assert found.keys() == set(lines.values())
        assert found[lines[44]] == found[lines[27]] == "counted"
        assert found[lines[46]] == f"counted, perhaps not always: {Unproven.BRANCH.text}"


def by_stack(binary: Path, *names: str) -> Counter[tuple[str, str]]:
    """Return the calls by function and stack, of instances of generics as of one."""
    words = ("--json", "--by", "$stack", *names)
    result = run_tool("gofunccount", *words, "--", binary, stdin=subprocess.DEVNULL)
    assert result.status == 0, result.errors
    found: Counter[tuple[str, str]] = Counter()
    for row in of_kind(result, "count"):
        frames = [f"{one['func']}:{one['line']}" for one in row["by"]["$stack"]]
        name = row["func"].partition("[")[0]
        found[name, " ".join(one for one in frames if "runtime." not in one)] += row["count"]
    return found


@each_since(19)
def test_stacks_are_those_of_a_build_without_inlining(toolchain: Toolchain) -> None:
    names = ("main.bump", "main.both", "main.(*tally).note", "main.outside")
    found = by_stack(build(SOURCE, toolchain), *names)
    truth = by_stack(build(SOURCE, toolchain, flags=("-gcflags=-l",)), *names)
    assert len(truth) > len(names)
    for key in truth:
        assert found[key] <= truth[key] if key[0] == "main.both" else found[key] == truth[key], key
    assert found.keys() <= truth.keys()


def test_callers_and_conditions_of_inlined_calls(tmp_path: Path) -> None:
    """What a pointer leads to is not certain where a call is inlined."""
    truth, binary = covered_calls(SOURCE, newest(), tmp_path), build(SOURCE, newest())
    words = ("--json", "--by", "$caller", "main.bump ($goid == 1)")
    result = run_tool("gofunccount", *words, "--", binary, stdin=subprocess.DEVNULL)
    found = {row["by"]["$caller"]: row["count"] for row in of_kind(result, "count")}
    note = "main.(*tally).note"
    assert found == {note: truth["note"], "main.sum": truth["bump"] - truth["note"]}
    refused = run_tool("gofunccount", "--by", "t.n", "main.bump", "--", binary)
    assert refused.status == 2
    assert "main.bump is inlined in 2 places: not counted there: t: " in refused.errors


def test_inlined_calls_are_added_up_by_arguments_that_are_certain(tmp_path: Path) -> None:
    """Of what the caller has loaded, and of results, there are none: places are left out then."""
    truth = covered_calls(SOURCE, newest(), tmp_path)
    binary, other = build(SOURCE, newest()), build(SOURCE, newest(), flags=("-gcflags=-l",))

    def by(key: str, of: Path, name: str) -> tuple[Counter[int], str]:
        words = ("--json", "--by", key, name, "--", of)
        result = run_tool("gofunccount", *words, stdin=subprocess.DEVNULL)
        rows = of_kind(result, "count")
        warned = " ".join(one["message"] for one in of_kind(result, "warning"))
        return Counter({row["by"][key]: row["count"] for row in rows}), warned

    found, warned = by("x & 63", binary, "main.bump")
    assert found.total() == truth["note"]
    assert found <= by("x & 63", other, "main.bump")[0]
    assert "main.bump is inlined in 1 place: not counted there: x: DWARF is not confirmed" in warned
    found, warned = by("$ret & 63", binary, "main.both")
    assert found.total() == 100
    assert "main.both is inlined in 1 place: not counted there: " in warned
