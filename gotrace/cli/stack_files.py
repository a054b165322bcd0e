# SPDX-License-Identifier: Apache-2.0
"""Results that are stacks: printed for each interval, and written to files at the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TextIO, TypeVar

from gotrace.cli.stack_options import StackOptions
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.write import write_profile
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.target.target import Target
from gotrace.text import printable

_R = TypeVar("_R")
_N = TypeVar("_N")


class StackWriter(ABC, Generic[_R, _N]):
    """The results of a run, whose rows have stacks, and names when they are written."""

    def __init__(self, options: StackOptions, target: Target, output: Output) -> None:
        self._options = options
        self._output = output
        self._rows: list[_R] = []
        self._began = time.time_ns()
        self._length = 0.0
        self._pid = target.pid
        self._what = f"process {target.pid}"

    @abstractmethod
    def _sum(self, rows: Sequence[_R]) -> list[_R]:
        """Add up rows that are alike."""

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
        self._rows = self._sum([*self._rows, *rows])
        return None if options.only_stacks or options.folded else self._named(rows)

    def fields(self, length: float) -> dict[str, object]:
        """Return the fields of an interval, which has ended now."""
        return {"pid": self._pid, "ts": round(time.time(), 6), "seconds": length}

    def begin(self) -> TextIO:
        """Begin a table, and return where it goes."""
        return begin_table(self._options, self._output)

    def finish(self) -> None:
        """Write the results of the whole run."""
        options = self._options
        if options.files.profiles or options.folded:
            named = self._named(self._rows)
            profile = self._profile(named, round(self._length * 1e9))
            write_stacks(options, self._output, profile, self._size(named))


def begin_table(options: StackOptions, output: Output) -> TextIO:
    """Begin a table with the time, if that is wanted, and return where it goes."""
    clock = f"{time.strftime('%H:%M:%S')} " if options.timestamp else ""
    output.out.write(f"\n{clock}")
    return output.out


def write_stacks(options: StackOptions, output: Output, profile: StackProfile, what: str) -> None:
    """Write the profiles of the whole run; ``what`` says how much they have."""
    if options.folded:
        output.out.write(folded(profile))
        output.out.flush()
    for path in options.files.profiles:
        write_profile(path, profile)
        text = f"wrote {what} to {printable(path)}"
        output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
