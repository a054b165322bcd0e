# SPDX-License-Identifier: Apache-2.0
"""A program's types from the descriptors that it carries for its own use, even stripped.

A descriptor (runtime._type, internal/abi.Type) is what the type word of an interface value points
to; an itab is what the first word of an interface with methods points to, and names the type. A
type is found by its name without a walk through all of them: a descriptor holds the offset of its
text, so the text is looked for first, then that offset.

DWARF has structs for each type of map and channel, which the linker makes from the runtime's own.
Rtypes have the part that depends on the types, a map's buckets or groups; the rest is the
same for all and is laid out here. Sources: ``runtime/map.go`` (hmap, bmap) up to Go 1.25;
``internal/runtime/maps`` (Map, table, groupsReference) of Go 1.24 to 1.27; ``runtime/chan.go``
(hchan); ``cmd/link/internal/ld/dwarf.go`` (synthesizemaptypes, synthesizechantypes) for the names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice

from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.image import ElfImage
from gotrace.elf.pclntab.moduledata import ModuleData
from gotrace.elf.scan import find_all
from gotrace.gotypes.rtype_names import RtypeNames, escape_path
from gotrace.gotypes.rtype_table import TYPE_HASH_AT, MethodRow, Record, RtypeError, RtypeTable
from gotrace.gotypes.types import (
    ArrayType,
    ChanDirection,
    ChanType,
    Field,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.records import dataclass

_INT = basic_type(Kind.INT)
_UINT8 = basic_type(Kind.UINT8)
_UINT16 = basic_type(Kind.UINT16)
_UINT32 = basic_type(Kind.UINT32)
_UINT64 = basic_type(Kind.UINT64)
_UINTPTR = basic_type(Kind.UINTPTR)
_POINTER = basic_type(Kind.UNSAFE_POINTER)

#: The names of a bucket's fields in its descriptor -> those in DWARF.
_BUCKET_FIELDS = {"topbits": "tophash", "elems": "values"}

#: Words of a map type's descriptor: key, element, and bucket (Go <= 1.23) or group.
_MAP_PARTS = 48


class RtypeHeaders:
    """The header types of the maps and channels of one binary."""

    def __init__(
        self,
        table: RtypeTable,
        names: RtypeNames,
        type_at: Callable[[int], GoType],
    ) -> None:
        """Take the table, its names, and a function that makes a type of a descriptor's address."""
        self._table = table
        self._names = names
        self._type_at = type_at

    def of_map(self, address: int) -> StructType:
        """Return the header of the map type at an address, as MapType.header describes it."""
        parts = self._table.words(address + _MAP_PARTS, 3)
        key, elem = self._names.of(parts[0]), self._names.of(parts[1])
        slots, names = parts[2], f"<{key},{elem}>"
        if not self._table.has_swiss_map(address):
            return self._classic(names, slots)
        group = f"map.group[{key}]{elem}"
        return self._swiss(names, lambda: self._group(group, slots))

    def of_chan(self, address: int) -> StructType:
        """Return the beginning of the header of the channel type at an address.

        Up to ``closed`` (32 bytes) it is the same in all releases; the rest is left out.
        """
        (elem,) = self._table.words(address + 48, 1)
        fields = (
            Field("qcount", 0, basic_type(Kind.UINT)),
            Field("dataqsiz", 8, basic_type(Kind.UINT)),
            Field("buf", 16, _POINTER),
            Field("elemsize", 24, _UINT16),
            Field("closed", 28, _UINT32),
        )
        return StructType(f"hchan<{self._names.of(elem)}>", Kind.STRUCT, 32, 8, fields)

    def _classic(self, names: str, bucket: int) -> StructType:
        buckets = _pointer(f"*bucket{names}", lambda: self._bucket(f"bucket{names}", bucket))
        fields = [
            Field("count", 0, _INT),
            Field("flags", 8, _UINT8),
            Field("B", 9, _UINT8),
            Field("noverflow", 10, _UINT16),
            Field("hash0", 12, _UINT32),
            Field("buckets", 16, buckets),
            Field("oldbuckets", 24, buckets),
            Field("nevacuate", 32, _UINTPTR),
        ]
        size = 40
        if self._table.has_map_clear_sequence:
            fields.append(Field("clearSeq", size, _UINT64))
            size += 8
        fields.append(Field("extra", size, _POINTER))
        return StructType(f"hash{names}", Kind.STRUCT, size + 8, 8, tuple(fields))

    def _bucket(self, name: str, address: int) -> StructType:
        found = self._struct_at(address)
        fields = []
        for field in found.fields:
            target = field.type
            if field.name == "overflow":
                # A plain address in the descriptor, so that the collector does not follow it.
                target = _pointer(f"*{name}", lambda: self._bucket(name, address))
            label = _BUCKET_FIELDS.get(field.name, field.name)
            fields.append(Field(label, field.offset, target))
        return StructType(name, Kind.STRUCT, found.size, found.align, tuple(fields))

    def _swiss(self, names: str, group: Callable[[], StructType]) -> StructType:
        table = _pointer(f"*table{names}", lambda: self._swiss_table(names, group))
        fields = (
            Field("used", 0, _UINT64),
            Field("seed", 8, _UINTPTR),
            Field("dirPtr", 16, _pointer(f"**table{names}", lambda: table)),
            Field("dirLen", 24, _INT),
            Field("globalDepth", 32, _UINT8),
            Field("globalShift", 33, _UINT8),
            Field("writing", 34, _UINT8),
            Field("clearSeq", 40, _UINT64),
        )
        return StructType(f"map{names}", Kind.STRUCT, 48, 8, fields)

    def _swiss_table(self, names: str, group: Callable[[], StructType]) -> StructType:
        data = _pointer(f"*{group().name}", group)
        groups = (Field("data", 0, data), Field("lengthMask", 8, _UINT64))
        reference = StructType(f"groupReference{names}", Kind.STRUCT, 16, 8, groups)
        fields = (
            Field("used", 0, _UINT16),
            Field("capacity", 2, _UINT16),
            Field("growthLeft", 4, _UINT16),
            Field("localDepth", 6, _UINT8),
            Field("index", 8, _INT),
            Field("groups", 16, reference),
        )
        return StructType(f"table{names}", Kind.STRUCT, 32, 8, fields)

    def _group(self, name: str, address: int) -> StructType:
        found = self._struct_at(address)
        return StructType(name, Kind.STRUCT, found.size, found.align, found.fields)

    def _struct_at(self, address: int) -> StructType:
        found = self._type_at(address)
        if not isinstance(found, StructType):
            raise self._table.damaged(address, "is not a struct of a map's slots")
        return found


