# SPDX-License-Identifier: Apache-2.0
"""Do things in threads of their own, where exceptions of signals' handlers do not arrive.

Python runs the handlers of signals in the main thread, between any two instructions: Ctrl-C, or a
timeout that raises, could lose a descriptor or a child process that was about to be noted down.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Generic, TypeVar

from gotrace.errors import GotraceError, UsageError

_PATIENCE = 1.0  # seconds
_T = TypeVar("_T")


class Meanwhile(Generic[_T]):
    """The result of a thread of its own, or of this one if no thread can be started.

    The thread has ended when the result has been taken: what is forked after that finds none. It
    goes on if the wait for it is interrupted.
    """

    def __init__(self, action: Callable[[], _T]) -> None:
        self._action = action
        self._found: _T | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run)
        try:
            if sys.is_finalizing():  # before Python 3.12, start() waits for ever then
                raise RuntimeError
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def _run(self) -> None:
        try:
            self._found = self._action()
        except BaseException as error:
            self._error = error

    def result(self) -> _T:
        """Wait for the result and return it; raise the action's error."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # whose traceback has this
        return self._found  # type: ignore[return-value]  # it may be None

    def __enter__(self) -> Meanwhile[_T]:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.join()


class Opened:
    """The open resources of a run or a session, closed as a whole; a context manager that does so.

    If opening is interrupted, closing waits until that is done, or it is not begun any more. What
    threads use is closed by the last of them. A process that was forked meanwhile closes nothing.
    """

    def __init__(self) -> None:
        #: The process whose it is.
        self.owner = os.getpid()
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._users: dict[threading.Lock, int] = {}  # threads; each releases its lock as it leaves
        self._is_kept = False
        self._is_closed = False
        #: Whether it is to be closed, if it is not yet.
        self.is_closing = False

    @property
    def is_ours(self) -> bool:
        """Return whether this process has opened it, and not one that it was forked from."""
        return os.getpid() == self.owner

    def do(self, action: Callable[[], _T]) -> _T:
        """Run ``action`` in another thread, where it may ``enter`` managers; return its result."""

        def if_open() -> _T:
            if self.is_closing:
                raise GotraceError("cannot attach: interrupted")
            return action()

        return self._alone(if_open)

    def _alone(self, action: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._lock:
                return action()

        if threading.current_thread() is not threading.main_thread():
            return locked()
        return Meanwhile(locked).result()

    def enter(self, opened: AbstractContextManager[_T]) -> _T:
        """Enter a context manager, which is left when all is closed, and return its value."""
        return self._stack.enter_context(opened)

    @contextmanager
    def used(self, closed: str) -> Iterator[None]:
        """Keep all open meanwhile. Raises UsageError that says ``closed`` if it is."""
        left = threading.Lock()
        left.acquire()
        try:
            self._users[left] = threading.get_ident()
            if self.is_closing:
                raise UsageError(closed)
            yield
        except BaseException:
            with suppress(GotraceError):  # what went wrong first is what counts
                self._leave(left)
            raise
        self._leave(left)

    def _leave(self, left: threading.Lock) -> None:
        del self._users[left]
        left.release()
        if self.is_closing:
            self._close_unused()

    def keep(self) -> Opened:
        """Return this, which the end of its ``with`` block does not close unless it fails."""
        self._is_kept = True
        return self

    def close(self) -> None:
        """Close all, the last first. Raises the errors of closing.

        If it is used, other threads are waited for, a second at most. Then it is closed by them, or
        by this one as it leaves.
        """
        if not self.is_ours:
            return
        self.is_closing = True
        until, this = time.monotonic() + _PATIENCE, threading.get_ident()
        for left, thread in list(self._users.items()):
            if thread != this and left.acquire(timeout=max(0.0, until - time.monotonic())):
                left.release()
        self._close_unused()

    def _close_unused(self) -> None:
        if not self._users and not self._is_closed and self.is_ours:
            self._alone(self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._stack.close()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            with suppress(GotraceError):  # what went wrong first is what counts
                self.close()
        elif not self._is_kept:
            self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            if not self._is_closed:
                self.close()
