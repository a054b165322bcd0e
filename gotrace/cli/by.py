# SPDX-License-Identifier: Apache-2.0
"""``--by``: what gofunccount and gofunclatency do when calls are added up by values of theirs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

from gotrace.cli.pace import pace
from gotrace.cli.run import not_shown, refuse_partial
from gotrace.errors import UsageError
from gotrace.probes.spec import KeyText, parse_key
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.keys import MAX_KEY_TEXT, KeyMeter, plan_keyed
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.trace_plan import TracePlan, parse_probes, probe_requests
from gotrace.target.target import Target
from gotrace.target.wait import Waiter

__all__ = ["footer", "key_of", "make_key_plan", "periods"]

_POLL = 1.0  # seconds


def key_of(options: argparse.Namespace) -> KeyText | None:
    """Return the expressions of ``--by``, None without it. Raises SpecError."""
    if options.by is None:
        return None
    if options.string_size > MAX_KEY_TEXT:
        raise UsageError(f"-Z {options.string_size}: --by tells apart {MAX_KEY_TEXT} bytes at most")
    return parse_key(", ".join(options.by))


def make_key_plan(
    options: argparse.Namespace, target: Target, key: KeyText, verb: str, *, returns: bool
) -> TracePlan:
    """Plan the probes, with their predicates; ``returns``: up to where calls return.

    Without it that is done only where an expression needs it.
    """
    specs, failed = parse_probes(options.patterns, options.pid, options.regexp)
    for spec in specs:
        if spec.format is not None:
            raise UsageError(f"{spec.pattern}: a format is for gotrace: --by shows the values")
    requests = probe_requests(specs, options.exclude, options.regexp)
    traced = plan_keyed(
        target,
        requests,
        [replace(spec, key=key) for spec in specs],
        verb,
        text_bytes=options.string_size,
        returns=returns,
    )
    plan = replace(traced.plan, failed=(*failed, *traced.plan.failed))
    refuse_partial(options, plan.failed)
    return replace(traced, plan=plan)


def periods(
    options: argparse.Namespace,
    waiter: Waiter,
    target: Target,
    plan: ProbePlan,
    output: Output,
    meter: KeyMeter,
) -> Iterator[float]:
    """Drive the run as ``pace`` does, and yield the length of each interval."""

    def poll(is_over: Callable[[], bool]) -> bool:
        meter.poll()
        return False

    yield from pace(options, waiter, target, plan, output, meter, poll, _POLL)


def footer(meter: KeyMeter, plan: ProbePlan, others: int) -> Iterator[Notice]:
    """Yield what the rows do not hold; ``others`` calls found no room."""
    if others:
        yield Notice(
            NoticeKind.SUMMARY,
            f"{others} calls had values for which there was no row: raise --rows, or -Z",
            {"what": "others", "calls": others},
        )
    texts = dict(_FOOTER)
    if meter.has_predicates:
        del texts[Diagnostic.UNMATCHED]  # calls that a predicate left out return as well
    yield from not_shown(meter.open_calls(), meter.diagnostics(), texts, meter.LOSSES, plan)


_FOOTER = {
    Diagnostic.UNWOUND: "{} calls did not return: unwound by a panic or runtime.Goexit",
    Diagnostic.UNMATCHED: "{} returns left out: entered before tracing began",
    Diagnostic.STACKS_FULL: "{} calls left out: too many goroutines had calls open",
    Diagnostic.OUTER_CALLS_FULL: "{} calls left out: too many calls were open inside one another",
    Diagnostic.NO_GOROUTINE: "{} hits left out: no goroutine could be found",
    Diagnostic.WORK_BUSY: "{} calls left out: no buffer was free",
    Diagnostic.SAVED_FULL: "{} calls left out: too many were open to keep their arguments",
    Diagnostic.TAIL_CALLS: "{} calls left out: they ended by jumping to another function",
    Diagnostic.CALLS_UNDECIDED: "{} calls left out: whether the predicate wants them is not known",
    Diagnostic.EXTREMES_LOST: "{} times a call may be missing from the minimum or maximum",
}
