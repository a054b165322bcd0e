# SPDX-License-Identifier: Apache-2.0
"""When probes are tried again that cost a target more than it may pay, or that have gone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from gotrace.records import dataclass, field

#: Seconds until a probe that was detached is tried again: doubled each time, up to the most.
FIRST_PAUSE, MAX_PAUSE = 30.0, 3600.0
#: After as many seconds without being detached a probe begins again with the first pause.
_FORGIVEN = 2 * MAX_PAUSE

K = TypeVar("K", bound=Hashable)


@dataclass
class Pauses(Generic[K]):
    """Probes that are not to be tried before some time."""

    _until: dict[K, float] = field(default_factory=dict)
    _lengths: dict[K, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything is known of any probe."""
        return bool(self._until)

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
