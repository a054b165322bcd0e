# SPDX-License-Identifier: Apache-2.0
"""``--by`` and ``--of``: gofunccount and gofunclatency by values of calls, and of values.

Both import this only then: planning captures and decoding them is what most of a start would be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from gotrace.calls import StackFrame
from gotrace.cli.pace import detached, listen, pace, waiter_for
from gotrace.cli.run import (
    attached_notices,
    inlined_notices,
    not_shown,
    probe_cost_of,
    refuse_partial,
    run_output,
    split_of,
    status_of,
    target_of,
    warning_to,
)
from gotrace.cli.why import prepared_why
from gotrace.errors import UsageError
from gotrace.gotypes.symbols import shown_names
from gotrace.kernel.rets import ret_emulation
from gotrace.probes.spec import NO_KEY, KeyText, parse_key
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import CodeMapping, ProfileForm, StackProfile, ValueType
from gotrace.profiles.write import write_profile
from gotrace.report.by import (
    StackRow,
    ValueGroup,
    ValueInterval,
    by_text,
    profile_rows,
    stack_of,
    write_values,
)
from gotrace.report.counts import CountRow, CountTable, write_counts
from gotrace.report.latencies import Interval, LatencyGroup, write_latencies
from gotrace.report.latency_rows import RowName, row_names
from gotrace.report.listing import list_plan
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.calibrate import Calibration, probe_cost
from gotrace.session.keys import MAX_KEY_TEXT, KeyMeter, KeyOptions, KeyPeriod, KeyRow, plan_keyed
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan, ProgramFunction
from gotrace.session.tasks import find_tasks
from gotrace.session.trace_plan import TracePlan, parse_probes, probe_requests
from gotrace.target.target import Target
from gotrace.text import counted

__all__ = ["count_by", "measure_by"]

_POLL = 1.0  # seconds

#: Writes what came in an interval of a length in seconds.
_Write = Callable[[ProbePlan, KeyPeriod, float], None]


def count_by(options: argparse.Namespace) -> int:
    """Count calls by values of theirs, and return the exit status."""
    key = _key_of(options)
    output = run_output(options)

    def write(plan: ProbePlan, period: KeyPeriod, seconds: float) -> None:
        if _wants_stacks(options):
            _write_stacks(options, output, plan, key, period, seconds)
            return
        shown = shown_names((function.name for function in plan.functions), options.short)
        write_counts(output, _table(options, plan, key, period, seconds), options.timestamp, shown)

    with ExitStack() as opened:
        target = target_of(options)
        opened.callback(target.close)
        traced = _plan(options, target, key, "count", returns=False)
        if options.list:
            list_plan(traced.plan, output)
        else:
            if traced.reads_parts:
                raise UsageError(
                    "gofunccount cannot group by parts of the time: type gofunclatency --by"
                )
            wanted = KeyOptions(rows=options.rows)
            _add_up(options, target, traced, wanted, output, "counted", write)
        return status_of(traced.plan.failed)


def measure_by(options: argparse.Namespace, unit: int) -> int:
    """Measure calls by values of theirs, and return the exit status; ``unit`` is shown, in ns."""
    asked = "--of" if options.of is not None else "--by"
    if options.goroutine or options.outermost or options.slower is not None:
        raise UsageError(
            f"{asked} cannot be combined with -g, --slower and --outermost: use --by '$goid' and"
            " the predicate ($duration > 10ms)"
        )
    if options.of is not None and (unit != 1 or options.why is not None):
        raise UsageError("--of measures a value, not a time: leave out -u, -m and --why")
    if options.why is not None and _wants_stacks(options):
        raise UsageError(
            "folded stacks and profiles cannot show parts of the time: use --by '$stack' --why"
        )
    key = _key_of(options)
    output = run_output(options)
    with ExitStack() as opened:
        target = target_of(options)
        opened.callback(target.close)
        traced = _plan(options, target, key, "measure", returns=options.of is None)
        if options.list:
            list_plan(traced.plan, output)
            return status_of(traced.plan.failed)
        form = traced.plan.entry_form
        calibration = None
        if options.of is None:
            emulation = ret_emulation(options.emulate_ret, options.attach)
            measuring = Calibration(lambda: probe_cost(form, options.attach, emulation))
            calibration = opened.enter_context(measuring)

        def write(plan: ProbePlan, period: KeyPeriod, seconds: float) -> None:
            if _wants_stacks(options):
                _write_stacks(options, output, plan, key, period, seconds)
                return
            if options.of is not None:
                groups_of = _value_groups(options, plan, key, period)
                of_unit = traced.unit
                write_values(
                    output,
                    ValueInterval(
                        groups_of, options.of, of_unit, time.time(), seconds, options.short
                    ),
                    options.timestamp,
                )
                return
            groups = _groups(options, plan, key, period)
            cost = probe_cost_of(calibration) if calibration else None
            interval = Interval(groups, [], time.time(), seconds, unit, cost, options.short)
            write_latencies(output, interval, options.timestamp)

        is_time = options.of is None
        wanted = KeyOptions(
            is_time, options.why is not None, options.interval is not None, unit, options.rows
        )
        _add_up(options, target, traced, wanted, output, "measured", write)
        return status_of(traced.plan.failed)


def _key_of(options: argparse.Namespace) -> KeyText:
    """Return the expressions of ``--by``. Raises UsageError."""
    if options.string_size > MAX_KEY_TEXT:
        raise UsageError(f"-Z {options.string_size}: --by compares {MAX_KEY_TEXT} bytes at most")
    return parse_key(", ".join(options.by)) if options.by else NO_KEY


def _of_of(options: argparse.Namespace) -> KeyText | None:
    """Return the expression of ``--of``. Raises UsageError."""
    text = getattr(options, "of", None)
    if text is None:
        return None
    of = parse_key(text)
    if len(of.expressions) > 1:
        raise UsageError(f"--of {text!r}: give one value to make histograms of")
    return of


def _plan(
    options: argparse.Namespace, target: Target, key: KeyText, verb: str, *, returns: bool
) -> TracePlan:
    """Plan the probes, with their predicates; ``returns``: up to where calls return.

    Without it that is done only where an expression needs it.
    """
    specs, failed = parse_probes(
        options.patterns, options.regexp, formats=False, split=split_of(options)
    )
    for spec in specs:
        if spec.format is not None:
            raise UsageError(f"{spec.pattern}: --by takes no format: it shows the values")
    traced = plan_keyed(
        target,
        probe_requests(specs, options.exclude, options.regexp),
        [replace(spec, key=key, of=_of_of(options)) for spec in specs],
        verb,
        text_bytes=options.string_size,
        returns=returns,
    )
    plan = replace(traced.plan, failed=(*failed, *traced.plan.failed))
    refuse_partial(options, plan.failed)
    return replace(traced, plan=plan)


def _add_up(
    options: argparse.Namespace,
    target: Target,
    traced: TracePlan,
    wanted: KeyOptions,
    output: Output,
    verb: str,
    write: _Write,
) -> None:
    """Run until the end; ``verb`` is what is done with a call, in the past tense."""
    plan = traced.plan
    tasks = find_tasks(target, plan)
    if tasks.warning:
        output.notice(Notice(NoticeKind.WARNING, tasks.warning))
    why = None
    if wanted.parts or traced.reads_parts:
        why = prepared_why(options, target, tasks, output, classes=traced.reads_parts)
    announce = warning_to(output)
    emulation = ret_emulation(options.emulate_ret, options.attach)
    with (
        waiter_for(target) as waiter,
        KeyMeter(target, traced, tasks, wanted, options.attach, announce, why, emulation) as meter,
    ):
        listen(waiter, meter)
        for notice in attached_notices(options, plan, meter.attached, "Tracing"):
            output.notice(notice)
        for notice in inlined_notices(plan, verb):
            output.notice(notice)

        def poll(is_over: Callable[[], bool]) -> bool:
            meter.poll()
            return False

        others = calls = 0
        for seconds in pace(
            options, waiter, target, plan, output, meter, poll, _POLL, meter.has_seen
        ):
            period = meter.take()
            calls += sum(row.calls for row in period.rows)
            others += sum(row.calls for row in period.rows if row.function is None)
            write(plan, period, seconds)
        for notice in (*_footer(meter, plan, others, calls), *detached(meter)):
            output.notice(notice)


def _table(
    options: argparse.Namespace, plan: ProbePlan, key: KeyText, period: KeyPeriod, seconds: float
) -> CountTable:
    names = plan.names
    rows = [
        CountRow(name, row.calls, row.by(key.texts), program)
        for row in period.rows
        for program, name in [_NO_NAME if row.function is None else names[row.function]]
    ]
    rows.sort(key=lambda row: (row.count, row.name or "", row.program or "", repr(row.by)))
    if options.top:
        rows = rows[-options.top :]
    return CountTable(rows, time.time(), seconds, key.texts)


def _groups(
    options: argparse.Namespace, plan: ProbePlan, key: KeyText, period: KeyPeriod
) -> Sequence[LatencyGroup]:
    """Return a group for each row, the one with the most total time last."""
    names = plan.names
    rows = sorted(period.rows, key=lambda row: row.times.sum if row.times else 0)
    return [
        LatencyGroup(name, row.times, why=row.why, by=row.by(key.texts) or {}, program=program)
        for row in (rows[-options.top :] if options.top else rows)
        for program, name in [_NO_NAME if row.function is None else names[row.function]]
        if row.times is not None
    ]


#: Of the calls that found no row.
_NO_NAME = RowName(None, None)


def _value_groups(
    options: argparse.Namespace, plan: ProbePlan, key: KeyText, period: KeyPeriod
) -> Sequence[ValueGroup]:
    """Return a group for each row, the one with the most calls last.

    Without keys all functions of a program are one, unless ``-F`` asks for each.
    """
    groups: dict[object, ValueGroup] = {}
    names: Sequence[RowName] = [RowName(*name) for name in plan.names]
    if not key.expressions and not options.function and len(names) > 1:
        of_files = dict(zip(plan.files, row_names(plan, plan.files, False), strict=True))
        names = [of_files[part.binary] for part in plan.binaries for _ in part.functions]
    for number, row in enumerate(period.rows):
        assert row.measured is not None
        name = _NO_NAME if row.function is None else names[row.function]
        by = (row.by(key.texts) or {}) if key.expressions else None
        same: object = number if key.expressions else name
        if same in groups:
            groups[same].values.merge(row.measured)
        else:
            groups[same] = ValueGroup(name.function, row.measured, by, name.program)
    ranked = sorted(groups.values(), key=lambda group: (group.values.count, repr(group.by)))
    return ranked[-options.top :] if options.top else ranked


def _wants_stacks(options: argparse.Namespace) -> bool:
    """Return whether stacks are to be written in a format of theirs."""
    return options.folded or options.profile is not None


def _write_stacks(
    options: argparse.Namespace,
    output: Output,
    plan: ProbePlan,
    key: KeyText,
    period: KeyPeriod,
    seconds: float,
) -> None:
    """Write stacks folded, or as a profile to a file."""
    names = plan.names
    rows = profile_rows(_stack_row(names, key, row) for row in period.rows)
    types = [ValueType("calls", "count")]
    if period.rows and period.rows[0].times is not None:
        types.append(ValueType("time", "nanoseconds"))
    elif period.rows and period.rows[0].measured is not None:
        types.append(ValueType(options.of, "sum"))
    unit = types[-1].unit if types[-1].unit == "nanoseconds" else "none"
    form = ProfileForm(tuple(types), len(types) - 1, unit)
    name = f"{types[-1].type} of {', '.join(options.patterns)}"
    path = plan.binaries[0].binary.image.display if plan.binaries else ""
    length, mappings = round(seconds * 1e9), [CodeMapping(0, 0, path)]
    profile = StackProfile(form, rows, name, mappings, time.time_ns() - length, length)
    if options.profile is not None:
        write_profile(options.profile, profile)
        return
    output.out.write(folded(profile))
    output.out.flush()


def _stack_row(names: Sequence[ProgramFunction], key: KeyText, row: KeyRow) -> StackRow:
    """Return what a row's calls have in common as a stack; of those without room only a mark."""
    values = [row.calls]
    if row.times is not None:
        values.append(row.times.sum)
    elif row.measured is not None:
        values = [row.measured.count, row.measured.sum]
    by = row.by(key.texts)
    if by is None or row.function is None:
        return StackRow([StackFrame("(others)")], {}, values)
    frames, is_cut = stack_of(by.pop("$stack"))
    program, name = names[row.function]
    own = StackFrame(name)
    cut = [StackFrame("(more frames)")] if is_cut else []
    root = [] if program is None else [StackFrame(program)]
    labels = {text: by_text(value) for text, value in by.items()}
    return StackRow([own, *frames, *cut, *root], labels, values)