def _pointer(name: str, target: Callable[[], GoType]) -> PointerType:
    return PointerType(name, Kind.POINTER, 8, 8, Lazy(target))


#: Stars and brackets, import path, and what follows: package name, dot, type's name.
_SHAPE = re.compile(r"((?:\*|\[\d*\])*)([^\[\](){} ]*/)?(.*)", re.DOTALL)

#: Possible names of a package for itself, which cannot be derived from its path.
_PACKAGE = rb"[^\x00-\x20./*\[\](){}]{1,128}"

#: Wrong matches to put up with: of a type's name in names, and of a name's offset.
_MAX_TEXTS = 1 << 15
_MAX_OFFSETS = 1 << 12

#: The longest text that can come before the dot.
_MAX_START = 160

_TEXT_OFFSET = 40  # of the text's offset in a descriptor


def search(table: RtypeTable, names: RtypeNames, name: str) -> Iterator[int]:
    """Yield the addresses of the descriptors of a linker's name.

    Only for names that are a declared type's, perhaps with stars and brackets before it.
    """
    places = (
        table.start + found - _TEXT_OFFSET
        for offset in _text_offsets(table, name)
        for found in _occurrences(table, struct.pack("<I", offset))
    )
    for address in islice(places, _MAX_OFFSETS):
        try:
            if table.contains(address) and names.of(address) == name:
                yield address
        except RtypeError:
            # The same four bytes, but not in a descriptor.
            continue


def search_text(table: RtypeTable, text: str) -> Iterator[int]:
    """Yield the addresses of the descriptors of declared types with a text, as reflect prints it.

    It has the package's name in place of its path: ``http.Request``.
    """
    places = (
        table.start + found - _TEXT_OFFSET
        for offset in _exact_offsets(table, text.encode())
        for found in _occurrences(table, struct.pack("<I", offset))
    )
    for address in islice(places, _MAX_OFFSETS):
        try:
            if table.contains(address):
                record = table.record(address)
                if record.named and record.text == text:
                    yield address
        except RtypeError:
            # The same four bytes, but not in a descriptor.
            continue


