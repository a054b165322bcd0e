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
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from gotrace.errors import GotraceError
from gotrace.kernel import holder
from gotrace.kernel.children import let_go
from gotrace.target.process import fork

_LENGTH_BYTES = 8
_PATIENCE = 1.0  # seconds, for removing what was attached before attaching failed
_NAME = "gotrace-keeper"  # at most 15 bytes
_ASKED, _RELEASED = b"?", holder.RELEASED


class _Holder:
    """The process that holds what keepers have attached: see ``kernel.holder``.

    A keeper hands it its descriptors, and its end of the socket to its owner.
    """

    def __init__(self) -> None:
        """Begin. Raises GotraceError."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = fork("that holds the probes")
        if self.pid == 0:
            self.control.close()
            _become_holder(theirs)
        theirs.close()

    def is_there(self) -> bool:
        """Return whether the process lives; take note of its end."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
            self.control.close()
        return bool(self.pid)


class _Holding:
    """Whether one process holds all probes, and that process while it lives."""

    def __init__(self) -> None:
        self.owner = 0  # the process whose probes are held so; 0 if none asks for it
        self._holder: _Holder | None = None
        self._lock = threading.Lock()

    def holder(self) -> _Holder | None:
        """Return the process, a new one if it has ended; None if none is asked for, or begins."""
        if os.getpid() != self.owner:
            return None
        with self._lock:
            if self._holder is None or not self._holder.is_there():
                self._holder = None
                with suppress(GotraceError, OSError):
                    self._holder = _Holder()
            return self._holder


_holding = _Holding()


def hold_together() -> None:
    """Have one process hold all probes from now on, in the place of a keeper for each attachment.

    A forked process keeps the pages that this one changes later: some 6 MB for each keeper of a
    tool that goes on for days, which is nothing for one and much for a hundred. Call it when this
    process has given up what rights it can.
    """
    _holding.owner = os.getpid()
    _holding.holder()


def holds_together() -> bool:
    """Return whether one process is to hold all probes that this one has attached."""
    return os.getpid() == _holding.owner


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
        #: Whether another process holds what was attached: see ``hold_together``.
        self.is_handed = False
        self._owed = 0  # answers of that process
        held_by = _holding.holder()
        self._ours, theirs = socket.socketpair()
        self.pid = fork("that holds the probes")
        if self.pid == 0:
            self._ours.close()
            _keep(theirs, attach, detach, held, change, held_by)
        theirs.close()
        try:
            self.result = self._outcome()
            if self.is_handed and held_by is not None:
                os.waitpid(self.pid, 0)
                self.pid = held_by.pid
        except BaseException:
            self.end(time.monotonic() + _PATIENCE)
            raise

    def _outcome(self) -> Any:
        try:
            size = int.from_bytes(_exactly(self._ours, _LENGTH_BYTES), "little")
            result, error, self.is_handed = pickle.loads(_exactly(self._ours, size))
        except EOFError:
            raise GotraceError("cannot attach: its helper process was killed") from None
        self._is_lost = False
        if error is not None:
            raise error
        return result

    def ask(self, what: Any) -> Any:
        """Call ``change`` there with ``what``, and return its result; both picklable.

        Raises what it raises, and GotraceError where the process is gone, has been released, or
        has handed its descriptors over.
        """
        self._is_asking = True
        try:
            if self._released or not self.pid or self._is_lost or self.is_handed:
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

    def drop(self, numbers: Sequence[int]) -> None:
        """Begin to close some of the descriptors that were handed over: ``wait`` returns later.

        They are those at places in ``held``. Raises GotraceError where the process is gone.
        """
        words = struct.pack(f"=cH{len(numbers)}H", holder.DROPPED, len(numbers), *numbers)
        try:
            self._ours.sendall(words)
        except OSError as error:
            raise GotraceError("cannot detach: the process with the probes was killed") from error
        self._owed += 1

    def wait(self, until: float | None) -> None:
        """Wait until all that was dropped is closed, or the process is gone."""
        while self._owed and self._is_ready(until):
            answers = b""
            with suppress(OSError):
                answers = self._ours.recv(self._owed)
            if not answers:
                return
            self._owed -= len(answers)

    def _is_ready(self, until: float | None) -> bool:
        """Wait until there is something to read, or the other end is closed."""
        ready = select.poll()
        ready.register(self._ours, select.POLLIN)
        wait = None if until is None else max(0.0, until - time.monotonic()) * 1000
        return bool(ready.poll(wait))

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
            self.wait(0.0)
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
        if until is not None or self.is_handed:
            self.wait(until)
            if not self._is_ready(until):  # for the end of file, as its other end is closed
                return False
        self._ours.close()
        if not self.is_handed:
            self.killed |= os.waitpid(self.pid, 0)[1] != 0
        self.pid = 0
        return True


