"""Open an ELF executable or shared library and translate between addresses and file bytes."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

from gotrace.elf.headers import (
    ET_DYN,
    PF_W,
    PF_X,
    PT_INTERP,
    PT_LOAD,
    PT_NOTE,
    SHT_NOBITS,
    SHT_NOTE,
    ElfError,
    FileHeader,
    Machine,
    Section,
    Segment,
    read_file_header,
    read_sections,
    read_segments,
)
from gotrace.elf.notes import read_build_id
from gotrace.elf.relocations import Relocations, dynamic_entries

__all__ = ["ElfError", "ElfImage", "FileIdentity", "Machine", "Section", "Segment"]

DT_SONAME, DT_FLAGS_1 = 14, 0x6FFFFFFB
DF_1_PIE = 0x08000000
SHF_COMPRESSED = 0x800
ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD = 1, 2

#: Debug sections of the largest Go programs have a tenth of this; a larger claim is refused.
_MAX_DECOMPRESSED = 1 << 29

_MOST_COPIED = 1 << 30


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Tell one state of one file from all others, as ``fstat`` reports it."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | int) -> FileIdentity:
        """Return the present state of a file, by path or descriptor. Raises OSError."""
        status = os.stat(path)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class ElfImage:
    """Give read-only access to one ELF file's bytes, by address, by section and by offset.

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
    ) -> None:
        """Parse the headers of an open and mapped file; use :meth:`open` instead.

        ``identity`` is the state of the file before anything of it was read.
        """
        self.path = path
        self.display = display
        self.data = data
        self.identity = identity
        self._descriptor = descriptor
        self._header: FileHeader = read_file_header(data, display)
        self.machine = self._header.machine
        self.segments = read_segments(data, self._header, display)
        self._loads = tuple(segment for segment in self.segments if segment.type == PT_LOAD)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], display: str | None = None, *, copied: bool = False
    ) -> ElfImage:
        """Open and map a file.

        ``display`` is the name used in messages, for a path that says nothing to a user, such as
        ``/proc/PID/exe``. ``copied``: read the file at once, since it may be written to: the kernel
        ends whoever reads a mapping beyond the end of a file that has become shorter. A gigabyte
        and more is mapped all the same. Raise ElfError when the file cannot be opened or is not a
        linked 64-bit ELF file for a known machine.
        """
        path = os.fspath(path)
        display = path if display is None else display
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ElfError(f"{display}: cannot open: {reason}") from None
        try:
            identity = FileIdentity.of(descriptor)
            whole = _map(descriptor, display)
            if copied and identity.size < _MOST_COPIED:
                whole.close()
                whole = _copy(descriptor, display, identity)
            return cls(path, display, descriptor, whole, identity)
        except BaseException:
            os.close(descriptor)
            raise

    def __enter__(self) -> ElfImage:
        """Return the image itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the image."""
        self.close()

    def close(self) -> None:
        """Close the descriptor and drop the mapping; further calls do nothing.

        While views from :meth:`section_bytes` live, the mapping stays until the last one dies.
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        try:
            self.data.close()
        except BufferError:
            return

    def fileno(self) -> int:
        """Return the open descriptor: ``/proc/self/fd/N`` is the very inode that was read."""
        return self._descriptor

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return the sections whose bytes are in the file; empty without section headers."""
        return read_sections(self.data, self._header)

    @cached_property
    def _sections_by_name(self) -> dict[str, Section]:
        return {section.name: section for section in reversed(self.sections)}

    @cached_property
    def _dynamic(self) -> dict[int, int]:
        return dynamic_entries(self)

    @cached_property
    def is_pie(self) -> bool:
        """Tell whether this is a position-independent executable."""
        if self._header.type != ET_DYN:
            return False
        if self._dynamic.get(DT_FLAGS_1, 0) & DF_1_PIE:
            return True
        has_interpreter = any(segment.type == PT_INTERP for segment in self.segments)
        return has_interpreter and DT_SONAME not in self._dynamic

    @property
    def is_shared_library(self) -> bool:
        """Tell whether this is a library: ET_DYN, and not an executable of that type."""
        return self._header.type == ET_DYN and not self.is_pie

    @property
    def base_address(self) -> int:
        """Return the first PT_LOAD's address, page aligned: load bias = mapping start - base."""
        return self._loads[0].address & -mmap.PAGESIZE

    @cached_property
    def build_id(self) -> str | None:
        """Return the GNU build id in hexadecimal, else Go's build id string, else None."""
        notes = [(s.offset, s.size) for s in self.sections if s.type == SHT_NOTE]
        notes += [(s.offset, s.file_size) for s in self.segments if s.type == PT_NOTE]
        return read_build_id(self.data, notes)

    @cached_property
    def relocations(self) -> Relocations:
        """Return the relative relocations, read on first use."""
        return Relocations(self)

    def section(self, name: str) -> Section | None:
        """Return the first section of a name, None when there is none."""
        return self._sections_by_name.get(name)

    def section_bytes(self, section: Section) -> bytes | memoryview:
        """Return a section's contents, decompressed when SHF_COMPRESSED or named ``.zdebug_*``.

        Uncompressed contents are a view of the mapping, not a copy. Raise ElfError for contents
        that do not decompress or claim an absurd size.
        """
        if section.type == SHT_NOBITS:
            return b""
        raw = memoryview(self.data)[section.offset : section.offset + section.size]
        if section.flags & SHF_COMPRESSED:
            if len(raw) < 24:
                raise ElfError(f"{self.display}: {section.name}: no compression header")
            kind, _, size = struct.unpack_from("<IIQ", raw)
            if kind != ELFCOMPRESS_ZLIB:
                name = "zstd" if kind == ELFCOMPRESS_ZSTD else f"method {kind}"
                raise ElfError(
                    f"{self.display}: {section.name} is compressed with {name}, not with zlib: "
                    f"objcopy --decompress-debug-sections mends it"
                )
            return self._decompress(section, raw[24:], size)
        if section.name.startswith(".zdebug_") and len(raw) >= 12 and raw[:4].tobytes() == b"ZLIB":
            return self._decompress(section, raw[12:], int.from_bytes(raw[4:12], "big"))
        return raw

    def _decompress(self, section: Section, packed: memoryview, size: int) -> bytes:
        where = f"{self.display}: {section.name}"
        if size > _MAX_DECOMPRESSED:
            raise ElfError(f"{where} claims {size} bytes when decompressed: too many")
        try:
            # One byte more than announced, so that a longer stream shows.
            content = zlib.decompressobj().decompress(packed, size + 1)
        except zlib.error as error:
            raise ElfError(f"{where} does not decompress: {error}") from None
        if len(content) != size:
            raise ElfError(f"{where} decompresses to another size than it says: it is damaged")
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
        return self.data[start : start + size]

    def read_relocated(self, address: int, size: int) -> bytes:
        """Return bytes as :meth:`read` does, with the relative relocations applied."""
        content = self.read(address, size)
        return self.relocations.patch(address, content) if self._has_relocations else content

    def read_only(self, address: int, size: int) -> bytes | None:
        """Return bytes that are the same in the file and in every process, at all times.

        None when they are not all inside the file part of a PT_LOAD that is not writable.
        """
        for segment in self._loads:
            end = segment.address + segment.file_size
            if segment.address <= address and address + size <= end:
                start = address - segment.address + segment.offset
                return None if segment.flags & PF_W else self.data[start : start + size]
        return None

    def occurrences(self, content: bytes) -> list[int]:
        """Return the addresses at which bytes stand in the file part of writable PT_LOADs."""
        found = []
        for segment in self._loads:
            if not segment.flags & PF_W:
                continue
            end = segment.offset + segment.file_size
            at = self.data.find(content, segment.offset, end)
            while at >= 0:
                found.append(at - segment.offset + segment.address)
                at = self.data.find(content, at + 1, end)
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
        """Tell whether all of the ``size`` bytes at ``address`` are code bytes of the file."""
        return any(start <= address and address + size <= end for start, end in self.code_ranges)

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
