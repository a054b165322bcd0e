"""Walk from a type to the types of what its values hold: fields, elements, targets, lengths."""

from __future__ import annotations

from gotrace.goabi.nodes_paths import PathMark, PathStep
from gotrace.goabi.types import (
    ArrayType,
    ChanType,
    GoType,
    InterfaceType,
    Kind,
    MapType,
    OpaqueType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.probes.constants import described
from gotrace.probes.expression import Measure
from gotrace.probes.scope import did_you_mean, listed

__all__ = ["INT", "Hop", "StepError", "deref", "element", "field_of", "measure"]

#: The steps that an operator stands for, dereferences included, and the type that they lead to.
Hop = tuple[tuple[PathStep, ...], GoType]

#: The type of lengths.
INT = basic_type(Kind.INT)
_MOST_POINTERS = 4  # `type P *P` has no end
_DEEPEST_PROMOTION = 8  # levels of embedding
_MOST_EMBEDDED = 1000  # structs looked through on one level


class StepError(Exception):
    """Say why a type has no such field, element, target or length; callers add the place."""


def deref(of: GoType) -> Hop:
    """Follow a pointer; raises StepError."""
    if not isinstance(of, PointerType):
        if of.kind is Kind.UNSAFE_POINTER:
            raise StepError("an unsafe.Pointer does not say what it points to")
        raise StepError(f"{described(of)} is no pointer: leave the * out")
    return (PathMark.DEREF,), of.elem


def _through_pointers(of: GoType) -> Hop:
    """Follow pointers to the first type that is none."""
    steps: list[PathStep] = []
    while isinstance(of, PointerType) and len(steps) < _MOST_POINTERS:
        steps.append(PathMark.DEREF)
        of = of.elem
    return tuple(steps), of


def field_of(of: GoType, name: str) -> Hop:
    """Find a field by name, a promoted one too, through pointers; raises StepError."""
    steps, target = _through_pointers(of)
    if isinstance(target, StructType):
        found = _promoted(target, name)
        if found is None:
            raise StepError(_no_field(target, name))
        return (*steps, *found[0]), found[1]
    if isinstance(target, InterfaceType):
        raise StepError(
            f"{described(target)} is an interface, which has no fields: "
            "compare it with nil, or print it with %v"
        )
    if isinstance(target, OpaqueType):
        raise StepError(f"nothing describes the fields of {target.name}")
    raise StepError(f"{described(target)} has no fields{_instead(target)}")


def _instead(of: GoType) -> str:
    if isinstance(of, SliceType | ArrayType):
        return ": index an element first, as in [0]"
    if isinstance(of, MapType | ChanType):
        return ": len() gives its length"
    return ""


def _promoted(struct: StructType, name: str) -> Hop | None:
    """Find a field at the shallowest depth that has it, as Go's selectors do.

    Where two embedded structs of one depth have it, Go refuses; the first is taken.
    """
    level: list[tuple[tuple[PathStep, ...], StructType]] = [((), struct)]
    for _ in range(_DEEPEST_PROMOTION):
        for steps, candidate in level:
            field = candidate.field(name)
            if field is not None:
                return (*steps, name), field.type
        level = [
            ((*steps, embedded.name, *inner), target)
            for steps, candidate in level
            for embedded in candidate.fields
            if embedded.embedded
            for inner, target in [_through_pointers(embedded.type)]
            if isinstance(target, StructType)
        ][:_MOST_EMBEDDED]
    return None


def _no_field(struct: StructType, name: str) -> str:
    names = [field.name for field in struct.fields if field.name != "_"]
    if not names:
        return f"{struct.name} has no fields"
    hint = did_you_mean(name, names)
    has = f"its fields are {listed(names)}"
    return f"{struct.name} has no field {name!r}: {f'{hint} ({has})' if hint else has}"


def element(of: GoType, index: int) -> Hop:
    """Find an element of an array, slice or string, through pointers; raises StepError."""
    steps, target = _through_pointers(of)
    if target.kind is Kind.STRING:
        return (*steps, index), basic_type(Kind.UINT8)
    if isinstance(target, ArrayType):
        if index >= target.length:
            last = f"the last is [{target.length - 1}]" if target.length else "it is empty"
            raise StepError(f"{target.name} has no element [{index}]: {last}")
        return (*steps, index), target.elem
    if isinstance(target, SliceType):
        return (*steps, index), target.elem
    if isinstance(target, MapType):
        raise StepError("entries of a map cannot be looked up here: print it with %v")
    raise StepError(
        f"{described(target)} has no elements: arrays, slices and strings can be indexed"
    )


def measure(of: GoType, function: Measure) -> Hop | int:
    """Find a value's length or capacity: how to get there, or the number itself for an array.

    Raises StepError.
    """
    steps, target = _through_pointers(of)
    if isinstance(target, ArrayType):
        return target.length
    measured = isinstance(target, SliceType | ChanType)
    if function is Measure.LEN:
        measured = measured or isinstance(target, MapType) or target.kind is Kind.STRING
    if not measured:
        kinds = "slices, arrays and channels"
        if function is Measure.LEN:
            kinds = "strings, slices, arrays, maps and channels"
        raise StepError(f"{described(target)} has no {function.value}(): only {kinds} have")
    mark = PathMark.LEN if function is Measure.LEN else PathMark.CAP
    return (*steps, mark), INT
