# SPDX-License-Identifier: Apache-2.0
"""The goroutines of a live process."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gotrace.closing import Closing
from gotrace.elf.functions import FunctionTable
from gotrace.errors import GotraceError, NoMatchError
from gotrace.goroutines.dump import Dump, Fields, GoroutineReader, take_dump
from gotrace.goroutines.memory import ProcessMemory, is_loaded
from gotrace.goroutines.program import CodeNames, Module, allgs_of, module_of
from gotrace.goroutines.samples import Sample, sample_threads
from gotrace.gotypes.binary import Binary
from gotrace.target.process import MemoryMapping, Process, ProcessError
from gotrace.target.target import Target, TargetBinary

if TYPE_CHECKING:
    from gotrace.goroutines.arguments import Arguments
    from gotrace.goroutines.heap import HeapProfile
    from gotrace.goroutines.waits import WaitReader
    from gotrace.goroutines.watch import GoroutineWatch
    from gotrace.probes.pattern import NameList

#: No process at hand has mapped more files with code than some hundred.
_MAX_FILES = 4096
#: Code may be mapped at any moment: how often it is looked for, at most.
_CODE_SECONDS = 1.0


class GoFiles:
    """The files with Go code that a target's process has mapped."""

    def __init__(self, target: Target) -> None:
        assert target.process is not None
        self._target = target
        self._process: Process = target.process
        self._libraries: dict[tuple[int, str], TargetBinary | None] = {}
        self._code: list[tuple[int, int, str]] = []
        self._code_read = 0.0

    def runtime(self) -> TargetBinary:
        """Return the file with the runtime: the program, or else a library that it has loaded.

        Raises GotraceError where there is none.
        """
        binary = self._target.binary(None)
        if has_runtime(binary):
            return binary
        for library in self._target.libraries():
            if has_runtime(library):
                return library
        why = self._target.started(has_runtime, "runs a Go program")
        if not why and binary.functions.has_pclntab:
            raise GotraceError(
                f"{binary.image.display}: has no runtime.allgadd: not a Go program of Go 1.15 to"
                " 1.27"
            )
        other = ": gccgo's and others keep goroutines in other ways"
        raise GotraceError(
            f"process {self._process.tgid} ({binary.image.display}) runs no program of the Go"
            f" compiler{why or other}"
        )

    def all_with_runtime(self) -> list[TargetBinary]:
        """Return all files with code of the runtime: plugins run a copy of their own.

        Raises GotraceError where there is none. Of a command that has not been started, its
        program.
        """
        first = self.runtime()
        if self._target.command is not None:
            return [first]
        others = (library for library in self._target.libraries() if has_runtime(library))
        return list(dict.fromkeys([first, *others]))

    def module(self, binary: TargetBinary) -> Module:
        """Return where a file is in memory. Raises GotraceError where it is not mapped."""
        bias = binary.find_bias()
        if bias is None:
            raise GotraceError(
                f"process {self._process.tgid} has not mapped {binary.image.display}: it runs"
                " another program by now"
            )
        return module_of(binary, bias)

    def find(self, pc: int) -> Module | None:
        """Return the module of a library's code, Go's or not; None if no file's is there."""
        for mapping in self._mappings():
            if mapping.start <= pc < mapping.end:
                library = self._library(mapping)
                return self.module(library) if library is not None else None
        return None

    @cached_property
    def program(self) -> CodeNames:
        """The names of addresses: of a command, once it runs.

        Raises GotraceError if there is no Go program.
        """
        return CodeNames(self.module(self.runtime()), self.find)

    def check_functions(self, patterns: Iterable[str]) -> None:
        """Raise NoMatchError for a pattern that no function can match, inlined ones included.

        UsageError for a bad pattern; GotraceError. A command that waits may still load plugins: if
        its program can, their functions are not known, and nothing is refused.
        """
        from gotrace.probes.pattern import Pattern
        from gotrace.probes.recipes import functions_of
        from gotrace.probes.select import InlinedScope, Selector

        target = self._target
        for word in patterns:
            texts, program = functions_of(word), target.binary(None)
            meant = list(map(Pattern, texts))
            others = target.libraries() if target.has_started else target.linked()
            files = [program, *others]
            names = [each for file in files for each in _all_names(file.functions)]
            if not target.has_started and "plugin.open" in program.functions.names:
                continue
            if any(pattern.match(each).rows for pattern in meant for each in names):
                continue
            if texts != [word]:
                raise NoMatchError(f"{program.image.display} has no function of {word}")
            selector = Selector(texts)
            selector.select(program.functions, verb="find", inlined=InlinedScope.MATCHED)

    def _mappings(self) -> list[MemoryMapping]:
        with suppress(ProcessError):
            return list(self._process.mappings())[:_MAX_FILES]
        return []

    def _library(self, mapping: MemoryMapping) -> TargetBinary | None:
        """Open a mapped file, once; None where it is not an ELF file with functions."""
        key = (mapping.inode, mapping.path)
        if key not in self._libraries:
            self._libraries[key] = None
            with suppress(GotraceError, OSError):
                library = self._target.binary(mapping.path)
                if len(library.functions):
                    self._libraries[key] = library
        return self._libraries[key]

    def code_name(self, pc: int) -> str:
        """Return the name that perf shows for an address of code: ``[libm.so.6]``, ``[vdso]``.

        "" if no code is there, or the process had ended before this was asked for first.
        """
        found = _holder(self._code, pc)
        if not found and time.monotonic() > self._code_read + _CODE_SECONDS:
            self._code_read = time.monotonic()
            with suppress(ProcessError):
                self._code = list(self._process.code())
            found = _holder(self._code, pc)
        return found


