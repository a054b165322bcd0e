# SPDX-License-Identifier: Apache-2.0
"""The raw parts of a binary's type information: its place, its records and its names.

Sources, all read for Go 1.15 and 1.19 to 1.27: ``runtime/symtab.go`` (type moduledata),
``runtime/type.go`` and since Go 1.21 ``internal/abi/type.go`` (Type, what follows it by kind,
Name), ``internal/abi/map*.go``, ``internal/abi/iface.go`` (ITab), ``runtime/iface.go``
(addModuleItabs). The rules for 1.16, 1.17, 1.18 and 1.20 were checked with programs built by these:
by the rules, none of their types contradicts itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice

from gotrace.elf import ElfError
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.image import ElfImage
from gotrace.elf.pclntab.moduledata import ModuleData
from gotrace.elf.scan import find_all, read_uleb
from gotrace.errors import GotraceError
from gotrace.gotypes.releases import SWISS_MAPS
from gotrace.gotypes.types import Kind
from gotrace.records import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Where module data describes the type information, and how descriptors are encoded.

    ``types`` and ``etypes`` are the offsets of the bounds in module data; ``links`` is that of
    the slice typelinks, which the slice itablinks follows; where there are none, ``itabs`` is
    that of two words, the offset from ``types`` and the size of all itabs, and the word after
    ``types`` is the size of all descriptors.
    """

    release: tuple[int, int]
    types: int
    etypes: int
    links: int = 0
    itabs: int = 0

    @property
    def has_varint_names(self) -> bool:
        """Return whether a name's length is a varint, not two bytes."""
        return self.release >= (1, 17)

    @property
    def has_shifted_offsets(self) -> bool:
        """Return whether bit 0 of a field's offset says that it is embedded, not its name."""
        return self.release < (1, 19)

    @property
    def has_direct_flag(self) -> bool:
        """Return whether TFlagDirectIface exists; before, a bit of the kind said the same."""
        return self.release >= (1, 26)

    @property
    def may_have_swiss_maps(self) -> bool:
        return self.release >= SWISS_MAPS

    @property
    def may_have_classic_maps(self) -> bool:
        """Return whether maps can have buckets: up to Go 1.25 with GOEXPERIMENT=noswissmap."""
        return self.release < (1, 26)

    @property
    def swiss_map_size(self) -> int:
        """Return the size of a map type's descriptor (internal/abi.MapType)."""
        return 136 if self.release >= (1, 27) else 112


_LAYOUTS = (
    Layout((1, 15), types=200, etypes=208, links=240),
    Layout((1, 16), types=280, etypes=288, links=320),
    Layout((1, 18), types=280, etypes=288, links=336),
    Layout((1, 20), types=296, etypes=304, links=352),
    Layout((1, 26), types=296, etypes=304, links=360),
    Layout((1, 27), types=296, etypes=312, itabs=320),
)


def layout_of(version: GoVersion) -> Layout | None:
    """Return the layout of a release, the newest known one's for later ones, None before 1.15."""
    known = [layout for layout in _LAYOUTS if layout.release <= version.release]
    if not known:
        return None
    last = known[-1]
    return Layout(version.release, last.types, last.etypes, last.links, last.itabs)


class RtypeError(GotraceError):
    """Type descriptors that are damaged."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name of a field, method, type or package, with its tag if it has one.

    ``package`` is the import path that a name says to belong to, mostly none.
    """

    text: str
    exported: bool = False
    embedded: bool = False
    tag: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The fields with which all type descriptors begin (internal/abi.Type).

    ``text`` is reflect's String(): package names, not paths. ``uncommon`` says whether methods
    and package path follow; ``pointer_offset`` leads to the type of pointers to this one,
    zero when there is none.
    """

    address: int
    size: int
    align: int
    kind: Kind
    text: str
    named: bool
    uncommon: bool
    direct: bool
    pointer_offset: int


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method of a type (internal/abi.Method).

    ``name`` and ``type`` are offsets from the start of the types, ``code`` is one from the start
    of the text, of the function whose receiver is the type itself. A method that the linker found
    unused has 0 or -1 in place of the last two.
    """

    name: int
    type: int
    code: int


