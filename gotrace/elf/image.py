# SPDX-License-Identifier: Apache-2.0
"""ELF executables and shared libraries: headers, and addresses translated to bytes of the file.

Layouts are those of the System V gABI, chapters 4 (ELF header, sections) and 5 (program header).
They are read here and not by pyelftools, since every command reads them at its start: importing
it takes longer than all that is read (docs/decisions has the figures).
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TypeVar, cast

from gotrace.architecture import ARCHITECTURES, Architecture
from gotrace.closing import Closing
from gotrace.elf import ElfError
from gotrace.elf.relocations import Relocations, dynamic_entries
from gotrace.elf.scan import find_all
from gotrace.errors import GotraceError
from gotrace.records import dataclass

_T = TypeVar("_T")

ET_EXEC, ET_DYN = 2, 3
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
PF_X, PF_W = 1, 2
SHT_NOBITS = 8
SHN_LORESERVE = 0xFF00

_KNOWN = " and ".join(arch.name for arch in ARCHITECTURES)
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")

#: No linker writes more program headers than this; a larger number is a damaged header.
_MAX_SEGMENTS = 1024

#: SHT_NOBITS sections have no bytes in the file, but offsets have to be such as a file can have.
_MAX_NOBITS = (1 << 63) - 1

_ADDRESSES = 1 << 64

#: No section name that means anything to a tracer is longer.
_MAX_SECTION_NAME = 256

_OTHER_TYPES = {1: "an object file (not linked)", 4: "a core dump"}
_OTHER_MACHINES = {
    2: "SPARC",
    3: "386",
    8: "MIPS",
    20: "PowerPC",
    21: "PowerPC64",
    22: "S/390",
    40: "ARM (32-bit)",
    243: "RISC-V",
    247: "BPF",
    258: "LoongArch",
}

DT_SONAME, DT_FLAGS_1 = 14, 0x6FFFFFFB
DF_1_PIE = 0x08000000
SHF_COMPRESSED = 0x800
ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD = 1, 2

#: Debug sections of the largest Go programs have a tenth of this; a larger claim is refused.
_MAX_DECOMPRESSED = 1 << 29

_MAX_COPIED = 1 << 30
_NOT_MADE = object()


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The ELF header; offsets and sizes in bytes."""

    type: int
    arch: Architecture
    entry: int
    segments_offset: int
    segment_count: int
    sections_offset: int
    section_count: int
    names_index: int


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; ``size`` is that of the raw bytes in the file."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entsize: int
    index: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; addresses are link-time virtual addresses."""

    type: int
    flags: int
    address: int
    offset: int
    file_size: int
    memory_size: int


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One state of one file, as ``fstat`` reports it."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | int) -> FileIdentity:
        """Return the present state of a file, by path or descriptor. Raises OSError."""
        status = os.stat(path)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class ElfImage(Closing):
    """Read-only access to one ELF file's bytes, by address, by section and by offset.

    A context manager. The file is mapped, not read; its descriptor stays open, so that the same
    inode can still be reached when the path has been replaced or deleted. Addresses are link-time
    virtual addresses.
    """

    def __init__(
        self,
        path: str,
        display: str,
        descriptor: int,
        data: mmap.mmap,
        identity: FileIdentity,
        is_copied: bool = False,
        largest_section: int = _MAX_DECOMPRESSED,
        has_code: bool = True,
    ) -> None:
        """Parse the headers of an open and mapped file; use :meth:`open` instead.

        ``identity`` is the state of the file before anything of it was read. ``is_copied``:
        ``data`` is a copy, which can be made again. ``largest_section`` and
        ``has_code`` are as for :meth:`open`.
        """
        self.path = path
        self.display = display
        self.identity = identity
        self._data: mmap.mmap | None = data
        self._is_copied = is_copied
        self.largest_section = largest_section
        self._descriptor = descriptor
        self._header: FileHeader = _read_file_header(data, display)
        self.arch = self._header.arch
        self.segments = _read_segments(data, self._header, display) if has_code else ()
        self._loads = tuple(segment for segment in self.segments if segment.type == PT_LOAD)
        self._unpacked: dict[int, bytes] = {}
        self._made: dict[object, object] = {}
        #: Whether no process that gets breakpoints in this file hashes its code any more.
        self.hash_is_over = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        display: str | None = None,
        *,
        copied: bool = False,
        largest_section: int | None = None,
        has_code: bool = True,
    ) -> ElfImage:
        """Open and map a file.

        ``display`` is the name used in messages, for a path that says nothing to a user, such as
        ``/proc/PID/exe``. ``copied``: read the file at once, since it may be written to: the kernel
        ends a process that reads a mapping beyond the end of a file that has become shorter. A
        gigabyte and more is mapped all the same. ``largest_section`` is how many bytes a compressed
        section may have when it is decompressed, half a gigabyte by default. Unless ``has_code``,
        the file need not have the bytes of its segments. Raise ElfError when the file cannot be
        opened or is not a linked 64-bit ELF file for a known machine.
        """
        path = os.fspath(path)
        display = path if display is None else display
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if isinstance(error, PermissionError):
                reason = f"{reason}: run as who may read it, or with CAP_DAC_READ_SEARCH"
            raise ElfError(f"{display}: cannot open: {reason}") from None
        try:
            identity = FileIdentity.of(descriptor)
            whole = _map(descriptor, display)
            is_copied = copied and identity.size < _MAX_COPIED
            if is_copied:
                whole.close()
                whole = _copy(descriptor, display, identity)
            most = _MAX_DECOMPRESSED if largest_section is None else largest_section
            return cls(path, display, descriptor, whole, identity, is_copied, most, has_code)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Close the descriptor and drop the mapping; further calls do nothing.

        While views from :meth:`section_bytes` live, the mapping stays until the last one dies.
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        data, self._data = self._data, None
        if data is not None:
            with suppress(BufferError):
                data.close()

    @property
    def data(self) -> mmap.mmap:
        """Return all bytes of the file, as they were when it was opened.

        Raises ElfError if they have to be read again and the file was written to.
        """
        data = self._data
        if data is None:
            data = self._data = _copy(self._descriptor, self.display, self.identity)
        return data

    def rest(self) -> None:
        """Drop a copy and everything that was made of it, until more is asked for.

        The parts that others hold stay. Any thread may read meanwhile.
        """
        if self._is_copied:
            self._data = None
        self._unpacked.clear()
        self._made.clear()

    def _bytes(self, start: int, end: int) -> bytes:
        """Return bytes of the file, without a copy of the rest if there is none.

        Raises ElfError as ``data`` does.
        """
        data = self._data
        if data is not None:
            return data[start:end]
        try:
            content = os.pread(self._descriptor, end - start, start)
            if FileIdentity.of(self._descriptor) == self.identity:
                return content
            reason = "it was written to"
        except OSError as error:
            reason = error.strerror or str(error)
        raise ElfError(f"{self.display}: cannot be read again: {reason}")

    def fileno(self) -> int:
        """Return the open descriptor: ``/proc/self/fd/N`` is the very inode that was read."""
        return self._descriptor

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return the sections whose bytes are in the file; empty without section headers."""
        return _read_sections(self.data, self._header)

    @cached_property
    def _sections_by_name(self) -> dict[str, Section]:
        return {section.name: section for section in reversed(self.sections)}

    @cached_property
    def _dynamic(self) -> dict[int, int]:
        for segment in self.segments:
            if segment.type == PT_DYNAMIC:
                return dynamic_entries(self.data, segment.offset, segment.file_size)
        return {}

    @cached_property
    def is_pie(self) -> bool:
        """Return whether this is a position-independent executable."""
        if self._header.type != ET_DYN:
            return False
        if self._dynamic.get(DT_FLAGS_1, 0) & DF_1_PIE:
            return True
        has_interpreter = any(segment.type == PT_INTERP for segment in self.segments)
        return has_interpreter and DT_SONAME not in self._dynamic

    @property
    def entry(self) -> int:
        """Return the link-time address of the first instruction (e_entry)."""
        return self._header.entry

    @property
    def is_shared_library(self) -> bool:
        """Return whether this is a library: ET_DYN, and not an executable of that type."""
        return self._header.type == ET_DYN and not self.is_pie

    @cached_property
    def relocations(self) -> Relocations:
        """Return the relocations of words, read on first use."""
        kinds = self.arch.relative_relocation, self.arch.symbol_relocation
        return Relocations(self._dynamic, *kinds, self.read, self.display)

    def section(self, name: str) -> Section | None:
        """Return the first section of a name, None when there is none."""
        return self._sections_by_name.get(name)

    def debug_section(self, name: str) -> Section | None:
        """Return the section ``.debug_NAME``, or ``.zdebug_NAME`` as Go up to 1.18 calls it."""
        return self.section(f".debug_{name}") or self.section(f".zdebug_{name}")

    def once(self, make: Callable[[ElfImage], _T]) -> _T:
        """Return the result of ``make`` for this image: it is called the first time only.

        So whatever is read of an open file is read once. A GotraceError is raised again.
        """
        made = self._made.get(make, _NOT_MADE)  # once: another thread may let it go
        if made is _NOT_MADE:
            try:
                made = make(self)
            except GotraceError as error:
                made = error
            self._made[make] = made
        if isinstance(made, GotraceError):
            raise made
        return cast(_T, made)

    def section_bytes(self, section: Section) -> bytes | memoryview:
        """Return a section's contents, decompressed when SHF_COMPRESSED or named ``.zdebug_*``.

        Decompressed contents are kept; others are a view of the mapping, not a copy. Raise ElfError
        for contents that do not decompress or claim an absurd size.
        """
        if section.type == SHT_NOBITS:
            return b""
        unpacked = self._unpacked.get(section.index)
        if unpacked is not None:
            return unpacked
        raw = memoryview(self.data)[section.offset : section.offset + section.size]
        if section.flags & SHF_COMPRESSED:
            if len(raw) < 24:
                raise ElfError(f"{self.display}: {section.name}: no compression header")
            kind, _, size = struct.unpack_from("<IIQ", raw)
            if kind != ELFCOMPRESS_ZLIB:
                name = "zstd" if kind == ELFCOMPRESS_ZSTD else f"method {kind}"
                raise ElfError(
                    f"{self.display}: {section.name} is compressed with {name}, not with zlib: "
                    f"run objcopy --decompress-debug-sections on it"
                )
            return self._decompress(section, raw[24:], size)
        if section.name.startswith(".zdebug_") and len(raw) >= 12 and raw[:4].tobytes() == b"ZLIB":
            return self._decompress(section, raw[12:], int.from_bytes(raw[4:12], "big"))
        return raw

    def _decompress(self, section: Section, packed: memoryview, size: int) -> bytes:
        where = f"{self.display}: {section.name}"
        if size > self.largest_section:
            raise ElfError(f"{where} claims {size} bytes when decompressed: too many")
        try:
            # One byte more than announced, so that a longer stream shows.
            content = zlib.decompressobj().decompress(packed, size + 1)
        except zlib.error as error:
            raise ElfError(f"{where} does not decompress: {error}") from None
        if len(content) != size:
            raise ElfError(f"{where} decompresses to another size than it says: it is damaged")
        self._unpacked[section.index] = content
        return content

    def _load_of(self, address: int, size: int) -> Segment:
        for segment in self._loads:
            if segment.address <= address and (
                address + size <= segment.address + segment.file_size
            ):
                return segment
        raise ElfError(f"{self.display}: {size} bytes at {address:#x} are not in the file")

    def read(self, address: int, size: int) -> bytes:
        """Return the ``size`` bytes that the file has for ``address``.

        Raise ElfError when they are not all inside the file part of one PT_LOAD.
        """
        if size < 0:
            raise ElfError(f"{self.display}: a size of {size} bytes at {address:#x}: damaged")
        start = self.offset_of(address, size)
        return self._bytes(start, start + size)

    def read_relocated(self, address: int, size: int) -> bytes:
        """Return bytes as :meth:`read` does, with the relative relocations applied."""
        content = self.read(address, size)
        return self.relocations.patch(address, content) if self._has_relocations else content

    def read_only(self, address: int, size: int) -> bytes | None:
        """Return bytes that are the same in the file and in every process, at all times.

        None when they are not all inside the file part of a PT_LOAD that is not writable, or cannot
        be read any more.
        """
        for segment in self._loads:
            end = segment.address + segment.file_size
            if segment.address <= address and address + size <= end:
                start = address - segment.address + segment.offset
                with suppress(ElfError):
                    return None if segment.flags & PF_W else self._bytes(start, start + size)
        return None

    def occurrences(self, content: bytes) -> list[int]:
        """Return the addresses at which bytes are in the file part of writable PT_LOADs."""
        found = []
        for segment in self._loads:
            if not segment.flags & PF_W:
                continue
            end = segment.offset + segment.file_size
            places = find_all(self.data, content, segment.offset, end)
            found += [at - segment.offset + segment.address for at in places]
        return found

    @property
    def _has_relocations(self) -> bool:
        return self._header.type == ET_DYN

    def offset_of(self, address: int, size: int = 1) -> int:
        """Return the file offset of ``address``.

        Raise ElfError when the ``size`` bytes there are not in the file part of one PT_LOAD.
        """
        segment = self._load_of(address, size)
        return address - segment.address + segment.offset

    def address_of(self, offset: int) -> int:
        """Return the address at which a file offset is mapped, ElfError when it is not."""
        for segment in self._loads:
            if segment.offset <= offset < segment.offset + segment.file_size:
                return offset - segment.offset + segment.address
        raise ElfError(f"{self.display}: file offset {offset:#x} is not mapped to memory")

    def file_end_of(self, address: int) -> int:
        """Return the file offset at which the PT_LOAD that holds ``address`` ends."""
        segment = self._load_of(address, 1)
        return segment.offset + segment.file_size

    def executable(self, address: int, size: int = 1) -> bool:
        """Return whether all of the ``size`` bytes at ``address`` are code bytes of the file."""
        return any(start <= address and address + size <= end for start, end in self.code_ranges)

    @property
    def loaded_ranges(self) -> tuple[tuple[int, int], ...]:
        """Return (start, end) addresses of all segments' file bytes."""
        return tuple(
            (segment.address, segment.address + segment.file_size) for segment in self._loads
        )

    @cached_property
    def code_ranges(self) -> tuple[tuple[int, int], ...]:
        """Return (start, end) addresses of the executable segments' file bytes."""
        return tuple(
            (segment.address, segment.address + segment.file_size)
            for segment in self._loads
            if segment.flags & PF_X
        )


