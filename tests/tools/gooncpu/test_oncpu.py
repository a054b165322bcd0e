# SPDX-License-Identifier: Apache-2.0
"""Where CPU time goes: as the program's own profile has it, and as much as its clock says."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.goroutines.interrupted import WorkKind
from gotrace.records import replace
from gotrace.session.oncpu.meter import SampleMeter, SampleRequest
from gotrace.session.tasks import Tasks
from gotrace.settings import OnCpuSettings
from gotrace.target.target import Target
from tests.profiles.raw import raw_profile
from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    each_known,
    each_toolchain,
    newest,
    program_of,
)
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = pytest.mark.live

Json = dict[str, Any]

#: The fixture's functions, by the rounds that each call of them has.
ROUNDS = {"main.four": 4, "main.three": 3, "main.inlined": 2, "main.framed": 1}
#: Standard deviations that one of ten numbers exceeds once in a hundred times.
SIGMAS = 3.3


program = program_of("live_oncpu")


#: One thread that no other one preempts: how many samples it gets is no matter of chance then.
ALONE = ("env", "GOMAXPROCS=1", "chrt", "--fifo", "1")


def sampled(
    path: Path, word: str, *arguments: str | Path, before: Sequence[str] = ()
) -> tuple[Json, Result]:
    """Return the fixture's truth and what was sampled meanwhile."""
    with Fixture([*before, path]) as fixture:
        words = ("-p", str(fixture.ready), "-F", "997", *arguments)
        with tool("gooncpu", *words) as sampling:
            truth = fixture.work(word)
            result = sampling.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def names(row: Mapping[str, Any]) -> list[str]:
    return [frame["func"] for frame in row["stack"]]


def self_samples(result: Result) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in of_kind(result, "cpu_stack"):
        counts[names(row)[0]] += row["samples"]
    return counts


def check_sums(result: Result) -> None:
    (sums,) = of_kind(result, "cpu")
    assert sums["samples"] == sum(row["samples"] for row in of_kind(result, "cpu_stack"))
    assert sums["cpu_ns"] == sums["samples"] * sums["period_ns"]


def check_share(found: int, of: int, share: float, known_of: float = math.inf) -> None:
    """Hold a share of samples to a known one, or to one of another sampling."""
    deviation = math.sqrt(share * (1 - share) * (1 / of + 1 / known_of))
    assert abs(found / of - share) <= SIGMAS * deviation + 0.002, (found, of, share)


def stolen_ns(cpu: int) -> int:
    """Return how long the host of this machine has had a CPU for others (proc_stat(5))."""
    (line,) = re.findall(rf"^cpu{cpu} (.*)$", Path("/proc/stat").read_text(), re.MULTILINE)
    return int(line.split()[7]) * 10**9 // os.sysconf("SC_CLK_TCK")


def test_samples_add_up_to_the_threads_own_clock() -> None:
    # A thread that changes CPUs has up to a sample more or less of each.
    cpu = min(os.sched_getaffinity(0))
    before = ("taskset", "-c", str(cpu), *ALONE)
    stolen = stolen_ns(cpu)
    truth, result = sampled(program(), "hot 4s", "--json", "-F", "99", before=before)
    stolen = stolen_ns(cpu) - stolen
    check_sums(result)
    (sums,) = of_kind(result, "cpu")
    # Samples go on while a host has the CPU of its guest. The clock of threads does not.
    least, most = sums["clock_ns"], sums["clock_ns"] + stolen
    assert 0.98 * least <= sums["cpu_ns"] <= 1.02 * most, (sums, stolen)
    assert sums["clock_ns"] == pytest.approx(truth["ns"], rel=0.02)


def test_what_keeps_step_with_the_ticks_has_its_share() -> None:
    """A single clock would meet it each time, or never, as it does what sysmon wakes up for."""
    truth, result = sampled(program(), "step 4s", "--json", "-F", "99", before=ALONE)
    (sums,) = of_kind(result, "cpu")
    check_share(sums["samples"], 99 * 4, truth["ns"] / 4e9)


