# SPDX-License-Identifier: Apache-2.0
"""System calls by name: as many, with the same errors, as the program itself and strace count."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.histogram import BUCKETS, bucket_bounds
from tests.live import skip_or_fail
from tests.profiles.raw import raw_profile
from tests.toolchains import Toolchain, each_toolchain, program_of
from tests.tools.harness import Fixture, Process, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

Json = dict[str, Any]
WORDS = ("--state", "syscall", "--names", "--force")
#: Function -> the call that it makes.
MAKES = {
    "main.asks": "getppid",
    "main.opens": "openat",
    "main.seeks": "dup",
    "main.waits": "pselect6",
}


#: Where the buckets of histograms begin, in ns.
LOWS = [bucket_bounds(bucket)[0] for bucket in range(BUCKETS)]


program = program_of("live_syscalls")


def by_name(result: Result) -> dict[str, Json]:
    return {row["name"]: row for row in of_kind(result, "syscall")}


def check(truth: Json, result: Result) -> None:
    assert result.status == 0, result.errors
    assert of_kind(result, "lost") == []
    found = by_name(result)
    for name, known in truth.items():
        row = found[name]
        assert row["calls"] == known["calls"], name
        errors = dict(row["errors"])
        # What a signal has interrupted is EINTR for the program alone.
        if again := errors.pop("ERESTARTNOHAND", 0):
            errors["EINTR"] = errors.get("EINTR", 0) + again
        assert errors == known["errors"], name
        assert 0 < row["total_ns"] <= known["ns"], name
        assert 0 < row["p50_ns"] <= row["p99_ns"]
    # A percentile is as exact as its bucket, and here never before it.
    assert found["pselect6"]["p50_ns"] >= max(low for low in LOWS if low <= 2_000_000)
    rows = of_kind(result, "wait")
    assert {row["state"] for row in rows} == {"syscall"}
    (sums,) = of_kind(result, "waits")
    assert sums["count"] == sum(row["calls"] for row in found.values())
    assert sums["delay_ns"] == sum(row["total_ns"] for row in found.values())
    for function, name in MAKES.items():
        made = [row for row in rows if function in [frame["func"] for frame in row["stack"]]]
        of_name = [row for row in made if row["reason"] == name]
        assert sum(row["count"] for row in of_name) == truth[name]["calls"], function


@each_toolchain
def test_calls_are_those_that_the_program_knows(toolchain: Toolchain) -> None:
    with Fixture([program(toolchain)]) as fixture:
        with tool("gooffcpu", "-p", str(fixture.ready), *WORDS, "--json") as tracing:
            truth = fixture.work("go")
            result = tracing.end()
        assert fixture.finish() == 0
    check(truth, result)


@pytest.mark.parametrize("preempts", [False, True])
def test_the_library_has_them(preempts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At raw tracepoints, and at perf events, as on kernels that preempt programs at the others."""
    monkeypatch.setattr("gotrace.kernel.program.preempts_at_system_calls", lambda: preempts)
    with Fixture([program()]) as fixture, gotrace.attach(fixture.ready) as go:
        truth: Json = {}

        def work() -> None:
            truth.update(fixture.work("go"))
            go.stop()

        calls = go.syscalls(force=True, ready=work)
        assert fixture.finish() == 0
    found = {one.name: one for one in calls}
    for name, known in truth.items():
        assert found[name].times.count == known["calls"]
        assert sum(found[name].errors.values()) == sum(known["errors"].values())
        assert 0 < found[name].times.sum <= known["ns"]
    assert calls.stacks.total_count == sum(one.times.count for one in calls)
    names, rows = calls.table()
    assert names[-2:] == ("errors", "name") and [row[-1] for row in rows] == list(found)


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_so_they_are_without_symbols(mode: str) -> None:
    with Fixture([program(mode=mode)]) as fixture:
        with tool("gooffcpu", "-p", str(fixture.ready), *WORDS, "--json") as tracing:
            truth = fixture.work("go")
            result = tracing.end()
        assert fixture.finish() == 0
    check(truth, result)


