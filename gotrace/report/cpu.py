# SPDX-License-Identifier: Apache-2.0
"""Write where CPU time goes: by function, by group of goroutines, by stack, and as JSON.

JSON: one object of kind ``cpu`` for each reading, with the sums, then one of kind ``cpu_function``
for each function and one of kind ``cpu_stack`` for each stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from gotrace.goroutines.interrupted import WorkKind
from gotrace.goroutines.model import Frame
from gotrace.report.durations import duration
from gotrace.report.goroutines import write_frames
from gotrace.report.output import JsonOutput
from gotrace.session.oncpu.naming import FunctionTime, NamedSamples
from gotrace.text import printable

__all__ = ["CpuReading", "write_cpu", "write_cpu_json"]


@dataclass(frozen=True, slots=True)
class CpuReading:
    """What is written of an interval.

    ``samples`` are those that are wanted, each of ``period`` ns, ``functions`` those that are
    listed of these; ``others`` are the samples for which there was no row. ``clock_ns`` is what the
    threads' own clock says, None if that is not known, ``seconds`` the length of the interval.
    ``by`` is the expression of the label that keeps samples apart, if one does.
    """

    samples: Sequence[NamedSamples]
    functions: Sequence[FunctionTime]
    others: int
    period: int
    clock_ns: int | None
    seconds: float
    by: str | None = None

    @property
    def count(self) -> int:
        """Return how many samples there are."""
        return self.others + sum(one.samples for one in self.samples)

    def sums(self, key: Callable[[NamedSamples], str]) -> list[tuple[str, int]]:
        """Return samples added up by a key, the most first."""
        sums: dict[str, int] = {}
        for one in self.samples:
            sums[key(one)] = sums.get(key(one), 0) + one.samples
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def write_cpu(
    out: TextIO,
    reading: CpuReading,
    what: str,
    groups: bool,
    stacks: bool,
    top: int | None,
) -> None:
    """Write the sums, what the time is spent for, and then a table of functions.

    ``what`` is whose time it is. ``groups``: groups of goroutines in place of functions;
    ``stacks``: stacks instead. At most ``top`` of them.
    """
    _Text(out, reading).write(what, groups, stacks, top)
    out.flush()


class _Text:
    def __init__(self, out: TextIO, reading: CpuReading) -> None:
        self._out = out
        self._reading = reading
        self._all = reading.count or 1

    def write(
        self,
        what: str,
        groups: bool,
        stacks: bool,
        top: int | None,
    ) -> None:
        reading = self._reading
        cpus = reading.count * reading.period / 1e9 / reading.seconds if reading.seconds else 0.0
        samples = f"{reading.count:,} sample{'' if reading.count == 1 else 's'}"
        head = f"{self._time(reading.count)} of CPU time of {what}: {cpus:.2f} CPUs, {samples}"
        clock = f"; {duration(reading.clock_ns)} by its own clock" if reading.clock_ns else ""
        self._out.write(f"{head}{clock}\n")
        if groups or (reading.by is not None and not stacks):
            self._table(reading.by or "GROUP", reading.sums(self._whose), top)
        elif stacks:
            self._stacks(top)
        else:
            works = reading.sums(lambda one: one.work.value)
            if any(name != WorkKind.PROGRAM.value for name, _ in works):
                self._table("FOR", works, None)
            self._functions(top)
        if reading.others:
            self._out.write(
                f"\n{self._time(reading.others)} in {reading.others:,} samples on stacks beyond the"
                " room for\n"
            )

    def _whose(self, one: NamedSamples) -> str:
        return one.group if self._reading.by is None else one.labelled()

    def _time(self, samples: int) -> str:
        return duration(samples * self._reading.period) if samples else "0s"

    def _share(self, samples: int) -> str:
        return f"{samples / self._all:.1%}"

    def _table(self, head: str, rows: Sequence[tuple[str, int]], top: int | None) -> None:
        self._out.write(f"\n{'TIME':>10} {'SHARE':>7}  {head}\n")
        for name, samples in rows[:top]:
            line = f"{self._time(samples):>10} {self._share(samples):>7}  {printable(name)}"
            self._out.write(f"{line}\n")
        self._rest([samples for _, samples in rows[top:]] if top else [], "groups")

    def _functions(self, top: int | None) -> None:
        rows = self._reading.functions
        self._out.write(f"\n{'SELF':>10} {'TOTAL':>10} {'SHARE':>7}  FUNCTION\n")
        for row in rows[:top]:
            self._out.write(
                f"{self._time(row.own):>10} {self._time(row.total):>10} {self._share(row.own):>7}"
                f"  {printable(row.function)}\n"
            )
        self._rest([row.own for row in rows[top:]] if top else [], "functions")

    def _rest(self, samples: Sequence[int], what: str) -> None:
        if samples:
            self._out.write(f"and {self._time(sum(samples))} in {len(samples):,} other {what}\n")

    def _stacks(self, top: int | None) -> None:
        sums: dict[tuple[str, tuple[Frame, ...], bool], int] = {}
        for one in self._reading.samples:
            key = (
                self._whose(one),
                tuple(frame._replace(offset=None) for frame in one.frames),
                one.is_cut,
            )
            sums[key] = sums.get(key, 0) + one.samples
        rows = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        for (group, frames, is_cut), samples in rows[:top]:
            head = f"{self._time(samples)}, {self._share(samples)}, {printable(group)}"
            self._out.write(f"\n{head}:\n")
            write_frames(self._out, frames)
            if not frames:
                self._out.write("\tstack unavailable: there was no room to keep it\n")
            if is_cut:
                self._out.write("...additional frames elided...\n")
        if top and rows[top:]:
            self._out.write("\n")
            self._rest([samples for _, samples in rows[top:]], "stacks")


def write_cpu_json(
    output: JsonOutput,
    reading: CpuReading,
    top: int | None,
    fields: Mapping[str, object],
) -> None:
    """Write an object with the sums and ``fields``, then functions, then stacks."""
    period = reading.period
    sums = {
        "period_ns": period,
        "samples": reading.count,
        "cpu_ns": reading.count * period,
        "clock_ns": reading.clock_ns,
        "others": reading.others,
    }
    output.write("cpu", {**fields, **sums})
    for row in reading.functions[:top]:
        times = {"self_ns": row.own * period, "total_ns": row.total * period}
        output.write("cpu_function", {"func": row.function, **times})
    for one in reading.samples[:top]:
        stack = [{**frame.to_json(), "inlined": frame.is_inlined} for frame in one.frames]
        known: dict[str, object] = {"work": one.work.value, "group": one.group}
        if reading.by is not None:
            from gotrace.values.to_json import to_json

            known["by"] = {reading.by: None if one.label is None else to_json(one.label)}
        known["samples"] = one.samples
        output.write("cpu_stack", {**known, "cpu_ns": one.samples * period, "stack": stack})
    output.out.flush()