def _exact_offsets(table: RtypeTable, text: bytes) -> Iterator[int]:
    """Yield the offsets of all names that are a text, or that of pointers to what it means.

    Types share their text with the pointers to them and then leave the star out.
    """
    for name in (b"*" + text, text):
        length = table.length_bytes(len(name))
        for found in islice(_occurrences(table, length + name), _MAX_TEXTS):
            if found:
                yield found - 1


def _text_offsets(table: RtypeTable, name: str) -> Iterator[int]:
    """Yield the offsets of all names that may be the text of the wanted type."""
    shape = _SHAPE.fullmatch(name)
    if shape is None or not shape[3]:
        return
    start, (package, dot, declared) = shape[1].encode(), shape[3].partition(".")
    if not dot:
        yield from _exact_offsets(table, start + package.encode())
        return
    ending = f".{declared}".encode()
    text_of = re.compile(rb"\*?" + re.escape(start) + _PACKAGE + re.escape(ending))
    data, low = table.image.data, table.image.offset_of(table.start)
    for found in islice(_occurrences(table, ending), _MAX_TEXTS):
        end = low + found + len(ending)
        for begin in range(low + found - 1, max(low + found - _MAX_START, low), -1):
            length = table.length_bytes(end - begin)
            if data[begin - len(length) : begin] == length and text_of.fullmatch(data, begin, end):
                yield begin - len(length) - 1 - low


def _occurrences(table: RtypeTable, needle: bytes) -> Iterator[int]:
    """Yield the offsets from the table's start at which bytes occur."""
    data, low = table.image.data, table.image.offset_of(table.start)
    high = low + table.end - table.start
    for position in find_all(data, needle, low, high):
        yield position - low


#: No type nests arrays and structs by value as deep as this; damaged descriptors do.
_MAX_NESTING = 64

#: Most fields of a struct and those in it, and characters of their names: real types have a
#: thousand fields.
_MAX_FIELDS = 1 << 16
_MAX_LABELS = 1 << 22

_DIRECTIONS = {1: ChanDirection.RECEIVE, 2: ChanDirection.SEND, 3: ChanDirection.BOTH}

#: Sizes that go with kinds, in bytes.
_SIZES = {
    Kind.CHAN: 8,
    Kind.FUNC: 8,
    Kind.INTERFACE: 16,
    Kind.MAP: 8,
    Kind.POINTER: 8,
    Kind.SLICE: 24,
}


@dataclass(frozen=True, slots=True)
class Itab:
    """One (interface, type) pair; the names are the linker's.

    ``address``, ``interface`` and ``type`` are the link-time addresses of the itab and of the two
    types' descriptors.
    """

    address: int
    interface: int
    type: int
    interface_name: str
    type_name: str


