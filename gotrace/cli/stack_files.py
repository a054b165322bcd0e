# SPDX-License-Identifier: Apache-2.0
"""Results that are stacks: printed for each interval, and written to files at the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TextIO, TypeVar

from gotrace.cli.options import ProcessOptions
from gotrace.cli.stack_options import StackOptions
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.write import write_profile
from gotrace.records import replace
from gotrace.report.output import Notice, NoticeKind, Output, TextOutput
from gotrace.session.probing import Probing
from gotrace.session.run import Run
from gotrace.target.target import Target
from gotrace.text import counted, printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_M = TypeVar("_M", bound=Probing)
_O = TypeVar("_O", bound=StackOptions)
_R = TypeVar("_R", bound="DataclassInstance")
_N = TypeVar("_N")


class StackWriter(ABC, Generic[_O, _R, _N]):
    """The results of a run, whose rows have stacks, and names when they are written."""

    #: How fields of rows that are alike become one.
    SUMS: ClassVar[Mapping[str, Callable[[int, int], int]]]

    def __init__(self, options: _O, target: Target, output: Output) -> None:
        self._options = options
        self._output = output
        self._rows: dict[_R, _R] = {}
        self._is_kept = bool(options.files.profiles or options.folded)
        self._began = time.time_ns()
        self._length = 0.0
        self._pid = target.pid
        self._what = f"process {target.pid}"

    @abstractmethod
    def _named(self, rows: Sequence[_R]) -> list[_N]:
        """Return rows with their names."""

    @abstractmethod
    def _profile(self, named: Sequence[_N], length: int) -> StackProfile:
        """Return a profile that has taken so many ns."""

    @abstractmethod
    def _size(self, named: Sequence[_N]) -> str:
        """Return how much the rows have, in words."""

    def keep(self, rows: Sequence[_R], length: float) -> list[_N] | None:
        """Add an interval's rows; return them with names if they are printed as a table."""
        options = self._options
        self._length += length
        for row in rows if self._is_kept else ():
            key = replace(row, **dict.fromkeys(self.SUMS, 0))
            one = self._rows.get(key, key)
            sums = {n: how(getattr(one, n), getattr(row, n)) for n, how in self.SUMS.items()}
            self._rows[key] = replace(one, **sums)
        return None if options.only_stacks or options.folded else self._named(rows)

    def fields(self, length: float) -> dict[str, object]:
        """Return the fields of an interval, which has ended now."""
        return {"pid": self._pid, "ts": round(time.time(), 6), "seconds": length}

    def finish(self) -> None:
        """Write the results of the whole run."""
        if self._is_kept:
            named = self._named(list(self._rows.values()))
            profile = self._profile(named, round(self._length * 1e9))
            write_stacks(self._options, self._output, profile, self._size(named))


def say_begun(run: Run[_M, None], output: Output, text: str, **fields: object) -> None:
    """Write the warnings of a run, and that it has begun; ``text`` has a place for the process."""
    for note in run.warnings():
        output.notice(Notice(NoticeKind.WARNING, note.text, note.fields))
    pid = run.target.pid
    fields = {"pid": pid, **fields, "ts": time.time()}
    text = f"{text.format(f'process {pid}')}... Hit Ctrl-C to end."
    output.notice(Notice(NoticeKind.ATTACHED, text, fields))


def say_lost(output: Output, lost: Mapping[str, int]) -> None:
    """Write notices of what is missing from sums by stack."""
    if unseen := lost.get("unseen"):
        text = f"{unseen:,} not counted: there were too many goroutines"
        output.notice(Notice(NoticeKind.LOST, text, {"what": "unseen", "count": unseen}))
    if stacks := lost.get("stacks"):
        text = counted("{:,} stack{s} not kept: there were too many", stacks)
        output.notice(Notice(NoticeKind.LOST, text, {"what": "stacks", "count": stacks}))


def begin_table(options: StackOptions, output: TextOutput) -> TextIO:
    """Begin a table with the time, if that is wanted, and return where it goes."""
    clock = f"{time.strftime('%H:%M:%S')} " if options.timestamp else ""
    output.out.write(f"\n{clock}")
    return output.out


def write_stacks(options: ProcessOptions, output: Output, profile: StackProfile, what: str) -> None:
    """Write the profiles of the whole run; ``what`` says how much they have."""
    if options.folded:
        output.out.write(folded(profile))
        output.out.flush()
    for path in options.files.profiles:
        write_profile(path, profile)
        text = f"wrote {what} to {printable(path)}"
        output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
