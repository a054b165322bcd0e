# SPDX-License-Identifier: Apache-2.0
"""The options of gotrace tree, gotrace flight, gotrace record and gotrace assert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gotrace.cli.options import (
    Files,
    ForceOptions,
    Heading,
    OptionParser,
    PartsOptions,
    files_of,
    one_file,
    positive,
    seconds,
    size,
)
from gotrace.cli.trace_options import CapturedOptions
from gotrace.errors import UsageError
from gotrace.records import dataclass, replace
from gotrace.session.choices import ReturnMode

#: In the name of a flight's file, its number.
NUMBER = "%n"
_FORCE = "trace whatever it takes of the program's time"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RequestOptions(CapturedOptions, ForceOptions):
    """Of runs that follow what goroutines hand on, for which all calls of the probes are needed."""

    patterns: Sequence[str] = Heading.TARGET.option(
        "PROBE",
        "a function, with predicate and format: see gotrace --help; without one, all of the"
        " program's own functions",
    )
    folded: bool = False
    force: bool = Heading.EXPERT.option("--force", _FORCE)
    #: Whether the program's own functions are shown: a user has named none.
    shows_own: bool = False
    #: Those that are called too often.
    left_out: Sequence[str] = ()

    def roots(self) -> Sequence[str]:
        """Return the probes that come before the patterns. Raises UsageError."""
        return ()

    def prepared(self: _Q, parser: OptionParser[_Q]) -> _Q:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        shows_own = not self.patterns
        return replace(super().prepared(parser).with_files(parser), shows_own=shows_own)


_Q = TypeVar("_Q", bound=RequestOptions)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TreeOptions(RequestOptions, PartsOptions):
    """The options of gotrace tree."""

    root: str = Heading.TARGET.option("ROOT", "a probe, each call of which is a request")
    critical: bool = Heading.VALUES.option(
        "--critical", "show what made each request as long as it was"
    )
    max_events: int | None = Heading.RUN.option(
        "-M --max-events N", "end after N requests", positive
    )
    output: list[str] = Heading.OUTPUT.option(
        "-o --output FILE",
        "write the requests to this file, in the form that its name ends in: .txt, .ndjson (both"
        " also with .gz), .trace for go tool trace, .pftrace for Perfetto (may be repeated)",
    )
    time: bool = Heading.OUTPUT.option("-t --time", "seconds since the start", alone="clock")
    timestamp: bool = Heading.OUTPUT.option(
        "-T --timestamp", "time of day (the default)", alone="clock"
    )
    force: bool = Heading.EXPERT.option("--force", _FORCE)

    def roots(self) -> Sequence[str]:
        """Return the probe that comes before the patterns."""
        return [self.root]

    def _files(self) -> Files:
        if not self.output:
            return Files()
        from gotrace.requests.model import is_request_file

        requests = tuple(filter(is_request_file, self.output))
        others = files_of([path for path in self.output if path not in requests])
        return others._replace(requests=requests)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RecordOptions(RequestOptions):
    """The options of gotrace record."""

    output: list[str] = Heading.OUTPUT.option(
        "-o --output FILE",
        "the file to write, in the form that its name ends in: .trace for go tool trace, .pftrace"
        " for Perfetto, or .json",
    )
    short: bool = False

    def _files(self) -> Files:
        if not self.output:
            raise UsageError(f"{self.tool} writes a file: give -o x.trace, x.pftrace or x.json")
        return Files(recording=one_file(self.output))

    def prepared(self: _W, parser: OptionParser[_W]) -> _W:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        from gotrace.requests.recording import check_recording_file

        options = super().prepared(parser)
        check_recording_file((options.files.recording or "").replace(NUMBER, "1"))
        return options


_W = TypeVar("_W", bound=RecordOptions)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FlightOptions(RecordOptions):
    """The options of gotrace flight."""

    seconds: float = Heading.TARGET.option(
        "TIME", "keep the calls and states of the last 5s, 500ms", seconds
    )
    when: list[str] = Heading.CHOICE.option(
        "--when CONDITION",
        "write the file when such a call ends, a probe; or: panic, 'signal TERM' (may be repeated)",
    )
    memory: int | None = Heading.RUN.option(
        "--memory SIZE",
        "keep no more than this: 64M (default 256M, or an eighth of what is free)",
        size,
    )
    max_files: int | None = Heading.RUN.option("-M --max-events N", "end after N files", positive)
    output: list[str] = Heading.OUTPUT.option(
        "-o --output FILE",
        "the file to write, such as x-%%n.trace, in which %%n is its number: .trace for go tool"
        " trace, .pftrace for Perfetto, or .json",
    )

    def roots(self) -> Sequence[str]:
        """Return the conditions that are probes. Raises UsageError."""
        from gotrace.requests.flight import probes_in

        return probes_in(self.when)

    def prepared(self, parser: OptionParser[FlightOptions]) -> FlightOptions:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        from gotrace.requests.flight import flight_size

        options = super().prepared(parser)
        return replace(options, memory=options.memory or flight_size())


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AssertOptions(CapturedOptions, ForceOptions):
    """The options of gotrace assert."""

    patterns: Sequence[str] = Heading.TARGET.option(
        "ASSERTION", "a function and a bound: see below"
    )
    assertions: Sequence[str] = Heading.TARGET.option(
        "-f --file FILE",
        "check the assertions in this file, one a line, beside comments: # ... (may be repeated)",
    )
    record: str | None = Heading.OUTPUT.option(
        "--record FILE",
        "find the bounds of assertions without one, and write these to this file, for -f",
    )
    junit: str | None = Heading.OUTPUT.option(
        "--junit FILE", "write the verdicts to this file as well, as JUnit's XML"
    )
    github: bool = Heading.OUTPUT.option(
        "--github", "print annotations for GitHub Actions (the default where GITHUB_ACTIONS is set)"
    )
    allow_missing: bool = Heading.CHOICE.option(
        "--allow-missing", "let assertions hold whose function is not there, or root is not called"
    )
    allow_unattributed: bool = Heading.CHOICE.option(
        "--allow-unattributed",
        "count calls of which it is not known for which root they were made for none",
    )
    force: bool = Heading.EXPERT.option("--force", _FORCE)
    folded: bool = False
    uid: int | None = None
    cgroup: int | None = None
    regexp: bool = False
    exclude: Sequence[str] = ()
    list: bool = False
    strict: bool = False
    returns: ReturnMode = ReturnMode.RET

    def _files(self) -> Files:
        for path in self.output:
            if path.lower().endswith((".trace", ".pftrace")):
                raise UsageError(f"-o {path} has requests: {self.tool} writes x.txt or x.ndjson")
        return files_of(self.output)

    def prepared(self, parser: OptionParser[AssertOptions]) -> AssertOptions:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        if not (self.patterns or self.assertions):
            raise UsageError(
                f"{self.tool} needs an assertion, as in 'main.query <= 3 per main.handle'"
            )
        if not (self.named.pids or self.named.command):
            raise UsageError(f"{self.tool} is about one program: give -p PID, or -- COMMAND")
        return self.with_files(parser)
