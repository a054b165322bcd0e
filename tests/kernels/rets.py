# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to what they promise of RETs that programs carry out: runs in a guest."""

from __future__ import annotations

import os
import re
import signal
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from gotrace.elf.image import ElfImage
from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.kernel.rets import RetEmulation, with_rets
from tests.kernels.checking import Checks
from tests.kernels.kills import kill_amid
from tests.kernels.leaves import carried_out
from tests.kernels.order import SOAK, STANDARD
from tests.kernels.runs import (
    COLLECTING,
    EMULATED,
    LATENCY,
    MINORS,
    RECORDS,
    RELAYED,
    Played,
    fixture_program,
    measure_rounds,
    measure_scenarios,
    relayed,
    trace_records,
    trace_values,
    watch,
)
from tests.kernels.server import SERVER_TOOLS, watch_server
from tests.kernels.soak import soak
from tests.kernels.standard import SUITES, run_suite
from tests.session.loaded import has_tail_call, loaded_instructions, verified_instructions
from tests.session.test_stacks import (
    ALL_OF_KEYED,
    ALL_OF_TRACE,
    ONE_PROCESS,
    PAIRED,
    PER_GOROUTINE,
    SUMMED,
    TIMED,
    WHY,
)
from tests.tools.harness import (
    Fixture,
    Json,
    Process,
    Result,
    code_of,
    of_kind,
    run_tool,
    tool,
)
from tests.tools.latency import summary

__all__ = ["check_rets", "rets_refused"]

_RET_TIMES = "RET times"


def check_rets(checks: Checks) -> None:
    """Run what concerns RETs that programs carry out, most of it with the best way to attach."""
    order = checks.order
    methods = [method for method in order.methods if method != "perf-ip"]
    best, few = methods[0], order.rounds // 3 or 1
    if not order.all_skips:
        checks.run("RETs: carried out", best, partial(_carried_out, best))
        checks.run("RETs: rounds", best, partial(measure_rounds, order.rounds, EMULATED))
        return
    checks.run("RETs: programs", "", _ret_programs)
    for method in methods:
        checks.run("RETs: carried out", method, partial(_carried_out, method))
        checks.run("RETs: two at once", method, partial(_several, method))
        leaves = fixture_program("live_count", MINORS[-1])
        checks.run("leaves: carried out", method, partial(carried_out, leaves, method))
    checks.run("RETs: tracers", best, partial(_several_tracers, 5))
    checks.run("RETs: beside bpftrace", best, _beside_bpftrace)
    checks.run("RETs: plain before", best, partial(_plain_before, 5))
    checks.run("RETs: server", best, _server)
    named = {f"RETs: {name}": check for name, check in LATENCY.items()}
    checks.of_one_run(best, partial(measure_scenarios, best, order.minors, EMULATED), named)
    checks.run("RETs: values", best, partial(trace_values, best, order.minors, EMULATED))
    checks.run("RETs: SIGKILL", best, partial(_kill_tools, best, order.seed))
    checks.run("RETs: rounds", best, partial(measure_rounds, order.rounds, EMULATED))
    checks.run("RETs: collections", best, partial(measure_rounds, few, EMULATED, COLLECTING))
    checks.run("RETs: records", best, partial(trace_records, few, EMULATED))
    for package in SUITES:
        checks.run(STANDARD, best, partial(run_suite, package))
    if SOAK in order.only:
        checks.run(SOAK, best, partial(soak, checks, best))
    if _RET_TIMES in order.only:
        for method in methods:
            checks.run(_RET_TIMES, method, partial(_ret_times, method))


#: The verifier follows at most a million instructions of a program.
_MAX_VERIFIED = 900_000


