# SPDX-License-Identifier: Apache-2.0
"""Types of values in generic functions, by the dictionary that a call has.

Code of generic functions is compiled for shapes. A call passes a dictionary of its instance, which
has the descriptor of each type that depends on type arguments (cmd/compile/internal/noder,
dictNameOf). The linker has placed dictionaries and descriptors, so both are read from the file.

A function that does not use its dictionary has leftovers in its place after its stack grew. So a
dictionary is believed only if the symbol table has it, as one of that function or of its receiver.
"""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.abi.locations import PlacedValue
from gotrace.capture.paths import PathMark, PathStep
from gotrace.capture.stdlib import time_of
from gotrace.elf.image import ElfImage
from gotrace.elf.symtab import object_names
from gotrace.errors import GotraceError
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    Kind,
    MapType,
    PointerType,
    SliceType,
    StructType,
)
from gotrace.probes.scope import Phase
from gotrace.records import replace
from gotrace.session.trace_plan import DICTIONARY, TracedCall, has_type
from gotrace.values.model import (
    BytesValue,
    ChanValue,
    DurationValue,
    FuncValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)

_NUMBERS = (bool, int, float, complex, StringValue, NamedValue, DurationValue)
_MARK = "..dict."


class _OtherTypeError(Exception):
    """A type that cannot be that of a value."""


class CallTypes:
    """The types that the dictionaries of one function's calls give to its values."""

    def __init__(self, traced: TracedCall) -> None:
        self._binary = traced.binary
        self._rtypes = traced.binary.rtypes
        self._base = _base_of(traced.function.function.name)
        self._types: dict[tuple[int, int], GoType | None] = {}
        self._at = traced.shown(Phase.ENTRY) + traced.paths[Phase.ENTRY].index(DICTIONARY)
        #: Of each phase the numbers of values with such types, their places, and the way there.
        self._wanted = {phase: _wanted(traced, phase) for phase in Phase}

    def give(self, entry: list[Value], results: list[Value] | None, bias: int) -> None:
        """Give values their types. Those without a known one stay as they are, of a shape."""
        found = entry[self._at]
        if self._rtypes is None or not isinstance(found, NamedValue):
            return
        if not isinstance(found.value, int) or not self._is_ours(found.value - bias):
            return
        for phase, values in ((Phase.ENTRY, entry), (Phase.RETURN, results)):
            for number, place, steps in self._wanted[phase] if values is not None else ():
                of = self._type(found.value - bias, place)
                of = _type_at(of, steps) if of is not None else None
                if values is not None and of is not None:
                    values[number] = _retyped(values[number], of)

    def _is_ours(self, dictionary: int) -> bool:
        names = self._binary.debug_image.once(_dictionaries)
        return _base_of(names.get(dictionary, "").replace(_MARK, ".", 1)) == self._base

    def _type(self, dictionary: int, place: PlacedValue) -> GoType | None:
        """Return the type that a dictionary has for a value, None if it is not of its shape."""
        assert self._rtypes is not None and place.dictionary_word is not None
        key = dictionary, place.dictionary_word
        if key not in self._types:
            try:
                raw = self._binary.image.read_relocated(dictionary + 8 * key[1], 8)
                address = int.from_bytes(raw, "little")
                of = self._rtypes.type_at(address) if address in self._rtypes else None
            except GotraceError:
                of = None
            shape = place.type
            is_same = of is not None and (of.kind, of.size) == (shape.kind, shape.size)
            self._types[key] = of if is_same else None
        return self._types[key]


def _dictionaries(image: ElfImage) -> dict[int, str]:
    return object_names(image, _MARK)


def _base_of(name: str) -> str:
    """Return the part that a generic function or its receiver shares with its dictionaries.

    Up to Go 1.19 dictionaries are of methods, and since then of receivers.
    """
    return name.partition("[")[0].replace("(*", "")