def _copy(descriptor: int, display: str, identity: FileIdentity) -> mmap.mmap:
    """Return a file's bytes in memory of this process's own."""
    try:
        copy = mmap.mmap(-1, identity.size)
        at = 0
        with memoryview(copy) as view:
            while at < identity.size and (read := os.preadv(descriptor, [view[at:]], at)):
                at += read
    except OSError as error:
        raise ElfError(f"{display}: cannot read: {error.strerror}") from None
    if FileIdentity.of(descriptor) != identity:
        raise ElfError(f"{display}: it is being written to: start again when that is done")
    return copy


def _map(descriptor: int, display: str) -> mmap.mmap:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise ElfError(f"{display}: {kind}")
    if status.st_size == 0:
        raise ElfError(f"{display}: the file is empty")
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ElfError(f"{display}: cannot map: {error.strerror}") from None


def string_at(data: mmap.mmap | bytes, offset: int, limit: int) -> str:
    """Decode the NUL-terminated UTF-8 string at ``offset``.

    ``limit`` is the offset that the string must end before. Bytes that are not UTF-8 come out as
    backslash escapes. Raise ElfError when the string is not inside.
    """
    end = data.find(b"\0", offset, limit) if 0 <= offset < limit else -1
    if end < 0:
        raise ElfError(f"string at file offset {offset:#x} is not terminated: the file is damaged")
    return data[offset:end].decode("utf-8", "backslashreplace")


