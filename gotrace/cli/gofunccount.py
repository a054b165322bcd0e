# SPDX-License-Identifier: Apache-2.0
"""gofunccount: count calls of Go functions."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gotrace.cli.options import (
    add_interval_options,
    add_key_options,
    add_return_options,
    add_run_options,
    add_target_options,
    new_parser,
    parse,
)
from gotrace.cli.pace import pace, running
from gotrace.cli.run import (
    asked_of,
    opened_notices,
    probe_cost_of,
    run_command,
    run_output,
    status_of,
    target_of,
)
from gotrace.gotypes.symbols import shown_names
from gotrace.report.counts import CountRow, CountTable, write_counts
from gotrace.report.durations import duration
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.count import CountRequest
from gotrace.session.plan import ProbePlan, ProgramFunction, to_be_traced
from gotrace.sites.sites import SiteForm

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
    add_return_options(parser)
    return parser


def _run(arguments: Sequence[str]) -> int:
    options = parse(_parser(), arguments)
    if options.by:
        from gotrace.cli.by import count_by

        return count_by(options)
    with target_of(options) as target:
        request = CountRequest(
            target=target,
            asked=asked_of(options),
            is_strict=options.strict,
            forced=options.attach,
            budget=options.budget,
            emulate_ret=options.emulate_ret,
            is_calibrated=True,
        )
        output = run_output(options)
        if not options.list:
            return status_of(_count(options, request, output).failed)
        from gotrace.report.listing import list_functions

        at_rets = request.emulation is not None
        found = list_functions(request.select(), output, request.verb, to_be_traced, at_rets)
        return status_of(found)


def _count(options: argparse.Namespace, request: CountRequest, output: Output) -> ProbePlan:
    """Count until the end and return what was counted."""
    with running(request, output) as run:
        for notice in opened_notices(options, run, request.done):
            output.notice(notice)
        counter, names = run.meter, run.plan.names
        hits = _Hits(run.plan)
        shown = shown_names((function.name for function in names), options.short)
        seconds = 0.0
        for length in pace(options, run, output, seen=counter.has_seen):
            counts = counter.take()
            hits.add(counts)
            seconds += length
            write_counts(output, _table(options, names, counts, length), options.timestamp, shown)
        each = probe_cost_of(run.calibration)
        for notice in hits.cost(seconds, each) if each is not None else ():
            output.notice(notice)
    return run.plan


_NOTABLE = 0.01  # of one CPU
_LEAST_NS = 5_000_000  # of a short run a few hits can be a large share


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
