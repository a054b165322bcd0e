# SPDX-License-Identifier: Apache-2.0
"""gofunccount: count calls of Go functions."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gotrace.cli.options import (
    add_emulation_option,
    add_interval_options,
    add_key_options,
    add_run_options,
    add_target_options,
    new_parser,
    parse,
)
from gotrace.cli.pace import detached, listen, pace, waiter_for
from gotrace.cli.run import (
    attached_notices,
    inlined_notices,
    probe_cost_of,
    refuse_partial,
    requests_of,
    run_command,
    run_output,
    status_of,
    target_of,
    warning_to,
)
from gotrace.gotypes.symbols import shown_names
from gotrace.kernel.rets import RetEmulation, ret_emulation
from gotrace.report.counts import CountRow, CountTable, write_counts
from gotrace.report.durations import duration
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.calibrate import Calibration, hit_costs
from gotrace.session.count import CallCounter
from gotrace.session.plan import (
    ProbePlan,
    ProgramFunction,
    plan_counting,
    select,
    to_be_traced,
)
from gotrace.sites.sites import SiteForm
from gotrace.target.target import Target

__all__ = ["main"]

_EPILOG = """\
examples:
  gofunccount -p 1234 'main.*'                    count the program's own functions
  gofunccount -p 1234 'net/http.(*Transport).*'   the methods of a type
  gofunccount -i 1 -T -p 1234 main.handle         print every second
  gofunccount -d 10 --top 20 /usr/bin/dockerd:'*' all processes that run this file
  gofunccount 'main.*' -- ./server -listen :8080  start a program and count from its first call
  gofunccount -p 1234 --by key 'main.(*Store).Get'   one row for each key
  gofunccount -p 1234 -f runtime.mallocgc > x.folded   who calls it, for a flame graph
  gofunccount -l -p 1234 'main.*'                 list what would be counted
"""


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("gofunccount", "Count calls of Go functions, exactly and cheaply.", _EPILOG)
    add_target_options(parser)
    add_key_options(parser)
    add_interval_options(parser)
    add_run_options(parser)
    add_emulation_option(parser)
    return parser


def _run(arguments: Sequence[str]) -> int:
    options = parse(_parser(), arguments)
    if options.by:
        from gotrace.cli.by import count_by

        return count_by(options)
    requests = requests_of(options)
    output = run_output(options)
    emulation = ret_emulation(options.emulate_ret, options.attach)
    at_rets = emulation is not None
    target = target_of(options)
    try:
        if options.list:
            from gotrace.report.listing import list_functions

            found = select(target, requests, "count")
            refuse_partial(options, found.failed)
            failed = list_functions(found, output, "count", to_be_traced, at_rets)
        else:
            plan = plan_counting(target, requests, at_rets)
            refuse_partial(options, plan.failed)
            failed = plan.failed
            _count(options, target, plan, output, emulation)
    finally:
        target.close()
    return status_of(failed)


def _count(
    options: argparse.Namespace,
    target: Target,
    plan: ProbePlan,
    output: Output,
    emulation: RetEmulation | None,
) -> None:
    announce = warning_to(output)
    hits = _Hits(plan)
    with (
        waiter_for(target) as waiter,
        Calibration(lambda: hit_costs(hits.forms, options.attach, emulation)) as calibration,
        CallCounter(target, plan, options.attach, announce, emulation) as counter,
    ):
        listen(waiter, counter)
        for notice in attached_notices(options, plan, counter.attached, "Tracing"):
            output.notice(notice)
        for notice in inlined_notices(plan, "counted"):
            output.notice(notice)
        names = plan.names
        shown = shown_names((function.name for function in names), options.short)
        seconds = 0.0
        for length in pace(options, waiter, target, plan, output, counter, seen=counter.has_seen):
            counts = counter.take()
            hits.add(counts)
            seconds += length
            write_counts(output, _table(options, names, counts, length), options.timestamp, shown)
        each = probe_cost_of(calibration)
        for notice in hits.cost(seconds, each) if each is not None else ():
            output.notice(notice)
        for notice in detached(counter):
            output.notice(notice)


_NOTABLE = 0.01  # of one CPU
_LEAST_NS = 5_000_000  # of a short run a few hits can be a large share


class _Hits:
    """How often probes were hit: where the kernel emulates the instruction, where it steps it."""

    def __init__(self, plan: ProbePlan) -> None:
        every = (sites.entry for part in plan.binaries for sites in part.functions)
        self._forms = [
            SiteForm.FIRST if entry and entry.form is SiteForm.FIRST else SiteForm.EMULATED
            for entry in every
        ]
        self.forms = set(self._forms)
        self._hits: Counter[SiteForm] = Counter()

    def add(self, counts: Sequence[int]) -> None:
        """Take note of the calls of each function."""
        for form, count in zip(self._forms, counts, strict=True):
            self._hits[form] += count

    def cost(self, seconds: float, each: Mapping[SiteForm, int]) -> Iterator[Notice]:
        """Yield what the hits took, ``each`` so many ns, from 1% of one CPU and 5 ms on."""
        total = sum(each[form] * hits for form, hits in self._hits.items())
        share = total / (seconds * 1e9)
        if share < _NOTABLE or total < _LEAST_NS:
            return
        parts = [
            f"{hits:,} {_HITS[form]} of {duration(each[form])}"
            for form, hits in self._hits.items()
            if hits
        ]
        yield Notice(
            NoticeKind.SUMMARY,
            f"counting took about {share:.0%} of one CPU: {' and '.join(parts)}",
            {
                "what": "cost",
                "ns": total,
                "share": round(share, 4),
                "hits": self._hits[SiteForm.EMULATED],
                "stepped_hits": self._hits[SiteForm.FIRST],
            },
        )


_HITS = {SiteForm.EMULATED: "hits", SiteForm.FIRST: "single-stepped hits"}


def _table(
    options: argparse.Namespace,
    names: Sequence[ProgramFunction],
    counts: Sequence[int],
    length: float,
) -> CountTable:
    by_name: Counter[ProgramFunction] = Counter()
    for function, count in zip(names, counts, strict=True):
        if count:
            by_name[function] += count
    rows = sorted(by_name.items(), key=lambda row: (row[1], row[0].name, row[0].program or ""))
    if options.top:
        rows = rows[-options.top :]
    return CountTable(
        [CountRow(function.name, count, program=function.program) for function, count in rows],
        time.time(),
        length,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofunccount", _run, sys.argv[1:] if arguments is None else arguments)