class Rtypes:
    """The types of one image by the addresses of their descriptors, which are link-time ones.

    All methods, and the lazy references of the types that they return, raise RtypeError for
    damaged data.
    """

    def __init__(self, table: RtypeTable) -> None:
        """Take the raw table; use :meth:`open` instead."""
        self._table = table
        self._names = RtypeNames(table)
        self._headers = RtypeHeaders(table, self._names, self.type_at)
        self._types: dict[int, GoType] = {}
        self._nesting = 0
        self._fields = self._labels = 0

    @classmethod
    def open(
        cls, image: ElfImage, go_version: GoVersion | None, module: ModuleData | None
    ) -> Rtypes | None:
        """Return the descriptors of an image, None when it has none of a known layout.

        ``go_version`` is the release that the image was built with, which decides on the layout;
        ``module`` leads to them. Raise RtypeError when the tables on the way are damaged.
        """
        if go_version is None or module is None:
            return None
        table = RtypeTable.open(image, go_version, module)
        return None if table is None else cls(table)

    @property
    def types_start(self) -> int:
        """Return the address of ``runtime.types``, from which DWARF counts descriptors."""
        return self._table.start

    def __contains__(self, address: int) -> bool:
        return self._table.contains(address)

    def name(self, address: int) -> str:
        """Return the linker's name of the type at an address."""
        return self._names.of(address)

    def is_direct(self, address: int) -> bool:
        """Return whether an interface's data word is the value itself, not a pointer to it.

        So it is for types of one word that is a pointer (isdirectiface in cmd/compile).
        """
        return self._table.record(address).direct

    def type_at(self, address: int) -> GoType:
        """Return the type whose descriptor is at an address."""
        known = self._types.get(address)
        if known is not None:
            return known
        if self._nesting == 0:
            self._fields = self._labels = 0
        elif self._nesting >= _MAX_NESTING:
            raise self._table.damaged(address, "contains itself")
        self._nesting += 1
        try:
            known = self._types[address] = self._build(self._table.record(address))
        finally:
            self._nesting -= 1
        return known

    def itabs(self, interface_name: str | None = None) -> Iterator[Itab]:
        """Yield the itabs that the linker made, of all interfaces or those of one name.

        ``interface_name`` is the linker's: "error", "io.Reader".
        """
        wanted: dict[int, str | None] = {}
        for address, interface, target in self._table.itabs:
            if interface not in wanted:
                name = self._names.of(interface)
                wanted[interface] = name if interface_name in (None, name) else None
            known = wanted[interface]
            if known is not None:
                yield Itab(address, interface, target, known, self._names.of(target))

    def methods(self, address: int) -> frozenset[str]:
        """Return the names of the methods of the interface type at an address."""
        return frozenset(name.text for name, _ in self._table.interface_methods(address))

    def type_of_itab(self, address: int) -> int | None:
        """Return the descriptor that an itab of the linker's names, None for any other address."""
        return self._by_itab.get(address)

    @cached_property
    def _by_itab(self) -> dict[int, int]:
        return {itab: target for itab, _, target in self._table.itabs}

    def basic(self, wanted: Kind | str) -> int | None:
        """Return the descriptor of a basic kind's own type, or of a type of a linker's name.

        Found by searching for the name: the program need not list the type. Names may be those
        of declared types, and of pointers to and slices of them: "int", "*errors.errorString",
        "[]fixture/store.Item". None when the program has no such type.
        """
        name = basic_type(wanted).name if isinstance(wanted, Kind) else wanted
        return next(search(self._table, self._names, name), None)

    def hashes(self, name: str) -> frozenset[int]:
        """Return the hashes of the types of a linker's name; functions may have types of one name.

        It is a name as for ``basic``.
        """
        found = search(self._table, self._names, name)
        return frozenset(
            self._table.words(address + TYPE_HASH_AT, 1)[0] & 0xFFFF_FFFF for address in found
        )

    def named(self, name: str) -> list[GoType]:
        """Return the declared types that a name can mean, as people write it.

        Either with the import path, ``net/http.Request``, or else with the package's name alone.
        More than one where packages have one name, or functions have types of one name.
        """
        path, dot, declared = _split_name(name)
        if not declared:
            return []
        spellings = dict.fromkeys((name, f"{escape_path(path)}{dot}{declared}"))
        found = {at for full in spellings for at in search(self._table, self._names, full)}
        if not found and "/" not in name:
            found = set(search_text(self._table, name))
        return [self.type_at(address) for address in sorted(found)]

    def all_types(self) -> Iterator[int]:
        """Yield the addresses of all descriptors that can be reached from lists and itabs.

        Each comes once. Damaged descriptors end it with RtypeError.
        """
        return (record.address for record, _ in self._reachable())

    def _reachable(self) -> Iterator[tuple[Record, Sequence[MethodRow]]]:
        """Yield all descriptors that can be reached, each once, with their methods."""
        table = self._table
        # Descriptors and their texts are in the file; two or three of them share a text.
        budget = 4 * (table.end - table.start)
        seen = {*table.roots(), *(target for _, *pair in table.itabs for target in pair)}
        waiting = list(seen)
        seen.add(0)
        while waiting:
            record = table.record(waiting.pop())
            methods = list(table.methods(record)) if record.uncommon else ()
            yield record, methods
            budget -= len(record.text)
            own = (table.start + row.type for row in methods if row.type > 0)
            for target in chain(table.parts(record), own):
                budget -= 4
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
            if budget < 0:
                raise table.damaged(record.address, "overlaps with others")

    def methods_of_code(self, code: int, name: str) -> Iterator[tuple[int, int]]:
        """Yield the addresses of a receiver's type and of the type of its method of a name.

        The method's code is at an offset from the text's start.
        """
        for owner, row in self._table.methods_of_code(code, name):
            yield owner.address, self._table.start + row.type

    def all_methods(self) -> Iterator[tuple[int, int, int]]:
        """Yield (code's offset, receiver's type, method's type) of all methods that can be called.

        Damaged descriptors end it with RtypeError.
        """
        start = self._table.start
        for record, methods in self._reachable():
            for row in methods:
                if row.type > 0 and row.code > 0:
                    yield row.code, record.address, start + row.type

    def function_parts(self, address: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the types of a function type's parameters and results, None for other kinds."""
        record = self._table.record(address)
        if record.kind is not Kind.FUNC:
            return None
        inputs, outputs, _ = self._table.function_parts(record)
        return inputs, outputs

    def declared(self) -> Iterator[str]:
        """Yield the linker's names of declared types, up to damage."""
        with suppress(RtypeError):
            for record, _ in self._reachable():
                if record.named:
                    yield self._names.of_record(record)

    def _lazy(self, address: int) -> Lazy[GoType]:
        return Lazy(lambda: self.type_at(address))

    def _build(self, record: Record) -> GoType:
        name = self._names.of_record(record)
        if record.kind in _BUILDERS:
            return _BUILDERS[record.kind](self, record, name)
        basic = basic_type(record.kind, name)
        if (record.size, record.align) != (basic.size, basic.align):
            raise self._table.damaged(record.address, f"gives {name} {record.size} bytes")
        return basic

    def _reference(self, record: Record, name: str) -> GoType:
        kind, size, align = record.kind, record.size, record.align
        if size != _SIZES[kind]:
            raise self._table.damaged(record.address, f"gives {name} {size} bytes")
        if kind is Kind.FUNC:
            return FuncType(name, kind, size, align)
        table, address = self._table, record.address
        if kind is Kind.INTERFACE:
            (methods,) = table.words(address + 64, 1)
            return InterfaceType(name, kind, size, align, methods == 0)
        first, second = table.words(address + 48, 2)
        elem = self._lazy(first)
        if kind is Kind.POINTER:
            return PointerType(name, kind, size, align, elem)
        if kind is Kind.SLICE:
            return SliceType(name, kind, size, align, elem)
        if kind is Kind.MAP:
            header: Lazy[GoType] = Lazy(lambda: self._headers.of_map(address))
            return MapType(name, kind, size, align, elem, self._lazy(second), header)
        if second not in _DIRECTIONS:
            raise table.damaged(address, f"has the channel direction {second}")
        channel: Lazy[GoType] = Lazy(lambda: self._headers.of_chan(address))
        return ChanType(name, kind, size, align, _DIRECTIONS[second], elem, channel)

    def _array(self, record: Record, name: str) -> GoType:
        target, _, length = self._table.words(record.address + 48, 3)
        elem = self.type_at(target)
        if elem.size * length != record.size:
            raise self._table.damaged(record.address, f"gives {name} {record.size} bytes")
        return ArrayType(name, record.kind, record.size, record.align, elem, length)

    def _struct(self, record: Record, name: str) -> GoType:
        fields = []
        for label, target, offset, embedded in self._table.fields(record.address):
            self._fields += 1
            self._labels += len(label.text) + len(label.tag)
            if self._fields > _MAX_FIELDS or self._labels > _MAX_LABELS:
                raise self._table.damaged(record.address, "has too many fields")
            field = Field(label.text, offset, self.type_at(target), embedded)
            if offset + field.type.size > record.size:
                raise self._table.damaged(record.address, f"has {label.text} outside of itself")
            fields.append(field)
        return StructType(name, record.kind, record.size, record.align, tuple(fields))


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a declared type's name into its package's path, the dot and its own name."""
    outside = name.partition("[")[0]
    path, dot, declared = outside.rpartition(".")
    return path, dot, declared + name[len(outside) :]


_Builder = Callable[[Rtypes, Record, str], GoType]

_BUILDERS: dict[Kind, _Builder] = {
    **dict.fromkeys(_SIZES, Rtypes._reference),
    Kind.ARRAY: Rtypes._array,
    Kind.STRUCT: Rtypes._struct,
}
