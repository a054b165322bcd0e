# SPDX-License-Identifier: Apache-2.0
"""A process's use of the machine, and its limits, from /proc and control groups."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from gotrace.records import dataclass
from gotrace.target.process import Process, ProcessError

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Where control groups of version 2 and of version 1's cpu controller are mounted, as usual.
_V2, _V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu"
#: Of fields in /proc/PID/stat after the name, which begin with the third (proc_pid_stat(5)).
_UTIME, _STIME, _THREADS, _STARTED, _RSS = (number - 3 for number in (14, 15, 20, 22, 24))


@dataclass(frozen=True, slots=True)
class Usage:
    """A process's use of the machine up to now.

    ``cpu_s`` is processor time in seconds, ``uptime_s`` how long it has run, ``rss`` its memory in
    bytes.
    """

    cpu_s: float
    uptime_s: float
    threads: int
    rss: int


def usage_of(process: Process) -> Usage:
    """Return a process's use of the machine up to now. Raises ProcessError once it has ended."""
    try:
        stat = Path(f"/proc/{process.tgid}/stat").read_bytes()
    except OSError:
        raise ProcessError(f"process {process.tgid} has ended") from None
    fields = stat.rpartition(b")")[2].split()
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Usage(
        (int(fields[_UTIME]) + int(fields[_STIME])) / _TICK,
        max(0.0, now - int(fields[_STARTED]) / _TICK),
        int(fields[_THREADS]),
        int(fields[_RSS]) * _PAGE,
    )


def cpu_quota(process: Process) -> float | None:
    """Return how many CPUs a process's control groups let it use; None without a limit.

    The least of its group's and of those around it (cpu.max, or cpu.cfs_quota_us of version 1), as
    far as they are visible here.
    """
    quotas: list[float] = []
    with suppress(OSError):
        for line in Path(f"/proc/{process.tgid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "cpu" in controllers.split(","):
                quotas += _quotas(path, number == "0")
    return min(quotas, default=None)


def _quotas(path: str, is_v2: bool) -> list[float]:
    found: list[float] = []
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        at = Path(_V2 if is_v2 else _V1, *parts[:length])
        with suppress(OSError, ValueError):
            if is_v2:
                quota, period = (at / "cpu.max").read_text().split()
            else:
                quota = (at / "cpu.cfs_quota_us").read_text()
                period = (at / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                found.append(int(quota) / int(period))
    return found
