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
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gotrace.errors import GotraceError
from gotrace.kernel.children import let_go
from gotrace.target.process import fork

_LENGTH_BYTES = 8
_PATIENCE = 1.0  # seconds, for removing what was attached before attaching failed
_NAME = "gotrace-keeper"  # at most 15 bytes
_ASKED, _RELEASED = b"?", b"!"
_MAX_LEAN = 64  # descriptors: links for many places, not a perf event for each
#: Ends at the first byte that comes, as keepers do.
_LEAN = ("head", "-c", "1")

_lean_path: str | None = None


def hold_leanly() -> None:
    """Turn keepers into a small program from now on, once they hold all their descriptors.

    A forked process keeps the pages that this one changes later: some 6 MB for each keeper of a
    tool that goes on for days, which is nothing for one and much for a hundred.
    """
    global _lean_path
    _lean_path = shutil.which(_LEAN[0])


class Keeper:
    """A forked process that holds probes until it is asked to remove them, or this one has ended.

    It blocks all signals and is in a session of its own, so that Ctrl-C, a terminal that hangs up
    and a kill of the tool's process group leave it to its work.
    """

    def __init__(
        self,
        attach: Callable[[], Any],
        detach: Callable[[], None],
        held: Callable[[], Sequence[int]] = tuple,
        change: Callable[[Any], Any] | None = None,
    ) -> None:
        """Run ``attach`` there now, and ``detach`` in the end, whatever ``attach`` did.

        ``held`` returns, there, the descriptors that are all that has to be kept open until then.
        ``change`` does there what ``ask`` is called with.

        Raises what ``attach`` raises, and GotraceError where no process can be started or it
        was killed; ``result`` is what ``attach`` returns. Both must be picklable.
        """
        self.killed = False
        self._owner = os.getpid()
        self._released = False
        self._is_asking = self._is_lost = False
        self._ours, theirs = socket.socketpair()
        self.pid = fork("that holds the probes")
        if self.pid == 0:
            self._ours.close()
            _keep(theirs, attach, detach, held, change)
        theirs.close()
        try:
            self.result = self._outcome()
        except BaseException:
            self.end(time.monotonic() + _PATIENCE)
            raise

    def _outcome(self) -> Any:
        try:
            size = int.from_bytes(_exactly(self._ours, _LENGTH_BYTES), "little")
            result, error = pickle.loads(_exactly(self._ours, size))
        except EOFError:
            raise GotraceError("cannot attach: its helper process was killed") from None
        self._is_lost = False
        if error is not None:
            raise error
        return result

    def ask(self, what: Any) -> Any:
        """Call ``change`` there with ``what``, and return its result; both picklable.

        Raises what it raises, and GotraceError where the process is gone, has been released, or
        keeps descriptors alone: see ``hold_leanly``.
        """
        self._is_asking = True
        try:
            if self._released or not self.pid or self._is_lost or _lean_path is not None:
                raise GotraceError("cannot attach any more: the probes are being removed")
            data = pickle.dumps(what)
            self._is_lost = True  # if a signal's handler raises, the answer is never read
            try:
                self._ours.sendall(_ASKED + len(data).to_bytes(_LENGTH_BYTES, "little") + data)
            except OSError as error:
                raise GotraceError("cannot attach: its helper process was killed") from error
            return self._outcome()
        finally:
            self._is_asking = False
            if self._released:
                self._send_release()

    def release(self) -> None:
        """Remove the probes without waiting for it. May be called in a signal handler."""
        if not self._released and os.getpid() == self._owner:
            self._released = True
            self.killed = not self.holds()
            if not self._is_asking:
                self._send_release()

    def _send_release(self) -> None:
        # A word, because processes forked later hold this end of the socket open, too.
        with suppress(OSError):
            self._ours.send(_RELEASED, socket.MSG_DONTWAIT)

    def holds(self) -> bool:
        """Return whether the process is still there, as long as it has not been asked to end."""
        try:
            return self.pid > 0 and self._ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def end(self, until: float | None = None) -> bool:
        """Remove the probes and return once they are; ``killed`` if they were before.

        ``until`` (``time.monotonic``) bounds the wait: return whether they were removed by then. If
        not, the process goes on with it by itself, even when this one has ended. A process that was
        forked from the owner does nothing here.
        """
        if not self.pid or os.getpid() != self._owner:
            return True
        self.release()
        if until is not None:
            ended = select.poll()
            ended.register(self._ours, select.POLLIN)  # the end of file, as the process ends
            if not ended.poll(max(0.0, until - time.monotonic()) * 1000):
                return False
        self._ours.close()
        self.killed |= os.waitpid(self.pid, 0)[1] != 0
        self.pid = 0
        return True


def _keep(
    channel: socket.socket,
    attach: Callable[[], Any],
    detach: Callable[[], None],
    held: Callable[[], Sequence[int]],
    change: Callable[[Any], Any] | None,
) -> NoReturn:
    """Live the keeper's life (runs in the child)."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        let_go((channel.fileno(),), keeps_files=True)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(_NAME)
        with suppress(OSError, EOFError):
            if _answer(channel, attach):
                _become_lean(channel, held())
            while change is not None and channel.recv(1) == _ASKED:
                size = int.from_bytes(_exactly(channel, _LENGTH_BYTES), "little")
                what = pickle.loads(_exactly(channel, size))
                _answer(channel, partial(change, what))
            if change is None:
                channel.recv(1)
        detach()
    finally:
        os._exit(0)


def _answer(channel: socket.socket, work: Callable[[], Any]) -> bool:
    """Do something and send its result; return whether it could be done. Raises OSError."""
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    data = pickle.dumps((result, failure))
    channel.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    return failure is None


def _exactly(channel: socket.socket, size: int) -> bytes:
    """Return as many bytes. Raises EOFError where there are fewer."""
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _become_lean(channel: socket.socket, held: Sequence[int]) -> None:
    """Replace this program by one that waits for a byte and ends, where that was asked for.

    The kernel removes the probes as it closes the descriptors then. Raises OSError, and then
    nothing has changed.
    """
    if _lean_path is None or not 0 < len(held) <= _MAX_LEAN:
        return
    with suppress(OSError):
        os.dup2(channel.fileno(), 0)  # all others close by themselves
        for descriptor in held:
            os.set_inheritable(descriptor, True)
        os.execv(_lean_path, _LEAN)