#: Bytes of module data to read: up to the last known itablinks.
_MODULE_DATA = 408

_UNCOMMON, _EXTRA_STAR, _NAMED, _DIRECT = 1, 2, 4, 32
_NAME_EXPORTED, _NAME_TAG, _NAME_PACKAGE, _NAME_EMBEDDED = 1, 2, 4, 8

#: Where a descriptor has the type's hash (Hash in internal/abi.Type).
TYPE_HASH_AT = 16

#: Where it has its flags.
_FLAGS_AT = 20

_HEAD = struct.Struct("<QQIBBBBQQII")
_HEAD_SIZE = 48
#: The parts of a descriptor that go with its kind, maps aside; _HEAD_SIZE where nothing does.
_SIZES = {
    Kind.ARRAY: 72,
    Kind.CHAN: 64,
    Kind.FUNC: 56,
    Kind.INTERFACE: 80,
    Kind.POINTER: 56,
    Kind.SLICE: 56,
    Kind.STRUCT: 80,
}
#: How many pointers to other descriptors they begin with.
_REFERENCES = {Kind.MAP: 3, Kind.ARRAY: 2, Kind.CHAN: 1, Kind.POINTER: 1, Kind.SLICE: 1}
_UNCOMMON_SIZE = 16
_METHOD_SIZE = 16
_METHOD = struct.Struct("<iiii")  # name, type, the interfaces' function, the own function
_METHOD_CODE = 12
_ITAB_SIZE = 32
_KINDS = {kind.value: kind for kind in Kind if kind is not Kind.INVALID}

#: Longest name to accept: instances of generic types can have some ten thousand characters.
_MAX_NAME = 1 << 16

#: Most types and most itabs to accept in a list; large programs have some ten thousand.
_MAX_LIST = 1 << 20

#: Bytes from a type's descriptor to a method's row, at most: its fields and methods are between.
_MAX_ROW_DISTANCE = 1 << 17

#: Other bytes that are the offset of a method's code, and that look like its row, to put up with.
_MAX_MATCHES = 1 << 12
_MAX_ROWS = 16

#: Largest distance between itabs for which they are read in one go; they are side by side.
_MAX_ITAB_SPAN = 1 << 26


