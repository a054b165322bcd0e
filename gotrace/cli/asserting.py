# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace assert: verdicts on how often functions are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from gotrace.assertions.grammar import parse_assertion, parse_open, read_assertions
from gotrace.assertions.plan import AssertionPlan, plan_assertions
from gotrace.assertions.run import AssertedRun, all_verdicts, counted_verdicts
from gotrace.assertions.verdicts import BoundVerdict, status_of
from gotrace.cli.pace import pace, read, running
from gotrace.cli.request_options import AssertOptions
from gotrace.cli.run import attached_notices, run_output, target_of
from gotrace.cli.why import PriceWatch
from gotrace.errors import NoMatchError, UsageError
from gotrace.profiles.write import check_place, write_content
from gotrace.records import replace
from gotrace.report.assertions import annotation_lines, junit, recorded, write_verdicts
from gotrace.report.calls import Clock, LineStyle, TimeStyle
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.count import CountRequest
from gotrace.session.run import open_run
from gotrace.session.trace import TraceRequest
from gotrace.target.target import Target
from gotrace.text import counted, printable


def check(options: AssertOptions) -> int:
    """Check assertions, and return the exit status. Raises GotraceError."""
    parse = parse_assertion if options.record is None else parse_open
    assertions = [parse(text) for text in options.patterns]
    for path in options.assertions:
        assertions += read_assertions(path, parse)
    options = replace(options, patterns=[one.text for one in assertions])
    _refuse_go(options.named.command)
    for file in filter(None, (options.record, options.junit)):
        check_place(file)
    with target_of(options) as target:
        plan = plan_assertions(target, assertions, options.choices, options.attach)
        whys = [plan.why_missing(one) for one in assertions]
        if all(whys) and not (options.named.command or options.allow_missing):
            raise NoMatchError(whys[0] or "")
        output = run_output(options)
        clock = Clock.started_now(TimeStyle.TIME_OF_DAY)
        verdicts = all_verdicts(plan, _verdicts(options, target, plan, output))
        style = LineStyle.on(output.out, options.width, options.short)
        write_verdicts(output, verdicts, clock, style)
        status = _failure(target) or status_of(verdicts, options.allow_missing)
        if options.junit is not None:
            plain = LineStyle(options.width, options.short)
            write_content(options.junit, junit(verdicts, clock, plain, options.allow_missing))
        if options.github or os.environ.get("GITHUB_ACTIONS") == "true":
            _annotate(plan, verdicts, options.allow_missing)
        if options.record is not None:
            _record(options.record, verdicts, status, output)
        return status


def _annotate(plan: AssertionPlan, verdicts: Sequence[BoundVerdict], allow_missing: bool) -> None:
    folder = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    for line in annotation_lines(verdicts, folder, plan.module, allow_missing):
        sys.stderr.write(line)
    sys.stderr.flush()


def _record(path: str, verdicts: Sequence[BoundVerdict], status: int, output: Output) -> None:
    """Write the bounds that were found, unless something is not known. Raises GotraceError."""
    if status:
        text = f"{printable(path)} is not written: not all is known, or the command has failed"
        output.notice(Notice(NoticeKind.WARNING, text))
        return
    write_content(path, recorded(verdicts))
    text = f"wrote {counted('{:,} assertion{s}', len(verdicts))} to {printable(path)}"
    output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))


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
        return counted_verdicts(plan, run)


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
        asserted = AssertedRun(plan, request, run)

        def take(records: Iterator[bytes], until: float, _: Callable[[], bool]) -> bool:
            asserted.take(records, until)
            return False

        read(options, run, output, asserted.reader, take, watch=watch)
        return asserted.verdicts(counting, options.allow_unattributed)
