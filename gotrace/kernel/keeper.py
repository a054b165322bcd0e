# SPDX-License-Identifier: Apache-2.0
"""Attach and detach in a process of its own, where no SIGKILL meant for this one arrives.

The kernel removes the probes of a process that has ended. But what it does for a process with a
SIGKILL pending it gives up on at the next page of the target (fatal_signal_pending in mm/gup.c,
__get_user_pages, seen on Linux 6.18): a tool that is killed in the middle of attaching or
detaching leaves breakpoints behind, which slow the target down until it ends
("failed to unregister, leaking uprobe" in the kernel's log).
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gotrace.errors import GotraceError
from gotrace.target.process import fork

__all__ = [
    "Keeper",
    "let_go",
]

_LENGTH_BYTES = 8
_PATIENCE = 1.0  # seconds, for removing what was attached before attaching failed
_NAME = "gotrace-keeper"  # at most 15 bytes


class Keeper:
    """A forked process that holds probes until it is asked to remove them, or this one has ended.

    It blocks all signals and is in a session of its own, so that Ctrl-C, a terminal that hangs up
    and a kill of the tool's process group leave it to its work.
    """

    def __init__(self, attach: Callable[[], Any], detach: Callable[[], None]) -> None:
        """Run ``attach`` there now, and ``detach`` in the end, whatever ``attach`` did.

        Raises what ``attach`` raises, and GotraceError where no process can be started or it
        was killed; ``result`` is what ``attach`` returns. Both must be picklable.
        """
        self.killed = False
        self._released = False
        self._ours, theirs = socket.socketpair()
        self.pid = fork("that holds the probes")
        if self.pid == 0:
            self._ours.close()
            _keep(theirs, attach, detach)
        theirs.close()
        try:
            self.result = self._outcome()
        except BaseException:
            self.end(time.monotonic() + _PATIENCE)
            raise

    def _outcome(self) -> Any:
        size = int.from_bytes(self._received(_LENGTH_BYTES), "little")
        result, error = pickle.loads(self._received(size))
        if error is not None:
            raise error
        return result

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._ours.recv(size - len(data))
            if not part:
                raise GotraceError("cannot attach: the process that was to do it was killed")
            data += part
        return data

    def release(self) -> None:
        """Have the probes removed and do not wait for it. May be called in a signal handler."""
        if not self._released:
            self._released = True
            # A word, because processes forked later hold this end of the socket open, too.
            with suppress(OSError):
                self._ours.send(b"!", socket.MSG_DONTWAIT)

    def end(self, until: float | None = None) -> bool:
        """Have the probes removed and return once they are; ``killed`` if they were before.

        ``until`` (``time.monotonic``) bounds the wait: return whether they were removed by then. If
        not, the process goes on with it by itself, even when this one has ended.
        """
        if not self.pid:
            return True
        self.release()
        if until is not None:
            ended = select.poll()
            ended.register(self._ours, select.POLLIN)  # the end of file, as the process ends
            if not ended.poll(max(0.0, until - time.monotonic()) * 1000):
                return False
        self._ours.close()
        self.killed = os.WIFSIGNALED(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return True


def _keep(
    channel: socket.socket, attach: Callable[[], Any], detach: Callable[[], None]
) -> NoReturn:
    """Live the keeper's life (runs in the child)."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        let_go(channel.fileno())
        with suppress(OSError):
            Path("/proc/self/comm").write_text(_NAME)
        result, failure = None, None
        try:
            result = attach()
        except Exception as error:
            failure = error
        data = pickle.dumps((result, failure))
        with suppress(OSError):
            channel.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
            channel.recv(1)
        detach()
    finally:
        os._exit(0)


def let_go(channel: int) -> None:
    """Close pipes, terminals and sockets but one: who reads at their other end waits for the tool.

    Meant for a process that is forked to do something for the tool and may outlive it.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor == channel:
            continue
        with suppress(OSError):  # the directory's own, closed by now
            mode = os.fstat(descriptor).st_mode
            if descriptor <= 2:
                os.dup2(nothing, descriptor)
            elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor):
                os.close(descriptor)
