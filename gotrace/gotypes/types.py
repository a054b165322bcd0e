# SPDX-License-Identifier: Apache-2.0
"""Model Go's types: kind, size, alignment and structure of every type a value can have.

Kinds are numbered as in src/internal/abi/type.go (reflect.Kind). Types that can lead back to
themselves are reached through lazy references, resolved when first used.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic, TypeVar

from gotrace.gotypes.symbols import package_of
from gotrace.records import dataclass

_T = TypeVar("_T")


class Kind(enum.Enum):
    """The kinds of Go types; the values are the runtime's (internal/abi.Kind)."""

    INVALID = 0
    BOOL = 1
    INT = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    UINT = 7
    UINT8 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    UINTPTR = 12
    FLOAT32 = 13
    FLOAT64 = 14
    COMPLEX64 = 15
    COMPLEX128 = 16
    ARRAY = 17
    CHAN = 18
    FUNC = 19
    INTERFACE = 20
    MAP = 21
    POINTER = 22
    SLICE = 23
    STRING = 24
    STRUCT = 25
    UNSAFE_POINTER = 26


class Lazy(Generic[_T]):
    """A value that is made when first asked for.

    All lazy references are equal, so that comparing types that refer to themselves ends.
    """

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], _T]) -> None:
        """Take the function that makes the value; it is called at most once."""
        self._make: Callable[[], _T] | None = make
        self._value: _T

    @classmethod
    def of(cls, value: _T) -> Lazy[_T]:
        """Return a reference to a value that exists already."""
        return cls(lambda: value)

    def get(self) -> _T:
        """Return the value; whatever its maker raises comes out."""
        if self._make is not None:
            self._value = self._make()
            self._make = None
        return self._value

    def __eq__(self, other: object) -> bool:
        """Return whether the other is a lazy reference too: any two are equal."""
        return isinstance(other, Lazy)

    def __hash__(self) -> int:
        """Return one number for all."""
        return hash(Lazy)

    def __repr__(self) -> str:
        """Return a mark, without making the value."""
        return "Lazy(...)"


@dataclass(frozen=True, slots=True)
class GoType:
    """One type; ``size`` and ``align`` in bytes.

    ``name`` is the linker's: package paths in full, ``interface {}`` for any, ``uint8`` for byte.
    The structure of a named type is that of its underlying type. Types are equal when all of
    this is, references to other types aside.
    """

    name: str
    kind: Kind
    size: int
    align: int

    @property
    def is_named(self) -> bool:
        """Return whether the type was declared with a name, as opposed to a literal or builtin."""
        basic = self.kind.name.lower() if self.kind is not Kind.UNSAFE_POINTER else "unsafe.Pointer"
        return self.name != basic and not is_type_literal(self.name)

    @property
    def package(self) -> str:
        """Return the import path of the package that declares a named type, else nothing."""
        return package_of(self.name) if self.is_named else ""


@dataclass(frozen=True, slots=True)
class BasicType(GoType):
    """A boolean, number, string or unsafe.Pointer, or a named type made of one."""


@dataclass(frozen=True, slots=True)
class OpaqueType(GoType):
    """A type of which only the size is known: C's, and names without type information."""


class UnknownType(GoType):
    """The type of a value of which nothing is known; its name is the reason."""

    __slots__ = ()

    def __init__(self, why: str) -> None:
        super().__init__(why, Kind.INVALID, 0, 1)


#: The name of structs of which a program describes the words alone. Their fields are f0, f1...
SHAPE = "shape"

_Reference = Lazy[GoType]


@dataclass(frozen=True, slots=True)
class PointerType(GoType):
    """A pointer."""

    elem_ref: _Reference

    @property
    def elem(self) -> GoType:
        return self.elem_ref.get()


@dataclass(frozen=True, slots=True)
class SliceType(GoType):
    """A slice: data pointer, length and capacity, one word each."""

    elem_ref: _Reference

    @property
    def elem(self) -> GoType:
        return self.elem_ref.get()


