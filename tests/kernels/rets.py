# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to what they promise of RETs that programs carry out: runs in a guest."""

from __future__ import annotations

import re
import signal
import struct
import sys
import threading
from collections.abc import Iterator
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
from tests.kernels.order import SOAK
from tests.kernels.runs import (
    COLLECTING,
    EMULATED,
    LATENCY,
    MINORS,
    Played,
    fixture_program,
    measure_rounds,
    measure_scenarios,
    trace_records,
    trace_values,
)
from tests.kernels.soak import soak
from tests.session.loaded import has_tail_call, loaded_instructions, verified_instructions
from tests.session.test_stacks import (
    ALL_OF_KEYED,
    ALL_OF_TRACE,
    ONE_PROCESS,
    PAIRED,
    PER_GOROUTINE,
    WHY,
)
from tests.tools.harness import Fixture, Process, code_of, of_kind, run_tool, tool, tool_command
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
    named = {f"RETs: {name}": check for name, check in LATENCY.items()}
    checks.of_one_run(best, partial(measure_scenarios, best, order.minors, EMULATED), named)
    checks.run("RETs: values", best, partial(trace_values, best, order.minors, EMULATED))
    checks.run("RETs: SIGKILL", best, partial(_kill_amid, best))
    checks.run("RETs: rounds", best, partial(measure_rounds, order.rounds, EMULATED))
    checks.run("RETs: collections", best, partial(measure_rounds, few, EMULATED, COLLECTING))
    checks.run("RETs: records", best, partial(trace_records, few, EMULATED))
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
        replace(PER_GOROUTINE, why=WHY, why_bands=8, slower=1),
        ALL_OF_TRACE,
        replace(ALL_OF_TRACE, why=WHY, payload=8192),
        replace(ALL_OF_KEYED, why=replace(WHY, why_callers=False)),
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
_KILLS = 5


def _kill_amid(method: str) -> str:
    """Kill tools while the program returns by their probes: it goes on, and its code is as before.

    In turn as they attach and as they measure.
    """
    program = fixture_program("live_latency", MINORS[-1])
    names = ("main.*", "strconv.*")
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        over = threading.Event()

        def play() -> int:
            rounds = 0
            while not over.is_set():
                fixture.work(_UNSTEPPED_ROUND)
                rounds += 1
            return rounds

        words = ("--attach", method, *EMULATED, "-p", str(fixture.ready), *names)
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(play)
            try:
                for number in range(_KILLS):
                    with Process(tool_command("gofunclatency", *words)) as killed:
                        if number % 2:
                            killed.read_until("Tracing ")
                        else:
                            while code_of(fixture.pid) == clean and not killed.ends_within(0):
                                pass
                        assert not killed.ends_within(0), f"it ended by itself: {killed.errors}"
                        killed.signal(signal.SIGKILL)
                        killed.rest()
                        killed.wait_for_keepers()
                    assert code_of(fixture.pid) == clean, "breakpoints were left behind"
            finally:
                over.set()
            rounds = playing.result()
        truth = fixture.work(_UNSTEPPED_ROUND)
        assert fixture.finish() == 0
    calls = sum(times["Calls"] for times in truth["Functions"].values())
    return f"{_KILLS} tools killed in {rounds} rounds, {calls:,} calls"


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
                for name, further in product(("gofunclatency", "gotrace"), ((), EMULATED)):
                    options = ("--attach", method, *further, "-p", str(fixture.ready), _TIMED)
                    with tool(name, *options) as running:
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
    with output.open("wb") as lines, Process(command, stdout=lines) as running:
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


_TIMED, _TIMED_ROUND = "main.stacked", "assembly"
_TIMED_RUNS, _TIMED_ROUNDS = 2, 15


def _call_time(fixture: Fixture) -> float:
    """Return the least mean time of a round's calls, in ns."""
    best, before = float("inf"), fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
    for _ in range(_TIMED_ROUNDS):
        after = fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
        took = (after["Outer"] - before["Outer"]) / (after["Calls"] - before["Calls"])
        best, before = min(best, took), after
    return best
