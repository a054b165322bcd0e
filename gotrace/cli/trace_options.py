# SPDX-License-Identifier: Apache-2.0
"""The options of gotrace, and those that its subcommands that trace share with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gotrace.cli.conflicts import Conflict
from gotrace.cli.options import (
    BudgetOptions,
    FunctionOptions,
    Heading,
    OptionParser,
    PartsOptions,
    positive,
)
from gotrace.records import dataclass
from gotrace.session.choices import MAX_STACK_FRAMES, MAX_TEXT_BYTES

if TYPE_CHECKING:
    from gotrace.report.calls import Columns
    from gotrace.session.trace_plan import TraceChoices

_MAX_ELEMENTS = 64  # of which each may take a block of the payload, and it has 64
_COLUMNS, _ROWS = 80, 3  # the width of a call's line that goes to no terminal


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CapturedOptions(FunctionOptions):
    """Of runs that copy the values of each call."""

    patterns: Sequence[str] = Heading.TARGET.option(
        "PROBE", "a function, with predicate and format: see gotrace --help"
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
    no_fp: bool = Heading.EXPERT.option(
        "--no-fp",
        "leave float registers alone: reading them sends the thread SIGURG, as Go itself does",
    )
    #: Whether calls are reported when they are entered.
    entry: bool = False

    @property
    def says_moves(self) -> bool:
        """Return whether it is said that calls are seen returning elsewhere than before."""
        return self.has_json or self.verbose

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
            brief=not self.has_json and not self.shows_whole,
        )

    @property
    def width(self) -> int | None:
        """Return how much a call's line may have in a file, None where values are shown whole."""
        if self.shows_whole:
            return None
        if self.files.text is not None:
            return _ROWS * _COLUMNS
        import shutil

        return _ROWS * max(shutil.get_terminal_size((_COLUMNS, 0)).columns, _COLUMNS // 2)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GotraceOptions(CapturedOptions, BudgetOptions, PartsOptions):
    """The options of gotrace."""

    CONFLICTS = (
        Conflict("--json -o=json", "-f", "--json cannot be combined with -f: leave it out"),
        Conflict(
            "-f -o=stacks",
            "-t -T -C --short -v -Z --elements --depth --why",
            "{1} shows no calls: leave out {2}",
        ),
    )

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

    @property
    def is_of_some(self) -> bool:
        """Return whether calls of some goroutines or threads alone are wanted."""
        return self.goid is not None or self.tid is not None

    @property
    def wants_stacks(self) -> bool:
        """Return whether stacks are written in place of calls."""
        return self.folded or bool(self.files.profiles)

    @property
    def columns(self) -> Columns:
        """Return the columns before a call: its thread, if anything of threads is asked."""
        from gotrace.report.calls import Columns

        tid = self.verbose or self.cpu or self.tid is not None
        return Columns(not self.named.is_one, tid, self.cpu)

    def prepared(self, parser: OptionParser[GotraceOptions]) -> GotraceOptions:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        return super().prepared(parser).with_files(parser)
