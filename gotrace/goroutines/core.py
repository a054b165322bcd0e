# SPDX-License-Identifier: Apache-2.0
"""The goroutines of a process that has left a core file.

Layouts: System V gABI chapter 5 (program header), core(5); notes as the kernel writes them
(fs/binfmt_elf.c, elf_core_dump) and gcore does: NT_AUXV, NT_FILE.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gotrace.architecture import ARCHITECTURES
from gotrace.closing import Closing
from gotrace.elf.image import PT_LOAD, ElfImage
from gotrace.errors import GotraceError
from gotrace.goroutines.dump import Dump, take_dump
from gotrace.goroutines.memory import is_loaded
from gotrace.goroutines.program import CodeNames, Module, allgs_of, module_of
from gotrace.gotypes.binary import Binary
from gotrace.records import dataclass

if TYPE_CHECKING:
    from gotrace.goroutines.arguments import Arguments
    from gotrace.goroutines.heap import HeapProfile
    from gotrace.goroutines.waits import WaitReader

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_ET_CORE, _PT_NOTE = 4, 4
_PN_XNUM = 0xFFFF
_NT_AUXV, _NT_FILE = 6, 0x46494C45
_AT_ENTRY = 9
_AUXV_PAIR = struct.Struct("<QQ")

#: vm.max_map_count is 65,530 by default; a process with many more is a damaged file.
_MAX_SEGMENTS = 1 << 20
_MAX_NOTES = 1 << 26
_MAX_FILES = 4096


class CoreError(GotraceError):
    """Report a file that is not a core file of such a process as is wanted."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Memory in a core file: ``file_size`` bytes of it are there, at ``offset``."""

    address: int
    offset: int
    file_size: int
    memory_size: int


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A file that was mapped, and which part of it where."""

    start: int
    end: int
    offset: int
    path: str


class CoreMemory:
    """The memory in a core file; if the kernel left a part out, that of the files mapped there.

    By default the kernel writes no pages of files that are only read (coredump_filter, core(5)).
    """

    def __init__(self, path: str) -> None:
        """Open a core file. Raises CoreError where it is not one."""
        try:
            with open(path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is empty"
            raise CoreError(f"{path}: cannot open: {reason}") from None
        self._path = path
        self._modules: list[Module] = []
        try:
            self._segments, notes = self._read_headers()
            self._starts = [segment.address for segment in self._segments]
            self.entry, self.files = self._read_notes(notes)
        except (struct.error, IndexError, OverflowError):
            self.close()
            raise CoreError(f"{path}: the core file is damaged or cut off") from None
        except CoreError:
            self.close()
            raise

    def close(self) -> None:
        self._data.close()

    def lay_under(self, module: Module) -> None:
        """Take memory that the core file lacks from a file that was mapped."""
        self._modules.append(module)

    def gather(self, places: Sequence[int]) -> bytearray:
        """Return the bytes at places; zeros where neither file has them."""
        into = bytearray()
        for address, size in zip(places[::2], places[1::2], strict=True):
            into += self._read(address, size)
        return into

    def scatter(self, places: array[int], into: array[int], parts: array[int]) -> None:
        """Copy memory at places to parts of ``into``; zeros if neither file has it."""
        with memoryview(into) as words, words.cast("B") as raw:
            for address, size, at in zip(places[0::2], places[1::2], parts[0::2], strict=True):
                raw[at : at + size] = self._read(address, size)

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes at an address, None where neither file has them in one piece."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            segment = self._segments[index]
            if address + size <= segment.address + segment.file_size:
                at = segment.offset + address - segment.address
                content = self._data[at : at + size]
                if len(content) == size:
                    return content
        for module in self._modules:
            with suppress(GotraceError):
                return bytes(module.binary.image.read(address - module.bias, size))
        return None

    def _read(self, address: int, size: int) -> bytes:
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            segment = self._segments[index]
            if address + size <= segment.address + segment.file_size:
                at = segment.offset + address - segment.address
                content = self._data[at : at + size]
                if len(content) == size:
                    return content
        if size <= 1 << 20:
            for module in self._modules:
                with suppress(GotraceError):
                    return module.binary.image.read(address - module.bias, size)
        pieces = self._page_by_page(address, size)
        return b"".join(pieces)

    def _page_by_page(self, address: int, size: int) -> Iterator[bytes]:
        """Yield memory that reaches over several segments."""
        end = address + size
        while address < end:
            index = bisect_right(self._starts, address) - 1
            length = min(end - address, 4096 - address % 4096)
            content = b""
            if index >= 0:
                segment = self._segments[index]
                left = segment.address + segment.file_size - address
                at = segment.offset + address - segment.address
                content = self._data[at : at + min(length, max(left, 0))]
            yield content.ljust(length, b"\0")
            address += length

    def _read_headers(self) -> tuple[list[_Segment], list[tuple[int, int]]]:
        data, path = self._data, self._path
        if data[:6] != b"\x7fELF\x02\x01":
            raise CoreError(f"{path}: is not a core file")
        _, kind, machine, _, _, at, sections, _, _, _, count, _, _, _ = _FILE_HEADER.unpack_from(
            data, 0
        )
        if kind != _ET_CORE:
            raise CoreError(f"{path}: is an ELF file, but not a core file")
        self.arch = next((arch for arch in ARCHITECTURES if arch.elf_machine == machine), None)
        if self.arch is None:
            known = " or ".join(arch.name for arch in ARCHITECTURES)
            raise CoreError(f"{path}: is the core file of another processor than {known}")
        if count == _PN_XNUM:  # then the number is in the first section's sh_info
            (count,) = struct.unpack_from("<I", data, sections + 44)
        if count > _MAX_SEGMENTS:
            raise CoreError(f"{path}: the core file is damaged: it claims {count} segments")
        segments, notes = [], []
        for index in range(count):
            values = _SEGMENT.unpack_from(data, at + index * _SEGMENT.size)
            kind, _, offset, address, _, file_size, memory_size, _ = values
            if kind == PT_LOAD:
                segments.append(_Segment(address, offset, file_size, memory_size))
            elif kind == _PT_NOTE and file_size <= _MAX_NOTES:
                notes.append((offset, file_size))
        segments.sort(key=lambda segment: segment.address)
        return segments, notes

    def _read_notes(self, places: list[tuple[int, int]]) -> tuple[int | None, list[_Mapped]]:
        """Return the program's entry point at run time, and the files that were mapped."""
        entry: int | None = None
        files: list[_Mapped] = []
        for offset, size in places:
            end = offset + size
            while offset + _NOTE.size <= end:
                name_size, content_size, kind = _NOTE.unpack_from(self._data, offset)
                content_at = offset + _NOTE.size + (name_size + 3 & ~3)
                content = self._data[content_at : min(content_at + content_size, end)]
                if kind == _NT_AUXV:
                    pairs = _AUXV_PAIR.iter_unpack(content[: len(content) & ~15])
                    entry = next((value for key, value in pairs if key == _AT_ENTRY), entry)
                elif kind == _NT_FILE:
                    files = _mapped_files(content)
                offset = content_at + (content_size + 3 & ~3)
        return entry, files