def _keep(
    channel: socket.socket,
    attach: Callable[[], Any],
    detach: Callable[[], None],
    held: Callable[[], Sequence[int]],
    change: Callable[[Any], Any] | None,
    held_by: _Holder | None,
) -> NoReturn:
    """Live the keeper's life (runs in the child)."""
    try:
        _be_keeper()
        control = () if held_by is None else (held_by.control.fileno(),)
        let_go((channel.fileno(), *control), keeps_files=True)
        with suppress(OSError, EOFError):
            if _answer(channel, attach, lambda: _hand_over(held_by, channel, held())):
                os._exit(0)
            while change is not None and channel.recv(1) == _ASKED:
                size = int.from_bytes(_exactly(channel, _LENGTH_BYTES), "little")
                what = pickle.loads(_exactly(channel, size))
                _answer(channel, partial(change, what))
            if change is None:
                channel.recv(1)
        detach()
    finally:
        os._exit(0)


def _be_keeper() -> None:
    """Have signals for the tool that has forked this process not be for this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.setsid()
    holder.be_called(_NAME)


def _answer(
    channel: socket.socket, work: Callable[[], Any], hand_over: Callable[[], bool] = bool
) -> bool:
    """Do something, hand over what comes of it, and say so; return whether it was handed over.

    Raises OSError.
    """
    result, failure, is_handed = None, None, False
    try:
        result = work()
        is_handed = hand_over()
    except Exception as error:
        failure = error
    data = pickle.dumps((result, failure, is_handed))
    channel.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    return is_handed


def _exactly(channel: socket.socket, size: int) -> bytes:
    """Return as many bytes. Raises EOFError where there are fewer."""
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _hand_over(to: _Holder | None, channel: socket.socket, held: Sequence[int]) -> bool:
    """Have the holder hold descriptors until something comes from the channel; return if it does.

    If it does not, nothing has changed.
    """
    if to is None or not 0 < len(held) <= holder.MAX_HELD:
        return False
    with suppress(OSError):
        told, tell = os.pipe()
        handed = [tell, channel.fileno(), *held]
        socket.send_fds(to.control, [len(handed).to_bytes(1, "little")], handed)
        os.close(tell)
        return os.read(told, 1) == holder.HELD
    return False


def _become_holder(control: socket.socket) -> NoReturn:
    """Replace this program by the holder's (runs in the child)."""
    try:
        _be_keeper()
        inherited = [each for each in map(int, os.listdir("/proc/self/fd")) if _is_inherited(each)]
        let_go((control.fileno(), *inherited), keeps_files=False)
        with suppress(OSError):
            control.set_inheritable(True)
            source = os.memfd_create(_NAME, 0)  # it may be within an archive
            loader: Any = holder.__loader__
            os.write(source, loader.get_source(holder.__name__).encode())
            words = (_NAME, "-I", "-S", f"/proc/self/fd/{source}", str(control.fileno()))
            os.execv(sys.executable, words)
        holder.hold(control)
    finally:
        os._exit(0)


def _is_inherited(descriptor: int) -> bool:
    """Return whether a program that is executed has this, beside its input and outputs."""
    try:
        return descriptor > 2 and os.get_inheritable(descriptor)
    except OSError:  # the directory's own, closed by now
        return False