@pytest.mark.parametrize("mode", ["default", "stripped", "pie"])
def test_shares_are_those_of_the_programs_own_profile(mode: str, tmp_path: Path) -> None:
    own = tmp_path / "own.pb.gz"
    # What preempts a thread comes with the kernel's own clock, as the program's own samples do.
    _, result = sampled(program(mode=mode), f"hot 4s {own}", "--json", before=ALONE)
    check_ratio(result)
    counts = self_samples(result)
    total = counts.total()
    profiled: Counter[str] = Counter()
    for sample in raw_profile(own).samples:
        profiled[sample.frames[0][0]] += sample.values[0]
    for name, samples in profiled.most_common(10):
        if not name.startswith("runtime."):  # of the profiler's own signals
            share = samples / profiled.total()
            check_share(counts[name], total, share, profiled.total())


@each_toolchain
def test_every_caller_is_there(toolchain: Toolchain) -> None:
    """Of leaves without a frame, and of functions at their first instructions, too."""
    _, result = sampled(program(toolchain), "hot 1s", "--json")
    assert check_callers(result) > 100


def check_callers(result: Result) -> int:
    """Hold that stacks of what the fixture does are whole; return how many samples are."""
    ways = {
        "main.four": ["main.left", "main.spins"],
        "main.framed": ["main.left", "main.spins"],
        "main.three": ["main.right", "main.spins"],
        "main.inlined": ["main.outer", "main.right", "main.spins"],
    }
    right: Counter[bool] = Counter()
    for row in of_kind(result, "cpu_stack"):
        inner, *callers = names(row)
        if inner in ways:
            assert callers[-1] == "runtime.goexit"
            right[callers[: len(ways[inner])] == ways[inner]] += row["samples"]
            assert re.fullmatch(r"main\.hot main\.go:\d+", row["group"])
    assert right[False] <= right[True] / 100, right
    return right[True]


@each_toolchain
def test_a_stack_that_grows_has_its_callers(toolchain: Toolchain) -> None:
    _, result = sampled(program(toolchain), "grow 2s", "--json")
    growing: Counter[bool] = Counter()
    for row in of_kind(result, "cpu_stack"):
        inner = names(row)
        if row["work"] == WorkKind.PROGRAM.value and "runtime.newstack" in inner:
            callers = inner[inner.index("runtime.newstack") + 1 :]
            # The outermost call is of even, and none is missing after it.
            ways = ["main.even", "main.odd"] * len(callers)
            ways = ["runtime.goexit", "main.grows", *ways[: len(callers) - 3], "runtime.morestack"]
            growing[callers[::-1] == ways] += row["samples"]
    # The last instructions of gogo have cleared what says where the goroutine is.
    assert growing[False] <= growing[True] / 100, growing
    assert growing[True] > sum(row["samples"] for row in of_kind(result, "cpu_stack")) / 4


def check_ratio(result: Result) -> None:
    """Hold samples to the rounds that the fixture's functions have."""
    counts = self_samples(result)
    for name, rounds in ROUNDS.items():
        check_share(counts[name], sum(counts[each] for each in ROUNDS), rounds / 10)


@each_toolchain
def test_what_the_runtime_does_has_groups_of_its_own(toolchain: Toolchain) -> None:
    _, result = sampled(program(toolchain), "collect 2s", "--json")
    check_sums(result)
    works: Counter[str] = Counter()
    for row in of_kind(result, "cpu_stack"):
        works[row["work"]] += row["samples"]
        functions = names(row)
        if row["work"] == WorkKind.PROGRAM.value:
            assert "runtime.gcBgMarkWorker" not in functions
        else:
            assert row["group"] == row["work"]
        if row["work"] == WorkKind.ASSIST.value:
            assert {"main.allocates", "runtime.mallocgc"} & {*functions}
    assert works.keys() >= {WorkKind.PROGRAM.value, WorkKind.COLLECTOR.value, WorkKind.ASSIST.value}
    _, result = sampled(program(toolchain), "yield 1s", "--json")
    groups: Counter[str] = Counter()
    for row in of_kind(result, "cpu_stack"):
        groups[row["group"]] += row["samples"]
    assert groups["main goroutine"] > 20 and groups[WorkKind.SCHEDULER.value] > 20
    assert groups["outside of goroutines"] <= groups.total() / 20


