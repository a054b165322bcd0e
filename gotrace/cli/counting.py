# SPDX-License-Identifier: Apache-2.0
"""Runs of gofunccount: how often functions are called."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.cli.options import CallsOptions, CountOptions
from gotrace.cli.pace import pace, running
from gotrace.cli.run import (
    asked_of,
    opened_notices,
    probe_cost_of,
    run_output,
    status_of,
    target_of,
    tracing_took,
)
from gotrace.errors import GotraceError
from gotrace.gotypes.symbols import shown_names
from gotrace.report.counts import write_counts
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.budget import Spent
from gotrace.session.call_rows import inlined_rows
from gotrace.session.count import CountRequest, InlinedScope
from gotrace.session.order import Order
from gotrace.session.plan import CountedFunction, ProbePlan, to_be_traced
from gotrace.sites.records import SiteForm

if TYPE_CHECKING:
    from gotrace.results.rows import Row
    from gotrace.session.stepped import AcceptStepped, SteppedPrice


def count(options: CountOptions) -> int:
    """Count calls, or list the functions; return the exit status."""
    with target_of(options) as target:
        output = run_output(options)
        request = CountRequest(
            target=target,
            asked=asked_of(options),
            is_strict=options.strict,
            forced=options.attach,
            budget=options.budget,
            is_calibrated=True,
            by_place=options.places,
            inlined=InlinedScope.MATCHED if options.inlined else InlinedScope.NAMED,
            accept_stepped=accepting(output, options.force),
        )
        if not options.list:
            return status_of(_count(options, request, output).failed)
        from gotrace.report.listing import list_functions

        found = request.select(inlined=True)
        listed = list_functions(found, output, request.verb, to_be_traced, options.inlined)
        return status_of(listed)


def accepting(output: Output, force: bool) -> AcceptStepped:
    """Return a check that prints the price of single-stepped code, or refuses it if not forced."""

    def accept(price: SteppedPrice) -> None:
        if price.must_be_forced and not force:
            more = "--force accepts it, --budget 2% ends it in time"
            raise GotraceError(f"{price.text}: {price.less}{more}")
        output.notice(Notice(NoticeKind.WARNING, price.text, price.fields))

    return accept


def _count(options: CallsOptions, request: CountRequest, output: Output) -> ProbePlan:
    with running(request, output) as run:
        for notice in opened_notices(options, run, request.done):
            output.notice(notice)
        counter, names = run.meter, run.plan.counted
        hits = _Hits(run.plan)
        shown = shown_names((function.name for function in names), options.short)
        seconds = 0.0
        for length in pace(options, run, output, seen=counter.has_seen):
            counts = counter.take()
            hits.add(counts)
            seconds += length
            rows = _table(options, run.plan, counts, length)
            rates = options.interval is not None
            for form in output.forms:
                write_counts(form, rows, options.timestamp, shown, rates=rates)
        each = probe_cost_of(run.calibration)
        for notice in hits.cost(seconds, each) if each is not None else ():
            output.notice(notice)
    return run.plan


class _Hits:
    """How often probes were hit: where the kernel emulates the instruction, where it steps it."""

    def __init__(self, plan: ProbePlan) -> None:
        self._forms = plan.entry_forms
        self._hits: Counter[SiteForm] = Counter()

    def add(self, counts: Sequence[int]) -> None:
        """Take note of the calls of each function."""
        for form, count in zip(self._forms, counts, strict=True):
            self._hits[form] += count

    def cost(self, seconds: float, each: Mapping[SiteForm, int]) -> Iterator[Notice]:
        """Yield the cost of the hits, ``each`` so many ns."""
        emulated, stepped = (
            Spent(hits, hits * each.get(form, 0))
            for form in (SiteForm.EMULATED, SiteForm.FIRST)
            for hits in [self._hits[form]]
        )
        yield from tracing_took("counting", emulated, stepped, seconds)


def _table(
    options: CallsOptions,
    plan: ProbePlan,
    counts: Sequence[int],
    length: float,
) -> Sequence[Row]:
    by_name: Counter[CountedFunction] = Counter()
    for function, count in zip(plan.counted, counts, strict=True):
        if count:
            by_name[function] += count
    when = time.time(), length
    rates = options.interval is not None
    order = options.sort or (Order.NAME if plan.has_only_lines else None)
    return inlined_rows(by_name, plan.places, when, options.top, order, rates)
