# SPDX-License-Identifier: Apache-2.0
"""Plan for a program in a process of its own first, which may take only so much for it.

A file's contents decide the cost of reading it, and anybody's file may be traced. So a hostile one
ends that process, and not the daemon. The daemon makes the same plan after that: a plan refers to
the file that it was made of, and cannot be handed over.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gotrace.errors import GotraceError
from gotrace.fleet.config import PlanningSpec
from gotrace.kernel.children import Child

_FINE, _MEMORY = b"fine", b"memory"
_BUG = b"bug: "
_MAX_ANSWER = 1 << 12
_OVERTIME = 4  # the CPU may be another's


class Trial:
    """Plans that are made in a forked process; each may fail, and raises GotraceError then.

    A plan that does not refer to its file may be handed over: its bytes are in ``plans`` then.
    """

    def __init__(self, plans: Iterable[Callable[[], object]], limits: PlanningSpec) -> None:
        """Begin. Raises GotraceError if no process can be started."""
        self._limits = limits
        self._until = time.monotonic() + _OVERTIME * limits.seconds
        self._child: Child | None = Child("that plans", partial(_plan, plans, limits))
        #: Why the plans are not to be made, None if they can be, or while that is not known.
        self.problem: str | None = None
        #: Whether that says nothing of the plans: they can be tried again.
        self.is_passing = False
        self.plans = b""

    def has_ended(self, wait: float) -> bool:
        """Wait for so many seconds at most; return whether it is known what the plans take."""
        child = self._child
        if child is None:
            return True
        if child.has_answered(min(wait, self._until - time.monotonic())):
            self._conclude(child.whole_answer(), child.wait(), child.why_ended())
        elif time.monotonic() < self._until:
            return False
        else:
            self.problem = self._beyond_time()
        self.close()
        return True

    def _conclude(self, answer: bytes, status: int, why: str) -> None:
        """Take note of what the process has said, and of how it has ended."""
        if answer == _MEMORY:
            self.problem = self._beyond(f"{self._limits.memory >> 20} MB of memory", "memory")
        elif answer.startswith(_BUG):
            text = answer.removeprefix(_BUG).decode("utf-8", "replace")
            self.problem = f"it cannot be read: {text}"
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            self.problem = self._beyond_time()
        elif answer.startswith(_FINE):
            self.plans = answer.removeprefix(_FINE)
        else:
            self.problem = f"the plan for it was not made: {why}"
            self.is_passing = True

    def _beyond_time(self) -> str:
        return self._beyond(f"{self._limits.seconds} s", "seconds")

    @staticmethod
    def _beyond(what: str, key: str) -> str:
        return f"planning for it takes more than {what}: planning: {key} allows more"

    def close(self) -> None:
        """End the process, whether or not it has finished."""
        if self._child is not None:
            self._child.end()
            self._child = None


def _plan(plans: Iterable[Callable[[], object]], limits: PlanningSpec, answer: int) -> None:
    """Make all plans, and write what became of it (runs in the child)."""
    said = _FINE
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # SIGXCPU at the first, SIGKILL at the second, if a library has blocked that.
        resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 1))
        for plan in plans:
            with suppress(GotraceError, OSError):  # the daemon's own plan says it
                made = plan()
                said += made if isinstance(made, bytes) else b""
    except MemoryError:
        said = _MEMORY
    except Exception as error:  # a bug, which is to cost this process and not the daemon
        said = _BUG + f"{type(error).__name__}: {error}".encode()[: _MAX_ANSWER // 2]
    while said:
        said = said[os.write(answer, said) :]
