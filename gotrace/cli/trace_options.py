# SPDX-License-Identifier: Apache-2.0
"""The options of gotrace, which are those of ``--tree``, ``--flight`` and ``--record`` as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gotrace.cli.conflicts import Conflict, Needs
from gotrace.cli.options import (
    Files,
    FunctionOptions,
    Heading,
    OptionParser,
    PartsOptions,
    files_of,
    one_file,
    positive,
    seconds,
    size,
)
from gotrace.session.choices import MAX_STACK_FRAMES, MAX_TEXT_BYTES

if TYPE_CHECKING:
    from gotrace.session.trace_plan import TraceChoices

_MAX_ELEMENTS = 64  # of which each may take a block of the payload, and it has 64
_COLUMNS, _ROWS = 80, 3  # columns if output goes to no terminal; lines for one call
#: In the name of a flight's file, its number.
NUMBER = "%n"
_REQUESTS = "--tree --flight --record"
_ALONE = "{2} cannot be combined with {1}: leave it out"
_CONFLICTS = (
    Needs("--when --memory", "--flight", "--when and --memory are of --flight: give --flight 5s"),
    Needs(
        "--flight --record",
        "-o=recording",
        "{1} writes a file: give -o x.trace, x.pftrace or x.json",
    ),
    Needs("-o=requests", "--tree", "{1} has requests: give --tree, --record or --flight"),
    Conflict("-o=requests", "--json", "{1} and --json cannot be combined: give one of them"),
    Needs("--critical", "--tree", "--critical is of requests: give --tree ROOT"),
    # Trees do not show these, or would lose calls that they need.
    Conflict(_REQUESTS, f"{_REQUESTS} -f", _ALONE),
    Conflict(_REQUESTS, "-o=profiles", "a profile cannot be combined with {1}: leave it out"),
    Conflict(_REQUESTS, "--stack-depth -U --entry -C --goid --tid --budget", _ALONE),
    Conflict("--json -o=json", "-f", "--json cannot be combined with -f: leave it out"),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GotraceOptions(FunctionOptions, PartsOptions):
    """The options of gotrace."""

    CONFLICTS = _CONFLICTS

    patterns: Sequence[str] = Heading.TARGET.option(
        "PROBE", "a function, with predicate and format: see below"
    )
    goid: int | None = Heading.CHOICE.option("--goid N", "only calls of this goroutine", positive)
    tid: int | None = Heading.CHOICE.option("--tid N", "only calls on this thread", positive)
    entry: bool = Heading.CHOICE.option("--entry", "report calls when they are entered")
    user_stack: bool = Heading.VALUES.option("-U --user-stack", "print the user stack")
    stack_depth: int | None = Heading.VALUES.option(
        "--stack-depth N",
        f"print N return addresses of the stack; implies -U, which prints up to {MAX_STACK_FRAMES}",
        positive,
    )
    string_size: int | None = Heading.VALUES.option(
        "-Z --string-size BYTES",
        f"most bytes to show of a string or slice of bytes (default 256, no more than"
        f" {MAX_TEXT_BYTES:,}); implies -v",
        positive,
    )
    elements: int | None = Heading.VALUES.option(
        "--elements N",
        f"most elements to show of a slice, array or map (default 8, no more than {_MAX_ELEMENTS});"
        " implies -v",
        positive,
    )
    depth: int | None = Heading.VALUES.option(
        "--depth N",
        "pointers to follow, one from the other, 0 to 5 (default 1); implies -v",
        int,
        choices=range(6),
    )
    verbose: bool = Heading.VALUES.option(
        "-v --verbose",
        "print values whole, and what receivers and pointers to large structs lead to",
    )
    tree: str | None = Heading.REQUESTS.option(
        "--tree ROOT",
        "show each call of ROOT, a probe, as a request: with the calls of PROBE that are made"
        " for it, in any goroutine (without PROBE: the program's own)",
    )
    critical: bool = Heading.REQUESTS.option(
        "--critical", "with --tree, show what made each request as long as it was"
    )
    flight: float | None = Heading.REQUESTS.option(
        "--flight TIME",
        "keep the latest calls and states of goroutines, and write those of so long to a file,"
        " such as -o x-%%n.trace, whenever --when holds",
        seconds,
    )
    when: list[str] = Heading.REQUESTS.option(
        "--when CONDITION",
        "with --flight, write the file when such a call ends, a probe; or: panic,"
        " 'signal TERM' (may be repeated)",
    )
    memory: int | None = Heading.REQUESTS.option(
        "--memory SIZE",
        "with --flight, keep no more than this: 64M (default 256M, or an eighth of what is free)",
        size,
    )
    record: bool = Heading.REQUESTS.option(
        "--record",
        "write all calls and states of goroutines to the file of -o, such as x.trace",
    )
    max_events: int | None = Heading.RUN.option("-M --max-events N", "end after N calls", positive)
    time: bool = Heading.OUTPUT.option("-t --time", "seconds since the start", alone="clock")
    timestamp: bool = Heading.OUTPUT.option(
        "-T --timestamp", "time of day (the default)", alone="clock"
    )
    cpu: bool = Heading.OUTPUT.option("-C --cpu", "print the CPU, in a first column")
    folded: bool = Heading.OUTPUT.option(
        "-f --folded",
        "print how many calls were made from each stack, folded, when the run ends",
    )
    no_fp: bool = Heading.EXPERT.option(
        "--no-fp",
        "leave float registers alone: reading them sends the thread SIGURG, as Go itself does",
    )
    #: Whether the program's own functions are shown of requests: a user has named none.
    shows_own: bool = False
    #: Those that are called too often.
    left_out: Sequence[str] = ()

    @property
    def says_moves(self) -> bool:
        """Return whether it is said that calls are seen returning elsewhere than before."""
        return self.json or self.verbose

    @property
    def is_of_some(self) -> bool:
        """Return whether calls of some goroutines or threads alone are wanted."""
        return self.goid is not None or self.tid is not None

    @property
    def wants_stacks(self) -> bool:
        """Return whether stacks are written in place of calls."""
        return self.folded or bool(self.files.profiles)

    @property
    def shows_whole(self) -> bool:
        """Return whether values are shown whole: who says how much to copy wants to see it."""
        limits = (self.string_size, self.elements, self.depth)
        return self.verbose or any(limit is not None for limit in limits)

    @property
    def choices(self) -> TraceChoices:
        """Return the choice of values that are copied of a call."""
        from gotrace.session.trace_plan import TraceChoices

        return TraceChoices.of(
            self.string_size,
            self.depth,
            self.entry,
            not self.no_fp,
            self.elements,
            brief=not self.json and not self.shows_whole,
        )

    @property
    def width(self) -> int | None:
        """Return how much a call's line may have, None where values are shown whole."""
        if self.json or self.shows_whole:
            return None
        if self.files.table is not None:
            return _ROWS * _COLUMNS
        import shutil

        return _ROWS * max(shutil.get_terminal_size((_COLUMNS, 0)).columns, _COLUMNS // 2)

    def roots(self) -> Sequence[str] | None:
        """Return the probes that come before the patterns, None if there have to be patterns.

        Raises UsageError.
        """
        if self.tree:
            return [self.tree]
        if self.flight:
            from gotrace.requests.flight import probes_in

            return probes_in(self.when)
        return [] if self.record else None

    def _files(self) -> Files:
        if not self.output:
            return Files()
        if self.flight or self.record:
            from gotrace.profiles.write import is_profile

            if profiles := tuple(filter(is_profile, self.output)):
                return Files(profiles=profiles)  # which is refused
            return Files(recording=one_file(self.output))
        from gotrace.requests.model import is_request_file

        requests = tuple(filter(is_request_file, self.output))
        others = files_of([path for path in self.output if path not in requests])
        return others._replace(requests=requests)

    def prepared(self, parser: OptionParser[GotraceOptions]) -> GotraceOptions:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        options = super().prepared(parser)
        options = options.with_files(parser)
        memory, recording = options.memory, options.files.recording
        if recording:
            from gotrace.requests.recording import check_recording_file

            check_recording_file(recording.replace(NUMBER, "1"))
        if options.flight:
            from gotrace.requests.flight import flight_size

            memory = memory or flight_size()
        is_own = options.roots() is not None and not self.patterns
        return replace(options, memory=memory, shows_own=is_own)