def _ret_programs() -> str:
    """Load the largest programs that carry out RETs, and those that share maps with them."""
    seen = []
    for settings in (
        replace(PER_GOROUTINE, why=SUMMED, slower=1),
        ALL_OF_TRACE,
        replace(ALL_OF_TRACE, why=WHY, payload=8192),
        replace(ALL_OF_KEYED, why=replace(WHY, why_callers=False)),
        replace(TIMED, why=replace(SUMMED, why_callers=False)),
    ):
        # With the look at the thread's features, whatever this machine's threads can have.
        site = with_rets(ONE_PROCESS, RetEmulation(8))
        program = BpfProgram(replace(settings, site=site))
        try:
            loaded = program.load(PAIRED, AttachKind.UPROBE_MULTI)
            assert all(has_tail_call(loaded_instructions(each)) for each in loaded.values())
            verified = {name: verified_instructions(each) for name, each in loaded.items()}
        finally:
            program.close()
        assert max(verified.values()) < _MAX_VERIFIED, verified
        seen.append(f"{settings.source} {verified['on_return']:,}")
    return "; ".join(seen)


#: Functions of the fixture whose entries the kernel emulates, and what calls them.
_UNSTEPPED = ("main.recurse", "main.interleave", "main.migrate")
_UNSTEPPED_ROUND = "interleaved recursion migration"


def _has_stepped(pid: int) -> bool:
    """Return whether an instruction of a process has been executed out of line, by a single step.

    The page for that is mapped when it is needed first: get_xol_area in kernel/events/uprobes.c.
    """
    return "[uprobes]" in Path(f"/proc/{pid}/maps").read_text()


def _carried_out(method: str) -> str:
    """Hold that no RET is stepped where programs carry them out, and that all are without that."""
    calls = []
    program = fixture_program("live_latency", MINORS[-1])
    for words in (EMULATED, ()):
        with Fixture([program]) as fixture:
            options = ("--json", "-F", "--attach", method, *words, "-p", str(fixture.ready))
            with tool("gofunclatency", *options, *_UNSTEPPED) as measuring:
                truth = fixture.work(_UNSTEPPED_ROUND)
                result = measuring.end()
            stepped = _has_stepped(fixture.pid)
            assert fixture.finish() == 0
        assert stepped == (not words), "a RET was stepped" if words else "no RET was stepped"
        calls.append(Played(truth, result).check(*_UNSTEPPED))
    return f"{calls[0]:,} calls without a step, {calls[1]:,} with one each"


def _several(method: str) -> str:
    """Watch the same calls with three tools: two carry out RETs, the last to attach does not.

    The programs of what was attached last run first. They find the registers as they were; those
    after the first to carry the RET out find what it has left.
    """
    program = fixture_program("live_latency", MINORS[-1])
    with Fixture([program]) as fixture, ExitStack() as stack:
        options = ("--json", "--attach", method, "-p", str(fixture.ready))
        first, tracing, plain = (
            stack.enter_context(tool(name, *options, *words))
            for name, *words in (
                ("gofunclatency", *EMULATED, "-F", *_UNSTEPPED),
                ("gotrace", *EMULATED, "main.interleave"),
                ("gofunclatency", "--emulate-ret=off", "-F", *_UNSTEPPED),
            )
        )
        truth = fixture.work(_UNSTEPPED_ROUND)
        played = {"first": Played(truth, first.end()), "last": Played(truth, plain.end())}
        stepped = _has_stepped(fixture.pid)
        assert fixture.finish() == 0
        traced = tracing.result()
    for name, each in played.items():
        try:
            seen = each.check(*_UNSTEPPED)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}: {each.result.lines[-8:]}") from error
        assert of_kind(each.result, "lost") == []
        assert summary(each.result, "unmatched") == 0
    assert not stepped, "a RET was stepped"
    rows = [row for row in of_kind(traced, "call") if row["func"] == "main.interleave"]
    lost = {row["what"]: row["calls"] for row in of_kind(traced, "lost")}
    wanted = truth["Functions"]["main.interleave"]["Calls"]
    assert len(rows) + sum(lost.values()) == wanted, f"{len(rows)} of {wanted} records; {lost}"
    assert set(lost) <= {"events_lost", "reader"} and len(rows) > wanted // 2, lost
    return f"{seen:,} calls seen by both meters, {len(rows):,} records of {wanted:,}"


#: How many tools are killed amid a program's calls.
_KILLS = 50


