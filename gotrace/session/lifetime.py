# SPDX-License-Identifier: Apache-2.0
"""How long a run lasts, and whether its target has become another program meanwhile."""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from gotrace.elf.image import ElfImage, FileIdentity
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import Attached
from gotrace.session.plan import BinaryPlan, ProbePlan
from gotrace.target.process import Executable, ProcessError
from gotrace.target.target import Target

__all__ = ["Lifetime", "Probing", "Run"]


class _Code:
    """Remember what the traced functions of a file consisted of when their sites were chosen."""

    def __init__(self, plan: BinaryPlan) -> None:
        image = plan.binary.image
        self.display = image.display
        self._descriptor = image.fileno()
        self._identity = image.identity
        self._places = [
            (image.offset_of(sites.function.entry), sites.function.end - sites.function.entry)
            for sites in plan.functions
        ]
        self._digest = _digest(image.data[at : at + size] for at, size in self._places)

    def has_changed(self) -> bool:
        """Return whether the code is another; that of a file that was only touched is not."""
        now = FileIdentity.of(self._descriptor)
        if now == self._identity:
            return False
        self._identity = now
        code = (os.pread(self._descriptor, size, at) for at, size in self._places)
        return _digest(code) != self._digest


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


class Lifetime:
    """Compare what the target runs now with what it ran when the probes were attached."""

    #: Seconds between two looks: neither change is announced by the kernel without more probes.
    PERIOD = 1.0

    def __init__(self, target: Target, plan: ProbePlan) -> None:
        self._process = target.process
        self._program = target.program
        if self._program is None and target.process is not None:
            self._program = target.process.program()
        self._command = target.command.path if target.command else None
        self._images = [plan.binary.image for plan in plan.binaries]
        # What the process runs cannot be written to: that ends in ETXTBSY.
        self._code = [
            _Code(binary)
            for binary in plan.binaries
            if not (self._program and self._is(binary.binary.image, self._program))
        ]
        identities = [image.identity for image in self._images]
        self._traced = {(identity.device, identity.inode) for identity in identities}
        self._files = (
            {}
            if target.process or target.processes
            else {p.binary.image.display: p.binary.image.identity for p in plan.binaries}
        )

    def replaced_program(self) -> str | None:
        """Return the path of the program that the process has turned into by exec, else None.

        The same program started again counts: Linux may have lost its probes, which it does when
        exec is called from another thread than the first. A program to be traced that follows
        another, as after ``env``, does not count.
        """
        before = self._program
        now = self._process.program() if self._process else None
        if self._process is None or now is None or now == before:
            return None
        self._program = now
        if self._is_traced(now) and not (before and self._is_traced(before)):
            return None
        try:
            return self._process.executable_name
        except ProcessError:
            return None

    @staticmethod
    def _is(image: ElfImage, program: Executable) -> bool:
        identity = image.identity
        return (program.device, program.inode) == (identity.device, identity.inode)

    def _is_traced(self, program: Executable) -> bool:
        return (program.device, program.inode) in self._traced

    def missed_command(self) -> str | None:
        """Return the path of a command that was replaced between being read and being started.

        None where what runs was read, or where the traced file is another one, as after ``env``.
        """
        path = self._command
        names = [image.display for image in self._images]
        if path is None or path not in names or self._program is None:
            return None
        return None if self._is_traced(self._program) else path

    def overwritten_file(self) -> str | None:
        """Return the name of a file in which a traced function has other bytes now, else None.

        Not its path counts, which may lead to another file now, but the file.
        """
        return next((code.display for code in self._code if code.has_changed()), None)

    def replaced_files(self) -> list[str]:
        """Return files whose path now leads to another file than the traced one, each once."""
        changed = []
        for path, identity in list(self._files.items()):
            try:
                status = os.stat(path)
                same = (status.st_dev, status.st_ino) == (identity.device, identity.inode)
            except OSError:
                same = False
            if not same:
                changed.append(path)
                del self._files[path]
        return changed


_P = TypeVar("_P", bound="Probing")


class Probing:
    """What a run traces with: probes that are stopped once. A context manager that detaches."""

    attached: Attached
    #: Whether nothing that the probes have recorded can change any more.
    stopped = False

    def stop(self) -> None:
        """Have the probes removed; after it, nothing is recorded any more. Raises OSError."""
        if not self.stopped:
            self.attached.stop()
            kernel.wait_for_programs()
            self.stopped = True

    def __enter__(self: _P) -> _P:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.attached.close()


class Run:
    """A run's time: until it is asked to end, for some seconds, or up to the target's end.

    It handles no signals, prints nothing and works in any thread. A context manager: the run is
    over at its end.
    """

    def __init__(
        self, target: Target, plan: ProbePlan, tracer: Probing, seconds: float | None
    ) -> None:
        """Begin; ``tracer`` is attached. Raises ProcessError where its end cannot be watched."""
        self._tracer = tracer
        self._lifetime = Lifetime(target, plan)
        self._look = time.monotonic() + Lifetime.PERIOD
        self._lock = threading.Lock()
        self._is_open = True
        self._timer: threading.Timer | None = None
        self._descriptors = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)]
        #: Those of the processes that have not ended.
        self._exits: set[int] = set()
        try:
            for process in target.watched:
                self._descriptors.append(process.exit_descriptor())
                self._exits.add(self._descriptors[-1])
        except BaseException:
            self.close()
            raise
        #: When the run ends (``time.monotonic``), None where that is not known.
        self.ends = None if seconds is None else time.monotonic() + seconds
        if seconds is not None:
            # The probes go in time, whatever the caller is doing then.
            self._timer = threading.Timer(seconds, self.stop)
            self._timer.daemon = True
            try:
                self._timer.start()
            except RuntimeError:  # no further thread: it is done a little later
                self._timer = None

    def stop(self) -> None:
        """Let the run end; may be called in any thread, and more than once."""
        with self._lock:
            if self._is_open:  # else its map may be another's by now
                self._tracer.attached.stop()
                os.eventfd_write(self._descriptors[0], 1)

    def is_over(self, wait: float) -> bool:
        """Wait for some seconds at most; return whether the run is over. Raises OSError.

        Then the tracer is stopped, and what it has seen can be read.
        """
        now = time.monotonic()
        until = now + wait if self.ends is None else min(now + wait, self.ends)
        poll = select.poll()
        for descriptor in (self._descriptors[0], *self._exits):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, until - now) * 1000)}
        over = self._descriptors[0] in ready
        if ended := self._exits & ready:
            self._exits -= ended
            over = over or not self._exits
        now = time.monotonic()
        over = over or (self.ends is not None and now >= self.ends)
        if not over and now >= self._look:
            self._look = now + Lifetime.PERIOD
            over = bool(self._lifetime.overwritten_file() or self._lifetime.replaced_program())
        if over:
            self._tracer.stop()
        return over

    def close(self) -> None:
        """Stop waiting for anything; the run is not asked to end any more."""
        with self._lock:
            self._is_open = False
            while self._descriptors:
                os.close(self._descriptors.pop())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
