# SPDX-License-Identifier: Apache-2.0
"""Spell types as Go's linker does, from their descriptors, which only say a package's name.

Sources: ``cmd/compile/internal/types/fmt.go`` (LinkString: package paths in full, fields and
methods that are not exported qualified), ``cmd/internal/objabi/path.go`` (PathToPrefix: how paths
are escaped), ``strconv.Quote`` (tags).
"""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.gotypes.rtype_table import Name, Record, RtypeError, RtypeTable
from gotrace.gotypes.types import Kind

#: Type literals nest a few times; damaged ones contain themselves.
_MAX_NESTING = 32

#: Longest name to make; function types of struct literals can have some thousand characters.
_MAX_LENGTH = 1 << 16

#: Most characters of all names; the largest programs have ten million.
_MAX_TOTAL = 1 << 27

#: The package of shapes, types that the compiler makes up for generics; in full everywhere.
_SHAPES = "go.shape"

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}


def escape_path(path: str) -> str:
    """Return an import path as it is in symbol names: ``gopkg.in/yaml%2ev3``."""
    last = path.rfind("/") + 1
    return "".join(
        char
        if " " < char < "\x7f" and char not in '%"' and (char != "." or index < last)
        else "".join(f"%{byte:02x}" for byte in char.encode())
        for index, char in enumerate(path)
    )


class RtypeNames:
    """The linker's names of types, each made once.

    Types that were declared inside of functions lack the number that the linker adds (``T·1``).
    """

    def __init__(self, table: RtypeTable) -> None:
        self._table = table
        self._names: dict[int, str] = {}
        self._nesting = 0
        self._total = 0

    def of(self, address: int) -> str:
        """Return the name of the type at an address; raise RtypeError for damage."""
        name = self._names.get(address)
        if name is None:
            name = self.of_record(self._table.record(address))
        return name

    def of_record(self, record: Record) -> str:
        """Return the name of a type whose record was read already."""
        known = self._names.get(record.address)
        if known is not None:
            return known
        self._nesting += 1
        try:
            if self._nesting > _MAX_NESTING:
                raise self._table.damaged(record.address, "contains itself")
            name = self._declared(record) if record.named else self._literal(record)
        finally:
            self._nesting -= 1
        self._total += len(name)
        if len(name) > _MAX_LENGTH or self._total > _MAX_TOTAL:
            raise self._table.damaged(record.address, "has a name without end")
        self._names[record.address] = name
        return name

    def _declared(self, record: Record) -> str:
        path = self._table.package_path(record)
        if path == _SHAPES:
            return record.text
        _, dot, rest = record.text.partition(".")
        # Builtin types have no path, and unsafe.Pointer does not need one.
        return f"{escape_path(path)}.{rest}" if path and dot else record.text

    def _literal(self, record: Record) -> str:
        kind, address = record.kind, record.address
        if kind is Kind.STRUCT and not record.text.startswith("struct"):
            # A map's buckets ("map.bucket[int]main.T"), which lead back to themselves, or groups.
            return record.text
        if kind is Kind.STRUCT:
            return self._struct(record)
        # The runtime leaves out paths, and whose a struct's unexported fields are, but no more.
        if "." not in record.text and "struct {" not in record.text:
            return record.text
        if kind is Kind.FUNC:
            return "func" + self._signature(record)
        if kind is Kind.INTERFACE:
            return self._interface(record)
        target = self._table.words(address + 48, 3 if kind in (Kind.ARRAY, Kind.MAP) else 1)
        elem = self.of(target[1] if kind is Kind.MAP else target[0])
        if kind is Kind.POINTER:
            return "*" + elem
        if kind is Kind.SLICE:
            return "[]" + elem
        if kind is Kind.ARRAY:
            return f"[{target[2]}]{elem}"
        if kind is Kind.MAP:
            return f"map[{self.of(target[0])}]{elem}"
        if kind is Kind.CHAN:
            direction = record.text.partition(" ")[0]
            return f"{direction} ({elem})" if elem.startswith("<-chan") else f"{direction} {elem}"
        return record.text

    def _struct(self, record: Record) -> str:
        (path,) = self._table.words(record.address + 48, 1)
        package = self._table.name(path)

        def field(name: Name, target: int, embedded: bool) -> str:
            part = self.of(target)
            if not embedded:
                part = f"{_qualified(name, package)} {part}"
            return f"{part} {_quoted(name.tag)}" if name.tag else part

        fields = self._table.fields(record.address)
        parts = self._joined("; ", (field(name, at, inner) for name, at, _, inner in fields))
        return f"struct {{ {parts} }}" if parts else "struct {}"

    def _interface(self, record: Record) -> str:
        (path,) = self._table.words(record.address + 48, 1)
        package = self._table.name(path)

        def method(name: Name, target: int) -> str:
            found = self._table.record(target)
            if found.kind is not Kind.FUNC:
                raise self._table.damaged(record.address, "has a method that is not a function")
            return _qualified(name, package) + self._signature(found)

        methods = self._table.interface_methods(record.address)
        parts = self._joined("; ", (method(name, target) for name, target in methods))
        return f"interface {{ {parts} }}" if parts else "interface {}"

    def _signature(self, record: Record) -> str:
        inputs, outputs, variadic = self._table.function_parts(record)

        def parameter(index: int) -> str:
            name = self.of(inputs[index])
            last = variadic and index == len(inputs) - 1
            return "..." + name.removeprefix("[]") if last else name

        words = self._joined(", ", (parameter(index) for index in range(len(inputs))))
        results = self._joined(", ", (self.of(target) for target in outputs))
        if not outputs:
            return f"({words})"
        return f"({words}) {results}" if len(outputs) == 1 else f"({words}) ({results})"

    def _joined(self, separator: str, parts: Iterator[str]) -> str:
        """Join parts that may be more than can be kept."""
        length, kept = 0, []
        for part in parts:
            length += len(part) + 1
            if length > _MAX_LENGTH:
                raise RtypeError(f"{self._table.image.display}: a type's name has no end")
            kept.append(part)
        return separator.join(kept)


def _qualified(name: Name, package: Name) -> str:
    path = name.package or package.text
    return name.text if name.exported or not path else f"{escape_path(path)}.{name.text}"


def _quoted(text: str) -> str:
    return '"' + "".join(_quoted_char(char) for char in text) + '"'


def _quoted_char(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else char.encode("unicode_escape").decode()