def _kill_tools(method: str, seed: int) -> str:
    """Kill tools at random moments; the program goes on, and its code is as before."""
    program = fixture_program("live_latency", MINORS[-1])
    options = ("--attach", method, *EMULATED)
    said, rounds = kill_amid(program, _UNSTEPPED_ROUND, _KILLS, seed, options)
    return f"{said} in {rounds} rounds"


def rets_refused() -> str:
    """Hold that a kernel that cannot do it says so, and that it is not tried by default."""
    program = fixture_program("live_latency", MINORS[-1])
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        for name in ("gofunclatency", "gotrace"):
            result = run_tool(name, *EMULATED, "-p", str(fixture.ready), "main.recurse")
            assert result.status == 1, result
            assert re.search("RETs cannot be carried out here: this kernel", result.errors)
            assert len(result.errors.splitlines()) == 1, result.errors
        assert code_of(fixture.pid) == clean
        assert fixture.finish() == 0
    return result.errors.strip()


def _ret_times(method: str) -> str:
    """Compare what a call takes under tools and bpftrace, in turn; only when asked for.

    By the program's own clock, without the call itself: the best of some rounds. bpftrace does what
    the tools do with two probes, at the function's first instruction and at its RET.
    """
    program = fixture_program("live_latency", MINORS[-1])
    entry, ret = _places(program, _TIMED)
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as scratch, Fixture([program]) as fixture:
        plain = _without_symbols(program, Path(scratch) / program.name)
        with Fixture([plain]) as peers:
            bare = _call_time(fixture)
            for _ in range(_TIMED_RUNS):
                for name, further in product(("gofunclatency", "gotrace"), _WAYS):
                    if further == LANDINGS and method != "multi":
                        continue
                    options = ("--json", "--attach", method, *further, "-p", str(fixture.ready))
                    with tool(name, *options, _TIMED) as running:
                        if further == LANDINGS:
                            fixture.work(_TIMED_ROUND)
                            running.lines_until('{"kind":"moved"')
                        took = _call_time(fixture) - bare
                        times.setdefault(" ".join((name, *further)), []).append(took)
                        running.end()
                for name, script in _PEERS.items():
                    text = script.format(entry=f"{plain}:{entry:#x}", ret=f"{plain}:{ret:#x}")
                    with _bpftrace(text, Path(scratch) / "output"):
                        times.setdefault(name, []).append(_call_time(peers) - bare)
            assert [fixture.finish(), peers.finish()] == [0, 0]
    sys.stderr.write(f"{times}\n")
    words = [f"{name} {min(each):,.0f} ns" for name, each in times.items()]
    return f"{'; '.join(words)}; the call itself {bare:,.0f} ns"


#: Debian's bpftrace 0.17 takes no place within a function but in a file without symbols, and there
#: by its offset.
_PEERS = {
    "bpftrace, two probes": "uprobe:{entry} {{ @s[tid] = nsecs; }}"
    " uprobe:{ret} /@s[tid]/ {{ @ = hist(nsecs - @s[tid]); delete(@s[tid]); }}",
    "bpftrace, printf at both": 'uprobe:{entry} {{ printf("%d %d\\n", tid, reg("ax")); }}'
    ' uprobe:{ret} {{ printf("%d %d\\n", tid, reg("ax")); }}',
}


@contextmanager
def _bpftrace(script: str, output: Path) -> Iterator[None]:
    """Run a script of bpftrace while the body runs, which begins once its probes are in place."""
    ready = 'interval:ms:20 /!@ready/ { @ready = 1; printf("ready\\n"); }'
    command = ["bpftrace", "--unsafe", "-e", f"{script} {ready}"]
    env = {**os.environ, "BPFTRACE_MAP_KEYS_MAX": str(1 << 15)}
    with output.open("wb") as lines, Process(command, stdout=lines, env=env) as running:
        while b"ready\n" not in output.read_bytes():
            assert not running.ends_within(0.1), running.errors
        yield
        running.signal(signal.SIGINT)
        running.wait()


