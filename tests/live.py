# SPDX-License-Identifier: Apache-2.0
"""Decide once whether live tracing is possible here, and what a missing requirement means."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace.target.process import read_status

#: With GOTRACE_LIVE=1 nothing may be skipped for want of a requirement.
REQUIRED = os.environ.get("GOTRACE_LIVE") == "1"


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the running test for a missing requirement, or fail it when GOTRACE_LIVE=1."""
    if REQUIRED:
        pytest.fail(f"GOTRACE_LIVE=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def _may_trace() -> bool:
    """Read the effective capabilities; bit numbers from the UAPI's linux/capability.h."""
    effective = int(read_status("self")["CapEff"], 16)
    sys_admin, perfmon_and_bpf = 1 << 21, 1 << 38 | 1 << 39
    return bool(effective & sys_admin) or effective & perfmon_and_bpf == perfmon_and_bpf


@functools.cache
def why_not_live() -> str | None:
    """Return what live tracing lacks on this machine, None when it lacks nothing."""
    if os.geteuid() != 0:
        return "live tests need root"
    if importlib.util.find_spec("bcc") is None:
        return "bcc is not importable: python3-bpfcc is missing"
    if not _may_trace():
        return "this root has neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON: a container?"
    # The PMU exists from the kernel's perf_uprobe (Linux 4.17) on, where CONFIG_UPROBES is set.
    if not Path("/sys/bus/event_source/devices/uprobe/type").exists():
        return "this kernel has no uprobe events"
    return None
