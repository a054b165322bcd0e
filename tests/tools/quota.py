# SPDX-License-Identifier: Apache-2.0
"""Control groups whose processes run out of CPU quota, and what the kernel counts of that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def quota_group(quota: int = 3_000, period: int = 10_000) -> Iterator[Path]:
    """Make a control group that may use so much of one CPU (us); its processes must have ended.

    Skips the test where the kernel has no quotas, or does not let them be set here.
    """
    name = f"gotrace-test-{os.getpid()}"
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    first = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "cpu" in m[3].split(",")]
    second = [Path(m[1]) for m in mounts if m[2] == "cgroup2"]
    for root in first + second:
        group = root / name
        try:
            if root in second:
                (root / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
        except OSError:
            continue
        try:
            if root in first:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {period}")
            yield group
            return
        except FileNotFoundError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group can be given a CPU quota here")


def throttled(group: Path) -> tuple[int, int]:
    """Return how often a group was throttled, and how long in ns."""
    stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    times = int(stat["nr_throttled"])
    if "throttled_time" in stat:
        return times, int(stat["throttled_time"])
    return times, 1000 * int(stat["throttled_usec"])