@each_toolchain
def test_time_is_kept_apart_by_a_label(toolchain: Toolchain, tmp_path: Path) -> None:
    profile, key = tmp_path / "x.pb.gz", '$label("user")'
    words = ("--by", key, "--json", "-o", profile)
    _, result = sampled(program(toolchain), "label 2s", *words, before=ALONE)
    check_sums(result)
    users: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for row in of_kind(result, "cpu_stack"):
        (value,) = row["by"].values()
        user = value if isinstance(value, str) else json.dumps(value)
        if "main.labelled" in names(row):
            # What takes a goroutine off its thread has its label until that is done.
            (users if row["work"] == WorkKind.PROGRAM.value else others)[user] += row["samples"]
        elif row["work"] == WorkKind.COLLECTOR.value:
            assert value in (None, "")
    cut = json.dumps({"$string": "c" * 256, "$len": 300})
    shares = {"alice": 0.4, 'bob "\n': 0.3, cut: 0.2, "": 0.1}
    assert users.keys() == shares.keys()
    for user, share in shares.items():
        check_share(users[user], users.total(), share)
    tagged: Counter[str] = Counter()
    for one in raw_profile(profile).samples:
        if any(name == "main.labelled" for name, _ in one.frames):
            tagged[str(one.labels.get("user", ""))] += one.values[0]
    every = users + others
    assert (tagged["alice"], tagged["c" * 256]) == (every["alice"], every[cut])


def test_a_label_is_a_table_of_its_own() -> None:
    words = ("--by", '$label("user")')
    _, result = sampled(program(), "label 1s", *words)
    text = "".join(result.lines)
    assert re.search(r'\n +TIME +SHARE  \$label\("user"\)\n +\S+ +\S+%  "alice"\n', text)
    for by, reason in (
        ("$goid", "kept apart by one label"),
        (f'$label("{"k" * 65}")', "at most 64 bytes"),
        ("$label", "kept apart by one label"),
    ):
        result = run_tool("gooncpu", "-p", str(os.getpid()), "--by", by)
        assert result.status == 2 and reason in result.errors


def test_the_kernels_functions_are_there_if_asked_for() -> None:
    _, result = sampled(program(), "read 1s", "-K", "--json")
    check_sums(result)
    (asked,) = of_kind(result, "attached")
    assert (asked["kernel"], asked["in"], asked["off"], asked["hertz"]) == (True, [], False, 997)
    rows = [row for row in of_kind(result, "cpu_stack") if "main.reads" in names(row)]
    within = [row for row in rows if row["stack"][0]["file"] == "[kernel]"]
    assert sum(row["samples"] for row in within) > sum(row["samples"] for row in rows) / 4
    for row in within:
        inner = [frame["file"] == "[kernel]" for frame in row["stack"]]
        assert inner == sorted(inner, reverse=True)
    assert any("ksys_read" in names(row) or "vfs_read" in names(row) for row in within)
    _, result = sampled(program(), "read 0.5s", "--json")
    rows = of_kind(result, "cpu_stack")
    assert not [f for row in rows for f in row["stack"] if f["file"] == "[kernel]"]
    system_calls = [row for row in rows if re.search(r"Syscall6?$", names(row)[0])]
    made = [row for row in system_calls if "main.reads" in names(row)]
    assert made and all("os.(*File).Read" in names(row) for row in made)
    # The others are sysmon's, which polls the network, and those around the fixture's work.
    assert sum(row["samples"] for row in system_calls if row not in made) < 10