def _places(program: Path, function: str) -> tuple[int, int]:
    """Return where a function begins and where its only RET is, as offsets in the file."""
    (row,) = of_kind(run_tool("gofunclatency", "-l", "--json", f"{program}:{function}"), "function")
    (ret,) = row["rets"]
    with ElfImage.open(program) as image:
        return image.offset_of(row["address"]), image.offset_of(ret)


def _without_symbols(program: Path, copy: Path) -> Path:
    """Copy a program as one whose section headers name no symbol table."""
    data = bytearray(program.read_bytes())
    (headers,) = struct.unpack_from("<Q", data, 0x28)  # e_shoff
    size, count = struct.unpack_from("<HH", data, 0x3A)  # e_shentsize, e_shnum
    for at in range(headers + 4, headers + size * count, size):  # sh_type
        if struct.unpack_from("<L", data, at) == (_SHT_SYMTAB,):
            struct.pack_into("<L", data, at, _SHT_NULL)
    copy.write_bytes(data)
    copy.chmod(0o755)
    return copy


_SHT_NULL, _SHT_SYMTAB = 0, 2


#: After it, its caller has an instruction that the kernel emulates.
_TIMED, _TIMED_ROUND = "main.short", "rounds"
LANDINGS = ("--returns=landing",)
_WAYS = (("--returns=ret",), EMULATED, LANDINGS)
_TIMED_RUNS, _TIMED_ROUNDS = 2, 15


def _call_time(fixture: Fixture) -> float:
    """Return the least mean time of a round's calls, in ns."""
    best, before = float("inf"), fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
    for _ in range(_TIMED_ROUNDS):
        after = fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
        took = (after["Outer"] - before["Outer"]) / (after["Calls"] - before["Calls"])
        best, before = min(best, took), after
    return best


def _several_tracers(times: int) -> str:
    """Have two gotrace watch the same calls, and tools that attach by links and by perf events.

    Each has to see every call, whichever was there before.
    """
    by_link, by_event = ((*EMULATED, "--attach", method) for method in ("multi", "perf-cookie"))
    linked, event = replace(RELAYED, further=by_link), replace(RECORDS, further=by_event)
    seen = []
    for watches in (
        [replace(RECORDS, further=by_link)] * 2,
        [event, linked],
        [linked, event],
    ):
        truth, results = watch("live_relay", watches, times)
        seen += [one.check(truth, result) for one, result in zip(watches, results, strict=True)]
    return f"{seen[0]:,} and {seen[1]:,} records; {seen[2:]} by both ways"


#: What bpftrace knows of a function's calls: the number in AX as they come and as they go, and at
#: the RET where it is, how far SP is from where it was, and its stack. All are keys: counts that
#: it makes of one hit differ from map to map on a preemptible kernel, and are a little too low.
_BESIDE = (
    'uprobe:{entry} {{ @number[reg("ax")] = 1; @sp[reg("r14")] = reg("sp"); }}'
    ' uprobe:{ret} {{ @triple[reg("ax")] = 1; @place[reg("ip")] = 1; @stack[ustack(2)] = 1;'
    ' @above[reg("sp") - @sp[reg("r14")]] = 1; @left = count();'
    ' printf("triple %d\\n", reg("ax")); }} END {{ clear(@sp); }}'
)
_BESIDE_ROUNDS = 5