def _read_file_header(data: mmap.mmap, display: str) -> FileHeader:
    """Parse the ELF header; ``display`` is the file's name in messages.

    Raise ElfError for whatever is not a linked 64-bit little-endian ELF file for an architecture
    whose code and registers are known.
    """
    if data[:4] != b"\x7fELF":
        raise ElfError(f"{display}: not an ELF file, so not a Go program")
    if len(data) < _FILE_HEADER.size:
        raise ElfError(f"{display}: the file is truncated: no whole ELF header")
    (
        ident,
        kind,
        machine,
        _,
        entry,
        phoff,
        shoff,
        _,
        _,
        phentsize,
        phnum,
        shentsize,
        shnum,
        names,
    ) = _FILE_HEADER.unpack_from(data)
    if ident[4] != 2:
        raise ElfError(f"{display}: a 32-bit program; only 64-bit programs can be traced")
    if ident[5] != 1:
        raise ElfError(f"{display}: a big-endian program; only programs for {_KNOWN} can be traced")
    if kind not in (ET_EXEC, ET_DYN):
        what = _OTHER_TYPES.get(kind, f"an ELF file of type {kind}")
        raise ElfError(f"{display}: {what}, not an executable or a shared library")
    known = next((arch for arch in ARCHITECTURES if arch.elf_machine == machine), None)
    if known is None:
        other = _OTHER_MACHINES.get(machine, f"machine {machine}")
        raise ElfError(
            f"{display}: a program for {other}: only programs for {_KNOWN} can be traced"
        )
    if phnum and phentsize != _SEGMENT.size:
        raise ElfError(f"{display}: program headers of {phentsize} bytes: the file is damaged")
    if shentsize != _SECTION.size:
        shoff = shnum = 0
    return FileHeader(kind, known, entry, phoff, phnum, shoff, shnum, names)