def test_c_is_followed_by_its_frame_pointers() -> None:
    with Fixture([build(FIXTURES / "live_oncpu_cgo", newest(), env={"CGO_ENABLED": "1"})]) as one:
        with tool("gooncpu", "-p", str(one.ready), "-F", "997", "--json") as sampling:
            one.work("c")
            result = sampling.end()
        assert one.finish() == 0
    check_sums(result)
    rows = [row for row in of_kind(result, "cpu_stack") if names(row)[0] == "turns"]
    total = sum(row["samples"] for row in rows)
    assert total > 30
    # What cgo has made calls it, or what that has inlined.
    whole = [
        row
        for row in rows
        if names(row)[1].startswith(("_cgo_", "calls")) and "main.inC" in names(row)
    ]
    assert sum(row["samples"] for row in whole) > 0.95 * total
    assert {row["group"] for row in whole} == {"main goroutine"}


@each_known
def test_all_of_goroutines_time_is_there(toolchain: Toolchain, tmp_path: Path) -> None:
    """Of each group: running, runnable, in system calls and waiting are its goroutines' lives."""
    profile = tmp_path / "x.pb.gz"
    words = ("--off", "--force", "--json", "-o", profile)
    # Nothing comes between what the fixture does and when it looks at the clock.
    truth, result = sampled(program(toolchain), "wall 2s", *words, before=ALONE)
    groups = {row["group"].split()[0]: row for row in of_kind(result, "wall_group")}
    states = ("running_ns", "runnable_ns", "syscall_ns", "waiting_ns")
    for name, row in groups.items():
        lived = sum(row[state] for state in states)
        assert row["wall_ns"] == (0 if name in ("scheduler", "outside") else lived), name
    for name, function in (
        ("computes", "main.computes"),
        ("sleeps", "main.sleeps"),
        ("both", "main.both"),
        ("reads", "main.blocks"),
    ):
        row, known = groups[function], truth[name]
        assert row["wall_ns"] == pytest.approx(known["lived"], rel=0.01), name
        if name in ("sleeps", "both"):
            # It is runnable, too, until it notices that it has slept.
            slept = row["waiting_ns"] + row["runnable_ns"]
            assert row["waiting_ns"] <= known["did"] * 1.001
            assert slept >= known["did"] * 0.99
        if name == "computes":
            computed = row["running_ns"] + row["runnable_ns"]
            assert computed == pytest.approx(known["lived"], rel=0.01)
        if name == "reads":
            assert row["syscall_ns"] == pytest.approx(known["did"], rel=0.01)
    # Those that have been parked all the time.
    (wall,) = of_kind(result, "wall")
    assert groups["main.main"]["waiting_ns"] == pytest.approx(7 * wall["seconds"] * 1e9, rel=0.01)
    assert wall["wall_ns"] == sum(row["wall_ns"] for row in groups.values())
    stacks = [row for row in of_kind(result, "wall_stack") if row["group"].startswith("main.")]
    for function, state in (
        ("main.turns", "running"),
        ("time.Sleep", "waiting"),
        ("syscall.Nanosleep", "syscall"),
        ("main.parks", "waiting"),
    ):
        assert {row["state"] for row in stacks if function in names(row)} >= {state}, function
    for name, row in groups.items():
        for state in states:
            found = [
                one["ns"]
                for one in of_kind(result, "wall_stack")
                if one["group"].split()[0] == name and one["state"] + "_ns" == state
            ]
            assert sum(found) == row[state] or (state == "running_ns" and not found)
    raw = raw_profile(profile)
    assert raw.types == ("events/count", "time/nanoseconds[dflt]")
    times = sum(row[state] for row in groups.values() for state in states)
    assert sum(one.values[1] for one in raw.samples) == times
    assert {one.frames[-1][0] for one in raw.samples} >= {f"[{row['group']}]" for row in stacks}


def test_what_finds_no_row_is_in_the_sum() -> None:
    with Fixture([program()]) as fixture:
        target = Target.of(fixture.ready, None)
        request = SampleRequest(target=target, hertz=997)
        binary = target.binary(None)
        settings = request.settings(OnCpuSettings, Tasks((binary,), binary.runtime), kernel=False)
        with SampleMeter(request, replace(settings, rows=1)) as meter:
            fixture.work("hot 1s")
            meter.stop()
            period, lost = meter.take(), meter.lost()["stacks"]
        target.close()
        assert fixture.finish() == 0
    assert len(period.rows) == 1 and period.others > 0 and lost == 0
    assert period.clock_ns is not None
    assert period.samples * meter.event.period == pytest.approx(period.clock_ns, rel=0.2)


