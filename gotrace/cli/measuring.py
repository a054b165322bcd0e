# SPDX-License-Identifier: Apache-2.0
"""Runs of gofunclatency: how long calls take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gotrace.cli.irregular import irregularities
from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.cli.pace import pace, running, turns
from gotrace.cli.run import (
    asked_of,
    hits_took,
    mostly_tracing,
    opened_notices,
    run_output,
    status_of,
    target_of,
    together,
)
from gotrace.cli.why import PriceWatch, why_of
from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.overhead import ProbeCost, RunCost
from gotrace.records import dataclass, field
from gotrace.report.durations import duration
from gotrace.report.latencies import slow_row, write_latencies, write_slow
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.budget import HitCounts
from gotrace.session.calibrate import Calibration
from gotrace.session.latency import (
    LatencyOptions,
    LatencyRequest,
    Measurement,
    SlowCall,
)
from gotrace.session.latency_rows import LatencyChoice, RowName, interval_of, row_names
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan, to_be_measured
from gotrace.session.symbols import Symbolizer
from gotrace.sites.records import SiteForm
from gotrace.target.target import TargetBinary

_POLL = 0.1  # seconds
#: Goroutines of an interval that maps have by themselves.
_MOST_DRAWN = 256
_TURN = 0.05  # seconds of reading at a time
_NOTABLE = 0.02  # of the median
_MAX_WAIT = 0.8  # seconds, for a measurement that was begun before attaching


def measure(options: GofunclatencyOptions) -> int:
    """Measure calls, or list the functions; return the exit status."""
    with target_of(options) as target:
        wanted = LatencyOptions(
            per_function=_per_function(options),
            per_goroutine=options.goroutine,
            intervals=options.interval is not None,
            unit=options.unit,
            slower=options.slower,
            outermost=options.outermost,
        )
        request = LatencyRequest(
            target=target,
            asked=asked_of(options),
            is_strict=options.strict,
            forced=options.attach,
            budget=options.budget,
            returns=options.returns,
            is_calibrated=True,
            why=why_of(options),
            options=wanted,
        )
        output = run_output(options)
        if not options.list:
            return status_of(_measure(options, request, output).failed)
        from gotrace.report.listing import list_functions

        found = request.select(inlined=True)
        return status_of(list_functions(found, output, request.verb, to_be_measured))


def _measure(options: GofunclatencyOptions, request: LatencyRequest, output: Output) -> ProbePlan:
    watch = PriceWatch(options, output)
    with running(request, output, watch.accept) as run:
        meter, plan = run.meter, run.plan
        assert run.calibration is not None and run.tasks is not None and run.hits is not None
        tracing = _Tracing(plan, run.calibration, run.hits.read, meter.files)
        for notice in opened_notices(options, run, request.done):
            output.notice(notice)
        if not meter.by_function:
            for notice in together(plan, options.goroutine):
                output.notice(notice)
        symbols = Symbolizer.of(run.tasks.files)
        slow = _SlowCalls(plan, output, tracing, options)
        heat = None
        if options.is_drawn:
            from gotrace.cli.heat import HeatDrawing

            heat = HeatDrawing(options, output)
        busy = options.goroutine or options.slower is not None or meter.landings is not None
        poll_period = _POLL if busy else 1.0

        def poll(is_over: Callable[[], bool]) -> bool:
            slow.write(meter.poll(time.monotonic() + _TURN))
            if symbols is not None:
                symbols.learn(meter.processes)
            return False

        for length in pace(options, run, output, poll, poll_period, meter.has_seen, watch):
            period, ways = meter.take(), meter.take_ways()
            cost = tracing.add(period, length)
            when = (time.time(), length, request.options.unit)
            shown = (_choice(options, meter.by_function), plan, period, symbols, when, cost)
            interval = interval_of(*shown, meter.files, ways)
            if heat is not None:
                heat.add(interval)
                continue
            for form in output.forms:
                write_latencies(form, interval, options.timestamp)
        for until in turns(output.patience, _TURN):
            slow.write(meter.poll(until))
            if meter.exhausted:
                break
        meter.drop()
        unseen = irregularities(
            meter, plan, "not measured", tracing.calls, [Diagnostic.UNWOUND_UNSEEN]
        )
        notices = [*unseen, *slow.notices(), *tracing.notices()]
        if heat is not None:
            heat.finish(notices)
        else:
            for notice in notices:
                output.notice(notice)
    return run.plan


def _per_function(options: GofunclatencyOptions) -> bool | None:
    """Return whether each function has a histogram, None if each has one where they are few.

    Recordings have each: who compares them wants to know which one has changed.
    """
    if options.function or (options.has_json and not options.goroutine):
        return True
    return False if options.goroutine else None


def _choice(options: GofunclatencyOptions, by_function: bool) -> LatencyChoice:
    """Return the groups to show of each interval."""
    names_processes = options.named.pid is None and options.named.command is None
    return LatencyChoice(
        by_function,
        options.goroutine,
        _MOST_DRAWN if options.is_drawn else options.top,
        names_processes,
        options.short,
        options.sort,
        options.interval is not None,
    )


class _SlowCalls:
    """A writer of slow calls with times of day, and column heads once."""

    def __init__(
        self, plan: ProbePlan, output: Output, tracing: _Tracing, options: GofunclatencyOptions
    ) -> None:
        self._names = plan.names
        self._output = output
        self._tracing = tracing
        self._short, self._columns = options.short, options.columns
        self._first = True
        self._least = options.slower
        self._boot = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)

    def write(self, calls: Sequence[SlowCall]) -> None:
        """Write calls, with a heading before the first."""
        if not calls:
            return
        cost = self._tracing.cost()
        rows = [
            slow_row(
                self._names[call.function],
                self._boot + call.end / 1e9,
                (call.tgid, call.tid, call.goid),
                call.duration,
                call.hits,
                cost.of(call.function).within(call.duration, 1, call.hits) if cost else None,
                call.parts,
            )
            for call in calls
        ]
        for form in self._output.forms:
            write_slow(form, rows, self._first, self._short, self._columns)
        self._first = False

    def notices(self) -> Iterator[Notice]:
        """Yield a notice if calls were waited for, and none was slow."""
        if self._first and self._least is not None:
            text = f"no call took {duration(self._least)} or longer"
            yield Notice(NoticeKind.SUMMARY, text, {"what": "slow", "calls": 0})


@dataclass
class _Tracing:
    """The probes' own part of a run's measured time."""

    plan: ProbePlan
    calibration: Calibration[ProbeCost]
    #: Reads the hits so far.
    read: Callable[[], HitCounts]
    files: Sequence[TargetBinary] = ()
    _totals: dict[str, Histogram] = field(default_factory=dict)
    _within: Counter[str] = field(default_factory=Counter)  # ns of hits within calls
    _seconds: float = 0.0
    _least_median: float = float("inf")
    _hits: HitCounts | None = None  # until the last interval ended
    _cost: ProbeCost | None = None
    _problem: str | None = None

    def _measured(self) -> ProbeCost | None:
        """Return the cost of probes by themselves, None if it could not be measured."""
        if self._cost is None and self._problem is None:
            try:
                self._cost = self.calibration.cost(_MAX_WAIT)
            except (GotraceError, OSError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                self._problem = f"the probes' own cost could not be measured: {why}"
        return self._cost

    def cost(self) -> RunCost | None:
        """Return the cost of probes since the last interval, None if it is not known."""
        cost = self._measured()
        return self.read().since(self._hits).cost(cost) if cost else None

    @property
    def calls(self) -> int:
        """Return how many calls were measured."""
        return sum(total.count for total in self._totals.values())

    def add(self, period: Measurement, seconds: float = 0.0) -> RunCost | None:
        """Take note of an interval of some seconds; return the cost of probes in it."""
        self._seconds += seconds
        hits, each = self.read(), self._measured()
        cost = hits.since(self._hits).cost(each) if each else None
        self._hits = hits
        names = row_names(self.plan, self.files, not self.files)
        for row, times in period.rows.items():
            name = _text(names[row]) if len(period.rows) > 1 else ""
            total = self._totals.setdefault(name, Histogram())
            total.count += times.count
            total.sum += times.sum
            if cost is not None:
                self._within[name] += cost.every.hit * times.hits
            self._least_median = min(self._least_median, times.percentile(0.5))
        return cost

    def notices(self) -> Iterator[Notice]:
        """Yield notices of it at the end."""
        if not self._totals:
            return
        cost = self._measured()
        if cost is None or self._hits is None:
            fields = {"what": "probe_cost", "ns": None}
            yield Notice(NoticeKind.SUMMARY, self._problem or "", fields)
            return
        of_run = self._hits.cost(cost)
        own = max(each.own for each in (of_run.every, *of_run.functions.values()))
        if own > self._least_median * _NOTABLE:
            upto = "up to " if self.plan.entry_form is SiteForm.FIRST else ""
            yield Notice(
                NoticeKind.SUMMARY,
                f"probe cost of {upto}about {duration(own)} a call is included",
                {"what": "probe_cost", "ns": own},
            )
        yield from hits_took("measuring", self._hits, cost, self._seconds)
        yield from mostly_tracing(
            {
                name: self._within[name] / total.sum
                for name, total in self._totals.items()
                if total.sum
            }
        )


def _text(row: RowName) -> str:
    return ":".join(name for name in row if name)
