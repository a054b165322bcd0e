# SPDX-License-Identifier: Apache-2.0
"""Write verdicts on assertions: a table, reasons, and the worst root's tree; or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice

from gotrace.assertions.grammar import BoundScope
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict
from gotrace.report.calls import Clock, LineStyle
from gotrace.report.output import JsonOutput, Output
from gotrace.report.requests import REQUEST_HEADING, request_lines
from gotrace.report.table import columns_of, table_lines
from gotrace.text import counted, printable

_HEADS = ("ASSERTION", "VERDICT", "ROOTS", "LEAST", "MEDIAN", "MOST")
#: Lines of a tree: one root may have made a million calls.
_MAX_LINES = 40


def write_verdicts(
    output: Output, verdicts: Sequence[BoundVerdict], clock: Clock, style: LineStyle
) -> None:
    """Write all verdicts of a run."""
    if isinstance(output, JsonOutput):
        for verdict in verdicts:
            output.write("assertion", _fields(verdict, clock))
    else:
        rows = [_HEADS, *map(_cells, verdicts)]
        for line in table_lines(rows, 4, columns_of(output.out)):
            output.out.write(f"{line.rstrip()}\n")
        for verdict in verdicts:
            output.out.writelines(_below(verdict, clock, style))
    output.out.flush()


def _cells(verdict: BoundVerdict) -> Sequence[str]:
    found = (verdict.least, verdict.median, verdict.most)
    is_run = verdict.assertion.scope is BoundScope.RUN
    roots = "-" if is_run else f"{verdict.roots:,}"
    numbers = ("-" if number is None else f"{number:,}" for number in found)
    return printable(verdict.assertion.text), verdict.outcome.value, roots, *numbers


def _below(verdict: BoundVerdict, clock: Clock, style: LineStyle) -> Iterator[str]:
    """Yield the lines that say why a verdict is not that it holds."""
    if verdict.outcome is BoundOutcome.HOLDS:
        return
    text = printable(verdict.assertion.text)
    for why in verdict.why:
        yield f"{text}: {printable(why)}\n"
    if verdict.worst is None:
        return
    roots = counted("{:,} root{s}", verdict.roots)
    yield f"\n{text}: does not hold for {verdict.broken:,} of {roots}; the worst:\n"
    yield REQUEST_HEADING
    lines = request_lines(verdict.worst, clock, style)
    yield from islice(lines, _MAX_LINES)
    if more := sum(1 for _ in lines):
        yield f"and {more:,} more calls\n"


def _fields(verdict: BoundVerdict, clock: Clock) -> dict[str, object]:
    fields: dict[str, object] = {
        "assertion": verdict.assertion.text,
        "outcome": verdict.outcome.value,
        "bound": verdict.assertion.number,
        "roots": None if verdict.assertion.scope is BoundScope.RUN else verdict.roots,
        "broken": verdict.broken,
        "least": verdict.least,
        "median": verdict.median,
        "most": verdict.most,
        "why": list(verdict.why),
    }
    if verdict.worst is not None:
        worst = verdict.worst.mapped(lambda call: call.as_call(clock.epoch))
        fields["worst"] = json.loads(worst.to_json())
    return fields
