# SPDX-License-Identifier: Apache-2.0
"""The choices for runs. Commands import this to parse their options: it has to be light."""

from __future__ import annotations

from enum import Enum

#: Return addresses that are reported at most.
MAX_STACK_FRAMES = 256
#: The most bytes of a string that are shown, whatever is asked for.
MAX_TEXT_BYTES = 1792
#: Samples a second of each CPU. Not 100, which what programs do ten times a second would meet.
HERTZ = 99


class ReturnMode(Enum):
    """Where calls are seen returning; the values are those of ``--returns``."""

    AUTO = "auto"  # in their callers if calls are frequent, else at RETs
    RET = "ret"
    LANDING = "landing"  # in their callers as soon as these are known


class WaitState(Enum):
    """The state that is added up; the values are Go's own words."""

    WAITING = "waiting"
    RUNNABLE = "runnable"
    SYSCALL = "syscall"

    @property
    def status(self) -> int:
        """Return the status of a goroutine (src/runtime/runtime2.go, Go 1.15 to 1.27)."""
        return _STATUS[self]


_STATUS = {WaitState.WAITING: 4, WaitState.RUNNABLE: 1, WaitState.SYSCALL: 3}
