# SPDX-License-Identifier: Apache-2.0
"""Name run-time addresses of a target: the goroutines' start functions and creation sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gotrace.elf.functions import FuncInfo, FunctionTable, Origin
from gotrace.elf.image import PF_X
from gotrace.errors import GotraceError
from gotrace.profiles.rows import CodeMapping, Line, PprofLocation
from gotrace.sites.machine import machine_code
from gotrace.target.process import Process
from gotrace.target.target import TargetBinary, load_bias

#: Packages through which one goroutine wakes another.
_PLUMBING = ("runtime.", "_.", "sync.", "internal/", "time.", "syscall.")


def is_plumbing(function: str) -> bool:
    """Return whether a function is one by which others unlock, send, or wait, or is not known."""
    return function.startswith((*_PLUMBING, "0x"))


#: Return addresses whose frames are kept: stacks have the same ones over and over.
_MAX_CACHED = 1 << 16


class _File:
    """One file's functions and where processes have mapped it."""

    def __init__(self, file: TargetBinary, alone: bool) -> None:
        """Take the file, and whether every process that is traced runs it."""
        self._binary = file
        self._alone = alone
        self._biases: dict[int, int] = {}

    @property
    def table(self) -> FunctionTable:
        """Return the functions, read again where the file has let go of them."""
        return self._binary.functions

    def bias(self, tgid: int) -> int | None:
        """Return where a process has the file, None where it has not, or that is not known."""
        if self._alone or self._binary.process is not None:
            common = self._binary.find_bias()
            if common is not None:
                return common
        if tgid not in self._biases:
            try:
                found = load_bias(self._binary.image, Process(tgid))
            except GotraceError:
                return None
            if found is None:
                return None
            self._biases[tgid] = found
        return self._biases[tgid]

    def is_of(self, binary: TargetBinary) -> bool:
        return self._binary is binary

    def mapping(self) -> CodeMapping:
        """Return where the code is, as linked where that differs by process."""
        code = [one for one in self._binary.image.segments if one.flags & PF_X]
        bias = self._binary.find_bias() or 0
        start = min((one.address for one in code), default=0)
        end = max((one.address + one.memory_size for one in code), default=0)
        return CodeMapping(start + bias, end + bias, self._binary.image.display)

    def wrapped(self, wrapper: FuncInfo) -> str | None:
        """Return the first function outside of the runtime that a wrapper calls or has inlined."""
        code = self._binary.image.read(wrapper.entry, wrapper.end - wrapper.entry)
        for call in machine_code(self._binary.image.arch).control_flow(code).calls:
            frames = self.table.inlined_at(wrapper.row, wrapper.entry + call.at)
            called = self.table.find(wrapper.entry + call.target)
            direct = called.name if called else ""
            name = frames[-2].name if len(frames) > 1 else direct
            if name and not name.startswith("runtime."):
                return name
        return None


class Symbolizer:
    """The functions at addresses of processes that run some files, each with its load biases."""

    def __init__(self, files: Sequence[TargetBinary]) -> None:
        self._files = [_File(file, len(files) == 1) for file in files]
        self._frames: dict[tuple[int, int], list[tuple[str, str, int]]] = {}

    @classmethod
    def of(cls, files: Sequence[TargetBinary]) -> Symbolizer | None:
        return cls(files) if files else None

    def _find(self, tgid: int, pc: int) -> tuple[_File, FuncInfo, int] | None:
        """Return the file and the function that hold a run-time address, and where it is there."""
        for file in self._files:
            bias = file.bias(tgid)
            function = None if bias is None else file.table.find(pc - bias)
            if bias is not None and function is not None:
                return file, function, pc - bias
        return None

    def bias_of(self, binary: TargetBinary, tgid: int) -> int | None:
        """Return where a process has a file, None where it has not, or that is not known."""
        found = (file for file in self._files if file.is_of(binary))
        return next((file.bias(tgid) for file in found), None)

    def locations(self, tgid: int, stack: Iterable[int]) -> list[PprofLocation]:
        """Return the frames of return addresses of a process for a profile, in the same order."""
        located = []
        for pc in stack:
            lines = tuple(Line(*frame) for frame in self.frames_before(tgid, pc))
            located.append(PprofLocation(pc - 1, lines or (Line(f"{pc:#x}", "", 0),)))
        return located

    def mappings(self) -> list[CodeMapping]:
        """Return where the files' code is for a profile, as linked where processes differ."""
        return [file.mapping() for file in self._files]

    def learn(self, processes: Iterable[int]) -> None:
        """Read processes' biases while they live."""
        for tgid in processes:
            for file in self._files:
                file.bias(tgid)

    def started(self, tgid: int, pc: int) -> str | None:
        """Return the name of the function that a go statement started, by its entry.

        For a call with arguments that is a wrapper of the compiler's, ``gowrap1`` or the like:
        then what that calls is meant.
        """
        found = self._find(tgid, pc)
        if found is None:
            return None
        file, function, _ = found
        if function.origin is Origin.PCLNTAB and file.table.is_wrapper(function.row):
            return file.wrapped(function) or function.name
        return function.name

    def line_before(self, tgid: int, pc: int) -> str | None:
        """Return ``file:line`` of the instruction before a return address, as Go's dumps do."""
        found = self._find(tgid, pc - 1)
        line = found[0].table.source_line(found[2]) if found else None
        return f"{line.file.rsplit('/', 1)[-1]}:{line.line}" if line else None

    def frames_before(self, tgid: int, pc: int) -> list[tuple[str, str, int]]:
        """Return (function, file, line) of the call before a return address, innermost first.

        Several where functions are inlined there; none where the address is not known.
        """
        frames = self._frames.get((tgid, pc))
        if frames is not None:
            return frames
        found = self._find(tgid, pc - 1)
        if found is None:
            return []
        file, function, address = found
        inlined = file.table.inlined_at(function.row, address)
        frames = [(frame.name, frame.file, frame.line) for frame in inlined]
        if len(self._frames) < _MAX_CACHED:
            self._frames[tgid, pc] = frames
        return frames
