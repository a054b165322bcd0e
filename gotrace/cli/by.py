# SPDX-License-Identifier: Apache-2.0
"""``--by`` and ``--of``: gofunccount and gofunclatency by values of calls, and of values.

Both import this only then: planning captures and decoding them is what most of a start would be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gotrace.cli.counting import accepting
from gotrace.cli.irregular import irregularities, undecided_notices
from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.cli.options import CallsOptions, CountOptions
from gotrace.cli.pace import pace, running
from gotrace.cli.run import (
    asked_of,
    hits_took,
    opened_notices,
    probe_cost_of,
    run_output,
    status_of,
    target_of,
    together,
)
from gotrace.cli.stack_files import write_stacks
from gotrace.cli.why import PriceWatch, why_of
from gotrace.errors import UsageError
from gotrace.gotypes.symbols import shown_names
from gotrace.overhead import ProbeCost, RunCost
from gotrace.probes.spec import KeyText
from gotrace.report.by import write_values
from gotrace.report.counts import write_counts
from gotrace.report.latencies import write_latencies
from gotrace.report.listing import list_functions, list_plan
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.results.rows import Row
from gotrace.session.budget import HitCounts
from gotrace.session.call_rows import count_rows, key_places, value_row
from gotrace.session.count import InlinedScope
from gotrace.session.key_stacks import key_profile
from gotrace.session.keys import (
    MAX_KEY_TEXT,
    KeyMeter,
    KeyOptions,
    KeyPeriod,
    KeyRequest,
    key_of,
)
from gotrace.session.landings import Landings
from gotrace.session.latency import FEW_FUNCTIONS
from gotrace.session.latency_rows import (
    Interval,
    LatencyGroup,
    RowName,
    key_counts,
    key_groups,
    key_values,
    row_names,
)
from gotrace.session.open_calls import Diagnostic
from gotrace.session.order import Order, last, ordered, size_by
from gotrace.session.plan import ProbePlan, to_be_traced
from gotrace.session.run import Run
from gotrace.target.target import Target
from gotrace.text import counted

if TYPE_CHECKING:
    from gotrace.cli.heat import HeatDrawing
    from gotrace.session.stepped import AcceptStepped

_POLL = 1.0  # seconds

#: A run that adds calls up, what comes of an interval, and its length in seconds.
_Run = Run[KeyMeter, ProbeCost]
_Write = Callable[[_Run, KeyPeriod, float], None]


def count_by(options: CallsOptions) -> int:
    """Count calls by values of theirs, and return the exit status."""
    with target_of(options) as target:
        output = run_output(options)
        accept = accepting(output, isinstance(options, CountOptions) and options.force)
        wanted = KeyOptions(rows=options.rows)
        request = _request(options, target, wanted, verb="count", accept=accept)

        def write(run: _Run, period: KeyPeriod, seconds: float) -> None:
            if options.wants_stacks:
                _write_stacks(options, output, run.plan, request.key, period, seconds)
            if options.only_stacks or options.folded:
                return
            shown = shown_names((function.name for function in run.plan.functions), options.short)
            rows = _table(options, run.plan, request.key, period, seconds)
            by, rates = request.key.texts, options.interval is not None
            for form in output.forms:
                write_counts(form, rows, options.timestamp, shown, by, rates)

        return _add_up(options, request, output, write)


def measure_by(options: GofunclatencyOptions) -> int:
    """Measure calls by values of theirs, and return the exit status."""
    is_time, unit = options.of is None, options.unit
    with target_of(options) as target:
        wanted = KeyOptions(
            is_time, options.why is not None, options.interval is not None, unit, options.rows
        )
        request = _request(options, target, wanted, verb="measure")
        output = run_output(options)
        heat = None
        if options.is_drawn:
            from gotrace.cli.heat import HeatDrawing

            heat = HeatDrawing(options, output)

        before: HitCounts | None = None

        def write(run: _Run, period: KeyPeriod, seconds: float) -> None:
            nonlocal before
            plan, key = run.plan, request.key
            if options.wants_stacks:
                _write_stacks(options, output, plan, key, period, seconds)
            if options.only_stacks or options.folded:
                return
            if is_time:
                cost = probe_cost_of(run.calibration)
                assert run.hits is not None
                now = run.hits.read()
                hits, before = now.since(before), now
                groups = _groups(options, plan, key, period, hits.cost(cost) if cost else None)
                ways = run.meter.take_ways()
                ended = time.time()
                total = sum(row.times.sum for row in period.rows if row.times)
                rates = options.interval is not None
                when = ended, seconds, unit
                interval = Interval(
                    groups, [], *when, options.short, ways, total=total, rates=rates
                )
                if heat is not None:
                    heat.add(interval)
                    return
                for form in output.forms:
                    write_latencies(form, interval, options.timestamp)
            else:
                unit_of = run.traced.unit if run.traced else None
                rows = _value_rows(options, plan, key, period, unit_of, seconds)
                for form in output.forms:
                    write_values(form, rows, options.timestamp, options.short)

        return _add_up(options, request, output, write, heat)


def _key_of(options: CallsOptions) -> KeyText:
    """Return the expressions of ``--by``. Raises UsageError."""
    if options.string_size > MAX_KEY_TEXT:
        raise UsageError(f"-Z {options.string_size}: --by compares {MAX_KEY_TEXT} bytes at most")
    return key_of(options.by or ())


def _value_of(options: CallsOptions) -> KeyText | None:
    """Return the expression of ``--of``. Raises UsageError."""
    text = options.value
    if text is None:
        return None
    of = key_of([text])
    if len(of.expressions) > 1:
        raise UsageError(f"--of {text!r}: give one value to make histograms of")
    return of


def _request(
    options: CallsOptions,
    target: Target,
    wanted: KeyOptions,
    verb: str,
    accept: AcceptStepped | None = None,
) -> KeyRequest:
    """Return the request for sums: without ``--of``, times are those of all returns."""
    is_count = verb == "count"
    return KeyRequest(
        target=target,
        asked=asked_of(options),
        verb=verb,
        done="counted" if is_count else "measured",
        is_strict=options.strict,
        forced=options.attach,
        budget=options.budget,
        returns=options.returns,
        is_calibrated=True,
        why=why_of(options) if isinstance(options, GofunclatencyOptions) else None,
        key=_key_of(options),
        of=_value_of(options),
        text_bytes=options.string_size,
        follows_returns=wanted.times,
        decides_later=True,
        inlined=_inlined(options) if is_count else InlinedScope.NONE,
        no_parts=_NO_PARTS if is_count and not options.list else None,
        options=wanted,
        accept_stepped=accept,
    )


def _inlined(options: CallsOptions) -> InlinedScope:
    is_asked = isinstance(options, CountOptions) and options.inlined
    return InlinedScope.MATCHED if is_asked else InlinedScope.NAMED


_NO_PARTS = "gofunccount cannot group by parts of the time: type gofunclatency --by"


def _add_up(
    options: CallsOptions,
    request: KeyRequest,
    output: Output,
    write: _Write,
    heat: HeatDrawing | None = None,
) -> int:
    """Run until the end, or list the functions; return the exit status.

    ``heat`` is what ``write`` draws, which ends with the run.
    """
    if options.list:
        planned = request.plan()
        if planned.plan.whole is not None:
            is_asked = request.inlined is InlinedScope.MATCHED
            found = request.select(inlined=True)
            return status_of(list_functions(found, output, request.verb, to_be_traced, is_asked))
        list_plan(planned.plan, output)
        return status_of(planned.plan.failed)
    watch = PriceWatch(options, output) if isinstance(options, GofunclatencyOptions) else None
    with running(request, output, watch.accept if watch else None) as run:
        meter, plan = run.meter, run.plan
        for notice in opened_notices(options, run, request.done):
            output.notice(notice)
        if options.adds_stack and not (options.only_stacks or options.folded):
            path = options.files.profiles[-1]
            text = f"rows are by $stack too, since -o {path} has stacks"
            fields = {"what": "by_stack", "path": path}
            output.notice(Notice(NoticeKind.SUMMARY, text, fields))
        if request.of and not request.key.expressions and not _has_each(options, plan):
            for notice in together(plan):
                output.notice(notice)

        def poll(is_over: Callable[[], bool]) -> bool:
            meter.poll()
            return False

        others = calls = 0
        length = 0.0
        look = _POLL if meter.landings is None else Landings.PERIOD
        for seconds in pace(options, run, output, poll, look, meter.has_seen, watch):
            period = meter.take()
            length += seconds
            calls += sum(row.calls for row in period.rows)
            others += sum(row.calls for row in period.rows if row.function is None)
            write(run, period, seconds)
        notices = [*_footer(meter, plan, others, calls)]
        cost = probe_cost_of(run.calibration)
        if cost is not None and run.hits is not None:
            verb = "counting" if request.verb == "count" else "measuring"
            notices += hits_took(verb, run.hits.read(), cost, length)
        if heat is not None:
            heat.finish(notices)
        else:
            for notice in notices:
                output.notice(notice)
    return status_of(plan.failed)


def _table(
    options: CallsOptions, plan: ProbePlan, key: KeyText, period: KeyPeriod, seconds: float
) -> Sequence[Row]:
    found = key_counts(plan.names, key.texts, period.rows)
    rates = options.interval is not None
    more = key_places(plan, period.rows)
    return count_rows(found, (time.time(), seconds), options.top, options.sort, rates, more)


def _groups(
    options: GofunclatencyOptions,
    plan: ProbePlan,
    key: KeyText,
    period: KeyPeriod,
    cost: RunCost | None,
) -> Sequence[LatencyGroup]:
    """Return a group for each row, in the order that is asked for."""
    groups = key_groups(plan.names, key.texts, period.rows, cost)
    top = None if options.is_drawn else options.top
    size = size_by(options.sort, Order.TOTAL)
    by_name = _name_of if options.sort is Order.NAME else None
    return ordered(groups, top, lambda group: size(group.times), by_name)


def _name_of(group: LatencyGroup) -> tuple[str, str, str]:
    return group.function or "", group.program or "", repr(group.by)


def _value_rows(
    options: GofunclatencyOptions,
    plan: ProbePlan,
    key: KeyText,
    period: KeyPeriod,
    unit: str | None,
    seconds: float,
) -> Sequence[Row]:
    """Return rows in the order that is asked for.

    Without keys all functions of a program are one, unless each has a group.
    """
    names: Sequence[RowName] = [RowName(*name) for name in plan.names]
    if not key.expressions and not _has_each(options, plan):
        of_files = dict(zip(plan.files, row_names(plan, plan.files, False), strict=True))
        names = [of_files[part.binary] for part in plan.binaries for _ in part.functions]
    size, is_by_name = size_by(options.sort, Order.COUNT), options.sort is Order.NAME
    shown = ordered(
        key_values(names, key.texts, period.rows),
        options.top,
        lambda group: (size(group[1]), repr(group[2])),
        (lambda group: (group[0][1] or "", group[0][0] or "", repr(group[2])))
        if is_by_name
        else None,
    )
    of, when = (options.of or "", unit), (time.time(), seconds)
    rows = [value_row(name, values, of, by, when) for name, values, by in (*shown.rest, *shown)]
    return last(rows, len(shown))


def _has_each(options: CallsOptions, plan: ProbePlan) -> bool:
    """Return whether each function has a histogram of a value, as it would have of its times."""
    asked = isinstance(options, GofunclatencyOptions) and options.function
    return asked or options.has_json or len(plan.functions) <= FEW_FUNCTIONS


def _write_stacks(
    options: CallsOptions,
    output: Output,
    plan: ProbePlan,
    key: KeyText,
    period: KeyPeriod,
    seconds: float,
) -> None:
    """Write stacks folded, or as a profile to a file."""
    length, of = round(seconds * 1e9), options.value
    began = time.time_ns() - length
    profile = key_profile(plan, key, period.rows, of, options.patterns, began, length)
    write_stacks(options, output, profile, counted("{:,} stack{s}", len(profile.rows)))


def _footer(meter: KeyMeter, plan: ProbePlan, others: int, calls: int) -> Iterator[Notice]:
    """Yield notices of gaps in the rows; ``others`` of ``calls`` found no room in them."""
    yield from undecided_notices(meter.undecided, has_reasons=True)
    if others:
        text = "{} call{s} had values for which there was no row: raise --rows, or -Z"
        if meter.decides:
            text += "; nobody knows whether the predicate wants them"
        fields = {"what": "others", "calls": others}
        yield Notice(NoticeKind.SUMMARY, counted(text, others), fields)
    without = [Diagnostic.UNWOUND_UNSEEN]
    if meter.has_predicates:
        without.append(Diagnostic.UNMATCHED)  # calls that a predicate left out return as well
    yield from irregularities(meter, plan, "left out", calls, without)
