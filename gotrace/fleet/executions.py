# SPDX-License-Identifier: Apache-2.0
"""Count the processes of targets that end before gotraced has found the file that they run.

A file that is traced is traced in all its processes, so only those are missed that come before. A
look at the processes that there are does not see what has ended: the kernel says who executes what
(bpf/executions.c).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence, Set

from gotrace.errors import GotraceError
from gotrace.fleet.config import TargetSpec
from gotrace.fleet.targets import ProgramKey
from gotrace.kernel.btf import kernel_field
from gotrace.kernel.program import BpfProgram
from gotrace.session.open_calls import Diagnostic, diagnostics
from gotrace.settings import ExecutionSettings

ANY_USER = 0xFFFFFFFF
_NAME = struct.Struct("=16sI")
_FILE = struct.Struct("=QQ")
_NAME_LENGTH = 15  # bytes that the kernel keeps of a name
_FILES = 4096
_PROCESSES = 8192


class Executions:
    """Counts for those targets that are meant by a name alone, or by a name and a user."""

    def __init__(self, targets: Sequence[TargetSpec]) -> None:
        """Load and attach. Raises GotraceError where the kernel cannot be asked."""
        named = [t for t in targets if t.comm and not (t.cgroup or t.kubernetes)]
        keys = {target.name: _key(target) for target in named}
        slots = {key: slot for slot, key in enumerate(dict.fromkeys(keys.values()))}
        self._slots = {name: slots[key] for name, key in keys.items()}
        self._traced: set[tuple[int, int]] = set()
        self._program: BpfProgram | None = None
        if slots:
            self._program = _attached(slots)

    def follow(self, traced: Set[ProgramKey]) -> None:
        """Take note of which files are traced now."""
        if self._program is None:
            return
        now = {(key.inode, self._slots[key.target]) for key in traced if key.target in self._slots}
        files = self._program.map("traced_files")
        for gone in self._traced - now:
            files.delete(_FILE.pack(*gone))
        self._traced &= now
        for new in now - self._traced:
            files.update(_FILE.pack(*new), b"\1")
            self._traced.add(new)

    def missed(self) -> dict[str, int]:
        """Return how many processes of each target have ended so, for those that are counted."""
        if self._program is None:
            return {}
        counts = self._program.map("missed").sums()
        return {name: counts[slot] for name, slot in self._slots.items()}

    def lost(self) -> int:
        """Return how many processes were not followed, as there were too many at once."""
        if self._program is None:
            return 0
        return diagnostics(self._program)[Diagnostic.EXECUTIONS_FULL]

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None


def _key(target: TargetSpec) -> bytes:
    name = os.fsencode(target.comm or "")[:_NAME_LENGTH]
    return _NAME.pack(name, ANY_USER if target.user is None else target.user)


def _attached(slots: dict[bytes, int]) -> BpfProgram:
    """Return the program that counts. Raises GotraceError."""
    file = kernel_field(("linux_binprm", "file"))
    inode = kernel_field(("file", "f_inode"))
    number = kernel_field(("inode", "i_ino"))
    if file is None or inode is None or number is None:
        raise GotraceError("this kernel's BTF does not say where files and inodes are")
    settings = ExecutionSettings(
        executed_names=len(slots),
        traced_files=_FILES,
        executions=_PROCESSES,
        bprm_file=file,
        file_inode=inode,
        inode_number=number,
    )
    program = BpfProgram(settings)
    try:
        for key, slot in slots.items():
            program.map("executed_names").update(key, slot.to_bytes(8, "little"))
        program.attach_tracepoint("sched_process_exit", ["on_exit"])
        program.attach_tracepoint("sched_process_exec", ["on_execution"])
    except BaseException:
        program.close()
        raise
    return program
