# SPDX-License-Identifier: Apache-2.0
"""Measure what ``--why`` costs: goroutines that park, call the system or yield, and all threads."""

from __future__ import annotations

import os
import statistics
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from gotrace.kernel import syscalls
from tests.bench.commands import Missing, ours
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, Series
from tests.bench.targets import newest_go
from tests.bench.tracers import TARGET_CPU, TRACER_CPU, Tracer, TracerError, on_cpu
from tests.toolchains import FIXTURES, build
from tests.tools.harness import Process

_MAX_CHANGE = 1000.0  # ns
_MAX_SWITCH = 200.0  # ns
_WARM = 1000
_SWITCHES = 20_000


@dataclass(frozen=True, slots=True)
class _Order:
    """What the program can be told to do, in which function, and how many states that changes."""

    word: str
    function: str
    changes: int
    says: str


#: Each of two goroutines parks, is readied and runs again; a system call begins and ends; a
#: goroutine that yields is runnable and runs.
_ORDERS = (
    _Order("park", "main.parks", 6, "two parks and wake-ups"),
    _Order("syscall", "main.calls", 2, "a system call"),
    _Order("yield", "main.yields", 2, "runtime.Gosched"),
)
_BARE, _OTHER, _WITHIN = "bare", "--why, in no traced call", "--why, in a traced call"


class _Changes(Process):
    """The program bench_why, ready for orders, on one CPU."""

    def __init__(self) -> None:
        with on_cpu(TARGET_CPU):
            super().__init__([build(FIXTURES / "bench_why", newest_go())])
        self.read_until("ready ")

    def cost(self, order: _Order, settings: Settings) -> float:
        """Return the ns that one takes, the median of some samples."""
        once = self._run(order, _WARM) / _WARM
        times = max(_WARM, int(settings.sample_s * 1e9 / max(once, 1.0)))
        return statistics.median(self._run(order, times) / times for _ in range(settings.samples))

    def _run(self, order: _Order, times: int) -> float:
        self.say(f"{order.word} {times}")
        return float(self.read_until("done ")[0])

    def __enter__(self) -> _Changes:
        return self


def why_costs(results: Results, settings: Settings) -> None:
    """Measure a change of state, in a traced call and in none, and a switch of threads."""
    values: dict[tuple[_Order, str], list[float]] = {}
    switches: list[float] = []
    problem = ""
    try:
        for _ in range(settings.rounds):
            with _Changes() as target:
                for order in _ORDERS:
                    values.setdefault((order, _BARE), []).append(target.cost(order, settings))
                for order in _ORDERS:
                    for how, function in ((_OTHER, "main.other"), (_WITHIN, order.function)):
                        words = ("--why", "--force", "-p", str(target.pid), function)
                        with Tracer(ours("gofunclatency", *words), TRACER_CPU):
                            cost = target.cost(order, settings)
                            if how is _OTHER and order is _ORDERS[0]:
                                switches.append(_switch_cost())
                        values.setdefault((order, how), []).append(cost)
    except (Missing, TracerError, OSError) as error:
        problem = str(error)
    for order in _ORDERS:
        bare = values.get((order, _BARE), [])
        for how in (_BARE, _OTHER, _WITHIN):
            found = values.get((order, how), [])
            results.add(f"cost of {order.says}", how, "ns", found, missing=problem)
            if how is _BARE:
                continue
            series = None
            if found and len(found) == len(bare):
                above = Series.of(found).above(Series.of(bare))
                series = Series.of([cost / order.changes for cost in above.values])
            results.requirements.append(
                Requirement(
                    f"a change of state, {order.word}: {how}",
                    series,
                    _MAX_CHANGE,
                    unit="ns",
                    why="" if series else problem or "not measured",
                )
            )
    case = "cost of a switch between threads that are not traced"
    results.add(case, "--why", "ns", switches, missing=problem)
    series = Series.of(switches) if switches else None
    results.requirements.append(
        Requirement(case, series, _MAX_SWITCH, unit="ns", why=problem if not series else "")
    )


# bpf(2): include/uapi/linux/bpf.h. Offsets in struct bpf_prog_info.
_NEXT_PROGRAM, _PROGRAM_BY_ID, _INFO_BY_FD = 11, 13, 15
_NAME_AT, _NAME_SIZE = 64, 16
_RETURN_0 = struct.pack("=QQ", 0xB7, 0x95)  # r0 = 0; exit


def _switch_cost() -> float:
    """Return the ns that the program at sched_switch takes on average, by the kernel's measure.

    That contains the two readings of a clock that it takes to measure: what an empty program at the
    same tracepoint is said to take in the same run is left out.
    """
    with ExitStack() as opened:
        empty = syscalls.load_program(
            _RETURN_0, b"GPL", syscalls.PROGRAM_RAW_TRACEPOINT, 0, "empty"
        )
        opened.callback(os.close, empty)
        opened.callback(os.close, syscalls.open_raw_tracepoint("sched_switch", empty))
        found = [program for program in _programs() if _name(program).startswith(b"on_switch")]
        for program in found:
            opened.callback(os.close, program)
        if not found:
            raise OSError("no program is at sched_switch")
        opened.callback(os.close, syscalls.enable_statistics())
        before = [syscalls.program_statistics(program) for program in (*found, empty)]
        _switch()
        after = [syscalls.program_statistics(program) for program in (*found, empty)]
    *own, nothing = (
        (new.ns - old.ns) / max(1, new.runs - old.runs)
        for old, new in zip(before, after, strict=True)
    )
    return sum(own) - nothing


def _programs() -> Iterator[int]:
    """Yield descriptors of all BPF programs that are loaded."""
    number = 0
    while True:
        attributes = bytearray(struct.pack("=III", number, 0, 0))
        try:
            syscalls._bpf(_NEXT_PROGRAM, attributes)
        except FileNotFoundError:
            return
        (number,) = struct.unpack_from("=I", attributes, 4)
        with suppress(FileNotFoundError):
            yield syscalls._bpf(_PROGRAM_BY_ID, struct.pack("=III", number, 0, 0))


def _name(program: int) -> bytes:
    """Return a program's name, at most 15 bytes."""
    info = bytearray(_NAME_AT + _NAME_SIZE)
    address = syscalls._address(info)
    syscalls._bpf(_INFO_BY_FD, struct.pack("=IIQ", program, len(info), address))
    return bytes(info[_NAME_AT:]).rstrip(b"\0")


def _switch() -> None:
    """Make two threads of this process, which nothing traces, wait for one another in turn."""
    one, other = os.pipe(), os.pipe()

    def answer() -> None:
        for _ in range(_SWITCHES):
            os.write(other[1], os.read(one[0], 1))

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(_SWITCHES):
        os.write(one[1], b".")
        os.read(other[0], 1)
    thread.join()
    for descriptor in (*one, *other):
        os.close(descriptor)
