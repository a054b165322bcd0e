# SPDX-License-Identifier: Apache-2.0
"""Start fixture programs and tools in pid namespaces of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.tools.harness import Fixture, Result, Running, tool_command

#: Runs what follows as process 1 of a new namespace, with its own /proc.
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _descendants(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    below = [int(word) for word in text.split()]
    return below + [child for one in below for child in _descendants(one)]


def outer_pid(fixture: Fixture, program: Path) -> int:
    """Return the fixture's number here: it is among its starters' descendants."""
    found = [
        pid for pid in _descendants(fixture.pid) if os.path.samefile(f"/proc/{pid}/exe", program)
    ]
    return found[-1]


def numbers(pid: int, tid: int | None = None) -> list[int]:
    """Return the numbers of a process or thread, by namespace, the one here first."""
    status = Path(f"/proc/{pid}/task/{tid or pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return list(map(int, line.split()[1:]))


def threads(pid: int, level: int) -> set[int]:
    """Return the numbers that a process's threads have so many namespaces below the one here."""
    return {numbers(pid, int(tid))[level] for tid in os.listdir(f"/proc/{pid}/task")}


class Inside(Running):
    """A tool in the pid namespace that a fixture's outermost ``unshare`` has made."""

    def __init__(self, within: Fixture, name: str, *arguments: str | Path, **options: Any) -> None:
        spaces = f"/proc/{within.pid}/ns"
        enter = ["nsenter", f"--pid={spaces}/pid_for_children", f"--mount={spaces}/mnt"]
        # A mount namespace's own root is not that of who runs in a directory (chroot).
        enter += [f"--root=/proc/{within.pid}/root", f"--wd=/proc/{within.pid}/cwd"]
        super().__init__([*enter, *tool_command(name, *arguments)], **options)

    def end(self, number: signal.Signals = signal.SIGINT) -> Result:
        """Interrupt the tool, which is nsenter's child, and return how it ended."""
        os.kill(_descendants(self.pid)[0], number)
        return self.result()

    def __enter__(self) -> Inside:
        return self
