# SPDX-License-Identifier: Apache-2.0
"""``--by``: what gofunccount and gofunclatency do when calls are added up by values of theirs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

from gotrace.capture.ops import MAX_KEY_TEXT, CaptureLimits
from gotrace.cli.pace import pace
from gotrace.cli.run import not_shown, refuse_partial
from gotrace.errors import GotraceError, UsageError
from gotrace.probes.pattern import split_target
from gotrace.probes.select import Selector
from gotrace.probes.spec import KeyText, ProbeSpec, parse_key, parse_probe
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.keys import KeyMeter, KeyRow
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryRequest, Plan, make_plan
from gotrace.session.trace_plan import TraceChoices, TracePlan, make_trace_plan
from gotrace.target.process import file_test
from gotrace.target.target import Target
from gotrace.target.wait import Waiter
from gotrace.values.model import Value

__all__ = ["by_values", "footer", "key_of", "make_key_plan", "periods"]

_PHASE_BYTES = 1792  # of an entry, and of a return
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
    specs, failed = _specs(options, key)
    requests = [
        BinaryRequest(spec.binary, Selector([spec.pattern], options.exclude, regex=options.regexp))
        for spec in specs
    ]
    plan = make_plan(target, requests, returns=True, verb=verb)
    plan = replace(plan, failed=(*failed, *plan.failed))
    specs = [spec for n, spec in enumerate(specs) if n not in plan.failed_requests]
    refuse_partial(options, plan.failed)
    limits = CaptureLimits(options.string_size, payload=_PHASE_BYTES)
    choices = TraceChoices(
        limits, entry_only=False, floats=False, keyed=True, return_if_needed=not returns
    )
    traced = make_trace_plan(plan, specs, choices)
    refuse_partial(options, traced.plan.failed)
    return traced


def _specs(options: argparse.Namespace, key: KeyText) -> tuple[list[ProbeSpec], list[GotraceError]]:
    exists = file_test(options.pid)
    specs: list[ProbeSpec] = []
    failed: list[GotraceError] = []
    for text in options.patterns:
        try:
            spec = parse_probe(
                text, regex=options.regexp, split=lambda text: split_target(text, exists)
            )
            if spec.format is not None:
                raise UsageError(f"{text}: a format is for gotrace: --by shows the values")
            specs.append(replace(spec, key=key))
        except UsageError as error:
            failed.append(error)
    if not specs:
        raise failed[0]
    return specs, failed


def by_values(key: KeyText, row: KeyRow) -> dict[str, Value] | None:
    """Return a row's values by expression, None for the calls that found no room."""
    return None if row.values is None else dict(zip(key.texts, row.values, strict=True))


def periods(
    options: argparse.Namespace,
    waiter: Waiter,
    target: Target,
    plan: Plan,
    output: Output,
    meter: KeyMeter,
) -> Iterator[float]:
    """Drive the run as ``pace`` does, and yield the length of each interval."""

    def poll(is_over: Callable[[], bool]) -> bool:
        meter.poll()
        return False

    yield from pace(options, waiter, target, plan, output, meter, poll, _POLL)


def footer(meter: KeyMeter, plan: Plan, others: int) -> Iterator[Notice]:
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
    yield from not_shown(meter.open_calls(), meter.diagnostics(), texts, _LOSSES, plan)


_FOOTER = {
    Diagnostic.UNWOUND: "{} calls did not return: unwound by a panic or runtime.Goexit",
    Diagnostic.UNMATCHED: "{} returns left out: entered before tracing began",
    Diagnostic.STACKS_FULL: "{} calls left out: too many goroutines had calls open",
    Diagnostic.FRAMES_FULL: "{} calls left out: too many calls were open inside one another",
    Diagnostic.NO_GOROUTINE: "{} hits left out: no goroutine could be found",
    Diagnostic.WORK_BUSY: "{} calls left out: no buffer was free",
    Diagnostic.SAVED_FULL: "{} calls left out: too many were open to keep their arguments",
    Diagnostic.TAIL_CALLS: "{} calls left out: they ended by jumping to another function",
    Diagnostic.CALLS_UNDECIDED: "{} calls left out: whether the predicate wants them is not known",
    Diagnostic.EXTREMES_LOST: "{} times a call may be missing from the minimum or maximum",
}
_LOSSES = {
    Diagnostic.STACKS_FULL,
    Diagnostic.FRAMES_FULL,
    Diagnostic.WORK_BUSY,
    Diagnostic.SAVED_FULL,
}
