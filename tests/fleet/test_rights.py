# SPDX-License-Identifier: Apache-2.0
"""gotraced, started by root, keeps the rights that following its targets takes, and no other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gotrace.kernel.features import has_multi_links
from gotrace.kernel.privileges import Capability
from gotrace.target.process import read_status
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.live import skip_or_fail
from tests.tools.harness import Fixture
from tests.tools.unprivileged import NOBODY

KEPT = (
    Capability.BPF,
    Capability.PERFMON,
    Capability.SYS_PTRACE,
    Capability.DAC_READ_SEARCH,
    Capability.IPC_LOCK,
)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that every user can look into."""
    with tempfile.TemporaryDirectory(prefix="gotrace-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.live
@pytest.mark.apart
def test_what_is_kept_suffices_for_programs_of_others_that_come_later(
    server: Path, public: Path, tmp_path: Path
) -> None:
    if not has_multi_links():
        skip_or_fail("before Linux 6.6, more is kept")
    name = f"private{os.getpid() % 10**6}"
    config = tmp_path / "c.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nbudget: 100%\n"
        f"targets: [{{name: keys, exe: {server}}}, {{name: later, comm: {name}}}]\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle}\n"
    )
    config.chmod(0o600)
    wanted = f"{sum(1 << each for each in KEPT):016x}"
    with Daemon(config, "-v", probes=1) as daemon:
        pids = {int(name) for name in os.listdir(f"/proc/{daemon.pid}/task")}
        with open(f"/proc/{daemon.pid}/task/{daemon.pid}/children") as children:
            keepers = set(map(int, children.read().split()))
        assert keepers and len(pids) > 1  # threads have their own
        for pid in pids | keepers:
            status = read_status(pid)
            names = ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs")
            assert [status[key] for key in names] == [wanted, wanted, wanted, "1"]
            assert int(status["CapAmb"], 16) == 0
        theirs = Path(shutil.copy(server, public / name))
        os.chown(theirs, 65534, 65534)
        theirs.chmod(0o700)  # only its owner can read it
        with Fixture([*NOBODY, theirs], cwd="/") as fixture:
            daemon.read_until("gotraced: INFO: handles in later")
            assert fixture.work("1 90 5")["Calls"] == 90
            samples = daemon.samples()["handles_total"]
            fixture.finish()
        assert sum(samples.values()) == 90
        daemon.end()
