# SPDX-License-Identifier: Apache-2.0
"""Parse function signatures as users write them, for binaries without debugging information.

The syntax is Go's (The Go Programming Language Specification, "Types" and "Function types"), with
linker names in place of local ones: ``main.(*Store).Get(key string) (v string, err error)`` or
``func(s *main.Store, key string) (string, error)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gotrace.errors import UsageError
from gotrace.gotypes.symbols import NameKind, parse_name
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
    OpaqueType,
    Parameter,
    PointerType,
    Signature,
    SliceType,
    StructType,
    basic_type,
    struct_alignment,
)

#: Gives the types that a declared name such as ``main.Store`` can mean.
TypeLookup = Callable[[str], Sequence[GoType]]


class SignatureError(UsageError):
    """A fault in a signature, with its column (from 1)."""


class UnknownTypeError(SignatureError):
    """The name of a type that the program does not have."""


_WORD = 8
_MAX_NESTING = 32
_MAX_LENGTH = 1 << 40
#: Most types to name where one of several may be meant.
_MAX_NAMED = 4

_BASICS: dict[str, GoType] = {
    **{
        kind.name.lower(): basic_type(kind)
        for kind in Kind
        if Kind.BOOL.value <= kind.value <= Kind.COMPLEX128.value
    },
    "string": basic_type(Kind.STRING),
    "byte": basic_type(Kind.UINT8),
    "rune": basic_type(Kind.INT32),
    "unsafe.Pointer": basic_type(Kind.UNSAFE_POINTER),
    "error": InterfaceType("error", Kind.INTERFACE, 2 * _WORD, _WORD, False),
    "any": InterfaceType("interface {}", Kind.INTERFACE, 2 * _WORD, _WORD, True),
    "time.Duration": basic_type(Kind.INT64, "time.Duration"),
}

#: Aliases of the standard library and of golang.org/x, which no program describes. They are looked
#: up after the name itself: before Go 1.16 os.FileInfo was a type of its own, and those of
#: encoding/json are unless it is built on json/v2.
_ALIASES = {
    "debug/buildinfo.BuildInfo": "runtime/debug.BuildInfo",
    "encoding/json.Marshaler": "encoding/json/v2.Marshaler",
    "encoding/json.Options": "encoding/json/internal/jsonopts.Options",
    "encoding/json.RawMessage": "encoding/json/jsontext.Value",
    "encoding/json.Unmarshaler": "encoding/json/v2.Unmarshaler",
    "golang.org/x/crypto/ed25519.PrivateKey": "crypto/ed25519.PrivateKey",
    "golang.org/x/crypto/ed25519.PublicKey": "crypto/ed25519.PublicKey",
    "golang.org/x/net/context.CancelFunc": "context.CancelFunc",
    "golang.org/x/net/context.Context": "context.Context",
    "golang.org/x/sys/unix.Errno": "syscall.Errno",
    "golang.org/x/sys/unix.Signal": "syscall.Signal",
    "golang.org/x/sys/unix.SysProcAttr": "syscall.SysProcAttr",
    "html/template.FuncMap": "text/template.FuncMap",
    "os.DirEntry": "io/fs.DirEntry",
    "os.FileInfo": "io/fs.FileInfo",
    "os.FileMode": "io/fs.FileMode",
    "os.PathError": "io/fs.PathError",
}
#: The same by the package's name without its path.
_SHORT_ALIASES = {name.rpartition("/")[2]: target for name, target in _ALIASES.items()}

_VECTOR = re.compile(r"(?:simd/)?archsimd\.((?:Float|Int|Uint|Mask)[0-9]+)x([0-9]{1,2})")
_TOKEN = re.compile(r"\s*(?P<token>\.\.\.|<-|[0-9]+|[^\W\d][\w./%~-]*|\S)")
_NAME = re.compile(r"[^\W\d][\w./%~-]*")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")


def parse_signature(
    text: str, lookup: TypeLookup | None = None, *, has_value_receiver: bool = False
) -> Signature:
    """Parse ``NAME(PARAMETERS) RESULTS`` or ``func(PARAMETERS) RESULTS``.

    In the first form, the receiver of a method's name (``main.(*T).M``, ``main.T.M``) is understood
    and must not be among the parameters. That of ``main.T.M`` is the first parameter where
    ``lookup`` does not know T, and with ``has_value_receiver``. In the second form all receivers
    are parameters. ``lookup`` is asked for declared types, which must be known then. Raise
    SignatureError.
    """
    start = _list_start(text)
    if start < 0:
        raise SignatureError(f"signature {text!r}, column 1: expected NAME(PARAMETERS) RESULTS")
    parser = _Parser(text, start, lookup)
    parameters, results = parser.function()
    parser.end()
    name = text[:start].strip()
    name = "" if name == "func" else name
    receiver = _receiver(name, lookup, has_value_receiver)
    return Signature(name, (*([receiver] if receiver else []), *parameters), tuple(results))


def parse_type(text: str, lookup: TypeLookup | None = None) -> GoType:
    """Parse a type such as ``map[string][]int``; raise SignatureError."""
    parser = _Parser(text, 0, lookup)
    found = parser.type()
    parser.end()
    return found


def _list_start(text: str) -> int:
    """Return where the parameters' parenthesis opens, -1 when there is none.

    Other parentheses and brackets belong to the name: ``main.(*G[func(int)]).M(x int)``.
    """
    depth = 0
    for at, character in enumerate(text):
        if character == "(" and depth == 0 and not text[:at].endswith("."):
            return at
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
    return -1


def _receiver(name: str, lookup: TypeLookup | None, has_value_receiver: bool) -> Parameter | None:
    """Return the receiver that a method's name speaks of, if it is not among the parameters."""
    parsed = parse_name(name)
    if parsed.kind is not NameKind.METHOD:
        return None
    declared = f"{parsed.package}.{parsed.receiver}"
    # Code of a generic type is shared by instances: its name does not say which it is.
    known = lookup(declared) if lookup is not None and not parsed.type_arguments else ()
    if not parsed.pointer:
        return Parameter("", known[0]) if len(known) == 1 and not has_value_receiver else None
    elem = known[0] if len(known) == 1 else OpaqueType(declared, Kind.INVALID, 0, 1)
    pointer = PointerType(f"*{elem.name}", Kind.POINTER, _WORD, _WORD, Lazy.of(elem))
    return Parameter("", pointer)


