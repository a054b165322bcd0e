# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of removing probes if each is a perf event of its own.

The kernel waits for grace periods of RCU as it removes such a probe, and for one probe at a time,
whoever closes their descriptors: perf_uprobe_destroy holds event_mutex around
perf_trace_event_unreg, which calls tracepoint_synchronize_unregister (kernel/trace/
trace_event_perf.c). A uprobe-multi link waits once for all of its probes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from gotrace.errors import said
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.own_function import own_code, own_function
from gotrace.kernel.threads import at_once

#: As many close at once. What a probe waits for outside of the mutex is then waited for together:
#: measured as half of the time on Linux 6.1, a quarter on 6.18, nothing on 5.10.
_CLOSERS = 64

#: Fewer probes are gone before anybody wonders, and are not worth a trial.
_MANY = 20
_TRIED = 2
_LONG = 5.0  # seconds; what takes less is not mentioned


def close_all(descriptors: Sequence[int]) -> None:
    """Close perf events and links, which removes their probes."""
    at_once(_close, [descriptors[at::_CLOSERS] for at in range(min(_CLOSERS, len(descriptors)))])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def removal_seconds(count: int) -> float | None:
    """Return about how long ``count`` perf events will take to go, from a trial with two.

    The trial's are on a function of this process that is not called. None where it cannot be made.
    """
    try:
        with own_function(own_code().emulated) as function:
            events: list[int] = []
            try:
                for _ in range(_TRIED):
                    events.append(kernel.open_uprobe(function.path, 0))
            finally:
                before = time.monotonic()
                close_all(events)
            return (time.monotonic() - before) / _TRIED * count
    except (OSError, RuntimeError):
        return None


def price(count: int) -> str | None:
    """Return a warning about ``count`` probes by perf events before they are placed, or None."""
    seconds = removal_seconds(count) if count >= _MANY else None
    if seconds is None or seconds < _LONG:
        return None
    duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    return (
        f"at the end the kernel will take about {duration} to remove {count} probes, one after the"
        " other, and those that are left go on costing the target: trace fewer functions;"
        f" {said('--attach multi, from Linux 6.6 on,', 'Linux 6.6 and newer')} removes all at once"
    )
