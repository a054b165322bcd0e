# SPDX-License-Identifier: Apache-2.0
"""The options of gotrace, which are those of ``--tree``, ``--flight`` and ``--record`` as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gotrace.cli.conflicts import Conflict, Needs, check_options
from gotrace.cli.options import (
    Files,
    FunctionOptions,
    OptionParser,
    PartsOptions,
    adds_nothing,
    is_json,
    profile_in,
)

if TYPE_CHECKING:
    from gotrace.session.trace_plan import TraceChoices

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
    Conflict(_REQUESTS, "-o=profile", "a profile cannot be combined with {1}: leave it out"),
    Conflict(_REQUESTS, "--stack-depth -U --entry -C --goid --tid --budget", _ALONE),
    Conflict(
        "--json -o=json",
        "-f -o=profile",
        "--json cannot be combined with -f or a profile: leave it out",
    ),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GotraceOptions(FunctionOptions, PartsOptions):
    """The options of gotrace."""

    time: bool
    timestamp: bool
    cpu: bool
    user_stack: bool
    stack_depth: int | None
    tree: str | None
    critical: bool
    flight: float | None
    when: list[str]
    memory: int | None
    record: bool
    goid: int | None
    tid: int | None
    max_events: int | None
    verbose: bool
    string_size: int | None
    elements: int | None
    depth: int | None
    entry: bool
    no_fp: bool
    doctor: bool
    compile: bool
    recipes: bool
    #: Whether the program's own functions are shown of requests: a user has named none.
    shows_own: bool = False
    #: Those that are called too often.
    left_out: Sequence[str] = ()

    @property
    def is_run(self) -> bool:
        """Return whether functions are traced at all."""
        return not (self.doctor or self.compile or self.recipes)

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
        return self.folded or self.files.profile is not None

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
        if profile := profile_in(self.output):
            return Files(profile=profile)
        if not self.output:
            return Files()
        if self.flight or self.record:
            return Files(recording=self.output)
        from gotrace.requests.model import is_request_file

        is_request = is_request_file(self.output)
        return Files(requests=self.output) if is_request else Files(table=self.output)

    def prepared(self, parser: OptionParser[GotraceOptions]) -> GotraceOptions:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        options = super().prepared(parser)
        if not options.is_run:
            return replace(options, json=options.json or is_json(options.output))
        options = replace(options, files=self._files())
        if adds_nothing(options.files.profile):
            options = replace(options, folded=False)
        check_options(parser, options, _CONFLICTS, options.files.given())
        memory, recording = options.memory, options.files.recording
        if recording:
            from gotrace.requests.recording import check_recording_file

            check_recording_file(recording.replace(NUMBER, "1"))
        if options.flight:
            from gotrace.requests.flight import flight_size

            memory = memory or flight_size()
        is_own = options.roots() is not None and not self.patterns
        as_json = options.json or is_json(options.files.table)
        return replace(options, memory=memory, json=as_json, shows_own=is_own)
