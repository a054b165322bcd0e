# SPDX-License-Identifier: Apache-2.0
"""Know what interfaces can hold in a target: plans for their dynamic types, and names."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cached_property
from itertools import islice

from gotrace.capture.factory import NodeFactory
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.symtab import symbol_value
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    InterfaceType,
    MapType,
    PointerType,
    SliceType,
    StructType,
)
from gotrace.target.target import TargetBinary

__all__ = ["DynamicTypes", "interfaces_within"]

#: Errors hold errors: these are always to be expected once an interface is.
_ALWAYS_EXPECTED = "error"
#: Most types to plan for from the start; each takes some 50 microseconds.
_MAX_EXPECTED = 2000
#: Interfaces within the types that interfaces hold: the address in a net.OpError is one.
_LEVELS_OF_INTERFACES = 2
_LEVELS_OF_TYPES = 4
_SMALL_VALUES = struct.pack("<256Q", *range(256))


class DynamicTypes(ReadContext):
    """What decoding one file's values asks; types are planned as they turn up.

    Addresses that come with events are run-time addresses. Where the bias of the file's mapping
    differs by process, dynamic types cannot be known; that of a program to be started is looked for
    until it is there.
    """

    def __init__(self, binary: TargetBinary, factory: NodeFactory) -> None:
        self._binary = binary
        self._bias = binary.bias
        self._factory = factory
        self._subplans: dict[int, Subplan] = {}
        self._names: dict[int, str | None] = {}
        self._new: list[tuple[int, Subplan]] = []

    def expect(self, interfaces: Iterable[InterfaceType]) -> dict[int, Subplan]:
        """Plan the types that values of interfaces can have; return the plans by run-time address.

        Those are the types that the program itself converts to the interface, as its itabs say,
        and for ``any``, all types in the binary, up to a bound; also for interfaces within
        those types. Others are planned for when they are first met.
        """
        wanted = list(interfaces)
        if not wanted or self._bias is None or self._descriptors is None:
            return {}
        expected: set[str] = set()
        names = {_ALWAYS_EXPECTED, *(i.name for i in wanted if not i.is_empty)}
        for _ in range(_LEVELS_OF_INTERFACES):
            addresses = [at for name in sorted(names) for at in _itabs(self._descriptors, name)]
            held = self._plan_all(addresses)
            expected |= names
            found = interfaces_within(subplan.type for subplan in held)
            names = {i.name for i in found if not i.is_empty} - expected
        if any(interface.is_empty for interface in wanted):
            self._plan_all(_types(self._descriptors))
        self._new.clear()
        return dict(self._subplans)

    def _plan_all(self, addresses: Iterable[int]) -> list[Subplan]:
        """Plan types and itabs at addresses in the file, while there is room."""
        assert self._bias is not None
        room = _MAX_EXPECTED - len(self._subplans)
        planned = [self._plan(address + self._bias) for address in islice(addresses, room)]
        return [subplan for subplan in planned if subplan is not None]

    @property
    def _descriptors(self) -> Rtypes | None:
        return self._binary.rtypes

    def take_new(self) -> list[tuple[int, Subplan]]:
        """Return the plans made for types met since the last time, to be given to the kernel."""
        if self._bias is None:
            self._bias = self._binary.find_bias()
        new, self._new = self._new, []
        return new

    def subplan(self, word: int) -> Subplan | None:
        """Return the plan of a type or itab that the kernel has been given."""
        return self._subplans.get(word)

    def type_name(self, word: int) -> str | None:
        """Return a dynamic type's name; the type is planned for from now on."""
        if word not in self._names and self._bias is not None:
            self._names[word] = self._learn(word)
        return self._names.get(word)

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        """Return bytes of what the file maps read-only: constants, in the main."""
        if self._bias is None:
            return None
        image, place = self._binary.image, address - self._bias
        if place in self._small_values and place + size <= self._small_values.stop:
            return bytes(image.read(place, size))
        return image.read_only(place, size)

    def is_untouched(self, address: int, size: int) -> bool:
        """Return whether memory of the traced process, where one is, has never been written to."""
        process = self._binary.process
        return process is not None and process.is_untouched(address, size)

    @cached_property
    def _small_values(self) -> range:
        """Return where interfaces find values of one byte: a variable that is never written to.

        Source: ``staticuint64s`` in runtime/iface.go, the words from 0 to 255. A stripped program
        does not name it; there it is the only one of that content.
        """
        image = self._binary.image
        start = symbol_value(image, "runtime.staticuint64s")
        places = [start] if start is not None else image.occurrences(_SMALL_VALUES)
        return range(places[0], places[0] + len(_SMALL_VALUES)) if len(places) == 1 else range(0)

    def function_name(self, pc: int) -> str | None:
        """Return the name of the function that holds a run-time address."""
        if self._bias is None:
            return None
        function = self._binary.functions.find(pc - self._bias)
        return function.name if function else None

    def _learn(self, word: int) -> str | None:
        subplan = self._plan(word)
        return subplan.type.name if subplan else None

    def _plan(self, word: int) -> Subplan | None:
        if self._bias is None or self._descriptors is None:
            return None
        address = word - self._bias
        try:
            # Itabs may be among the types: only as itabs do they lead to a type of their own.
            itab_type = self._descriptors.type_of_itab(address)
            place = address if itab_type is None else itab_type
            found = self._descriptors.type_at(place)
            subplan = self._factory.subplan_for(found, self._descriptors.is_direct(place))
        except (RtypeError, DwarfError):
            return None
        self._subplans[word] = subplan
        self._new.append((word, subplan))
        return subplan


def _itabs(descriptors: Rtypes, interface: str) -> list[int]:
    try:
        return [itab.address for itab in descriptors.itabs(interface)]
    except RtypeError:
        return []


def _types(descriptors: Rtypes) -> list[int]:
    try:
        return list(islice(descriptors.all_types(), _MAX_EXPECTED))
    except RtypeError:
        return []


def interfaces_within(types: Iterable[GoType]) -> list[InterfaceType]:
    """Return the interface types among types, those that they are made of included."""
    found: dict[str, InterfaceType] = {}
    seen: set[str] = set()
    level = list(types)
    for _ in range(_LEVELS_OF_TYPES):
        inner: list[GoType] = []
        for go_type in level:
            if go_type.name in seen:
                continue
            seen.add(go_type.name)
            if isinstance(go_type, InterfaceType):
                found[go_type.name] = go_type
            try:
                inner += _parts(go_type)
            except (RtypeError, DwarfError):
                continue
        level = inner
    return list(found.values())


def _parts(go_type: GoType) -> list[GoType]:
    if isinstance(go_type, StructType):
        return [field.type for field in go_type.fields]
    if isinstance(go_type, MapType):
        return [go_type.key, go_type.elem]
    if isinstance(go_type, PointerType | SliceType | ArrayType):
        return [go_type.elem]
    return []
