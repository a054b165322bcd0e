# SPDX-License-Identifier: Apache-2.0
"""Know the dynamic types of interfaces in a target: their plans, and their names."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice

from gotrace.capture.factory import NodeFactory
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.elf import ElfError
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.symtab import symbol_value
from gotrace.gotypes.contexts import ContextType
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.types import InterfaceType
from gotrace.target.target import TargetBinary

#: Errors hold errors: these are always to be expected once an interface is.
_ALWAYS_EXPECTED = "error"
#: Most types to plan for from the start; each takes some 50 microseconds.
_MAX_EXPECTED = 2000
#: Interfaces within the types that interfaces hold: the address in a net.OpError is one.
_LEVELS_OF_INTERFACES = 2
#: Function values whose names are kept.
_MAX_FUNCTIONS = 1 << 12
_SMALL_VALUES = struct.pack("<256Q", *range(256))


class DynamicTypes:
    """The dynamic types of one file, for decoding its values; each is planned when it is first met.

    They are known by where they are in the file. Addresses that come with events are run-time
    addresses: ``at`` returns what is known of those where a process has moved the file's.
    """

    def __init__(self, binary: TargetBinary, factory: NodeFactory) -> None:
        self._binary = binary
        self._factory = factory
        self._subplans: dict[int, Subplan] = {}
        self._names: dict[int, str | None] = {}
        self._functions: dict[int, str | None] = {}
        self._new: list[tuple[int, Subplan]] = []

    def at(self, bias: int) -> ReadContext:
        """Return the types of a process whose addresses are the file's plus ``bias``."""
        return _Moved(self, bias)

    def expect(self, interfaces: Iterable[InterfaceType]) -> dict[int, Subplan]:
        """Plan the types that values of interfaces can have; return the plans by link-time address.

        Those are the types that the program itself converts to the interface, as its itabs say,
        and for ``any``, all types in the binary, up to a bound; also for interfaces captured
        within those types. Others are planned for when they are first met.
        """
        wanted = list(interfaces)
        if not wanted or self._descriptors is None:
            return {}
        expected: set[str] = set()
        names = {_ALWAYS_EXPECTED, *(i.name for i in wanted if not i.is_empty)}
        for _ in range(_LEVELS_OF_INTERFACES):
            addresses = [at for name in sorted(names) for at in _itabs(self._descriptors, name)]
            held = self._plan_all(addresses)
            expected |= names
            found = (interface for subplan in held for interface in subplan.interfaces)
            names = {i.name for i in found if not i.is_empty} - expected
        if any(interface.is_empty for interface in wanted):
            self._plan_all(_types(self._descriptors))
        self._new.clear()
        return dict(self._subplans)

    def _plan_all(self, addresses: Iterable[int]) -> list[Subplan]:
        """Plan types and itabs at addresses in the file, while there is room."""
        room = _MAX_EXPECTED - len(self._subplans)
        planned = [self._plan(address) for address in islice(addresses, room)]
        return [subplan for subplan in planned if subplan is not None]

    @property
    def _descriptors(self) -> Rtypes | None:
        return self._binary.rtypes

    @property
    def contexts(self) -> Mapping[int, ContextType]:
        """Return the types of contexts and spans, none where nothing describes its types."""
        return self._binary.contexts or {}

    def take_new(self) -> list[tuple[int, Subplan]]:
        """Return the plans made for types met since the last time, to be given to the kernel."""
        new, self._new = self._new, []
        return new

    def subplan(self, address: int) -> Subplan | None:
        """Return the plan of a type or itab that the kernel has been given."""
        return self._subplans.get(address)

    def type_name(self, address: int) -> str | None:
        """Return a dynamic type's name; the type is planned for from now on."""
        if address not in self._names:
            self._names[address] = self._learn(address)
        return self._names.get(address)

    def constant_bytes(self, place: int, size: int) -> bytes | None:
        """Return bytes of what the file maps read-only: constants, in the main."""
        image = self._binary.image
        if place in self._small_values and place + size <= self._small_values.stop:
            return bytes(image.read(place, size))
        return image.read_only(place, size)

    def is_untouched(self, address: int, size: int) -> bool:
        """Return whether memory of the traced process, where one is, has never been written to.

        The address is one of the process.
        """
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
        """Return the name of the function that holds a link-time address."""
        if pc not in self._functions:
            if len(self._functions) == _MAX_FUNCTIONS:
                self._functions.clear()
            with suppress(ElfError):  # the file may have been written to by now
                found = self._binary.functions.find(pc)
                self._functions[pc] = found.name if found else None
        return self._functions.get(pc)

    def _learn(self, address: int) -> str | None:
        subplan = self._plan(address)
        return subplan.type.name if subplan else None

    def _plan(self, address: int) -> Subplan | None:
        if address < 0:
            return None
        try:
            descriptors = self._descriptors
            if descriptors is None:
                return None
            # Itabs may be among the types: only as itabs do they lead to a type of their own.
            itab_type = descriptors.type_of_itab(address)
            place = address if itab_type is None else itab_type
            found = descriptors.type_at(place)
            subplan = self._factory.subplan_for(found, descriptors.is_direct(place))
        except (RtypeError, DwarfError, ElfError):  # the file may have been written to by now
            return None
        self._subplans[address] = subplan
        self._new.append((address, subplan))
        return subplan


class _Moved(ReadContext):
    """The types of a file whose addresses are moved by a load bias."""

    def __init__(self, types: DynamicTypes, bias: int) -> None:
        self._types = types
        self._bias = bias

    def subplan(self, word: int) -> Subplan | None:
        return self._types.subplan(word - self._bias)

    def type_name(self, word: int) -> str | None:
        return self._types.type_name(word - self._bias)

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        place = address - self._bias
        return self._types.constant_bytes(place, size) if place >= 0 else None

    def is_untouched(self, address: int, size: int) -> bool:
        return self._types.is_untouched(address, size)

    def function_name(self, pc: int) -> str | None:
        return self._types.function_name(pc - self._bias)


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
