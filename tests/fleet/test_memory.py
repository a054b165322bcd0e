# SPDX-License-Identifier: Apache-2.0
"""What gotraced needs for large programs is bounded, and so is what a hostile one can cost it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon
from tests.toolchains import newest

pytestmark = pytest.mark.live

PROGRAMS = 20
SIZE = 60 << 20
#: Of all processes, in bytes.
MOST = 250e6


def family(pid: int) -> Iterator[int]:
    """Yield a process and those that it has forked."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def memory(pid: int, name: str = "Pss") -> int:
    """Return how many bytes a process has, its part of those that it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found) * 1024


def peak(pid: int) -> int:
    """Return how many bytes a process has had in memory at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found) * 1024


@pytest.mark.slow
def test_twenty_large_programs_leave_no_files_in_memory(tmp_path: Path) -> None:
    """They were 1.4 GB: a copy of each file, and of each all that was ever read of it."""
    compiler = next(newest().go.parent.parent.glob("pkg/tool/*/compile"))
    targets = []
    for number in range(PROGRAMS):
        path = shutil.copy(compiler, tmp_path / f"program{number}")
        os.truncate(path, SIZE)
        targets.append(f"  - {{name: t{number}, exe: {path}}}\n")
    config = tmp_path / "c.yaml"
    function = "cmd/compile/internal/noder.LoadPackage"
    config.write_text(
        f"listen: 127.0.0.1:0\nbudget: 100%\ntargets:\n{''.join(targets)}metrics:\n"
        f"  - {{name: seconds, type: histogram, probe: {function}}}\n"
        f"  - {{name: calls, type: counter, probe: {function}, labels: {{files: RBX}}}}\n"
    )
    with Daemon(config, probes=2 * PROGRAMS) as daemon:
        daemon.samples()
        lasting = sum(memory(pid) for pid in family(daemon.pid))
        most = peak(daemon.pid)
        daemon.end()
    print(f"{lasting / 1e6:.0f} MB, {most / 1e6:.0f} MB at most")
    assert lasting < MOST and most < MOST