class RtypeTable:
    """The raw type information of one image; link-time addresses everywhere.

    All methods raise RtypeError for damage.
    """

    def __init__(self, image: ElfImage, layout: Layout, module: tuple[int, ...]) -> None:
        """Take the words of module data; use :meth:`open` instead."""
        self.image = image
        self.start = module[layout.types // 8]
        self.end = module[layout.etypes // 8]
        self._layout = layout
        self._module = module

    @classmethod
    def open(cls, image: ElfImage, version: GoVersion, module: ModuleData) -> RtypeTable | None:
        """Return the table that an image's module data leads to, None without a known layout."""
        layout = layout_of(version)
        if layout is None:
            return None
        try:
            raw = image.read_relocated(module.address, _MODULE_DATA)
        except ElfError as error:
            raise RtypeError(str(error)) from None
        table = cls(image, layout, struct.unpack(f"<{_MODULE_DATA // 8}Q", raw))
        return table if table._is_plausible() else None

    def _is_plausible(self) -> bool:
        """Return whether there is a descriptor where the layout says that the first one is."""
        if not self.start < self.end:
            return False
        try:
            self.image.offset_of(self.start, self.end - self.start)
            return any(self.record(address).text for address in islice(self.roots(), 1))
        except (ElfError, RtypeError):
            return False

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the file with relocations applied."""
        try:
            return self.image.read_relocated(address, size)
        except ElfError as error:
            raise RtypeError(f"{error}: the type descriptors are damaged") from None

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return 64-bit words."""
        if count > (self.end - self.start) // 8:
            raise self.damaged(address, "has more parts than the program has type information")
        return struct.unpack(f"<{count}Q", self.read(address, count * 8))

    def damaged(self, address: int, why: str) -> RtypeError:
        return RtypeError(f"{self.image.display}: type descriptor at {address:#x} {why}")

    def contains(self, address: int) -> bool:
        return self.start <= address <= self.end - _HEAD_SIZE and address % 8 == 0

    def record(self, address: int) -> Record:
        """Return the first part of the descriptor at an address."""
        if not self.contains(address):
            raise self.damaged(address, "is outside of the program's type information")
        # No pointers are wanted, so nothing is relocated.
        offset = self.image.offset_of(address, _HEAD_SIZE)
        size, _, _, flags, align, _, kind, _, _, name, pointer = _HEAD.unpack_from(
            self.image.data, offset
        )
        known = _KINDS.get(kind & 0x1F)
        if known is None or align == 0 or align & (align - 1) or size % align:
            raise self.damaged(address, f"has kind {kind}, size {size} and alignment {align}")
        text = self.name_at(name).text
        if flags & _EXTRA_STAR:
            text = text[1:]
        direct = bool((flags if self._layout.has_direct_flag else kind) & _DIRECT)
        named, uncommon = bool(flags & _NAMED), bool(flags & _UNCOMMON)
        return Record(address, size, align, known, text, named, uncommon, direct, pointer)

    def name_at(self, offset: int) -> Name:
        """Return the name at an offset from the start (resolveNameOff); 0 is the empty name."""
        if offset >= self.end - self.start:
            raise self.damaged(self.start + offset, "is said to be a name but is elsewhere")
        return self.name(self.start + offset) if offset else Name("")

    def name(self, address: int) -> Name:
        """Return the name at an address; address 0 is the empty name."""
        if not address:
            return Name("")
        try:
            offset = self.image.offset_of(address)
            data = self.image.data
            flags = data[offset]
            text, offset = self._text(offset + 1)
            tag, offset = self._text(offset) if flags & _NAME_TAG else (b"", offset)
            package = self._package(offset) if flags & _NAME_PACKAGE else ""
        except (ElfError, IndexError, ValueError, struct.error):
            raise self.damaged(address, "is said to be a name but is not") from None
        exported, embedded = bool(flags & _NAME_EXPORTED), bool(flags & _NAME_EMBEDDED)
        label = tag.decode("utf-8", "backslashreplace")
        return Name(_printable(text), exported, embedded, label, package)

    def _package(self, offset: int) -> str:
        """Return the import path whose offset from the start is at a file offset."""
        (place,) = struct.unpack_from("<I", self.image.data, offset)
        text, _ = self._text(self.image.offset_of(self.start + place) + 1)
        return _printable(text)

    def _text(self, offset: int) -> tuple[bytes, int]:
        """Return the bytes that their length at a file offset precedes, and the offset after."""
        data = self.image.data
        if self._layout.has_varint_names:
            size, offset = read_uleb(data, offset)
        else:
            size = data[offset] << 8 | data[offset + 1]
            offset += 2
        if size > _MAX_NAME or offset + size > len(data):
            raise IndexError(size)
        return data[offset : offset + size], offset + size

    def length_bytes(self, size: int) -> bytes:
        """Return the bytes that precede a text of a length."""
        if not self._layout.has_varint_names:
            return struct.pack(">H", size)
        groups = b""
        while size >= 0x80:
            groups += bytes((size & 0x7F | 0x80,))
            size >>= 7
        return groups + bytes((size,))

    def package_path(self, record: Record) -> str:
        """Return the import path that a type's uncommon part names, empty when there is none."""
        if not record.uncommon:
            return ""
        (offset,) = struct.unpack("<I", self.read(record.address + self.part_size(record), 4))
        return self.name_at(offset).text

    def part_size(self, record: Record) -> int:
        """Return the size of a descriptor without uncommon part, parameters and methods."""
        if record.kind is Kind.MAP:
            return self._layout.swiss_map_size if self.has_swiss_map(record.address) else 88
        return _SIZES.get(record.kind, _HEAD_SIZE)

    @property
    def has_map_clear_sequence(self) -> bool:
        """Return whether runtime.hmap has the field clearSeq."""
        return self._layout.may_have_swiss_maps

    def has_swiss_map(self, address: int) -> bool:
        """Return which implementation a map type is for, from the struct that holds its slots."""
        if not (self._layout.may_have_swiss_maps and self._layout.may_have_classic_maps):
            return self._layout.may_have_swiss_maps
        (group,) = self.words(address + 64, 1)
        if not self.contains(group) or self.record(group).kind is not Kind.STRUCT:
            raise self.damaged(address, "is a map's without slots")
        return any(name.text == "ctrl" for name, *_ in islice(self.fields(group), 1))

    def fields(self, address: int) -> Iterator[tuple[Name, int, int, bool]]:
        """Yield name, type's address, offset and whether it is embedded, of a struct's fields."""
        for place, target, offset in self._field_rows(address):
            name = self.name(place)
            if self._layout.has_shifted_offsets:
                yield name, target, offset >> 1, bool(offset & 1)
            else:
                yield name, target, offset, name.embedded

    def _field_rows(self, address: int) -> Iterator[tuple[int, int, int]]:
        start, count = self.words(address + 56, 2)
        words = self.words(start, count * 3)
        return zip(words[0::3], words[1::3], words[2::3], strict=True)

    def function_parts(self, record: Record) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Return the types of a function type's parameters and results, and whether it has ..."""
        inputs, outputs = struct.unpack("<HH", self.read(record.address + 48, 4))
        after = record.address + 56 + (_UNCOMMON_SIZE if record.uncommon else 0)
        words = self.words(after, inputs + (outputs & 0x7FFF))
        return words[:inputs], words[inputs:], bool(outputs & 0x8000)

    def interface_methods(self, address: int) -> Iterator[tuple[Name, int]]:
        """Yield names and function types' addresses of an interface type's methods."""
        for name, target in self._method_rows(address):
            yield self.name_at(name), self.start + target

    def _method_rows(self, address: int) -> Iterator[tuple[int, int]]:
        start, count = self.words(address + 56, 2)
        for word in self.words(start, count):
            yield word & 0xFFFFFFFF, word >> 32

    def parts(self, record: Record) -> Iterator[int]:
        """Yield the addresses of the descriptors that one mentions, without those of methods."""
        kind, address = record.kind, record.address
        if record.pointer_offset:
            yield self.start + record.pointer_offset
        if kind is Kind.STRUCT:
            yield from (target for _, target, _ in self._field_rows(address))
        elif kind is Kind.INTERFACE:
            yield from (self.start + target for _, target in self._method_rows(address))
        elif kind is Kind.FUNC:
            inputs, outputs, _ = self.function_parts(record)
            yield from (*inputs, *outputs)
        else:
            yield from self.words(address + _HEAD_SIZE, _REFERENCES.get(kind, 0))

    def methods(self, record: Record) -> Iterator[MethodRow]:
        """Yield the methods of a type that interfaces could call, unused ones included."""
        start, count = self._methods_place(record)
        for name, target, _, code in _METHOD.iter_unpack(self.read(start, count * _METHOD_SIZE)):
            yield MethodRow(name, target, code)

    def _methods_place(self, record: Record) -> tuple[int, int]:
        """Return address and number of a type's methods."""
        if not record.uncommon:
            return record.address, 0
        at = record.address + self.part_size(record)
        count, _, offset = struct.unpack("<HHI", self.read(at + 4, 8))
        return at + offset, count

    def methods_of_code(self, code: int, name: str) -> Iterator[tuple[Record, MethodRow]]:
        """Yield the types whose method of a name has its code at an offset from the text's start.

        No list of types is read for that: the offset is looked for, and the type before it.
        """
        for address, row in islice(self._rows_of_code(code, name), _MAX_ROWS):
            owner = self._type_before(address)
            if owner is not None:
                yield owner, row

    def _rows_of_code(self, code: int, name: str) -> Iterator[tuple[int, MethodRow]]:
        """Yield address and contents of what may be the rows of a used method."""
        if not 0 < code < 1 << 31:
            return
        data, low = self.image.data, self.image.offset_of(self.start)
        found = find_all(data, struct.pack("<I", code), low, low + self.end - self.start)
        for place in islice(found, _MAX_MATCHES):
            address = self.start + place - low - _METHOD_CODE
            if address % 8 or address < self.start:
                continue
            label, target, _, own = _METHOD.unpack_from(data, place - _METHOD_CODE)
            with suppress(RtypeError):
                if label > 0 and target > 0 and self.name_at(label).text == name:
                    yield address, MethodRow(label, target, own)

    def _type_before(self, row: int) -> Record | None:
        """Return the type that has the method whose row is at an address, None without one."""
        data, low = self.image.data, self.image.offset_of(self.start) - self.start
        first = max(row - _MAX_ROW_DISTANCE, self.start)
        for address in range(row - _HEAD_SIZE - _UNCOMMON_SIZE, first - 1, -8):
            if not data[low + address + _FLAGS_AT] & _UNCOMMON:
                continue
            with suppress(RtypeError):
                record = self.record(address)
                start, count = self._methods_place(record)
                if (row - start) % _METHOD_SIZE == 0 and 0 <= row - start < count * _METHOD_SIZE:
                    return record
        return None

    def roots(self) -> Iterator[int]:
        """Yield the addresses of the descriptors that the binary lists.

        Those are types without a name up to Go 1.26 (typelinks), and all since (typedesclen).
        """
        if self._layout.links:
            start, count = self._slice(self._layout.links)
            for (offset,) in struct.iter_unpack("<I", self.read(start, count * 4)):
                yield self.start + offset
            return
        # The first word is padding: see moduleTypelinks in runtime/type.go.
        address = self.start + 8
        end = self.start + self._module[self._layout.types // 8 + 1]
        while address < end:
            yield address
            address += self._whole_size(self.record(address)) + 7 & -8

    def _whole_size(self, record: Record) -> int:
        """Return a descriptor's size with all that follows it (abi.Type.DescriptorSize)."""
        size = self.part_size(record)
        if record.uncommon:
            (methods,) = struct.unpack("<H", self.read(record.address + size + 4, 2))
            size += _UNCOMMON_SIZE + methods * _METHOD_SIZE
        if record.kind is Kind.FUNC:
            inputs, outputs, _ = self.function_parts(record)
            size += 8 * (len(inputs) + len(outputs))
        elif record.kind in (Kind.STRUCT, Kind.INTERFACE):
            each = 24 if record.kind is Kind.STRUCT else 8
            size += each * self.words(record.address + 64, 1)[0]
        return size

    def _slice(self, offset: int) -> tuple[int, int]:
        """Return address and length of a slice in module data."""
        start, length, capacity = self._module[offset // 8 : offset // 8 + 3]
        if length != capacity or length > _MAX_LIST:
            raise RtypeError(f"{self.image.display}: the runtime's module data is damaged")
        return start, length

    @cached_property
    def itabs(self) -> list[tuple[int, int, int]]:
        """Return (address, interface type, type) of all itabs that the linker made."""
        if self._layout.itabs:
            return list(self._itabs_in_a_row())
        start, count = self._slice(self._layout.links + 24)
        addresses = struct.unpack(f"<{count}Q", self.read(start, count * 8))
        if not addresses:
            return []
        low, high = min(addresses), max(addresses) + 16
        if high - low > _MAX_ITAB_SPAN:
            raise RtypeError(f"{self.image.display}: the list of itabs is damaged")
        raw = self.read(low, high - low)
        pair = struct.Struct("<QQ").unpack_from
        return [(address, *pair(raw, address - low)) for address in addresses]

    def _itabs_in_a_row(self) -> Iterator[tuple[int, int, int]]:
        """Yield the itabs of Go 1.27, whose sizes depend on their interfaces' methods."""
        at = self._layout.itabs // 8
        offset, size = self._module[at : at + 2]
        if offset + size > self.end - self.start:
            raise RtypeError(f"{self.image.display}: the runtime's module data is damaged")
        raw = self.read(self.start + offset, size)
        extra: dict[int, int] = {}
        here = 0
        while here + _ITAB_SIZE <= size:
            interface, target, _, function = struct.unpack_from("<QQQQ", raw, here)
            yield self.start + offset + here, interface, target
            here += _ITAB_SIZE
            if function:
                if interface not in extra:
                    extra[interface] = 8 * (self.words(interface + 64, 1)[0] - 1)
                here += max(0, extra[interface])


def _printable(raw: bytes) -> str:
    """Return text in which everything that a terminal might obey is escaped."""
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
