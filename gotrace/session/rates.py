# SPDX-License-Identifier: Apache-2.0
"""How often probes would be hit, counted for a moment before a run has them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gotrace.kernel.attach import ProbeGroup, attach
from gotrace.kernel.methods import AttachMethod
from gotrace.records import replace
from gotrace.settings import CountSettings
from gotrace.target.target import Target


def hits_a_second(
    target: Target, groups: Sequence[ProbeGroup], forced: AttachMethod | None, seconds: float
) -> list[float]:
    """Return how often each point of some groups would be hit, in their order.

    Raises AttachError or LoadError.
    """
    counted, number = [], 0
    for group in groups:
        points = [
            replace(point, cookie=point.cookie >> 32 << 32 | index)  # each has its own counter
            for index, point in enumerate(group.points, number)
        ]
        number += len(points)
        counted.append(replace(group, function="on_entry", points=points))
    attached = attach(CountSettings(site=target.settings(), counters=number), counted, forced)
    try:
        began = time.monotonic()
        time.sleep(seconds)
        counts = attached.program.map("counts").sums()
        passed = time.monotonic() - began
    finally:
        attached.close()
    return [count / passed for count in counts]
