# SPDX-License-Identifier: Apache-2.0
"""Find signatures of methods in the tables that a program carries for interfaces, even stripped.

The descriptor of a type with methods has a row for each that an interface or reflection may call:
its name, its type as a function without receiver, and its code. The linker empties the rows of
methods that nothing can call so, and the compiler makes none for functions without a receiver, for
closures, and for the code that instances of a generic type share. Sources: ``internal/abi/type.go``
(Method), ``cmd/compile/internal/reflectdata/reflect.go`` (methods, dextratypeData),
``cmd/link/internal/ld/deadcode.go`` (which methods are kept).
"""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.symbols import NameKind, parse_name
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    InterfaceType,
    Kind,
    OpaqueType,
    Parameter,
    PointerType,
    Signature,
    SliceType,
    StructType,
)

#: Methods that are looked for one by one before all tables are read: each takes some milliseconds
#: in a program of 50 MB, and all tables take half a second.
_FEW = 24

#: The names that Go programs give to parameters of these types.
_USUAL_NAMES = {
    "context.Context": "ctx",
    "error": "err",
    "net/http.ResponseWriter": "w",
    "*net/http.Request": "r",
}

#: References to follow when types are compared.
_MAX_DEPTH = 4


class MethodTables:
    """The signatures of one program's methods. Methods raise RtypeError for damage."""

    def __init__(self, types: Rtypes, text: int) -> None:
        """Take the program's types and the address from which their tables count code."""
        self._types = types
        self._text = text
        self._asked = 0
        self._all: dict[int, tuple[int, int]] | None = None

    def signature(self, name: str, entry: int) -> Signature | None:
        """Return the signature of the function of a linker's name at an address, None without one.

        The receiver is its first parameter. Parameters have the names that ``parameter_names``
        gives, results have none.
        """
        found = self._row(name, entry)
        if found is None:
            return None
        owner, function = found
        parts = self._types.function_parts(function)
        if parts is None:
            return None
        inputs, outputs = parts
        types = [self._types.type_at(address) for address in (owner, *inputs)]
        if isinstance(types[0], PointerType) is not parse_name(name).pointer:
            return None
        names = parameter_names([of.name for of in types])
        return Signature(
            name,
            tuple(map(Parameter, names, types)),
            tuple(Parameter("", self._types.type_at(address)) for address in outputs),
        )

    def has(self, name: str, entry: int) -> bool:
        """Return whether there is a signature of a function, which is not read."""
        return self._row(name, entry) is not None

    def _row(self, name: str, entry: int) -> tuple[int, int] | None:
        """Return the addresses of a method's receiver's type and of its own type."""
        if self._all is None and self._asked < _FEW:
            parsed = parse_name(name)
            if parsed.kind not in (NameKind.METHOD, NameKind.WRAPPER) or parsed.closure:
                return None
            self._asked += 1
            return next(self._types.methods_of_code(entry - self._text, parsed.name), None)
        if self._all is None:
            self._all = {}  # and up to damage what there is
            for code, owner, of in self._types.all_methods():
                self._all[code] = owner, of
        return self._all.get(entry - self._text)


def parameter_names(types: Sequence[str]) -> list[str]:
    """Return names for parameters of which only the types are known, the receiver's first.

    It is the name that all programs use for such a type, ``ctx``, if no other parameter has the
    type, else ``arg2`` by the position.
    """
    usual = [_USUAL_NAMES.get(name) if types[1:].count(name) == 1 else None for name in types[1:]]
    return [name or f"arg{number}" for number, name in enumerate([None, *usual], 1)]


def is_same(given: Signature, known: Signature) -> bool:
    """Return whether a user's signature, with types written in other ways, can be a known one."""
    ours, theirs = ((*one.parameters, *one.results) for one in (given, known))
    return (
        len(given.parameters) == len(known.parameters)
        and len(given.results) == len(known.results)
        and all(_agree(a.type, b.type, _MAX_DEPTH) for a, b in zip(ours, theirs, strict=True))
    )


_POINTERS = frozenset({Kind.POINTER, Kind.UNSAFE_POINTER, Kind.MAP, Kind.CHAN, Kind.FUNC})
_INTEGERS = frozenset(kind for kind in Kind if Kind.INT.value <= kind.value <= Kind.UINTPTR.value)


def _agree(given: GoType, known: GoType, depth: int) -> bool:
    """Return whether a user's type shows a value of the known type as what it is.

    Words may be given for pointers and integers for integers, and a struct for what has its parts.
    """
    if given.name == known.name or isinstance(given, OpaqueType) or depth == 0:
        return True
    if given.size != known.size:
        return False
    if given.kind in _INTEGERS | {Kind.UNSAFE_POINTER} and known.kind in _INTEGERS | _POINTERS:
        return True
    if given.kind is not known.kind:
        return False
    if isinstance(given, PointerType | SliceType) and isinstance(known, PointerType | SliceType):
        return _agree(given.elem, known.elem, depth - 1)
    if isinstance(given, ArrayType) and isinstance(known, ArrayType):
        return given.length == known.length and _agree(given.elem, known.elem, depth - 1)
    if isinstance(given, InterfaceType) and isinstance(known, InterfaceType):
        return given.is_empty == known.is_empty
    if isinstance(given, StructType) and isinstance(known, StructType):
        if given.is_named and known.is_named:
            return False
        ours, theirs = _fields(given), _fields(known)
        return ours.keys() == theirs.keys() and all(
            _agree(ours[at], theirs[at], depth - 1) for at in ours
        )
    return True


def _fields(of: StructType) -> dict[int, GoType]:
    """Return the types of a struct's fields with a size by their offsets."""
    return {field.offset: field.type for field in of.fields if field.type.size}


def spelled(signature: Signature) -> str:
    """Return a method's signature as users type it: its receiver is not written."""
    taken = ", ".join(f"{one.name} {one.type.name}" for one in signature.parameters[1:])
    given = ", ".join(one.type.name for one in signature.results)
    results = f"({given})" if len(signature.results) > 1 else given
    return f"{signature.name}({taken}) {results}".rstrip()
