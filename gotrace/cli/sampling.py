# SPDX-License-Identifier: Apache-2.0
"""Runs of gooncpu and goalloc: where CPU time goes, and who allocates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from operator import add
from typing import ClassVar, TypeVar

from gotrace.cli.pace import pace, running
from gotrace.cli.run import process_of, run_output
from gotrace.cli.stack_files import StackWriter, begin_table, say_begun, say_lost, write_stacks
from gotrace.cli.stack_options import GoallocOptions, GooncpuOptions, SampledOptions
from gotrace.cli.why import PriceWatch, say_price
from gotrace.profiles.rows import StackProfile
from gotrace.report.output import JsonOutput, Output
from gotrace.report.samples import FUNCTIONS, write_samples
from gotrace.report.wall import write_wall
from gotrace.session.oncpu.allocs import AllocRequest
from gotrace.session.oncpu.groups import WALL_FORM, wall_groups, wall_head
from gotrace.session.oncpu.meter import (
    SampleMeter,
    SamplePeriod,
    SampleRequest,
    SampleRow,
)
from gotrace.session.oncpu.naming import NamedSamples, SampleNames, function_rows, samples_head
from gotrace.session.oncpu.wall import WallRequest
from gotrace.session.probing import Probing
from gotrace.session.row_cells import RowStacks
from gotrace.session.run import Run
from gotrace.target.target import Target
from gotrace.text import counted

_M = TypeVar("_M", bound=Probing)
_S = TypeVar("_S", bound=SampleMeter)


def sample(options: GooncpuOptions) -> int:
    """Sample and return the exit status."""
    output = run_output(options)
    with process_of(options, "gooncpu samples") as target:
        request = SampleRequest(
            target=target,
            forced=options.attach,
            hertz=options.frequency,
            kernel=options.kernel,
            inside=[*options.inside, *options.functions],
            by=options.label,
        )
        if options.off:
            _run_off(options, request, output)
        else:
            _run_on(options, request, output)
    return 0


def _run_on(options: GooncpuOptions, request: SampleRequest, output: Output) -> None:
    with running(request, output) as run:
        _begun(options, run, output)
        _write(options, run, output)


def _write(options: SampledOptions, run: Run[_S, None], output: Output) -> None:
    """Write all intervals of a run that has begun."""
    writer = _Writer(options, run.meter, run.target, output)
    for length in pace(options, run, output):
        writer.write(run.meter.take(), length)
    writer.finish()
    say_lost(output, run.meter.lost())


def allocations(options: GoallocOptions) -> int:
    """Add up which functions allocate memory, and return the exit status."""
    output = run_output(options)
    with process_of(options, "goalloc samples") as target:
        request = AllocRequest(
            target=target,
            forced=options.attach,
            budget=options.budget,
            inside=[*options.inside, *options.functions],
            by=options.label,
            spans=options.spans,
        )
        if (price := request.price()) is not None:
            say_price(options, output, price, f"{request.counted}: goalloc")
        with running(request, output) as run:
            asked = {"in": options.inside, "attach": run.attached.method.value}
            say_begun(run, output, "Sampling allocations of {}", **asked)
            _write(options, run, output)
    return 0


def _run_off(options: GooncpuOptions, request: SampleRequest, output: Output) -> None:
    """Add up all of the time, and write it at the end."""
    asked = WallRequest(target=request.target, forced=request.forced, cpu=request, is_priced=True)
    watch = PriceWatch(options, output, "--off")
    with running(asked, output, watch.accept) as run:
        names, began = SampleNames(run.meter.cpu), time.time_ns()
        _begun(options, run, output)
        for _ in pace(options, run, output, watch=watch):
            pass
        length = (run.attached.stopped_at or run.began) - run.began
        rows, others, period = run.meter.take()
        samples = names.named(period.rows)
        groups = wall_groups(rows, samples, names, run.meter.cpu.event.period)
        what = f"process {run.target.pid}"
        found = [row for group in groups for row in group.profile_rows(names)]
        span = round(length * 1e9)
        name = f"time of goroutines of {what}"
        profile = StackProfile(WALL_FORM, found, name, names.mappings(), began, span)
        fields = {"pid": run.target.pid, "ts": round(time.time(), 6), "seconds": length}
        head, stacks_of = wall_head(groups, others, fields), RowStacks(names.program)
        tables = [group.table_rows(stacks_of) for group in groups]
        shown = [] if options.folded or options.only_stacks else output.forms
        for form in shown:
            if isinstance(form, JsonOutput):
                form.rows([head, *chain.from_iterable(tables[: options.top])])
            else:
                firsts = [rows[0] for rows in tables]
                write_wall(begin_table(options, form), head, firsts, what, options.top)
        write_stacks(options, output, profile, counted("{:,} stack{s}", len(found)))
        say_lost(output, run.meter.lost())


def _begun(options: GooncpuOptions, run: Run[_M, None], output: Output) -> None:
    hertz = options.frequency
    asked = {"in": options.inside, "kernel": options.kernel, "off": options.off, "hertz": hertz}
    say_begun(run, output, f"Sampling {{}} at {hertz} Hz", **asked)


class _Writer(StackWriter[SampledOptions, SampleRow, NamedSamples]):
    """The samples of a run."""

    SUMS: ClassVar = dict.fromkeys(("samples", "amount", "objects", "variance"), add)

    def __init__(
        self,
        options: SampledOptions,
        meter: SampleMeter,
        target: Target,
        output: Output,
    ) -> None:
        super().__init__(options, target, output)
        self._event = meter.event
        self._names = SampleNames(meter)

    def write(self, period: SamplePeriod, length: float) -> None:
        """Write an interval's samples."""
        options = self._options
        samples = self.keep(period.rows, length)
        if samples is None:
            return
        functions = function_rows(samples, self._event, options.functions)
        rows = [one.row(self._event, options.label) for one in samples]
        inside = bool(options.inside)
        head = samples_head(samples, period, self._event, inside, self.fields(length))
        by = "GROUP" if options.goroutines else options.label
        few = not (options.functions or by or options.stacks)
        top = options.top or (FUNCTIONS if few else None)
        for form in self._output.forms:
            if isinstance(form, JsonOutput):
                form.rows([head, *functions[: options.top], *rows[: options.top]])
            else:
                out = begin_table(options, form)
                write_samples(out, head, functions, rows, self._what, top, by, options.stacks)

    def _named(self, rows: Sequence[SampleRow]) -> list[NamedSamples]:
        return self._names.named(rows, self._options.inside)

    def _size(self, named: Sequence[NamedSamples]) -> str:
        return counted("{:,} sample{s}", sum(one.samples for one in named))

    def _profile(self, named: Sequence[NamedSamples], length: int) -> StackProfile:
        names, name = self._names, f"{self._event.rows.text} of {self._what}"
        rows, mappings = names.profile_rows(named), names.mappings()
        return StackProfile(names.form(), rows, name, mappings, self._began, length)
