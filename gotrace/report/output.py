# SPDX-License-Identifier: Apache-2.0
"""Print a run's messages beside its results, on a terminal and as JSON."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TextIO

from gotrace.errors import UsageError
from gotrace.records import dataclass, field
from gotrace.report.colour import Colour, paint, wants_colour
from gotrace.report.message import laid_out
from gotrace.report.table import columns_of
from gotrace.results.lines import line_of, timed
from gotrace.text import counted, printable


class NoticeKind(Enum):
    """The kinds of notices; the values are the ``kind`` of their JSON objects."""

    ATTACHED = "attached"
    WARNING = "warning"
    LOST = "lost"
    MOVED = "moved"
    SUMMARY = "summary"
    EXITED = "exited"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing in words, with the same in ``fields`` for programs."""

    kind: NoticeKind
    message: str
    fields: Mapping[str, object] = field(default_factory=dict)


class Patience:
    """How long writing may wait for a reader: for ever, but not long once the run has ended.

    ``GOTRACE_DRAIN`` in the environment makes that longer, by so many seconds. Raises UsageError
    where it is not a number.
    """

    #: Seconds that a reader has to take the rest once the run has ended.
    GRACE = 1.0

    def __init__(self) -> None:
        #: Return when the run was to end (``time.monotonic``), None while it is not.
        self.ended: Callable[[], float | None] = lambda: None
        #: End the run: nobody reads what is said of it.
        self.stop: Callable[[], None] = lambda: None
        self.is_unread = False
        words = os.environ.get("GOTRACE_DRAIN", "") or "0"
        try:
            #: Seconds more than usual for what is left to be read and written.
            self.more = float(words)
        except ValueError:
            self.more = -1.0
        if not 0 <= self.more < math.inf:
            raise UsageError(f"GOTRACE_DRAIN is a number of seconds, not {words!r}")

    def end(self, at: float) -> None:
        """Note when the run has ended."""
        self.ended = lambda: at

    def give_up(self) -> None:
        """End the run, now or when it begins."""
        self.is_unread = True
        self.stop()

    def is_over(self) -> bool:
        """Return whether writing has to be given up."""
        ended = self.ended()
        return ended is not None and time.monotonic() > ended + self.GRACE + self.more


class TextOutput:
    """Results to ``out``, the frame around them to ``frame``, everything else to ``err``.

    ``quiet`` leaves out headings and all notices but those of what is missing or not traced.
    ``frame`` is ``out`` where it is not given. ``before`` is called before each notice. Without
    ``has_results`` it has the notices beside results of another form alone.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        quiet: bool = False,
        frame: TextIO | None = None,
        before: Callable[[], None] | None = None,
        patience: Patience | None = None,
        has_results: bool = True,
    ) -> None:
        self.out = out
        self.patience = patience or Patience()
        #: Return at how many places calls may be missing: without a row there may be some.
        self.uncounted: Callable[[], int] = lambda: 0
        self._before = before
        self._has_results = has_results
        self._err = err
        self._quiet = quiet
        self._frame = frame or out

    @property
    def forms(self) -> Sequence[Output]:
        """Return the outputs that results are written to, each in a form of its own."""
        return (self,) if self._has_results else ()

    def heading(self, text: str) -> None:
        if not self._quiet:
            self.out.write(text)

    def none_of(self, what: str = "calls") -> str:
        """Return the words for a table without rows."""
        missing = self.uncounted()
        text = f"no {what}"
        return text + counted(" seen: they may be missing at {} place{s}", missing) * bool(missing)

    def nothing(self, what: str = "calls") -> None:
        """Say in place of a table that it has no rows; ``what`` those would be of."""
        self.heading(f"{self.none_of(what)}\n")
        self.out.flush()

    def notice(self, notice: Notice) -> None:
        """Write a notice as a line."""
        if self._before is not None:
            self._before()
        if notice.kind is NoticeKind.ATTACHED:
            self.out.flush()  # a file begins with the run, whether it gets results or not
        if self._quiet and notice.kind not in (NoticeKind.LOST, NoticeKind.WARNING):
            return
        framing = notice.kind in (NoticeKind.ATTACHED, NoticeKind.DETACHED)
        stream = self._frame if framing else self._err
        text = laid_out(printable(notice.message), columns_of(stream))
        if notice.kind is NoticeKind.LOST and wants_colour(stream):
            text = paint(text, Colour.ERROR)
        try:
            print(text, file=stream, flush=True)
        except BrokenPipeError:
            if self.out in (self._frame, self._err):
                raise
            self.patience.give_up()  # results go elsewhere, and are to be whole


class JsonOutput:
    """One JSON object a line to ``out``, each with its ``kind``.

    ``also`` has notices in words, where ``out`` is not what the user looks at, and maybe the same
    results. ``before`` is called before each notice.
    """

    def __init__(
        self,
        out: TextIO,
        also: TextOutput | None = None,
        before: Callable[[], None] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.out = out
        self.patience = patience or Patience()
        self._before = before
        self._also = also
        self._has_begun = False

    @property
    def forms(self) -> Sequence[Output]:
        """Return the outputs that results are written to, each in a form of its own."""
        return self, *(self._also.forms if self._also is not None else ())

    def write(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write one object."""
        self.out.write(line_of({"kind": kind, **fields}))

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write results, each of which has its kind, and when: that of the head before it."""
        self.out.writelines(map(line_of, timed(rows)))
        self.out.flush()

    def notice(self, notice: Notice) -> None:
        """Write a notice as an object of its own kind."""
        if self._before is not None:
            self._before()
        self.write(notice.kind.value, {"message": notice.message, **notice.fields})
        # A file that has other results is not lost to warnings before a run that fails.
        self._has_begun = self._has_begun or notice.kind is not NoticeKind.WARNING
        if self._has_begun or self._also is None:
            self.out.flush()
        if self._also is not None:
            self._also.notice(notice)


Output = TextOutput | JsonOutput
