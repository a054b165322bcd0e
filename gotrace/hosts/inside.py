# SPDX-License-Identifier: Apache-2.0
"""The first process of the pod that gofleet has on a node.

Commands are started beside it. It ends when there has been no command for a while: whoever started
the pod is gone then, and has not deleted it. If the pod is to end, it ends the commands first and
waits for them: the runtime kills all that is left after it, and may kill them while they detach.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_LOOKS = 5.0  # seconds between two
_IDLE = 60.0  # seconds
_PATIENCE = 25.0  # seconds: less than the pod's grace period
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Wait for the end, and return the exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    last = time.monotonic()
    while time.monotonic() - last < _IDLE:
        if signal.sigtimedwait(_SIGNALS, _LOOKS) is not None:
            break
        if beside():
            last = time.monotonic()
    for pid in beside():
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _PATIENCE
    while beside() and time.monotonic() < end:
        time.sleep(0.1)
    return 0


def beside(proc: str = "/proc") -> list[int]:
    """Return the other processes of this one's container: those of its control groups."""
    own = _groups(proc, os.getpid())
    pids = (int(name) for name in os.listdir(proc) if name.isdecimal())
    return [pid for pid in pids if pid != os.getpid() and _groups(proc, pid) == own != b""]


def _groups(proc: str, pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"{proc}/{pid}/cgroup").read_bytes()
    return b""


if __name__ == "__main__":
    raise SystemExit(main())