@dataclass(frozen=True, slots=True)
class ArrayType(GoType):
    """An array of a fixed length."""

    elem: GoType
    length: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct, ``offset`` bytes from its start."""

    name: str
    offset: int
    type: GoType
    embedded: bool = False


_VECTOR_TAGS = frozenset(f"simd/archsimd.v{bits}" for bits in (128, 256, 512))


@dataclass(frozen=True, slots=True)
class StructType(GoType):
    """A struct."""

    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)

    @property
    def is_vector(self) -> bool:
        """Return whether it is a vector, or a mask of one, which a register holds as a whole.

        The compiler marks them by a first field of a type without size: ``CalcStructSize`` and
        ``simdify`` in cmd/compile/internal/types/size.go (GOEXPERIMENT=simd of Go 1.26 and 1.27).
        """
        return bool(self.fields) and self.fields[0].type.name in _VECTOR_TAGS


@dataclass(frozen=True, slots=True)
class MapType(GoType):
    """A map: one pointer to its header.

    ``header_ref`` leads to the header's struct type where DWARF has it: ``hash<K,V>`` like
    runtime.hmap up to Go 1.23, ``map<K,V>`` like internal/runtime/maps.Map since 1.24.
    """

    key_ref: _Reference
    elem_ref: _Reference
    header_ref: _Reference | None = None

    @property
    def key(self) -> GoType:
        return self.key_ref.get()

    @property
    def elem(self) -> GoType:
        return self.elem_ref.get()

    @property
    def header(self) -> GoType | None:
        """Return the header's type, None when it is not known."""
        return None if self.header_ref is None else self.header_ref.get()


class ChanDirection(enum.Enum):
    """The directions of a channel; values are Go's spelling."""

    BOTH = "chan"
    SEND = "chan<-"
    RECEIVE = "<-chan"

    @property
    def verb(self) -> str | None:
        """Return the word for one direction, None for both."""
        return None if self is ChanDirection.BOTH else self.name.lower()


@dataclass(frozen=True, slots=True)
class ChanType(GoType):
    """A channel: one pointer to a runtime.hchan."""

    direction: ChanDirection
    elem_ref: _Reference
    header_ref: _Reference | None = None

    @property
    def elem(self) -> GoType:
        return self.elem_ref.get()

    @property
    def header(self) -> GoType | None:
        """Return the header's type, None when it is not known."""
        return None if self.header_ref is None else self.header_ref.get()


@dataclass(frozen=True, slots=True)
class FuncType(GoType):
    """A function value: one pointer to a closure object, whose first word is the code's address.

    The name spells parameters and results out, except for declared types.
    """


@dataclass(frozen=True, slots=True)
class InterfaceType(GoType):
    """An interface: (type, data) when it is empty, that is without methods, else (itab, data)."""

    is_empty: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or a result; ``name`` as DWARF or the user gives it, empty when there is none."""

    name: str
    type: GoType


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters, the receiver first, and results. ``name`` may be empty."""

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]


_WORD = 8
_BASIC_SIZES = {
    Kind.BOOL: 1,
    Kind.INT: _WORD,
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.UINT: _WORD,
    Kind.UINT8: 1,
    Kind.UINT16: 2,
    Kind.UINT32: 4,
    Kind.UINT64: 8,
    Kind.UINTPTR: _WORD,
    Kind.FLOAT32: 4,
    Kind.FLOAT64: 8,
    Kind.COMPLEX64: 8,
    Kind.COMPLEX128: 16,
    Kind.STRING: 2 * _WORD,
    Kind.UNSAFE_POINTER: _WORD,
}


def basic_type(kind: Kind, name: str = "") -> BasicType:
    """Return the type of a basic kind on a 64-bit machine, by default under its own name.

    Sizes and alignments are those of Go's abi-internal.md, "Memory layout".
    """
    size = _BASIC_SIZES[kind]
    align = min(size, 8)
    if kind is Kind.COMPLEX64:
        align = 4
    if not name:
        name = "unsafe.Pointer" if kind is Kind.UNSAFE_POINTER else kind.name.lower()
    return BasicType(name, kind, size, align)


def struct_alignment(fields: tuple[Field, ...]) -> int:
    """Return a struct's alignment: the greatest of its fields', 1 without fields."""
    return max((field.type.align for field in fields), default=1)


_LITERAL_STARTS = ("*", "[", "(", "map[", "chan ", "chan<-", "<-chan", "func(", "struct {")


def is_type_literal(name: str) -> bool:
    """Return whether a linker name spells a type out, as ``[]main.T`` does."""
    return name.startswith((*_LITERAL_STARTS, "interface {"))
