# SPDX-License-Identifier: Apache-2.0
"""Processes that end unseen are counted within limits, and what is beyond these is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from gotrace.errors import GotraceError
from gotrace.fleet import executions
from gotrace.fleet.config import parse_config
from gotrace.fleet.executions import Executions
from gotrace.fleet.targets import ProgramKey

pytestmark = [pytest.mark.live, pytest.mark.apart]


def test_a_kernel_that_does_not_say_where_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "kernel_field", lambda *_: None)
    with pytest.raises(GotraceError, match="this kernel's BTF does not say where files and inodes"):
        executions._attached({})


def test_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "_PROCESSES", 2)
    monkeypatch.setattr(executions, "_FILES", 1)
    name = f"brief{os.getpid() % 10**6}"
    program = shutil.copy(shutil.which("cat") or "/bin/cat", tmp_path / name)
    config = parse_config(
        "test.yaml",
        f"listen: 127.0.0.1:0\ntargets: [{{name: n, comm: {name}}}]\n"
        "metrics: [{name: calls, type: counter, probe: main.main}]\n",
    )
    inode = os.stat(program).st_ino
    with closing(Executions(config.targets)) as counts:
        pipe = subprocess.PIPE
        running = [subprocess.Popen([program], stdin=pipe, stdout=pipe) for _ in range(3)]
        for process in running:  # Popen returns before the kernel reports the exec
            assert process.stdin is not None and process.stdout is not None
            os.write(process.stdin.fileno(), b"x")
            assert process.stdout.read(1) == b"x"
        for process in running:
            process.communicate()
        assert (counts.missed(), counts.lost()) == ({"n": 2}, 1)
        counts.follow({ProgramKey("n", inode, 0, 0)})
        subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
        assert counts.missed() == {"n": 2}
        with pytest.raises(OSError):
            counts.follow({ProgramKey("n", number, 0, 0) for number in (inode, inode + 1)})
        counts.follow(set())
        subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
        assert counts.missed() == {"n": 3}
