# SPDX-License-Identifier: Apache-2.0
"""Optional samples of a monitor: where the stacks of a declared event are, by function."""

from __future__ import annotations

import time
from collections import deque
from itertools import chain

from gotrace.live.model import Attachment, DeclaredRows
from gotrace.results.kinds import SAMPLED
from gotrace.session.oncpu.meter import SampleMeter, SampleRequest
from gotrace.session.oncpu.naming import NamedSamples, SampleNames, function_rows
from gotrace.session.run import Run, open_run
from gotrace.target.target import Target

#: Looks whose samples are shown together: one has too few.
_LOOKS = 10


class SampleWatch:
    """The samples of an event, from when this is made on."""

    def __init__(self, target: Target, name: str) -> None:
        """Begin to sample the event of this name. Raises GotraceError."""
        self.of = SAMPLED[name]
        request = SampleRequest(target=target, event_name=name)
        self._run: Run[SampleMeter, None] = open_run(request)
        self._run.begin()
        self._names = SampleNames(self._run.meter)
        self._taken = time.monotonic()
        #: The latest looks: how long each was, and its samples.
        self._looks: deque[tuple[float, list[NamedSamples]]] = deque(maxlen=_LOOKS)

    @property
    def attachment(self) -> Attachment:
        return Attachment(f"samples of {self.of.text}", 0.0)

    def take(self) -> DeclaredRows:
        """Return the functions on stacks in the latest looks, as gooncpu prints them."""
        self._run.is_over(0)
        now = time.monotonic()
        seconds, self._taken = now - self._taken, now
        meter = self._run.meter
        self._looks.append((seconds, self._names.named(meter.take().rows)))
        rows = function_rows(chain.from_iterable(found for _, found in self._looks), meter.event)
        return DeclaredRows(f"{self.of.name}_function", sum(s for s, _ in self._looks), rows)

    def close(self) -> None:
        self._run.close()
