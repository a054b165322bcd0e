# SPDX-License-Identifier: Apache-2.0
"""Read a run's records turn by turn, and add up missing ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from gotrace.records import dataclass
from gotrace.session.decode import Undecided
from gotrace.session.events import HEADER
from gotrace.session.open_calls import Diagnostic
from gotrace.session.trace import CallTracer

_READING = 0.02  # seconds of a turn: the rest is the consumer's


@dataclass(frozen=True, slots=True)
class Missing:
    """How much is missing by now: numbers that only grow.

    ``calls`` are all calls that are not reported, ``records`` those of any kind that were, and were
    not taken. ``late`` were taken, after others that came later. ``begins`` are requests, and
    ``skipped`` hits.
    """

    calls: int = 0
    records: int = 0
    late: int = 0
    begins: int = 0
    skipped: int = 0

    @property
    def gaps(self) -> int:
        """Return how many records are not where they belong among those that are read."""
        return self.records + self.late


class RecordReader:
    """The records of a run, for a consumer that takes them.

    Records that the consumer leaves in a turn are due in the next one. Until it has taken them, no
    more are read than there is room for: the rest waits in the kernel's buffers, which bounds
    memory here.
    """

    #: How calls may be missing, in the order of ``losses``.
    LOSSES = (
        *(what.name.lower() for what in CallTracer.LOSSES),
        *("skipped", "undecided", "reader"),
    )

    def __init__(
        self,
        tracer: CallTracer,
        undecided: Undecided | None = None,
        reading: float = _READING,
    ) -> None:
        """Read the records of a tracer, for ``reading`` seconds of each turn.

        ``undecided`` are the calls that decoders leave out.
        """
        self.tracer = tracer
        self._reading = reading
        #: Records that were dropped at the end, by the numbers of their functions.
        self.dropped: Counter[int] = Counter()
        self._undecided = undecided or Undecided()
        self._due: list[bytes] = []  # in order; the next is the last

    @property
    def has_due(self) -> bool:
        """Return whether records are due that the consumer has left."""
        return bool(self._due)

    @property
    def is_done(self) -> bool:
        """Return whether the run is over, and all records have been taken."""
        return self.tracer.exhausted and not self._due

    @property
    def complete(self) -> float:
        """Return up to when all records have been taken, in seconds of ``time.monotonic``.

        That may be long ago if this process was stopped meanwhile.
        """
        until = self.tracer.window.complete
        if self._due:
            until = min(until, HEADER.unpack_from(self._due[-1])[0])
        return until / 1e9

    def turn(self) -> Iterator[bytes]:
        """Read, and return the records that are due, in order; to be called 40 times a second."""
        if self._due:
            self.fill()
        else:
            self._due = self.tracer.acquire(time.monotonic() + self._reading)
            self._due.reverse()
        return self._taken()

    def fill(self) -> None:
        """Read as ``turn`` does, and have nothing of that be due before the next turn."""
        self.tracer.fill(time.monotonic() + self._reading)

    def _taken(self) -> Iterator[bytes]:
        while self._due:
            yield self._due.pop()

    def rest(
        self, turns: Iterable[float], holds: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Iterator[bytes], float]]:
        """Yield, once the run is over, each turn's due records, and until when that takes.

        ``turns`` are these times. If they end before all has been taken, the rest is lost. A
        consumer that wants no more leaves the loop before that, and nothing is lost. There are
        turns without records as long as the consumer ``holds`` what it has made of some.
        """
        for until in turns:
            yield self.turn(), until
            if self.is_done and not holds():
                return
        self.dropped = self.tracer.drop(self._due)
        self._due.clear()

    def losses(self) -> dict[str, int]:
        """Return how many calls are missing by now, by their fate: see ``LOSSES``."""
        counts, tracer = self.tracer.diagnostics(), self.tracer
        found = [counts[what] for what in tracer.LOSSES]
        found += [tracer.skipped(), self._undecided.calls, tracer.dropped]
        return dict(zip(self.LOSSES, found, strict=True))

    def missing(self) -> Missing:
        """Return how much is missing by now."""
        counts, tracer = self.tracer.diagnostics(), self.tracer
        dropped = tracer.dropped
        return Missing(
            sum(counts[what] for what in tracer.LOSSES) + dropped,
            counts[Diagnostic.EVENTS_LOST] + dropped,
            tracer.window.late,
            counts[Diagnostic.BEGINS_LOST],
            tracer.skipped(),
        )