def _read_segments(data: mmap.mmap, header: FileHeader, display: str) -> tuple[Segment, ...]:
    """Parse the program headers, in file order.

    Raise ElfError when they, or the file bytes of a PT_LOAD, are outside of the file.
    """
    count = header.segment_count
    end = header.segments_offset + count * _SEGMENT.size
    if count > _MAX_SEGMENTS or end > len(data):
        raise ElfError(f"{display}: {count} program headers do not fit: the file is damaged")
    segments = []
    for kind, flags, offset, address, _, file_size, memory_size, _ in _SEGMENT.iter_unpack(
        data[header.segments_offset : end]
    ):
        if kind == PT_LOAD and offset + file_size > len(data):
            raise ElfError(
                f"{display}: the file is truncated: a segment needs bytes up to "
                f"{offset + file_size}, the file has {len(data)}"
            )
        if kind == PT_LOAD and address + file_size > _ADDRESSES:
            raise ElfError(f"{display}: a segment ends beyond all addresses: the file is damaged")
        segments.append(Segment(kind, flags, address, offset, file_size, memory_size))
    if not any(segment.type == PT_LOAD for segment in segments):
        raise ElfError(f"{display}: nothing to load in it: no PT_LOAD program header")
    return tuple(segments)


def _read_sections(data: mmap.mmap, header: FileHeader) -> tuple[Section, ...]:
    """Parse the section headers, in file order, as an empty tuple when there are none.

    The kernel never reads them, so a process may well run from a file whose section headers were
    cut off or overwritten: unusable ones count as absent, and so does a section beyond the end.
    """
    count = header.section_count
    if not 0 < count < SHN_LORESERVE or not header.sections_offset:
        return ()
    end = header.sections_offset + count * _SECTION.size
    if end > len(data) or header.names_index >= count:
        return ()
    raw = list(_SECTION.iter_unpack(data[header.sections_offset : end]))
    names = _section_names(data, raw, header.names_index)
    return tuple(
        Section(name, kind, flags, address, offset, size, link, entsize, index)
        for index, (
            name,
            (_, kind, flags, address, offset, size, link, _, _, entsize),
        ) in enumerate(zip(names, raw, strict=True))
        if offset + size <= (_MAX_NOBITS if kind == SHT_NOBITS else len(data))
    )


def _section_names(data: mmap.mmap, raw: Sequence[tuple[int, ...]], names_index: int) -> list[str]:
    start = raw[names_index][4]
    limit = min(start + raw[names_index][5], len(data))
    names = []
    for offset, *_ in raw:
        begin = min(start + offset, limit)
        end = data.find(b"\0", begin, min(limit, begin + _MAX_SECTION_NAME))
        names.append(data[begin:end].decode("ascii", "backslashreplace") if end >= 0 else "")
    return names
