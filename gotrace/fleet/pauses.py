# SPDX-License-Identifier: Apache-2.0
"""When probes are tried again that cost a target more than it may pay, or that have gone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from gotrace.records import dataclass, field

#: Seconds until a probe that was detached is tried again: doubled each time, up to the most.
FIRST_PAUSE, MAX_PAUSE = 30.0, 3600.0
#: After as many seconds without being detached a probe begins again with the first pause.
_FORGIVEN = 2 * MAX_PAUSE

K = TypeVar("K", bound=Hashable)


class LastPrice(NamedTuple):
    """A probe's share of a CPU, and its CPU time until it had to cost less, in ns."""

    share: float = 0.0
    paid: float = 0.0


@dataclass
class Pauses(Generic[K]):
    """Probes that are not to be tried before some time."""

    _until: dict[K, float] = field(default_factory=dict)
    _lengths: dict[K, float] = field(default_factory=dict)
    _prices: dict[K, LastPrice] = field(default_factory=dict)  # of those that need room in a budget

    def __bool__(self) -> bool:
        """Return whether anything is known of any probe."""
        return bool(self._until)

    def pause(self, key: K, now: float, price: LastPrice | None = None) -> float:
        """Begin a pause and return its length: longer each time, in seconds.

        After it the probe waits until ``admit`` says that there is room for its price, the highest
        if there are several.
        """
        if price is not None:
            self._prices[key] = LastPrice(*map(max, price, self._prices.get(key, LastPrice())))
        since = now - self._until.get(key, now)
        before = self._lengths.get(key) if since < _FORGIVEN else None
        length = FIRST_PAUSE if before is None else min(2 * before, MAX_PAUSE)
        self._lengths[key], self._until[key] = length, now + length
        return length

    def is_over(self, key: K, now: float) -> bool:
        """Return whether a probe may be tried."""
        return now >= self._until.get(key, now) and key not in self._prices

    def waiting(self, now: float) -> list[tuple[K, LastPrice]]:
        """Return the probes that wait for room alone, the cheapest first."""
        found = [(key, one) for key, one in self._prices.items() if now >= self._until[key]]
        return sorted(found, key=lambda each: each[1])

    def admit(self, key: K) -> None:
        """Let a probe be tried that there is room for."""
        del self._prices[key]

    def keep(self, keys: set[K]) -> None:
        """Forget all others."""
        for known in self._until.keys() - keys:
            del self._until[known]
            self._lengths.pop(known, None)
            self._prices.pop(known, None)