def test_calls_are_those_that_strace_counts(tmp_path: Path) -> None:
    """At the same time: strace's stops are around ours, and within what the program measures."""
    if shutil.which("strace") is None:
        skip_or_fail("no strace: install it")
    log = tmp_path / "strace"
    command = ["strace", "-f", "-C", "-w", "-o", str(log), "-p"]
    with Fixture([program()]) as fixture:
        with Process([*command, str(fixture.ready)], stderr=subprocess.STDOUT) as strace:
            strace.read_until("strace: Process")
            with tool("gooffcpu", "-p", str(fixture.ready), *WORDS, "--json") as tracing:
                truth = fixture.work("go")
                result = tracing.end()
            strace.signal(signal.SIGINT)
            strace.rest()
        assert fixture.finish() == 0
    check(truth, result)
    text = log.read_text()
    failed: Counter[tuple[str, str]] = Counter()
    for name, error in re.findall(r"(?:\d+ +|<\.\.\. )(\w+)(?:\(| resumed).*= -1 (E\w+)", text):
        failed[name, error] += 1
    table: dict[str, tuple[float, int]] = {}
    for seconds, count, name in re.findall(
        r"^ *[\d.]+ +([\d.]+) +\d+ +(\d+)(?: +\d+)? +(\w+)$", text, re.MULTILINE
    ):
        table[name] = float(seconds) * 1e9, int(count)
    for name, known in truth.items():
        row = by_name(result)[name]
        took, count = table[name]
        assert count == row["calls"], name
        assert {error: calls for (call, error), calls in failed.items() if call == name} == {
            error: calls for error, calls in row["errors"].items() if error[:8] != "ERESTART"
        }, name
        # It prints microseconds.
        assert row["total_ns"] - 1000 <= took <= known["ns"] + 1000, name


def test_the_table_and_the_forms(tmp_path: Path) -> None:
    profile, table = tmp_path / "x.pb.gz", tmp_path / "x.txt"
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), *WORDS)
        with (
            tool("gooffcpu", *words, "--reason", "openat", "-o", profile, "-o", table) as printing,
            tool("gooffcpu", *words, "--json", "-i", "0.2", "--in", "main.seeks") as dividing,
        ):
            first = fixture.work("go")
            dividing.lines_until('{"kind":"waits"')
            second = fixture.work("go")
            printed, divided = printing.end(), dividing.end()
        assert fixture.finish() == 0
    opened = first["openat"]["calls"] + second["openat"]["calls"]
    failed = first["openat"]["errors"]["ENOENT"] + second["openat"]["errors"]["ENOENT"]
    assert printed.status == 0
    text = table.read_text()
    assert re.search(rf"\n +{opened} .*  openat +{failed} ENOENT\n\n", text)
    assert "getppid" not in text
    assert re.search(rf"{failed} system calls \[openat\], \S+ each, \S+ at most:", text)
    samples = raw_profile(profile).samples
    assert sum(one.values[0] for one in samples) == opened
    assert {one.labels["reason"] for one in samples} == {"openat"}
    sums = of_kind(divided, "syscall")
    seeks = sum(row["calls"] for row in sums if row["name"] == "dup")
    assert seeks == first["dup"]["calls"] + second["dup"]["calls"]
    inside = of_kind(divided, "wait")
    # The runtime may wake up a thread on the way, or need memory.
    own = [row for row in inside if not row["stack"][0]["func"].startswith("runtime.")]
    assert {row["reason"] for row in own} == {"lseek", "dup"}
    assert sum(row["count"] for row in inside if row["reason"] == "dup") == seeks


def test_of_a_command_no_call_is_missing_and_none_is_of_the_tool() -> None:
    result = run_tool("gooffcpu", *WORDS, "--", str(program()), stdin=subprocess.DEVNULL)
    text = "".join(result.lines)
    assert "not counted" not in result.errors
    assert re.search(r"\n +1 .*  execve\n", text)
    assert "[execve]:\n\tstack unavailable: it is of no code of the program\n" in text
    assert "no room" not in text


def test_what_makes_no_sense_is_refused() -> None:
    for words in (("--names",), ("--names", "--state", "syscall", "--open")):
        result = run_tool("gooffcpu", "-p", "1", *words)
        assert result.status == 2 and "--names is for --state syscall" in result.errors
