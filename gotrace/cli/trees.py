# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace tree: calls of a root as requests, with all calls that are made for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

from gotrace.calls import Call
from gotrace.cli.irregular import undecided_notices, unread_notices
from gotrace.cli.pace import read, running
from gotrace.cli.request_options import RequestOptions, TreeOptions
from gotrace.cli.run import (
    asked_of,
    list_probes,
    opened_notices,
    run_output,
    status_of,
    target_of,
)
from gotrace.cli.stream import takes_more
from gotrace.cli.why import PriceWatch, why_of
from gotrace.errors import UsageError
from gotrace.profiles.execution import is_execution_trace
from gotrace.records import replace
from gotrace.report.calls import Clock, LineStyle, TimeStyle
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.report.requests import REQUEST_HEADING, request_lines
from gotrace.requests.assemble import Assembler, request_probes
from gotrace.requests.edges import FIRST, EdgeKind
from gotrace.requests.model import Request, RequestFile
from gotrace.requests.own import own_functions
from gotrace.session.decode import DecodedCall, Undecided
from gotrace.session.plan import ProbePlan
from gotrace.session.reading import RecordReader
from gotrace.session.trace import TraceOptions, TraceRequest
from gotrace.target.target import Target
from gotrace.text import counted

_MAX_NAMES = 5  # of functions that are left out


def tree(options: TreeOptions) -> int:
    """Show requests, or list the functions, and return the exit status. Raises GotraceError."""
    with target_of(options) as target:
        check_roots(options, target)
        if options.shows_own:
            options = with_own_functions(options, target)
        request, output = _request(options, target), run_output(options)
        if options.list:
            return list_probes(request, output)
        return status_of(_run(options, request, output).failed)


def _request(options: TreeOptions, target: Target) -> TraceRequest:
    asked = asked_of(options)
    roots, probes = request_probes(asked, target)
    has_states = options.critical or any(map(is_execution_trace, options.files.requests))
    return TraceRequest(
        target=target,
        asked=asked,
        probes=probes,
        is_strict=options.strict,
        forced=options.attach,
        returns=options.returns,
        is_priced=True,
        why=why_of(options, callers=True),
        choices=options.choices,
        options=TraceOptions(roots=roots, states=has_states),
    )


def _run(options: TreeOptions, request: TraceRequest, output: Output) -> ProbePlan:
    """Trace until the end, write each request when it is whole, and return the plan."""
    watch = PriceWatch(options, output, "gotrace tree")
    with running(request, output, watch.accept) as run:
        for notice in (*opened_notices(options, run, request.done), *left_out_notices(options)):
            output.notice(notice)
        decoders, undecided = request.decoders(run)
        reasons = run.meter.wait_reasons if request.options.states else ()
        assembler = Assembler(decoders, request.options.roots, reasons)
        with ExitStack() as opened:
            files = [
                opened.enter_context(closing(RequestFile(path))) for path in options.files.requests
            ]
            reader = RecordReader(run.meter, undecided)
            printer = _Printer(options, assembler, reader, output, files)
            seen, holds = lambda: printer.has_seen, lambda: not assembler.is_empty
            read(options, run, output, reader, printer.take, seen, watch, holds)
            printer.finish()
        for form in output.forms if not printer.has_written else ():
            if isinstance(form, TextOutput):
                form.nothing()
        for notice in printer.notices(undecided):
            output.notice(notice)
        for written in (one for file in files for one in file.written):
            text = counted("wrote {} request{s} to ", written.requests) + written.path
            if written.lost:
                text += counted(": {} record{s} lost before", written.lost)
            fields = {"what": "file", "path": written.path}
            output.notice(Notice(NoticeKind.SUMMARY, text, fields))
    return run.plan


def check_roots(options: RequestOptions, target: Target) -> None:
    """Plan the probes whose calls begin requests, before anything is attached.

    Nothing is traced in place of one that comes to nothing. Raises GotraceError.
    """
    asked = asked_of(options)
    roots, _ = request_probes(asked, target, len(options.roots()))
    if roots:
        TraceRequest(target=target, asked=asked, probes=roots, choices=options.choices).plan()


def left_out_notices(options: RequestOptions) -> Iterator[Notice]:
    """Yield notices of functions that ``with_own_functions`` has left out."""
    if left_out := options.left_out:
        text = counted("{} function{s} left out, which are called too often: ", len(left_out))
        shown = ", ".join(left_out[:_MAX_NAMES]) + (", ..." if left_out[_MAX_NAMES:] else "")
        fields = {"what": "left_out", "names": list(left_out)}
        yield Notice(NoticeKind.WARNING, text + shown, fields)