def _holder(code: Iterable[tuple[int, int, str]], pc: int) -> str:
    return next((name for start, end, name in code if start <= pc < end), "")


def _all_names(table: FunctionTable) -> Iterator[NameList]:
    """Yield the names of a file's functions, then of those that are inlined in them."""
    from gotrace.probes.pattern import NameList

    yield NameList(table.names, gccgo=not table.has_pclntab)
    inlined = table.inlined_by_name()
    if inlined is not None:
        yield NameList(inlined.names)


class LiveGoroutines(Closing):
    """A process whose goroutines can be read, again and again; a context manager.

    ``wait_reasons`` of the program are None where they were not found: then no goroutine has one.
    """

    def __init__(self, target: Target) -> None:
        """Find the Go runtime in a target's process. Raises GotraceError where there is none."""
        assert target.process is not None
        self._process: Process = target.process
        self._memory = ProcessMemory(self._process)
        try:
            self.program = GoFiles(target).program
            main = self.program.main
            if not is_loaded(main, self._memory):
                raise GotraceError(
                    f"process {self._process.tgid} runs another program by now than"
                    f" {main.binary.image.display}, or has only just been started"
                )
            self._layout = main.binary.runtime
            self.wait_reasons = main.binary.wait_reasons
            self._allgs = allgs_of(main.binary) + main.bias
        except BaseException:
            self._memory.close()
            raise

    def take(self) -> Dump:
        """Read all goroutines. Raises ProcessError when the process has ended."""
        return take_dump(
            *(self.program, self._memory, self._layout, self.wait_reasons, self._allgs),
            now=self.now(),
            sample=self.sample,
        )

    def watch(self) -> GoroutineWatch:
        """Return a watch that reads all goroutines again and again: those again that have run."""
        from gotrace.goroutines.watch import GoroutineWatch

        reader = GoroutineReader(self.program, self._memory, self._layout, self.wait_reasons)
        return GoroutineWatch(
            *(self.program, self._memory, Fields(self._layout), reader, self._allgs),
            now=self.now,
            sample=self.sample,
        )

    def now(self) -> int:
        """Return the time on the process's monotonic clock, in ns."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) + _clock_offset(self._process)

    def sample(self) -> Iterable[Sample]:
        return sample_threads(self._process.threads())

    def words(self, *places: tuple[int, int]) -> array[int]:
        """Return words of memory: addresses, and how many at each. Raises ProcessError."""
        flat = [number for at, count in places for number in (at, 8 * count)]
        return array("Q", bytes(self._memory.gather(flat)))

    def arguments(self) -> Arguments:
        """Return a reader of frames' arguments, for as long as this is open."""
        from gotrace.goroutines.arguments import Arguments  # loads all that decodes values

        return Arguments(self.program, self._memory, self._layout)

    def waits(self) -> WaitReader:
        """Return a reader of what goroutines wait for, for as long as this is open."""
        from gotrace.goroutines.waits import WaitReader  # loads the program's types

        return WaitReader(self.program, self._memory, self._layout)

    def heap(self) -> HeapProfile:
        """Return the profile that the runtime keeps of its heap. Raises GotraceError."""
        from gotrace.goroutines.heap import read_profile

        return read_profile(self.program.main, self._memory)

    def close(self) -> None:
        """Close the memory; the files belong to the target."""
        self._memory.close()


def has_runtime(binary: Binary) -> bool:
    """Return whether a file has the runtime of the Go compiler, of Go 1.15 or newer."""
    with suppress(GotraceError):
        return binary.functions.has_pclntab and bool(binary.functions.rows_named("runtime.allgadd"))
    return False


def _clock_offset(process: Process) -> int:
    """Return the offset that a process's time namespace adds to the monotonic clock, in ns."""
    try:
        offsets = Path(f"/proc/{process.tgid}/timens_offsets").read_text()
        own = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0
    return _monotonic_offset(offsets) - _monotonic_offset(own)


def _monotonic_offset(text: str) -> int:
    for line in text.splitlines():
        name, *numbers = line.split()
        if name in ("monotonic", "1") and len(numbers) == 2:
            return int(numbers[0]) * 10**9 + int(numbers[1])
    return 0