def test_all_forms_have_the_same_sums(tmp_path: Path) -> None:
    profile, flame = tmp_path / "x.pb.gz", tmp_path / "x.speedscope.json"
    words = ("--json", "-o", profile, "-o", flame, "-i", "0.3")
    # A second by the clock, at least: two threads have the time.
    _, result = sampled(program(), "hot 2s", *words)
    heads = of_kind(result, "cpu")
    assert len(heads) > 2
    intervals = {(row["ts"], round(row["seconds"], 6)) for row in heads}
    for kind in "cpu_stack", "cpu_function":
        assert {(row["ts"], row["interval_s"]) for row in of_kind(result, kind)} == intervals
    raw = raw_profile(profile)
    assert raw.types == ("samples/count", "cpu/nanoseconds[dflt]")
    (period,) = {row["period_ns"] for row in of_kind(result, "cpu")}
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in of_kind(result, "cpu_stack"):
        stack = tuple((frame["func"], frame["line"]) for frame in row["stack"])
        rows[stack, row["group"]] += row["samples"]
    sums: Counter[tuple[Any, ...]] = Counter()
    for one in raw.samples:
        sums[one.frames, one.labels["group"]] += one.values[0]
        assert one.values[1] == one.values[0] * period
    assert rows == sums
    made = json.loads(flame.read_text())["profiles"][0]
    assert made["unit"] == "nanoseconds" and sum(made["weights"]) == rows.total() * period


def test_folded_stacks_are_printed() -> None:
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "-F", "997", "-f")
        with tool("gooncpu", *words, stderr=subprocess.STDOUT) as sampling:
            fixture.work("hot 1s")
            result = sampling.end()
        assert fixture.finish() == 0
    folded = [line for line in result.lines if re.fullmatch(r"\S.*;\S.* \d+\n", line)]
    assert len(folded) == len(result.lines) - 2  # the lines that begin and end a run
    assert any(";main.spins;main.left;main.four " in line for line in folded)
    assert run_tool("gooncpu", "-p", "1", "-f", "--json").status == 2


def test_the_tables() -> None:
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "-F", "997")
        with (
            tool("gooncpu", *words, "--in", "main.left", "main.f*") as inside,
            tool("gooncpu", *words, "-g") as grouping,
            tool("gooncpu", *words, "--stacks", "--top", "1") as stacking,
        ):
            fixture.work("hot 2s")
            both, groups, stacks = inside.end(), grouping.end(), stacking.end()
        nothing = run_tool("gooncpu", *words, "main.nothing")
        assert fixture.finish() == 0
    text = "".join(both.lines)
    assert re.search(r"of CPU time of process \d+: \d\.\d\d CPUs, [\d,]+ samples\n", text)
    head = re.search(r"\n +SELF +TOTAL +SHARE  FUNCTION\n(.*)Detaching", text, re.S)
    assert head is not None
    listed = [line.split() for line in head[1].splitlines()]
    assert [row[3] for row in listed] == ["main.four", "main.framed"]
    assert float(listed[0][2].rstrip("%")) > 60
    assert re.search(r"%  main\.hot main\.go:\d+\n", "".join(groups.lines))
    assert re.search(r"ms, [\d.]+%, main\.hot main\.go:\d+:\nmain\.", "".join(stacks.lines))
    assert nothing.status == 3 and "main.nothing" in nothing.errors


def test_a_function_that_a_command_lacks_is_refused_before_it_starts() -> None:
    path = str(program())
    for words in ("gooncpu", "gooffcpu", "gooffcpu --names --state syscall"):
        tool_, *options = words.split()
        result = run_tool(tool_, *options, "--in", "main.inlined", "--in", "main.fuor", "--", path)
        assert result.status == 3 and "no function matches 'main.fuor' in" in result.errors
        assert "did you mean 'main.four'?" in result.errors and not result.lines
    with gotrace.start([path]) as go, pytest.raises(gotrace.NoMatchError, match=r"main\.fuor"):
        go.on_cpu("main.fuor")
    known = run_tool("gooncpu", "--in", "main.inlined", "--", path, stdin=subprocess.DEVNULL)
    assert known.status == 0, known.errors