def _footer(meter: KeyMeter, plan: ProbePlan, others: int, calls: int) -> Iterator[Notice]:
    """Yield what the rows do not hold; ``others`` of ``calls`` in them found no room."""
    if others:
        yield Notice(
            NoticeKind.SUMMARY,
            counted(
                "{} call{s} had values for which there was no row: raise --rows, or -Z", others
            ),
            {"what": "others", "calls": others},
        )
    texts = dict(_FOOTER)
    if meter.has_predicates:
        del texts[Diagnostic.UNMATCHED]  # calls that a predicate left out return as well
    counts = meter.diagnostics()
    of = calls + sum(counts[what] for what in meter.LOSSES)
    yield from not_shown(meter.open_calls(), counts, texts, meter.LOSSES, plan, of)


_FOOTER = {
    Diagnostic.UNWOUND: "{} call{s} did not return: unwound by a panic or runtime.Goexit",
    Diagnostic.UNMATCHED: "{} return{s} left out: entered before tracing began",
    Diagnostic.STACKS_FULL: "{} call{s} left out: too many goroutines had calls open",
    Diagnostic.OUTER_CALLS_FULL: "{} call{s} left out: too many calls were open inside one another",
    Diagnostic.NO_GOROUTINE: "{} hit{s} left out: no goroutine could be found",
    Diagnostic.WORK_BUSY: "{} call{s} left out: no buffer was free",
    Diagnostic.SAVED_FULL: "{} call{s} left out: too many were open to keep their arguments",
    Diagnostic.TAIL_CALLS: "{} call{s} left out: they ended by jumping to another function",
    Diagnostic.CALLS_UNDECIDED: (
        "{} call{s} left out: whether the predicate wants them is not known"
    ),
    Diagnostic.EXTREMES_LOST: "{} time{s} a call may be missing from the minimum or maximum",
    Diagnostic.WHY_FULL: "{} call{s} whose time is shown as unknown: there was no room for more",
    Diagnostic.WHY_THREADS_FULL: "{} time{s} a thread could not be followed: there were too many",
}
