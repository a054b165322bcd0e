# SPDX-License-Identifier: Apache-2.0
"""The same command on many hosts, so many at a time."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import IO

from gotrace.hosts.remote import (
    FAILED,
    NOT_FOUND,
    STOPPED,
    TIMED_OUT,
    HostError,
    Reach,
    RemoteRun,
)
from gotrace.records import dataclass

#: kubectl's line after a command's own words: the status, which it has as well.
_OF_KUBECTL = "command terminated with exit code "


@dataclass(frozen=True, slots=True)
class HostResult:
    """A host's output, and the fate of its command: ``problem`` is None if all is well.

    ``status`` is the command's exit status; of what never ran it is that of ssh. ``output`` is
    closed by whoever has read it.
    """

    host: str
    output: IO[bytes]
    status: int
    problem: str | None = None
    is_timed_out: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines that the host has printed, from the beginning."""
        self.output.seek(0)
        for line in self.output:
            if not line.isspace():
                yield line.decode("utf-8", "backslashreplace")


class HostRuns:
    """The runs of one command; ``stop`` and ``abandon`` may be called at any time."""

    def __init__(
        self,
        way: Reach,
        hosts: Sequence[str],
        words: Sequence[str],
        at_once: int,
        attached: Callable[[], None],
        seconds: float,
    ) -> None:
        """``attached`` is called for each host whose probes are in place, in any thread.

        The command takes ``seconds`` at most.
        """
        self._seconds = seconds
        self._way = way
        self._hosts = hosts
        self._words = words
        self._at_once = at_once
        self._attached = attached
        self._stopping = threading.Event()
        self._running: dict[str, RemoteRun] = {}

    def results(self) -> Iterator[HostResult]:
        """Run the command everywhere, and yield each host's results as they come."""
        done: Queue[HostResult] = Queue()
        try:
            with ThreadPoolExecutor(self._at_once, "host") as pool:
                for host in self._hosts:
                    pool.submit(lambda host: done.put(self._run(host)), host)
                for _ in self._hosts:
                    yield done.get()
        finally:
            self._way.close()

    def stop(self) -> None:
        """End the command everywhere; its last output still comes."""
        self._stopping.set()
        for run in list(self._running.values()):
            run.end()

    def abandon(self) -> None:
        """Wait for nothing more."""
        self._stopping.set()
        for run in list(self._running.values()):
            run.kill()

    def _run(self, host: str) -> HostResult:
        """Return a host's result, whatever fails: it is that host's alone."""
        try:
            if not self._stopping.is_set():
                with self._way.ready(host, self._stopping):
                    if not self._stopping.is_set():
                        return self._ask(host)
            problem = STOPPED
        except HostError as error:
            problem = str(error)
        except OSError as error:
            problem = f"what it prints cannot be kept: {error.strerror or error}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return HostResult(host, io.BytesIO(), FAILED, problem)

    def _ask(self, host: str) -> HostResult:
        words = self._way.words(host, self._words)
        try:
            run = RemoteRun(words, self._seconds, self._way.bundles)
        except OSError as error:
            raise HostError(f"cannot run {words[0]}: {error.strerror}") from error
        self._running[host] = run
        if self._stopping.is_set():
            run.end()
        try:
            status = run.wait(self._attached)
        finally:
            del self._running[host]
        is_timed_out = status == TIMED_OUT
        problem = None if status == 0 or is_timed_out else self._problem(status, run.errors)
        return HostResult(host, run.output, status, problem, is_timed_out)

    def _problem(self, status: int, errors: bytes) -> str:
        """Return in a line why a command has failed."""
        said = errors.decode("utf-8", "backslashreplace").strip().splitlines()
        said = [line for line in said if not line.startswith(_OF_KUBECTL)]
        if status == NOT_FOUND:
            return f"{self._words[0]} is not installed there: {self._way.brings}"
        return said[-1].strip() if said else f"ended with status {status}"