@pytest.mark.parametrize("mode", ["default", "pie"])
def test_a_command_from_its_first_instruction(mode: str, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("hot 1s\n\n")
    with words.open() as orders:
        result = run_tool("gooncpu", "--json", "-F", "499", "--", program(mode=mode), stdin=orders)
    own = Result(result.status, [line for line in result.lines if line[0] == "{"], "")
    counts = self_samples(own)
    assert counts["main.four"] > 10
    for row in of_kind(own, "cpu_stack"):
        if names(row)[0] == "main.four":
            assert names(row)[1:3] == ["main.left", "main.spins"]


def test_the_library_has_it(tmp_path: Path) -> None:
    with Fixture([program()]) as fixture, gotrace.attach(fixture.ready) as go:

        def work() -> None:
            fixture.work("hot 1s")
            go.stop()

        time = go.on_cpu(hertz=499, ready=work)
        left = go.on_cpu("main.left", hertz=499, ready=work)
        assert fixture.finish() == 0
    assert time.clock_ns == pytest.approx(time.cpu_ns, rel=0.2)
    assert time.functions[0].function == "main.four"
    assert time.functions[0].self_ns / time.cpu_ns == pytest.approx(0.4, abs=0.1)
    assert sum(one.samples for one in time) == time.samples
    assert all("main.left" in [f.function for f in one.stack] for one in left) and left
    time.to_pprof(tmp_path / "x.pb.gz")
    read = raw_profile(tmp_path / "x.pb.gz").samples
    assert sum(one.values[1] for one in read) == time.cpu_ns


def test_the_library_has_all_of_goroutines_time(tmp_path: Path) -> None:
    with Fixture([*ALONE, program()]) as fixture, gotrace.attach(fixture.ready) as go:
        known: Json = {}

        def work() -> None:
            known.update(fixture.work("wall 1s"))
            go.stop()

        time = go.wall(hertz=499, force=True, ready=work)
        assert fixture.finish() == 0
    groups = {one.group.split()[0]: one for one in time}
    for name, function in (("computes", "main.computes"), ("reads", "main.blocks")):
        one = groups[function]
        assert one.wall_ns == pytest.approx(known[name]["lived"], rel=0.02)
        states = one.running_ns, one.runnable_ns, one.syscall_ns, one.waiting_ns
        assert sum(states) == one.wall_ns
    assert time.wall_ns == time.others[1] + sum(one.wall_ns for one in time)
    names, rows = time.table()
    assert [row[-1] for row in rows] == [one.group for one in time] and names[0] == "wall_ns"
    time.to_pprof(tmp_path / "x.pb.gz")
    times = sum(one.running_ns + one.runnable_ns + one.syscall_ns + one.waiting_ns for one in time)
    assert sum(one.values[1] for one in raw_profile(tmp_path / "x.pb.gz").samples) == times


@pytest.mark.parametrize("more", [(), ("--off", "--force"), ("-g",)])
def test_what_has_ended_meanwhile_is_named(more: tuple[str, ...]) -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gooncpu", "-p", str(fixture.ready), *more) as sampling,
    ):
        fixture.work("hot 1s")
        assert fixture.finish() == 0
        result = sampling.result()
    assert result.status == 0, result.errors
    assert "main" in "".join(result.lines)


def test_what_cannot_be_sampled_is_refused_in_a_line() -> None:
    for words, text in (
        (("-p", str(os.getpid())), "runs no program of the Go compiler"),
        (("-p", str(os.getpid()), "-F", "20000"), "give 1 to 10,000"),
        (("-p", str(os.getpid()), "-g", "--stacks"), "only one of -g and --stacks"),
        (("-p", str(os.getpid()), "--off", "-i", "1"), "--off is for all of the run"),
        ((), "give -p PID or a command"),
    ):
        result = run_tool("gooncpu", *words)
        assert result.status in (1, 2) and text in result.errors
        assert len(result.errors.splitlines()) == 1
