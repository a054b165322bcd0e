# SPDX-License-Identifier: Apache-2.0
"""Start a command held back before its first instruction, so that no call is missed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence

from gotrace.errors import GotraceError
from gotrace.target.process import fork

_EXEC_FAILED = 127


class CommandError(GotraceError):
    """A command that cannot be started."""


def resolve_command(arguments: Sequence[str]) -> str:
    """Return the path of the program that ``arguments`` would run, looked up on PATH.

    Raises CommandError where there is none.
    """
    path = shutil.which(arguments[0]) if arguments else None
    if path is None:
        name = arguments[0] if arguments else ""
        raise CommandError(f"cannot start {name!r}: no such program, or it is not executable")
    return os.path.abspath(path)


class Command:
    """A child process that waits, before it becomes the command, until it is released.

    Uprobes belong to files, so probes that are attached meanwhile are in place when the kernel
    maps the command's program: its first instruction is already traced, and no debugger interface
    is needed.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Fork the waiting child. ``arguments`` are passed as they are, without a shell.

        Raises CommandError where there is no such program, GotraceError where no process can be
        had. Must be called while this process has a single thread.
        """
        self.arguments = list(arguments)
        self.path = resolve_command(arguments)
        self.status: int | None = None
        go_read, self._go = os.pipe()
        self._failure, failure_write = os.pipe()
        self.pid = fork(f"for {self.path}")
        if self.pid == 0:
            self._become(go_read, failure_write)
        os.close(go_read)
        os.close(failure_write)

    def _become(self, go: int, failure: int) -> None:
        """Wait for the word and turn into the command; never returns (runs in the child)."""
        try:
            # Pipe ends of the parent must go, or the read below would wait for ourselves.
            os.close(self._go)
            os.close(self._failure)
            if os.read(go, 1):
                for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                    signal.signal(ignored, signal.SIG_DFL)
                os.execv(self.path, self.arguments)
        except OSError as error:
            os.write(failure, str(error.errno).encode())
        finally:
            os._exit(_EXEC_FAILED)

    def release(self) -> None:
        """Let the child become the command and return once it has.

        Raises CommandError where the kernel refuses to run it.
        """
        os.write(self._go, b"!")
        os.close(self._go)
        self._go = -1
        number = os.read(self._failure, 16)
        os.close(self._failure)
        self._failure = -1
        if number:
            self.reap()
            raise CommandError(f"cannot start {self.path}: {os.strerror(int(number))}")

    def reap(self) -> int:
        """Wait for the child to end and return its wait status."""
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    def ended(self) -> bool:
        """Return whether the child has ended, without waiting, and reap it if so."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def close(self) -> None:
        """End a child that was never released; leave a running command alone."""
        if self._go >= 0:
            os.close(self._go)
            os.close(self._failure)
            self._go = self._failure = -1
            # A child forked later has this pipe's end as well: the end of file would not come.
            os.kill(self.pid, signal.SIGKILL)
            self.reap()
        else:
            self.ended()
