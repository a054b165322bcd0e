# SPDX-License-Identifier: Apache-2.0
"""Decide which probes cost a target more than it may pay, and when to try them again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from gotrace.records import dataclass, field

__all__ = ["FIRST_PAUSE", "MAX_PAUSE", "WINDOW", "Budget", "Pauses"]

#: Seconds in which a target pays at most its share of them.
WINDOW = 10.0
#: Seconds until a probe that was detached is tried again: doubled each time, up to the most.
FIRST_PAUSE, MAX_PAUSE = 30.0, 3600.0
#: After as many seconds without being detached a probe begins again with the first pause.
_FORGIVEN = 2 * MAX_PAUSE

K = TypeVar("K", bound=Hashable)


@dataclass
class Budget(Generic[K]):
    """The share of one CPU that a target's probes may take together."""

    share: float
    _began: float | None = None
    _before: dict[K, int] = field(default_factory=dict)

    def exceeding(self, now: float, spent: Mapping[K, int]) -> dict[K, float]:
        """Return the probes to detach, the dearest first, and their shares of one CPU.

        ``spent`` is what each has cost so far, in ns; ``now`` is in seconds. In no window does a
        target pay more than its share of it, but for what comes between two looks.
        """
        if self._began is None or now - self._began >= WINDOW:
            self._began, self._before = now, dict(spent)
            return {}
        used = {key: ns - self._before.setdefault(key, 0) for key, ns in spent.items()}
        total, limit = sum(used.values()), self.share * WINDOW * 1e9
        over: dict[K, float] = {}
        passed = max(now - self._began, 0.1) * 1e9
        while total > limit:
            dearest = max(used, key=lambda key: used[key])
            total -= used[dearest]
            over[dearest] = used.pop(dearest) / passed
            self._before.pop(dearest)
        return over


@dataclass
class Pauses(Generic[K]):
    """Probes that are not to be tried before some time."""

    _until: dict[K, float] = field(default_factory=dict)
    _lengths: dict[K, float] = field(default_factory=dict)

    def pause(self, key: K, now: float) -> float:
        """Begin a pause and return its length: longer each time, in seconds."""
        since = now - self._until.get(key, now)
        before = self._lengths.get(key) if since < _FORGIVEN else None
        length = FIRST_PAUSE if before is None else min(2 * before, MAX_PAUSE)
        self._lengths[key], self._until[key] = length, now + length
        return length

    def is_over(self, key: K, now: float) -> bool:
        """Return whether a probe may be tried."""
        return now >= self._until.get(key, now)

    def keep(self, keys: set[K]) -> None:
        """Forget all others."""
        for known in self._until.keys() - keys:
            del self._until[known]
            self._lengths.pop(known, None)
