# SPDX-License-Identifier: Apache-2.0
"""Programs that start and end are found at once, whatever else is attached and detached."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_gotraced import keys as keys

PROGRAMS = int(os.environ.get("GOTRACE_PROGRAMS", "12"))
A_SECOND = 2
#: The rights of the DaemonSet.
SHIPPED = (
    *("setpriv", "--bounding-set=-all,+bpf,+perfmon,+sys_ptrace,+ipc_lock", "--inh-caps=-all"),
    *("--no-new-privs", "--"),
)


@pytest.mark.live
@pytest.mark.apart
def test_each_of_many_programs_is_found_as_it_starts(keys: Path, tmp_path: Path) -> None:
    name = f"churn{os.getpid() % 10**6}"
    files = []
    for number in range(PROGRAMS):  # files of their own: each is another program
        place = tmp_path / str(number)
        place.mkdir()
        files.append(shutil.copy(keys, place / name))
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: t, comm: {name}}}]\nbudget: 100%\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle}\n"
        "  - {name: handle_seconds, type: histogram, probe: main.handle}\n"
    )
    patience = 60.0 + PROGRAMS
    delays = []
    calls = 0
    running: list[subprocess.Popen[bytes]] = []
    with Daemon(config, "-v", probes=0, patience=patience, within=SHIPPED) as daemon:
        began = time.monotonic()
        for number, file in enumerate(files):
            time.sleep(max(0.0, began + number / A_SECOND - time.monotonic()))
            started = time.monotonic()
            running.append(
                subprocess.Popen([file], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            )
            for metric in ("handles", "handle_seconds"):
                daemon.read_until(f"gotraced: INFO: {metric} in t ({file}): attached")
            delays.append(time.monotonic() - started)
            running[number].communicate(b"1 10 1\n\n")
            calls += 10
        found = daemon.samples()
        daemon.end()
    print(f"found after {statistics.median(delays):.2f} s, at most {max(delays):.2f} s")
    assert found["handles_total"] == found["handle_seconds_count"] == {(): calls}
    assert statistics.median(delays) < 1.5  # 0.3 s, with nothing else to do
    assert max(delays) < 10
