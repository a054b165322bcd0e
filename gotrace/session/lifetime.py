# SPDX-License-Identifier: Apache-2.0
"""Whether a run's target has become another program, or its files others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from gotrace.elf.image import ElfImage, FileIdentity
from gotrace.session.plan import BinaryPlan, ProbePlan
from gotrace.target.process import Executable, ProcessError
from gotrace.target.target import Target


class _Code:
    """The code of a file's traced functions when their sites were chosen."""

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
    """A watch for changes of the target's program, and of the code of its traced files."""

    #: Seconds between two looks: neither change is announced by the kernel without more probes.
    PERIOD = 1.0

    def __init__(self, target: Target, plan: ProbePlan) -> None:
        self._process = target.process
        self._program = target.program
        if self._program is None and target.process is not None:
            self._program = target.process.program()
        self._command = target.command.path if target.command else None
        self._images = [plan.binary.image for plan in plan.binaries]
        # The process's program cannot be written to: that ends in ETXTBSY.
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
