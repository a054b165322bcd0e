# SPDX-License-Identifier: Apache-2.0
"""Runs of gooffcpu: how long goroutines wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import ClassVar, TypeVar

from gotrace.cli.pace import pace, running
from gotrace.cli.run import process_of, run_output
from gotrace.cli.stack_files import StackWriter, begin_table, say_begun, say_lost
from gotrace.cli.stack_options import GooffcpuOptions
from gotrace.cli.why import PriceWatch, say_price
from gotrace.goroutines.groups import matcher
from gotrace.profiles.rows import StackProfile
from gotrace.report.durations import duration
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.report.syscalls import write_syscalls
from gotrace.report.waits import write_waits
from gotrace.results.rows import Row
from gotrace.session.choices import WaitState
from gotrace.session.request import RunRequest
from gotrace.session.waits.meter import WaitMeter, WaitPeriod, WaitRequest, WaitRow
from gotrace.session.waits.names import (
    SyscallMeter,
    SyscallRequest,
    syscall_price,
    syscall_row,
)
from gotrace.session.waits.naming import FORM, WaitChoice, named_waits, profile_rows, waits_head
from gotrace.target.target import Target
from gotrace.text import counted

_Meter = WaitMeter | SyscallMeter
_M = TypeVar("_M", WaitMeter, SyscallMeter)


def add_up(options: GooffcpuOptions) -> int:
    """Add waits up and return the exit status."""
    output = run_output(options)
    with process_of(options, "gooffcpu traces") as target:
        if options.names:
            if target.command is None:
                what = "makes {} system calls a second: --names"
                say_price(options, output, syscall_price(target), what)
            _watch(options, _syscalls(options, target), output)
            return 0
        request = WaitRequest(
            target=target,
            forced=options.attach,
            budget=options.budget,
            is_priced=True,
            state=options.state,
            inside=options.inside,
            reasons=options.reason,
        )
        _watch(options, request, output)
    return 0


def _syscalls(options: GooffcpuOptions, target: Target) -> SyscallRequest:
    return SyscallRequest(
        target=target, inside=options.inside, intervals=options.interval is not None
    )


def _watch(options: GooffcpuOptions, request: RunRequest[_M, None], output: Output) -> None:
    # The runtime's own goroutines make system calls that the table has, too.
    system = options.system or options.names
    choice = WaitChoice(tuple(options.inside), tuple(options.reason), system, options.wakers)
    watch = PriceWatch(options, output, "it")
    with running(request, output, watch.accept) as run:
        meter = run.meter
        writer = _Writer(options, meter, run.target, output, choice)
        asked = {name: getattr(options, name) for name in ("reason", "names", "open", "system")}
        asked |= {"in": options.inside, "attach": meter.attached.method.value}
        text = f"Tracing {_STATES[options.state]} of {{}}"
        say_begun(run, output, text, state=options.state.value, **asked)
        for length in pace(options, run, output, watch=watch):
            writer.write(meter.take(), meter.open() if meter.stopped else [], length)
        writer.finish()
        for notice in _footer(writer, meter):
            output.notice(notice)
        say_lost(output, meter.lost())


_STATES = {
    WaitState.WAITING: "waits",
    WaitState.RUNNABLE: "waits for a CPU",
    WaitState.SYSCALL: "system calls",
}


class _Writer(StackWriter[GooffcpuOptions, WaitRow, Row]):
    """The waits of a run."""

    SUMS: ClassVar = {"count": add, "ns": add, "max_ns": max}

    def __init__(
        self,
        options: GooffcpuOptions,
        meter: _Meter,
        target: Target,
        output: Output,
        choice: WaitChoice,
    ) -> None:
        super().__init__(options, target, output)
        self._meter = meter
        self._choice = choice
        #: Whether waits that have not ended are in the results.
        self.counts_open: bool = options.open
        #: Waits that had not ended, of those that are wanted.
        self.open: list[Row] = []

    def write(self, period: WaitPeriod, still_open: Sequence[WaitRow], length: float) -> None:
        """Write an interval's waits; ``still_open`` are those that have not ended with the run."""
        options = self._options
        self.open = self._named(still_open)
        waits = self.keep([*period.rows, *(still_open if options.open else ())], length)
        if waits is None:
            return
        top = options.top
        head = waits_head(waits, period.others, self.fields(length))
        calls = self._syscalls(self._meter) if isinstance(self._meter, SyscallMeter) else None
        for form in self._output.forms:
            if isinstance(form, JsonOutput):
                form.rows([head, *waits[:top], *(calls or ())])
                continue
            out = begin_table(options, form)
            if calls is not None:
                if options.inside:  # their names are added up without their stacks
                    out.write(f"of all functions of {self._what}, those of --in below:\n")
                write_syscalls(out, calls, top)
                out.write("\n")
            write_waits(out, head, waits, self._what, options.system, top)

    def _named(self, rows: Sequence[WaitRow]) -> list[Row]:
        return named_waits(self._meter.program, self._options.state, rows, self._choice)

    def _size(self, named: Sequence[Row]) -> str:
        return counted("{:,} wait{s}", sum(wait["count"] for wait in named))

    def _syscalls(self, meter: SyscallMeter) -> list[Row]:
        """Return the calls whose names ``--reason`` wants."""
        wanted = self._options.reason
        return [
            syscall_row(one)
            for one in meter.names()
            if not wanted or any(map(matcher(one.name), wanted))
        ]

    def _profile(self, named: Sequence[Row], length: int) -> StackProfile:
        rows, mappings = (
            profile_rows(self._meter.program, named),
            self._meter.program.mappings(),
        )
        return StackProfile(FORM, rows, f"waits of {self._what}", mappings, self._began, length)


def _footer(writer: _Writer, meter: _Meter) -> Iterator[Notice]:
    """Yield notices of gaps in the sums."""
    losses = meter.losses()
    noun = "call{s}" if isinstance(meter, SyscallMeter) else "wait{s}"
    if writer.open:
        count = sum(wait["count"] for wait in writer.open)
        ns = sum(wait["delay_ns"] for wait in writer.open)
        is_counted = writer.counts_open
        many = counted("{:,} of these" if is_counted else f"{{:,}} more {noun}", count)
        text = f"{many} not ended"
        text += f", after {duration(ns)}" + ("" if is_counted else ": --open counts them")
        yield _summary(text, {"what": "open", "count": count, "delay_ns": ns})
    if isinstance(meter, SyscallMeter) and meter.unfinished:
        names = meter.unfinished.most_common()
        text = counted("{} thread{s} still in a call, not counted", meter.unfinished.total())
        text += f": {', '.join(f'{count:,} {name}' for name, count in names)}"
        yield _summary(text, {"what": "unfinished", "calls": dict(names)})
    if losses.earlier:
        many = counted(f"{{:,}} {noun}", losses.earlier)
        text = f"{many} not counted: begun before tracing"
        yield _summary(text, {"what": "earlier", "count": losses.earlier})
    if losses.longest:
        times = counted("{:,} time{s}", losses.longest)
        text = f"{times} one may be missing from the longest"
        yield Notice(NoticeKind.LOST, text, {"what": "longest", "count": losses.longest})


def _summary(text: str, fields: Mapping[str, object]) -> Notice:
    return Notice(NoticeKind.SUMMARY, text, fields)