class _Parser:
    """A reader of types and parameter lists, from left to right."""

    def __init__(self, text: str, start: int, lookup: TypeLookup | None) -> None:
        self._text = text
        self._lookup = lookup
        self._tokens = [
            (match["token"], match.start("token")) for match in _TOKEN.finditer(text, start)
        ]
        self._next = 0
        self._nesting = 0

    def end(self) -> None:
        if self._token():
            raise self._error("unexpected")

    def function(self) -> tuple[list[Parameter], list[Parameter]]:
        """Parse ``(PARAMETERS) RESULTS``."""
        parameters = self._list()
        if self._token() == "(":
            return parameters, self._list()
        if self._token() in ("", ")", ",", ";", "}", "]"):
            return parameters, []
        return parameters, [Parameter("", self._sized(self.type))]

    def type(self) -> GoType:
        """Parse one type; an unknown declared name gives a type without size."""
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise self._error("types nested too deep at")
        try:
            return self._type()
        finally:
            self._nesting -= 1

    def _type(self) -> GoType:
        token = self._token()
        if token == "(":
            self._take("(")
            inner = self.type()
            self._take(")")
            return inner
        if token == "*":
            self._take("*")
            elem = self.type()
            return PointerType(f"*{elem.name}", Kind.POINTER, _WORD, _WORD, Lazy.of(elem))
        if token == "[":
            return self._array_or_slice()
        if token in ("chan", "<-"):
            return self._chan()
        composite = {
            "map": self._map,
            "func": self._func,
            "struct": self._struct,
            "interface": self._interface,
        }.get(token)
        return composite() if composite else self._named()

    def _array_or_slice(self) -> GoType:
        self._take("[")
        if self._token() == "]":
            self._take("]")
            elem = self.type()
            return SliceType(f"[]{elem.name}", Kind.SLICE, 3 * _WORD, _WORD, Lazy.of(elem))
        digits = self._token()
        if not digits.isdecimal() or len(digits) > 13 or int(digits) > _MAX_LENGTH:
            raise self._error("expected the array's length, found")
        self._next += 1
        self._take("]")
        elem = self._sized(self.type)
        length = int(digits)
        name = f"[{length}]{elem.name}"
        return ArrayType(name, Kind.ARRAY, length * elem.size, elem.align, elem, length)

    def _map(self) -> GoType:
        self._take("map")
        self._take("[")
        key = self.type()
        self._take("]")
        elem = self.type()
        name = f"map[{key.name}]{elem.name}"
        return MapType(name, Kind.MAP, _WORD, _WORD, Lazy.of(key), Lazy.of(elem))

    def _chan(self) -> GoType:
        direction = ChanDirection.BOTH
        if self._token() == "<-":
            self._take("<-")
            direction = ChanDirection.RECEIVE
        self._take("chan")
        if direction is ChanDirection.BOTH and self._token() == "<-":
            self._take("<-")
            direction = ChanDirection.SEND
        elem = self.type()
        name = f"{direction.value} {elem.name}"
        return ChanType(name, Kind.CHAN, _WORD, _WORD, direction, Lazy.of(elem))

    def _func(self) -> GoType:
        start = self._column() - 1
        self._take("func")
        self.function()
        end = self._tokens[self._next][1] if self._token() else len(self._text)
        return FuncType(self._text[start:end].strip(), Kind.FUNC, _WORD, _WORD)

    def _struct(self) -> GoType:
        self._take("struct")
        self._take("{")
        fields: list[Field] = []
        offset = 0
        while self._token() != "}":
            names = [self._plain_name()]
            while self._token() == ",":
                self._take(",")
                names.append(self._plain_name())
            field_type = self._sized(self.type)
            for name in names:
                offset = _aligned(offset, field_type.align)
                fields.append(Field(name, offset, field_type))
                offset += field_type.size
            if self._token() != "}":
                self._take(";")
        self._take("}")
        # A zero-size field at the end gets a byte, so that its address is inside of the struct.
        if fields and offset and fields[-1].type.size == 0:
            offset += 1
        align = struct_alignment(tuple(fields))
        spelled = "; ".join(f"{field.name} {field.type.name}" for field in fields)
        name = f"struct {{ {spelled} }}" if fields else "struct {}"
        return StructType(name, Kind.STRUCT, _aligned(offset, align), align, tuple(fields))

    def _interface(self) -> GoType:
        self._take("interface")
        self._take("{")
        if self._token() != "}":
            raise self._error("methods of interfaces are not read: write the interface's name, not")
        self._take("}")
        return _BASICS["any"]

    def _named(self) -> GoType:
        token, column = self._token(), self._column()
        if not _NAME.fullmatch(token):
            raise self._error("expected a type, found")
        self._next += 1
        if self._token() == "[":
            token += self._type_arguments()
        return self._declared(token, column)

    def _declared(self, name: str, column: int) -> GoType:
        known = _BASICS.get(name)
        if known is not None:
            return known
        if self._lookup is None:
            return _vector(name) or OpaqueType(name, Kind.INVALID, 0, 1)
        found = self._lookup(name)
        alias = _ALIASES.get(name) or _SHORT_ALIASES.get(name)
        if not found and alias is not None:
            found = self._lookup(alias)
        if len(found) == 1:
            return found[0]
        if not found and (vector := _vector(name)) is not None:
            return vector
        if len({known.name for known in found}) > 1:
            several = ", ".join(sorted({known.name for known in found})[:_MAX_NAMED])
            reason = f"{name} may be {several}: write its import path"
        elif found:
            reason = f"several types are called {name}: write what it is made of"
        else:
            reason = (
                f"the program does not describe a type {name}: write it with its package, or what "
                "it is made of, such as struct{n int; s string}; a pointer may be unsafe.Pointer"
            )
        kind = SignatureError if found else UnknownTypeError
        raise kind(f"signature {self._text!r}, column {column}: {reason}")

    def _type_arguments(self) -> str:
        """Parse ``[T1, T2]`` after a generic type's name and return it as linkers spell it."""
        self._take("[")
        names = [self.type().name]
        while self._token() == ",":
            self._take(",")
            names.append(self.type().name)
        self._take("]")
        return f"[{','.join(names)}]"

    def _list(self) -> list[Parameter]:
        """Parse a parenthesised list: all entries are named, or none is."""
        self._take("(")
        entries: list[tuple[str, GoType | None, int]] = []
        while self._token() != ")":
            entries.append(self._entry())
            if self._token() != ")":
                self._take(",")
        self._take(")")
        named = any(name and found is not None for name, found, _ in entries)
        following: GoType | None = None
        parameters: list[Parameter] = []
        for name, found, column in reversed(entries):
            if named:
                following = found or following
                if following is None or not name:
                    raise self._error("a parameter lacks its name or type:", column)
                parameters.insert(0, Parameter(name, following))
            else:
                parameters.insert(0, Parameter("", found or self._declared(name, column)))
        for parameter, (_, _, column) in zip(parameters, entries, strict=True):
            self._check_size(parameter.type, column)
        return parameters

    def _entry(self) -> tuple[str, GoType | None, int]:
        """Parse one entry as (name, type): a lone word may be a name or a type."""
        column = self._column()
        token, following = self._token(), self._token(1)
        keyword = token in ("map", "chan", "func", "struct", "interface")
        if _PLAIN_NAME.fullmatch(token) and not keyword:
            self._next += 1
            if following in (",", ")"):
                return token, None, column
            return token, self._variadic(), column
        return "", self._variadic(), column

    def _variadic(self) -> GoType:
        if self._token() != "...":
            return self.type()
        self._take("...")
        elem = self.type()
        return SliceType(f"[]{elem.name}", Kind.SLICE, 3 * _WORD, _WORD, Lazy.of(elem))

    def _sized(self, parse: Callable[[], GoType]) -> GoType:
        column = self._column()
        found = parse()
        self._check_size(found, column)
        return found

    def _check_size(self, found: GoType, column: int) -> None:
        if isinstance(found, OpaqueType) and found.size == 0:
            raise SignatureError(
                f"signature {self._text!r}, column {column}: the size of {found.name} is not "
                "known: write what it is made of, such as struct{n int; s string}"
            )

    def _plain_name(self) -> str:
        token = self._token()
        if not _PLAIN_NAME.fullmatch(token):
            raise self._error("expected a field's name, found")
        self._next += 1
        return token

    def _token(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _column(self) -> int:
        if self._next < len(self._tokens):
            return self._tokens[self._next][1] + 1
        return len(self._text) + 1

    def _take(self, expected: str) -> None:
        if self._token() != expected:
            raise self._error(f"expected {expected!r}, found")
        self._next += 1

    def _error(self, what: str, column: int | None = None) -> SignatureError:
        column = column or self._column()
        found = repr(self._token()) if self._token() else "the end"
        return SignatureError(f"signature {self._text!r}, column {column}: {what} {found}")


def _vector(name: str) -> StructType | None:
    """Return the type of a vector of the standard library, None for the names of others."""
    named = _VECTOR.fullmatch(name)
    elem = _BASICS.get(named[1].lower().replace("mask", "int")) if named else None
    if named is None or elem is None:
        return None
    array = ArrayType("", Kind.ARRAY, int(named[2]) * elem.size, elem.align, elem, int(named[2]))
    tag = StructType(f"simd/archsimd.v{8 * array.size}", Kind.STRUCT, 0, _WORD, ())
    fields = (Field("", 0, tag), Field("vals", 0, array))
    name = f"simd/archsimd.{named[1]}x{named[2]}"
    made = StructType(name, Kind.STRUCT, array.size, _WORD, fields)
    return made if made.is_vector else None


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
