# SPDX-License-Identifier: Apache-2.0
"""The options of goalloc, gooffcpu and gooncpu, whose results are stacks."""

from __future__ import annotations

from typing import TypeVar

from gotrace.cli.conflicts import ONE_OF, Conflict, Needs
from gotrace.cli.options import (
    STACK_CONFLICTS,
    BudgetOptions,
    ForceOptions,
    Heading,
    OptionParser,
    SummaryOptions,
    one_of,
    positive,
)
from gotrace.records import dataclass
from gotrace.session.choices import HERTZ, WaitState

_NAMES = "--names is for --state syscall, and for calls that have ended"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StackOptions(ForceOptions, SummaryOptions):
    """Of commands that add stacks up."""

    inside: list[str] = Heading.CHOICE.option(
        "--in PATTERN",
        "only within calls of such functions, or of @RECIPE; only * is special (may be repeated)",
    )
    timestamp: bool = Heading.OUTPUT.option("-T --timestamp", "print the time above each table")

    def prepared(self: _S, parser: OptionParser[_S]) -> _S:
        """Return the options as they are meant. Raises GotraceError, UsageError among these."""
        return self if self.diff else self.with_files(parser)


_S = TypeVar("_S", bound=StackOptions)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GooffcpuOptions(StackOptions, BudgetOptions):
    """The options of gooffcpu."""

    CONFLICTS = (
        *STACK_CONFLICTS,
        Needs("--names", "--state=syscall", _NAMES),
        Conflict("--names", "--open", _NAMES),
        Conflict("--names", "--budget --attach", "{2} is for probes, and --names has none"),
        Conflict(
            "--names",
            "--wakers --system",
            "--names is for calls of all threads, which nobody wakes: leave out {2}",
        ),
        Conflict("--open", "-i", "--open adds waits that are open when the run ends: leave out -i"),
    )

    state: WaitState = Heading.CHOICE.option(
        "--state STATE",
        "what is added up: waiting (default), runnable (for a CPU), syscall",
        one_of(WaitState, "state"),
        default=WaitState.WAITING,
    )
    names: bool = Heading.VALUES.option(
        "--names",
        "with --state syscall: by name, with errors, p50 and p99, as strace -c has it",
    )
    reason: list[str] = Heading.CHOICE.option(
        "--reason TEXT",
        "only waits for this reason, in which * is any text (may be repeated)",
    )
    wakers: bool = Heading.VALUES.option(
        "--wakers", "show the stacks of those who end waits as well"
    )
    open: bool = Heading.CHOICE.option(
        "--open",
        "count waits that have not ended when the run ends, too, up to then",
    )
    system: bool = Heading.CHOICE.option(
        "--system", "the runtime's own goroutines and functions as well"
    )
    force: bool = Heading.EXPERT.option("--force", "run whatever it takes of the program's time")


#: Of what chooses between functions, groups and stacks.
_TABLE_CONFLICTS = (
    Conflict("-g", "--stacks", ONE_OF),
    Conflict("-g", "--by", ONE_OF),
    Conflict("-g --stacks", "-o=stacks -f", "{2} has all stacks of the run: leave out {1}"),
    Conflict("-g --stacks", "-o=rows", "{2} has functions, and all stacks: leave out {1}"),
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SampledOptions(StackOptions):
    """Of commands whose results are samples."""

    functions: list[str] = Heading.CHOICE.option(
        "PATTERN", "only such functions in the table; only * is special"
    )
    goroutines: bool = Heading.VALUES.option(
        "-g --goroutines", "by group of goroutines, not by function"
    )
    label: str | None = Heading.VALUES.option(
        "--by LABEL",
        "by a pprof label of the goroutines, such as '$label(\"user\")', not by function",
    )
    stacks: bool = Heading.VALUES.option("--stacks", "by stack, not by function")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GooncpuOptions(SampledOptions):
    """The options of gooncpu."""

    CONFLICTS = (
        *STACK_CONFLICTS,
        *_TABLE_CONFLICTS[:2],
        Conflict(
            "--off",
            "--in PATTERN --stacks --by -i -g",
            "--off is for all of the run, by group: leave out {2}",
        ),
        Needs("--force --attach", "--off", "{1} is for --off: give both, or leave it out"),
        *_TABLE_CONFLICTS[2:],
    )

    frequency: int = Heading.RUN.option(
        "-F --frequency HERTZ",
        f"samples a second of each CPU (default {HERTZ})",
        positive,
        default=HERTZ,
    )
    kernel: bool = Heading.CHOICE.option("-K --kernel", "with the kernel's own functions")
    off: bool = Heading.VALUES.option(
        "--off",
        "all of goroutines' time, by group: running, runnable, system calls, waiting",
    )
    force: bool = Heading.EXPERT.option(
        "--force", "use --off whatever it takes of the program's time"
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GoallocOptions(SampledOptions, BudgetOptions):
    """The options of goalloc."""

    CONFLICTS = (
        *STACK_CONFLICTS,
        *_TABLE_CONFLICTS,
        Conflict(
            "--heap",
            "--spans -g --by -i -d -c --budget --attach --force",
            "--heap reads the runtime's own profile once: leave out {2}",
        ),
        Needs("--core", "--heap", "--core is for --heap: give both, or leave it out"),
    )

    core: list[str] | None = Heading.TARGET.option(
        "--core FILE BINARY", "with --heap: read a core file of a program", alone="source"
    )
    heap: bool = Heading.VALUES.option(
        "--heap", "what is in use, not who allocates: by the profile that the runtime itself keeps"
    )
    spans: bool = Heading.CHOICE.option(
        "--spans", "by used up spans of memory: more of them than samples, if little is allocated"
    )
    force: bool = Heading.EXPERT.option("--force", "run whatever it takes of the program's time")