def with_own_functions(options: _Q, target: Target) -> _Q:
    """Add a program's own functions, except those that are called too often.

    Roots are kept. Raises GotraceError, UsageError among these.
    """
    if options.regexp:
        raise UsageError("with -r give a PROBE as well: -r 'main\\..*'")
    own = own_functions(target, [root.split(" ", 1)[0] for root in options.roots() or ()])
    patterns, exclude = [*options.patterns, *own.patterns], [*options.exclude, *own.left_out]
    return replace(options, patterns=patterns, exclude=exclude, left_out=own.left_out)


_Q = TypeVar("_Q", bound=RequestOptions)


class _Printer:
    """A writer of requests, in turns that are short whatever the reader does, up to a limit."""

    def __init__(
        self,
        options: TreeOptions,
        assembler: Assembler,
        reader: RecordReader,
        output: Output,
        files: Sequence[RequestFile],
    ) -> None:
        self._files = files
        prints = not files or options.files.text is not None or options.has_json
        self._assembler = assembler
        self._reader = reader
        self._options = options
        self._forms = output.forms if prints else ()
        self._clock = Clock.started_now(
            TimeStyle.SINCE_START if options.time else TimeStyle.TIME_OF_DAY
        )
        self._out = output.out
        self._left: int | None = options.max_events
        self.has_seen = False
        #: Whether a request was written, or none is to be.
        self.has_written = not prints
        self._missing = 0  # records
        for form in self._forms:
            if isinstance(form, TextOutput):
                form.heading(REQUEST_HEADING)
                form.out.flush()

    def take(self, records: Iterator[bytes], until: float, is_over: Callable[[], bool]) -> bool:
        """Take records in, and write whole requests; return whether there are enough."""
        self._look()
        for number, record in enumerate(records, 1):
            self._assembler.add(record)
            self.has_seen = True
            if not number % _PIECE and time.monotonic() >= until:
                break
        self._write(until, is_over)
        return self._left == 0

    def _look(self) -> None:
        """Note how much is missing by now."""
        missing = self._reader.missing()
        self._assembler.missing(missing)
        lost = missing.calls + missing.late - self._missing
        self._missing += lost
        for file in self._files if lost else ():
            file.lost(lost)

    def finish(self) -> None:
        """Count requests that could not be written in time as lost."""
        if self._left != 0:
            self._assembler.drop(self._reader.dropped[FIRST + EdgeKind.BEGIN])

    def _write(self, until: float, is_over: Callable[[], bool]) -> None:
        requests = self._assembler.take(self._reader.complete, self._reader.is_done)
        while self._left != 0 and not is_over() and takes_more(self._out, until):
            request = next(requests, None)
            if request is None:
                return
            for file in self._files:
                file.add(self._made(request))
            for form in self._forms:
                self.has_written = True
                form.out.writelines(self._lines(request, form))
                form.out.flush()
            if self._left is not None:
                self._left -= 1

    def _lines(self, request: Request[DecodedCall], form: Output) -> Iterator[str]:
        if isinstance(form, JsonOutput):
            yield self._made(request).to_json()
        else:
            options = self._options
            style = LineStyle.on(form.out, options.width, options.short)
            yield from request_lines(request, self._clock, style)

    def _made(self, request: Request[DecodedCall]) -> Request[Call]:
        return request.mapped(lambda call: call.as_call(self._clock.epoch))

    def notices(self, undecided: Undecided) -> Iterator[Notice]:
        """Yield notices of calls that the trees do not show."""
        tally = self._assembler.tally
        without = tally.unattributed + tally.late
        if without:
            of = counted("{} call{s} of no request that is known", without)
            text = f"{of}, and {tally.nodes:,} of requests"
            fields = {"what": "unattributed", "calls": without, "nodes": tally.nodes}
            yield Notice(NoticeKind.SUMMARY, text, fields)
        if tally.lost:
            text = counted("{} request{s} not shown: not all of their calls are known", tally.lost)
            fields = {"what": "requests", "requests": tally.lost, "calls": 0}
            yield Notice(NoticeKind.LOST, text, fields)
        yield from unread_notices(self._reader.missing().calls, tally.nodes + without)
        yield from undecided_notices(undecided)


_PIECE = 256  # records between two looks at the clock
