"""Know a program's types from the descriptors that it carries for its own use, even stripped.

A descriptor (runtime._type, internal/abi.Type) is what the type word of an interface value points
to; an itab is what the first word of an interface with methods points to, and names the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.image import ElfImage
from gotrace.goabi.descriptor_headers import DescriptorHeaders
from gotrace.goabi.descriptor_names import DescriptorNames, escape_path
from gotrace.goabi.descriptor_search import search, search_text
from gotrace.goabi.descriptor_table import DescriptorError, DescriptorTable, Record
from gotrace.goabi.types import (
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

__all__ = ["DescriptorError", "Descriptors", "Itab"]

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
    """Describe one (interface, type) pair; the names are the linker's.

    ``address``, ``interface`` and ``type`` are the link-time addresses of the itab and of the two
    types' descriptors.
    """

    address: int
    interface: int
    type: int
    interface_name: str
    type_name: str


class Descriptors:
    """Give the types of one image by the addresses of their descriptors, which are link-time ones.

    All methods, and the lazy references of the types that they return, raise DescriptorError for
    damaged data.
    """

    def __init__(self, table: DescriptorTable) -> None:
        """Take the raw table; use :meth:`open` instead."""
        self._table = table
        self._names = DescriptorNames(table)
        self._headers = DescriptorHeaders(table, self._names, self.type_at)
        self._types: dict[int, GoType] = {}
        self._nesting = 0
        self._fields = self._labels = 0

    @classmethod
    def open(cls, image: ElfImage, go_version: GoVersion | None) -> Descriptors | None:
        """Return the descriptors of an image, None when it has none of a known layout.

        ``go_version`` is the release that the image was built with, which decides on the layout.
        Raise DescriptorError when the tables that lead to them are damaged.
        """
        table = None if go_version is None else DescriptorTable.open(image, go_version)
        return None if table is None else cls(table)

    @property
    def types_start(self) -> int:
        """Return the address of ``runtime.types``, from which DWARF counts descriptors."""
        return self._table.start

    def __contains__(self, address: int) -> bool:
        """Tell whether a descriptor can be at an address."""
        return self._table.contains(address)

    def name(self, address: int) -> str:
        """Return the linker's name of the type at an address."""
        return self._names.of(address)

    def is_direct(self, address: int) -> bool:
        """Tell whether an interface's data word is the value itself, not a pointer to it.

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

        Each comes once. Damaged descriptors end it with DescriptorError.
        """
        table = self._table
        # What descriptors say takes place in the file; texts are shared by two or three of them.
        budget = 4 * (table.end - table.start)
        seen = {*table.roots(), *(target for _, *pair in table.itabs for target in pair)}
        waiting = list(seen)
        seen.add(0)
        while waiting:
            address = waiting.pop()
            yield address
            record = table.record(address)
            budget -= len(record.text)
            for target in table.parts(record):
                budget -= 4
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
            if budget < 0:
                raise table.damaged(address, "overlaps with others")

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


_Builder = Callable[[Descriptors, Record, str], GoType]

_BUILDERS: dict[Kind, _Builder] = {
    **dict.fromkeys(_SIZES, Descriptors._reference),
    Kind.ARRAY: Descriptors._array,
    Kind.STRUCT: Descriptors._struct,
}