def _beside_bpftrace() -> str:
    """Watch a function's entries and RETs with bpftrace and gotrace, started in either order.

    Both see each call, and its result. Where bpftrace was there before, its program runs last and
    finds the RET carried out: IP, SP and the stack are the caller's, as docs/limits.md says.
    """
    original = fixture_program("live_relay", MINORS[-1])
    seen = []
    with TemporaryDirectory() as scratch:
        program = _without_symbols(original, Path(scratch) / original.name)
        (row,) = of_kind(run_tool("gotrace", "-l", "--json", f"{program}:main.relay"), "function")
        (ret,) = row["rets"]
        with ElfImage.open(program) as image:
            entry_at, ret_at = (f"{program}:{image.offset_of(at):#x}" for at in (row["site"], ret))
        script = _BESIDE.format(entry=entry_at, ret=ret_at)
        for names in (("bpftrace", "gotrace"), ("gotrace", "bpftrace")):
            output = Path(scratch) / names[0]
            truth, ended = _watched_by_both(program, names, script, output)
            found, numbers = _Maps(output.read_text()), set(range(truth["Calls"]))
            sys.stderr.write(f"{names}: {found}\n")
            for keys, wanted in (
                (found.keys("number"), numbers),
                (found.keys("triple"), {3 * number for number in numbers}),
            ):
                assert keys == wanted, f"{names[0]} first: {len(keys)} of {len(wanted)} by bpftrace"
            printed = Counter(found.printed)
            assert max(printed.values()) == 1 and set(printed) <= found.keys("triple")
            (place,), (above,), (frame,) = map(found.keys, ("place", "above", "stack"))
            assert frame == place
            if names[0] == "bpftrace":
                assert place != ret and above == 8, f"{place:#x}, SP {above} above"
            else:
                assert place == ret and above == 0, f"{place:#x}, SP {above} above"
            records = [row for row in of_kind(ended, "call") if relayed(row)]
            assert {row["args"]["number"] for row in records} == numbers, len(records)
            calls = f"{len(numbers):,} calls by both, {len(printed):,} printed"
            seen.append(f"{names[0]} first: {calls}, {found.left:,} counted by bpftrace")
    return "; ".join(seen)


class _Maps:
    """What bpftrace has printed, and its maps as it ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.printed = [int(number) for number in re.findall(r"^triple (\d+)$", text, re.M)]
        self.left = int(re.findall(r"^@left: (\d+)$", text, re.M)[0])

    def keys(self, name: str) -> set[int]:
        """Return a map's keys; of stacks the innermost frame."""
        found = re.findall(rf"^@{name}\[\s*(\w+)(?:\s+\w+)*\s*\]:", self._text, re.M)
        return {int(key, 0) for key in found}

    def __str__(self) -> str:
        maps = {name: self.keys(name) for name in ("place", "above", "stack")}
        return f"{maps}, {self.left} left, {len(self.printed)} printed"


def _watched_by_both(
    program: Path, names: Sequence[str], script: str, output: Path
) -> tuple[Json, Result]:
    """Watch a fixture with bpftrace and gotrace in the order of names; return what gotrace saw."""
    with ExitStack() as stack:
        fixture = stack.enter_context(Fixture([program]))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        words = ("--json", *EMULATED, "-p", str(fixture.ready), "main.relay")
        for name in names:
            if name == "bpftrace":
                stack.enter_context(_bpftrace(script, output))
            else:
                tracing = stack.enter_context(tool("gotrace", *words))
                result = pool.submit(tracing.result)
        for _ in range(_BESIDE_ROUNDS):
            truth = fixture.work("go")
        assert not _has_stepped(fixture.pid), "a RET was stepped"
        assert fixture.finish() == 0
        ended = result.result()
    assert ended.status == 0, ended.errors
    return truth, ended


def _server() -> str:
    """Watch a busy server with all tools at once; its client counts the requests."""
    requests, compared = watch_server(list(SERVER_TOOLS), EMULATED, {})
    words = ", ".join(f"{count:,} by {name}" for name, count in compared.items())
    return f"{requests:,} requests; calls compared: {words}"


def _plain_before(times: int) -> str:
    """Hold what docs/limits.md says of a tool that was there before RETs are carried out.

    It does not know of that: all returns are of calls that it did not see, and it says so. The tool
    that carries them out sees all.
    """
    watches = [RELAYED, replace(RELAYED, further=EMULATED)]
    truth, (plain, carrying) = watch("live_relay", watches, times)
    calls = RELAYED.check(truth, carrying)
    assert of_kind(plain, "histogram") == [], plain.lines[-4:]
    assert summary(plain, "unmatched") == calls, f"{of_kind(plain, 'summary')} of {calls}"
    return f"{calls:,} calls seen by the later, {calls:,} unmatched by the earlier"
