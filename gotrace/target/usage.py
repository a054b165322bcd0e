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


def ready_seconds(process: Process) -> float:
    """Return how long the threads that there are now have been ready without a CPU."""
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{process.tgid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def cpu_quota(process: Process) -> float | None:
    """Return how many CPUs a process's control groups let it use; None without a limit.

    The least of its group's and of those around it (cpu.max, or cpu.cfs_quota_us of version 1), as
    far as they are visible here.
    """
    return min((cpus for cpus, _ in _quotas(process)), default=None)


def quota_periods(process: Process) -> tuple[int, int] | None:
    """Return how many periods of the quota there were, and in how many it was used up.

    None without a quota. Both are of the control group with the least.
    """
    least = min(_quotas(process), default=None)
    if least is None:
        return None
    try:
        lines = (least[1] / "cpu.stat").read_text().splitlines()
    except OSError:
        return None
    found = dict(line.split() for line in lines)
    return int(found.get("nr_periods", 0)), int(found.get("nr_throttled", 0))


def _quotas(process: Process) -> list[tuple[float, Path]]:
    """Return the quotas, each with its control group."""
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        for line in Path(f"/proc/{process.tgid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "cpu" in controllers.split(","):
                found += _quotas_around(path, number == "0")
    return found


def _quotas_around(path: str, is_v2: bool) -> list[tuple[float, Path]]:
    found: list[tuple[float, Path]] = []
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
                found.append((int(quota) / int(period), at))
    return found
