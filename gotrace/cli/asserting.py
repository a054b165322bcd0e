# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace assert: verdicts on how often functions are called."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from gotrace.assertions.grammar import CallBound, parse_assertion, read_assertions
from gotrace.assertions.ledger import FunctionCounts, Ledger
from gotrace.assertions.plan import AssertionPlan, plan_assertions
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict, status_of
from gotrace.cli.pace import pace, read, running
from gotrace.cli.request_options import AssertOptions
from gotrace.cli.run import attached_notices, run_output, target_of
from gotrace.cli.why import PriceWatch
from gotrace.errors import NoMatchError, UsageError
from gotrace.report.assertions import write_verdicts
from gotrace.report.calls import Clock, LineStyle, TimeStyle
from gotrace.report.colour import wants_colour
from gotrace.report.output import Output
from gotrace.session.count import CountRequest
from gotrace.session.reading import RecordReader
from gotrace.session.run import End, open_run
from gotrace.session.trace import TraceRequest
from gotrace.target.target import Target

_PIECE = 256  # records between two looks at the clock
_EARLY = (End.CHANGED, End.GONE, End.BUDGET)
_EARLIER = "the run ended before the program did"


def check(options: AssertOptions) -> int:
    """Check assertions, and return the exit status. Raises GotraceError."""
    assertions = [parse_assertion(text) for text in options.patterns]
    for path in options.assertions:
        assertions += read_assertions(path)
    _refuse_go(options.named.command)
    with target_of(options) as target:
        plan = plan_assertions(target, assertions, options.choices, options.attach)
        whys = [plan.why_missing(one) for one in assertions]
        if all(whys) and not (options.named.command or options.allow_missing):
            raise NoMatchError(whys[0] or "")
        output = run_output(options)
        clock = Clock.started_now(TimeStyle.TIME_OF_DAY)
        found = {id(one.assertion): one for one in _verdicts(options, target, plan, output)}
        verdicts = [found.get(id(one)) or _missing(plan, one) for one in assertions]
        style = LineStyle(options.width, options.short, wants_colour(output.out))
        write_verdicts(output, verdicts, clock, style)
        return _failure(target) or status_of(verdicts, options.allow_missing)


def _missing(plan: AssertionPlan, assertion: CallBound) -> BoundVerdict:
    return BoundVerdict(assertion, BoundOutcome.MISSING, why=(plan.why_missing(assertion) or "",))


def _failure(target: Target) -> int:
    """Return the status of a command that has failed, as a shell has it; 0 if none has."""
    command = target.command
    if command is None or not command.ended():
        return 0
    code = os.waitstatus_to_exitcode(command.reap())
    return code if code >= 0 else 128 - code


def _refuse_go(command: Sequence[str] | None) -> None:
    """Raise UsageError for a command that is Go's own, which starts other programs."""
    if command and os.path.basename(command[0]) == "go":
        raise UsageError(
            "that would trace go itself, and not the tests: type"
            " go test -exec 'sudo gotrace assert ASSERTION --' ./..."
        )


def _verdicts(
    options: AssertOptions, target: Target, plan: AssertionPlan, output: Output
) -> list[BoundVerdict]:
    """Run until the end, and return the verdicts on all that is not missing."""
    if plan.trace is not None:
        return _traced(options, plan, plan.trace, output)
    if plan.count is not None:
        return _counted(options, plan, plan.count, output)
    if target.command is not None:  # its status is asked for as well
        target.start()
        target.command.reap()
    return []


def _counted(
    options: AssertOptions, plan: AssertionPlan, request: CountRequest, output: Output
) -> list[BoundVerdict]:
    with running(request, output) as run:
        for notice in attached_notices(options, run):
            output.notice(notice)
        for _ in pace(options, run, output):
            pass
        early = [_EARLIER] if run.end in _EARLY else []
        return list(FunctionCounts.of(run).verdicts(plan, early))


def _traced(
    options: AssertOptions, plan: AssertionPlan, request: TraceRequest, output: Output
) -> list[BoundVerdict]:
    watch = PriceWatch(options, output, "gotrace assert")
    with ExitStack() as opened:
        # What is counted begins earlier and ends later: there is no call that was only traced.
        counting = opened.enter_context(open_run(plan.count)) if plan.count else None
        # Of a command the price is not known, and nothing is left to be accepted.
        accept = watch.accept if options.named.pids else None
        run = opened.enter_context(running(request, output, accept))
        for notice in attached_notices(options, run):
            output.notice(notice)
        decoders, _ = request.decoders(run)
        matching, undecided = request.decoders(run)
        ledger = Ledger(plan, decoders, matching)
        reader = RecordReader(run.meter, undecided)
        read(options, run, output, reader, _taker(ledger, reader), watch=watch)
        missing = reader.missing()
        ledger.missing(missing)
        unknown = ledger.end(run, missing, undecided.calls, reader.complete)
        unknown += [_EARLIER] if run.end in _EARLY else []
        counts = FunctionCounts()
        if counting is not None:
            counting.meter.stop()
            counts = FunctionCounts.of(counting)
        return [
            *ledger.verdicts(run, counts, unknown, options.allow_unattributed),
            *counts.verdicts(plan, [_EARLIER] if run.end in _EARLY else []),
        ]


def _taker(
    ledger: Ledger, reader: RecordReader
) -> Callable[[Iterator[bytes], float, Callable[[], bool]], bool]:
    """Return a function that takes the records of a turn."""

    def take(records: Iterator[bytes], until: float, is_over: Callable[[], bool]) -> bool:
        ledger.missing(reader.missing())
        for number, record in enumerate(records, 1):
            ledger.add(record)
            if not number % _PIECE and time.monotonic() >= until:
                break
        ledger.take(reader.complete)
        return False

    return take