def _wanted(traced: TracedCall, phase: Phase) -> list[tuple[int, PlacedValue, Sequence[PathStep]]]:
    places = traced.places
    own = places.parameters if phase is Phase.ENTRY else places.results
    shown = traced.shown(phase)
    wanted: list[tuple[int, PlacedValue, Sequence[PathStep]]] = [
        (number, place, ()) for number, place in enumerate(own[:shown])
    ]
    wanted += [
        (shown + number, own[path.root.index], path.steps)
        for number, path in enumerate(traced.paths[phase])
        if has_type(traced.places, path)
    ]
    return [one for one in wanted if one[1].dictionary_word is not None]


def _type_at(of: GoType, steps: Sequence[PathStep]) -> GoType | None:
    """Return the type at the end of a path from a value; None if it is one that all shapes have."""
    for step in steps:
        if isinstance(of, StructType) and isinstance(step, str):
            field = of.field(step)
            if field is None:
                return None
            of = field.type
        elif step is PathMark.DEREF and isinstance(of, PointerType):
            of = of.elem
        elif not isinstance(step, int) or not isinstance(of, SliceType | ArrayType):
            return None
        else:
            of = of.elem
    return of


def _retyped(value: Value, of: GoType) -> Value:
    try:
        return _as_type(value, of)
    except (_OtherTypeError, GotraceError):
        return value


def _as_type(value: Value, of: GoType) -> Value:
    """Return a value of the same layout as a type with the names of that type."""
    if isinstance(value, UnavailableValue):
        return value
    if isinstance(value, Nil):
        return Nil(of.name)
    if isinstance(value, _NUMBERS):
        return _plain(value, of)
    if isinstance(value, PointerValue) and isinstance(of, PointerType):
        target = None if value.target is None else _as_type(value.target, of.elem)
        return PointerValue(of.name, value.address, target)
    if isinstance(value, PointerValue) and of.kind is Kind.UNSAFE_POINTER:
        return replace(value, type=of.name)
    if isinstance(value, StructValue) and isinstance(of, StructType):
        return _struct(value, of)
    if isinstance(value, SequenceValue) and isinstance(of, SliceType | ArrayType):
        elements = tuple(_as_type(one, of.elem) for one in value.elements)
        return replace(value, type=of.name, elements=elements)
    if isinstance(value, BytesValue) and isinstance(of, SliceType | ArrayType):
        return replace(value, type=of.name)
    if isinstance(value, MapValue) and isinstance(of, MapType):
        entries = tuple((_as_type(k, of.key), _as_type(v, of.elem)) for k, v in value.entries)
        return replace(value, type=of.name, entries=entries)
    if isinstance(value, ChanValue | FuncValue | InterfaceValue):
        if of.kind not in (Kind.CHAN, Kind.FUNC, Kind.INTERFACE):
            raise _OtherTypeError
        return replace(value, type=of.name)
    if of.kind in (Kind.INTERFACE, Kind.STRUCT):
        return value  # shown by its meaning, as an error or a time is
    raise _OtherTypeError


def _struct(value: StructValue, of: StructType) -> Value:
    names = [name for name, _ in value.fields]
    if names != [field.name for field in of.fields]:
        raise _OtherTypeError
    if of.name == "time.Time":
        wall, ext, location = (one for _, one in value.fields)
        if isinstance(wall, int) and isinstance(ext, int):
            return replace(time_of(wall, ext), zone="UTC" if isinstance(location, Nil) else None)
    pairs = zip(value.fields, of.fields, strict=True)
    fields = tuple((field.name, _as_type(one, field.type)) for (_, one), field in pairs)
    return replace(value, type=of.name, fields=fields)


def _plain(value: Value, of: GoType) -> Value:
    inside = value.value if isinstance(value, NamedValue) else value
    number = inside.nanoseconds if isinstance(inside, DurationValue) else inside
    if (of.kind is Kind.STRING) is not isinstance(number, StringValue):
        raise _OtherTypeError
    if of.name == "time.Duration" and isinstance(number, int):
        return DurationValue(number)
    if of.is_named or of.kind in (Kind.UINTPTR, Kind.UNSAFE_POINTER):
        return NamedValue(of.name, number)
    return number
