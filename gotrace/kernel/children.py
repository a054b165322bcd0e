# SPDX-License-Identifier: Apache-2.0
"""Fork processes that work for this one, and that end with it.

A forked process has all that this one has open. If this one is killed, the forked one would keep
its probes, its maps and the ports that it listens on; and keepers, which wait until nobody holds
the other end of their sockets, would wait for it. So a child lets go of what it does not need, and
the kernel ends it as this process ends.

The kernel does that by a pipe whose only writing end is here: when that is closed, the kernel sends
whoever has asked for signals of the reading end the signal that it has asked for (fcntl(2): O_ASYNC
and F_SETSIG; ``pipe_release`` in fs/pipe.c). PR_SET_PDEATHSIG would do so as well if the thread
ended that has forked, and those of a daemon's pools do.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from gotrace.errors import GotraceError
from gotrace.target.process import fork

_SETSIG = 10  # F_SETSIG of Linux's fcntl.h, which the module fcntl lacks
#: Python ignores them, so that writing raises OSError.
_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}


class Child:
    """A forked process that does something for this one, answers, and ends.

    It ends when this process does. It is in a process group of its own, so that Ctrl-C leaves it to
    this one, and other signals do to it what they do by default. If memory is short, the kernel
    ends it and not this process.
    """

    def __init__(
        self, purpose: str, work: Callable[[int], None], keeps_files: bool = False
    ) -> None:
        """Run ``work`` there, with the descriptor that takes its answer.

        ``keeps_files``: it needs files, maps and events that are open here. ``purpose`` is what it
        is for, as in ``fork``. Raises GotraceError.
        """
        self._is_reaped = False
        self._status = 0
        try:
            self.answer, answer = os.pipe()
        except OSError as error:
            raise _not_started(purpose, error) from error
        with ExitStack() as undo, ExitStack() as theirs:
            undo.callback(os.close, self.answer)
            theirs.callback(os.close, answer)
            try:
                life, self._life = os.pipe()
            except OSError as error:
                raise _not_started(purpose, error) from error
            undo.callback(os.close, self._life)
            theirs.callback(os.close, life)
            # No handler of this process is to run there.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self.pid = fork(purpose)
                if self.pid == 0:
                    _live(work, answer, life, keeps_files)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            undo.pop_all()

    def has_answered(self, seconds: float) -> bool:
        """Wait for so many seconds at most; return whether an answer, or its end, has come."""
        ready = select.poll()
        ready.register(self.answer, select.POLLIN)
        return bool(ready.poll(max(0.0, seconds) * 1000))

    def whole_answer(self) -> bytes:
        """Return all that it answers, once it has ended."""
        return b"".join(iter(lambda: os.read(self.answer, 1 << 16), b""))

    def wait(self) -> int:
        """Return its wait status, once it has ended."""
        if not self._is_reaped:
            self._status = os.waitpid(self.pid, 0)[1]
            self._is_reaped = True
            os.close(self.answer)
            os.close(self._life)
        return self._status

    def end(self) -> int:
        """End it, whether or not it has finished, and return its wait status."""
        if not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def why_ended(self) -> str:
        """Return how it has ended, in words, after ``wait`` or ``end``."""
        if not os.WIFSIGNALED(self._status):
            return f"its process has ended with status {os.WEXITSTATUS(self._status)}"
        number = os.WTERMSIG(self._status)
        short = ", as the kernel does if memory is short" if number == signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(number).name}{short}"


def _not_started(purpose: str, error: OSError) -> GotraceError:
    return GotraceError(f"cannot start a process {purpose}: {error.strerror}")


def _live(work: Callable[[int], None], answer: int, life: int, keeps_files: bool) -> NoReturn:
    """Live the child's life (runs in the child)."""
    status = 1
    try:
        os.setpgid(0, 0)
        for number in signal.valid_signals() - _IGNORED:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        let_go((answer, life), keeps_files)
        _end_with(life)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        work(answer)
        status = 0
    finally:
        os._exit(status)


def _end_with(life: int) -> None:
    """Kill this process once nobody holds the writing end of a pipe any more."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, _SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)
    ended = select.poll()
    ended.register(life, select.POLLIN)
    if ended.poll(0):  # it has been closed before that
        os._exit(1)


def let_go(kept: Collection[int], keeps_files: bool) -> None:
    """Close all that is open but ``kept``, in a process that was forked.

    ``keeps_files``: pipes, terminals and sockets alone, as who reads at their other end waits for
    this process. A number stays in use, since an object of the process before may yet close it.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor in kept or descriptor == nothing:
            continue
        with suppress(OSError):  # the directory's own, closed by now
            mode = os.fstat(descriptor).st_mode
            is_standard = descriptor <= 2
            others = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
            if is_standard or others or not keeps_files:
                os.dup2(nothing, descriptor, inheritable=is_standard)
