# SPDX-License-Identifier: Apache-2.0
"""Run a tracer as its users do and watch it from outside: ready, size, work, end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.tools.harness import default_signals

_CPUS = sorted(os.sched_getaffinity(0))

#: Where targets and tracers run, apart from each other; None where there is only one CPU.
TARGET_CPU, TRACER_CPU = (_CPUS[0], _CPUS[1]) if len(_CPUS) > 1 else (None, None)

_POLL = 0.002  # seconds: how exactly "ready" is timed
_LOOK_MS = 20  # how often memory is looked at while it ends
_HEAD = 1 << 16  # bytes of output among which a tracer says that it is ready


class TracerError(Exception):
    """Report a tracer that did not attach or did not end; ``log`` is what it printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@contextmanager
def on_cpu(cpu: int | None) -> Iterator[None]:
    """Let processes that are started inside run on this CPU only; None changes nothing."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Tracer:
    """A tracer at work; a context manager that returns when its probes are attached."""

    def __init__(self, command: Command, cpu: int | None = None) -> None:
        self._command = command
        self._open = ExitStack()
        self._output = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._errors = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._peak_mb = 0.0
        self._started = time.monotonic()
        self.ready_s = 0.0
        with on_cpu(cpu):
            self._process = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                env={**os.environ, **command.env},
                preexec_fn=default_signals,  # a job of a shell in the background ignores SIGINT
            )
        self._exit = select.poll()
        pidfd = os.pidfd_open(self._process.pid)
        self._open.callback(os.close, pidfd)
        self._exit.register(pidfd, select.POLLIN)

    def __enter__(self) -> Tracer:
        try:
            self._wait_ready()
        except BaseException:
            self._close()
            raise
        return self

    def _wait_ready(self) -> None:
        while not self._command.ready(self):
            self.work_for(_POLL)
            self.ready_s = time.monotonic() - self._started
            if self.ready_s > self._command.patience:
                raise TracerError(f"not ready after {self._command.patience:.0f} s", self.errors())
        self.ready_s = time.monotonic() - self._started

    def work_for(self, seconds: float) -> None:
        """Let the tracer work; raise TracerError as soon as it ends instead."""
        if self._exit.poll(seconds * 1000):
            raise TracerError(self._complaint(), self.errors())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            if not self._exit.poll(3_000):
                self._process.kill()
        # However long the kernel takes to remove the probes: the next measurement needs it done.
        self._process.wait()
        self._open.close()

    def stop(self) -> float:
        """Interrupt the tracer and return how many seconds it took to be gone with its probes."""
        started = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        self._note_peak()
        while not self._exit.poll(_LOOK_MS):
            self._note_peak()
            if time.monotonic() - started > self._command.patience:
                raise TracerError(f"still detaching after {self._command.patience:.0f} s")
        took = time.monotonic() - started
        self._process.wait()
        return took

    @property
    def pid(self) -> int:
        """Return the tracer's process."""
        return self._process.pid

    def size(self) -> int:
        """Return how many bytes it has printed so far."""
        return os.fstat(self._output.fileno()).st_size

    def head(self) -> bytes:
        """Return the beginning of what it has printed."""
        return os.pread(self._output.fileno(), _HEAD, 0)

    def output(self) -> bytes:
        """Return all that it has printed."""
        return os.pread(self._output.fileno(), self.size(), 0)

    def errors(self) -> str:
        """Return what it has said on standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    @property
    def peak_mb(self) -> float:
        """Return the most resident memory that it had until shortly before its end."""
        return self._peak_mb

    def _note_peak(self) -> None:
        """Read proc(5)'s VmHWM, which a process has until it gives up its memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        if "VmHWM:" in status:
            self._peak_mb = int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """Return its user and system time so far: proc(5), fields 14 and 15 of stat."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _complaint(self) -> str:
        said = self.errors() + self.head().decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if "rror" in line and "RLIMIT_MEMLOCK" not in line]
        return (telling or lines or ["ended at once and said nothing"])[-1]


@dataclass(frozen=True, slots=True)
class Command:
    """Say how a tracer is started, and how one sees that its probes are attached.

    ``patience`` is for how many seconds it may attach, and again detach.
    """

    words: tuple[str, ...]
    ready: Callable[[Tracer], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    patience: float = 30.0


def printed(marker: bytes) -> Callable[[Tracer], bool]:
    """Return a test for a tracer that prints ``marker`` once it is ready."""
    return lambda tracer: marker in tracer.head()


def opened_perf_buffers(tracer: Tracer) -> bool:
    """Return whether a tracer that opens a perf buffer for each CPU after attaching has done so.

    For tracers that keep what they print in a buffer of their own.
    """
    directory = f"/proc/{tracer.pid}/fd"
    try:
        names = [os.readlink(f"{directory}/{fd}") for fd in os.listdir(directory)]
    except FileNotFoundError:
        return False
    return names.count("anon_inode:[perf_event]") > (os.cpu_count() or 1)
