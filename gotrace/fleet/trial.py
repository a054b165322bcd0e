# SPDX-License-Identifier: Apache-2.0
"""Plan for a program in a process of its own first, which may take only so much for it.

What a file says decides what reading it takes, and anybody's file may be traced. So a hostile one
ends that process, and not the daemon. The daemon makes the same plan after that: a plan refers to
the file that it was made of, and cannot be handed over.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gotrace.errors import GotraceError
from gotrace.fleet.config import PlanningSpec
from gotrace.kernel.keeper import let_go
from gotrace.target.process import fork

__all__ = ["Trial"]

_FINE, _MEMORY = b"fine", b"memory"
_BUG = b"bug: "
_MAX_ANSWER = 1 << 12
_OVERTIME = 4  # the CPU may be another's


class Trial:
    """Plans that are made in a forked process; each may fail, and raises GotraceError then."""

    def __init__(self, plans: Iterable[Callable[[], object]], limits: PlanningSpec) -> None:
        """Begin. Raises GotraceError if no process can be started."""
        self._limits = limits
        self._until = time.monotonic() + _OVERTIME * limits.seconds
        self._pipe, pipe = os.pipe()
        try:
            self._pid = fork("that plans")
            if self._pid == 0:
                _plan(plans, limits, pipe)
        except GotraceError:
            os.close(self._pipe)
            raise
        finally:
            os.close(pipe)
        #: Why the plans are not to be made, None if they can be, or while that is not known.
        self.problem: str | None = None

    def has_ended(self, wait: float) -> bool:
        """Wait for so many seconds at most; return whether it is known what the plans take."""
        if not self._pid:
            return True
        wait = max(0.0, min(wait, self._until - time.monotonic()))
        ended = select.poll()
        ended.register(self._pipe, select.POLLIN)
        if ended.poll(wait * 1000):
            answer = os.read(self._pipe, _MAX_ANSWER)
        elif time.monotonic() < self._until:
            return False
        else:
            answer = b""
        self.close()
        self.problem = self._problem_of(answer)
        return True

    def _problem_of(self, answer: bytes) -> str | None:
        if answer == _FINE:
            return None
        if answer.startswith(_BUG):
            return f"it cannot be read: {answer.removeprefix(_BUG).decode('utf-8', 'replace')}"
        what, key = f"{self._limits.seconds} s", "seconds"
        if answer == _MEMORY:
            what, key = f"{self._limits.memory >> 20} MB of memory", "memory"
        return f"planning for it takes more than {what}: planning: {key} allows more"

    def close(self) -> None:
        """End the process, whether or not it has finished."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pipe)
            self._pid = 0


def _plan(plans: Iterable[Callable[[], object]], limits: PlanningSpec, pipe: int) -> NoReturn:
    """Make all plans, and write what became of it (runs in the child)."""
    answer = _FINE
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        let_go(pipe)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
        for plan in plans:
            with suppress(GotraceError, OSError):  # the daemon's own plan says it
                plan()
    except MemoryError:
        answer = _MEMORY
    except Exception as error:  # a bug, which is to cost this process and not the daemon
        answer = _BUG + f"{type(error).__name__}: {error}".encode()[: _MAX_ANSWER // 2]
    finally:
        os.write(pipe, answer)
        os._exit(0)