def _mapped_files(content: bytes) -> list[_Mapped]:
    """Return the mapped files of a note of type NT_FILE."""
    count, page = struct.unpack_from("<QQ", content)
    names = content[16 + 24 * count :].split(b"\0")
    rows = struct.iter_unpack("<QQQ", content[16 : 16 + 24 * min(count, len(names))])
    return [
        _Mapped(start, end, offset * page, os.fsdecode(name))
        for (start, end, offset), name in zip(rows, names, strict=False)
    ]


class CoreGoroutines(Closing):
    """The goroutines in a core file of a program; a context manager."""

    def __init__(self, core: str, binary: str, debug_file: str | None = None) -> None:
        """Open the files. Raises GotraceError where they do not belong together."""
        self._memory = CoreMemory(core)
        self._binaries = [Binary(ElfImage.open(binary))]
        self._tried: set[str] = {binary}
        try:
            if debug_file is not None:
                self._binaries[0].take_debug_file(debug_file)
            main = self._main(core, self._binaries[0])
            self._memory.lay_under(main)
            self.program = CodeNames(main, self._find_more)
            self._layout = main.binary.runtime
            self.wait_reasons = main.binary.wait_reasons
            self._allgs = allgs_of(main.binary) + main.bias
        except BaseException:
            self.close()
            raise

    def take(self) -> Dump:
        """Read all goroutines. How long they have waited is not known: the time is not there."""
        return take_dump(
            self.program, self._memory, self._layout, self.wait_reasons, self._allgs, None
        )

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
        self._memory.close()
        for binary in self._binaries:
            binary.close()

    def _main(self, core: str, binary: Binary) -> Module:
        """Return the module with the runtime: the file that was given, or a library mapped there.

        A C program has its goroutines in a library: either of the two can be given.
        """
        if binary.image.arch is not self._memory.arch:
            raise CoreError(f"{core}: is not a core file of {binary.image.display}")
        if binary.functions.has_pclntab:
            module = self._module_of(core, binary)
            if is_loaded(module, self._memory):
                return module
        elif not self._was_mapped(binary):
            raise CoreError(f"{core}: is not a core file of {binary.image.display}")
        elif library := self._library():
            return library
        if not binary.functions.has_pclntab:
            raise CoreError(f"{binary.image.display}: is not a program of the Go compiler")
        raise CoreError(
            f"{core}: is not a core file of {binary.image.display}, or lacks its memory"
        )

    def _module_of(self, core: str, binary: Binary) -> Module:
        image = binary.image
        if image.is_shared_library:
            for mapped in self._memory.files[:_MAX_FILES]:
                if os.path.basename(mapped.path) == os.path.basename(image.display):
                    with suppress(GotraceError):
                        return module_of(binary, mapped.start - image.address_of(mapped.offset))
            raise CoreError(f"{core}: does not say where {image.display} was (NT_FILE)")
        if not image.is_pie:
            return module_of(binary, 0)
        if self._memory.entry is None:
            raise CoreError(f"{core}: does not say where the program was (no NT_AUXV)")
        return module_of(binary, self._memory.entry - image.entry)

    def _was_mapped(self, binary: Binary) -> bool:
        """Return whether the process had a file of this name, wherever it was."""
        name = os.path.basename(binary.image.display)
        files = self._memory.files[:_MAX_FILES]
        return any(os.path.basename(mapped.path) == name for mapped in files)

    def _library(self) -> Module | None:
        """Return the first library that was mapped and has a runtime, as it is on disk now."""
        for mapped in self._memory.files[:_MAX_FILES]:
            module = self._mapped(mapped)
            if module is not None and is_loaded(module, self._memory):
                return module
        return None

    def _mapped(self, mapped: _Mapped) -> Module | None:
        """Return the module of a mapped file; None where it has no Go code or was tried before."""
        if mapped.path in self._tried:
            return None
        self._tried.add(mapped.path)
        with suppress(GotraceError):
            binary = Binary(ElfImage.open(mapped.path))
            self._binaries.append(binary)
            if binary.functions.has_pclntab:
                return module_of(binary, mapped.start - binary.image.address_of(mapped.offset))
        return None

    def _find_more(self, pc: int) -> Module | None:
        """Return the module of a plugin's code, None where no Go code is at an address."""
        for mapped in self._memory.files[:_MAX_FILES]:
            if mapped.start <= pc < mapped.end:
                return self._mapped(mapped)
        return None
