# SPDX-License-Identifier: Apache-2.0
"""gostacks as a user runs it: the same goroutines in each of its forms."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gotrace
from tests.goroutines.test_parked import PARKED, as_printed, parse, take
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, run_tool, tool_command

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def parked() -> Iterator[Fixture]:
    with Fixture([build(PARKED, newest())]) as fixture:
        yield fixture


def stacks(parked: Fixture, *words: str) -> list[str]:
    result = run_tool("gostacks", "-p", str(parked.ready), *words)
    files = words.count("-o")
    assert (
        result.status == 0 and result.errors.count("\n") == result.errors.count("wrote ") == files
    )
    assert not files or not result.lines
    return result.lines


def test_one_by_one_is_what_go_prints(parked: Fixture) -> None:
    dump = take(parked.ready)
    text = "".join(stacks(parked, "-a")).split("\n", 2)[2]
    read = parse(re.sub(r", (?:chan|sync\.\w+) 0x[0-9a-f]+\]:", "]:", text))
    wanted = {one.goid: one for one in dump.goroutines if not one.is_system}
    assert read.keys() == wanted.keys()
    short = [goid for goid, one in wanted.items() if len(one.stack) < 100]
    assert len(short) > 25
    for goid in short:
        assert read[goid] == as_printed(dump, wanted[goid])


def test_all_forms_have_the_same_stacks(parked: Fixture, tmp_path: Path) -> None:
    result = run_tool("gostacks", "--json", "-p", str(parked.ready))
    head, rows = of_kind(result, "dump"), of_kind(result, "goroutine")
    each = run_tool("gostacks", "--all", "--json", "-p", str(parked.ready))
    assert [row["goid"] for row in of_kind(each, "goroutine")] == [row["goid"] for row in rows]
    assert head[0]["shown"] == len(rows) > 25 and head[0]["moved"] == 0
    assert [head[0][name] for name in ("states", "reason", "functions")] == [[], [], []]
    words = ("--state", "waiting", "--json", "-p", str(parked.ready), "main.*")
    (chosen,) = of_kind(run_tool("gostacks", *words), "dump")
    assert (chosen["states"], chosen["functions"]) == (["waiting"], ["main.*"])
    by_json: Counter[str] = Counter()
    for row in rows:
        names = [frame["func"] for frame in reversed(row["stack"])]
        by_json[";".join([*names, f"[{row['reason'] or row['state']}]"])] += 1
    folded = [line.rsplit(" ", 1) for line in stacks(parked, "-f")]
    assert {name: int(count) for name, count in folded} == by_json
    path, named = tmp_path / "x.ndjson", tmp_path / "x.speedscope.json"
    stacks(parked, "-o", str(path), "-o", str(named))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["goid"] for row in kept if row["kind"] == "goroutine"] == [
        row["goid"] for row in rows
    ]
    made = json.loads(named.read_text())
    names = [frame["name"] for frame in made["shared"]["frames"]]
    (profile,) = made["profiles"]
    pairs = zip(profile["samples"], profile["weights"], strict=True)
    assert {";".join(names[i] for i in sample): weight for sample, weight in pairs} == by_json
    path = tmp_path / "x.pb.gz"
    stacks(parked, "-o", str(path))
    toolchain = newest()
    command = [str(toolchain.go), "tool", "pprof", "-traces", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=toolchain.env(), check=True)
    by_pprof: Counter[str] = Counter()
    for part in done.stdout.split("-----------+")[1:]:
        frames = re.findall(r"^ +(?:(\d+) +)?(\S.*?)(?: \(inline\))?$", part, re.MULTILINE)
        labels = dict(re.findall(r"^ +(reason|state): +(.*)$", part, re.MULTILINE))
        called = [name for _, name in frames if not name.startswith(("reason:", "state:"))]
        if called:
            status = labels.get("reason") or labels["state"]
            count = next(int(count) for count, _ in frames if count)
            by_pprof[";".join([*reversed(called), f"[{status}]"])] += count
    assert by_pprof == by_json


def test_groups_and_choices(parked: Fixture) -> None:
    lines = stacks(parked, "--reason", "sync.Mutex.*")
    assert lines[0].startswith("5 goroutines of process ")
    header = next(i for i, line in enumerate(lines) if line.startswith("4 goroutines ["))
    assert re.fullmatch(
        r"4 goroutines \[sync\.Mutex\.Lock.*\]: \d+, \d+, \d+, \d+\n", lines[header]
    )
    assert re.fullmatch(
        r"  4 wait for sync\.Mutex 0x[0-9a-f]+ \(main\.mutex\)\n", lines[header + 1]
    )
    assert "main.waitMutex(...)\n" in lines
    one = lines[header].rpartition(" ")[2].strip()
    assert stacks(parked, "-g", one)[2].startswith(f"goroutine {one} [sync.Mutex.Lock")
    assert sum("main.waitDeep(...)" in line for line in stacks(parked, "main.waitDeep")) >= 100
    everything = stacks(parked, "--system")
    assert any(line.startswith("runtime.bgsweep(") for line in everything)
    assert any(line.startswith("runtime.gopark(") for line in everything)
    assert not any(line.startswith("runtime.gopark(") for line in stacks(parked, "--top", "2"))
    assert "goroutines in" in stacks(parked, "--top", "2")[-1]
    assert len(stacks(parked, "--longer", "1us")) > 20  # the fixture has called runtime.GC


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["main.nothing"], 3, "did you mean 'main.waitNothing'?"),
        (["runtime.gcStart"], 3, "no goroutine matches"),
        (["--longer", "1000h"], 3, "no goroutine matches"),
        (["--longer", "soon"], 2, "invalid length of time"),
        (["--state", "asleep"], 2, "is for --reason"),
        (["-a", "-f"], 2, "give only one of --all and --folded"),
        (["-o", "/nowhere/x.pb.gz"], 1, "/nowhere/x.pb.gz: cannot write"),
    ],
)
def test_errors(parked: Fixture, words: list[str], status: int, message: str) -> None:
    result = run_tool("gostacks", "-p", str(parked.ready), *words)
    assert result.status == status
    assert message in result.errors and result.errors.count("\n") == 1


def test_processes_that_cannot_be_read() -> None:
    with Fixture([build(PARKED, newest())]) as fixture:
        pid = fixture.ready
        assert fixture.finish() == 0
    assert "there is no process" in run_tool("gostacks", "-p", str(pid)).errors
    result = subprocess.run(
        [*tool_command("gostacks"), "-p", "$$"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    shell = "exec " + " ".join(map(str, tool_command("gostacks"))) + " -p $PPID"
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "runs no program of the Go compiler" in result.stderr


def test_how_long_is_not_known_before_a_collection() -> None:
    with Fixture([build(FIXTURES / "live_waits", newest())]) as fixture:
        result = run_tool("gostacks", "--longer", "1us", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    assert result.status == 3
    assert "known from the first garbage collection on" in result.errors


def test_repeated_dumps_end_with_the_process() -> None:
    with Fixture([build(PARKED, newest())]) as fixture:
        command = [*map(str, tool_command("gostacks")), "-i", "0.2", "-p", str(fixture.ready)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as tool:
            assert tool.stdout is not None and tool.stderr is not None
            for line in tool.stdout:
                if " +0: " in line:
                    break
            assert fixture.finish() == 0
            assert tool.wait(100) == 0
            assert "has ended" in tool.stderr.read()


def test_library_has_the_goroutines(parked: Fixture) -> None:
    with gotrace.attach(parked.ready) as go:
        waiting = go.goroutines("main.waitMutex")
        every = go.goroutines(system=True)
    assert [one.reason for one in waiting] == ["sync.Mutex.Lock"] * 5
    assert {(one.awaits, one.address) for one in waiting}.pop()[0] == "sync.Mutex"
    assert any(frame.function == "main.waitMutex" for frame in waiting[0].stack)
    assert waiting[0].created_by is not None and waiting[0].created_by.line
    assert any(one.system for one in every)
