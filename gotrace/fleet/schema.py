# SPDX-License-Identifier: Apache-2.0
"""Keys of a configuration: each is a field of a dataclass, whose type says how it is written.

Texts, numbers, enums, records, and tuples of these say it by themselves; a ``Form`` in
``Annotated`` says the rest. The JSON schema is made of that, and so is what is read.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from gotrace.errors import UsageError
from gotrace.fleet.privacy import Privacy
from gotrace.fleet.yaml_lines import Document, Path
from gotrace.records import MISSING, dataclass, field, fields, replace

TEXT: Final = {"type": "string", "minLength": 1}
#: Words that YAML takes for numbers, too: 5 seconds may be given as 5.
AMOUNT: Final = {"type": ["string", "number"]}
_RECORD: Final[dict[str, Any]] = {"type": "object", "required": [], "additionalProperties": False}

T = TypeVar("T")
R = TypeVar("R", bound="KeyRecord")


@dataclass(frozen=True, slots=True)
class At:
    """A place in a document, and what is known of the file when it is read.

    ``targets`` are their names, ``usual`` those that are meant if no others are given.
    """

    document: Document
    path: Path = ()
    privacy: Privacy = field(default_factory=Privacy)
    idle: float = 3600.0
    targets: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()

    def __truediv__(self, key: str | int) -> At:
        """Return the place of a key, or of an element."""
        return replace(self, path=(*self.path, key))

    def error(self, reason: str) -> UsageError:
        """Return the error that something is wrong here."""
        return self.document.error(self.path, reason)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How a key's value is written and read, where its type does not say it.

    ``schema`` is in the place of the type's if it has a type or is an enum, else added to it.
    ``absent`` returns the value if the key is not there; else that is the field's default.
    """

    schema: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[At, Any], object] | None = None
    absent: Callable[[At], object] | None = None
    #: The key, if it is not the field's name, and the one that it is below.
    key: str = ""
    within: str = ""
    #: Whether it is a record whose keys stand among those around it: ``read`` is given all.
    is_flat: bool = False
    #: Whether it has no key: it is made of others.
    is_made: bool = False

    def beside(self, inner: Form) -> Form:
        """Return this one with what another says beyond it."""
        names = [one.name for one in fields(self)]
        return Form(*(getattr(self, name) or getattr(inner, name) for name in names))


Made = Annotated[T, Form(is_made=True)]


class KeyRecord:
    """The base of dataclasses whose fields are keys."""

    __slots__ = ()

    @classmethod
    def read(cls: type[R], at: At, row: Mapping[str, Any]) -> R:
        """Return the record of a row that is as the schema wants it. Raises UsageError."""
        return cls.made(at, row)

    @classmethod
    def made(cls: type[R], at: At, row: Mapping[str, Any], **known: object) -> R:
        """Do the same where some fields are known. Raises UsageError."""
        for name, form in _forms(cls).items():
            if name in known:
                continue
            assert form.read is not None
            place, found = at, row
            if form.within:
                place, found = at / form.within, row.get(form.within, {})
            if form.is_flat:
                known[name] = form.read(at, row)
            elif form.key in found:
                known[name] = form.read(place / form.key, found[form.key])
            elif form.absent is not None:
                known[name] = form.absent(at)
        make: Callable[..., R] = cls
        return make(**known)


def schema_of(record: type[KeyRecord]) -> dict[str, Any]:
    """Return the JSON schema of a record."""
    properties: dict[str, Any] = {}
    required, forms = [], _forms(record)
    for one in fields(record):  # type: ignore[arg-type]
        if (form := forms.get(one.name)) is None:
            continue
        if form.is_flat:
            properties |= form.schema["properties"]
            continue
        around = properties
        if form.within:
            whole = {**_RECORD, "properties": {}, "minProperties": 1}
            around = properties.setdefault(form.within, whole)["properties"]
        around[form.key] = form.schema
        if (one.default, one.default_factory, form.absent) == (MISSING, MISSING, None):
            required.append(form.key)
    return {**_RECORD, "properties": properties, "required": required}


_FORMS: dict[object, dict[str, Form]] = {}


def _forms(record: type[KeyRecord]) -> dict[str, Form]:
    """Return the whole forms of the fields that have keys."""
    if (found := _FORMS.get(record)) is None:
        hints = get_type_hints(record, include_extras=True)
        forms = {name: _whole(hint, Form(key=name)) for name, hint in hints.items()}
        found = {name: form for name, form in forms.items() if not form.is_made}
        _FORMS[record] = found
    return found


def _whole(hint: Any, last: Form) -> Form:
    """Return the form of a type: what is said of it, then its own, and ``last`` the last."""
    form = Form()
    while get_origin(hint) in (Annotated, Union, types.UnionType):
        parts = [one for one in get_args(hint) if one is not types.NoneType]
        hint = parts.pop(0)
        for inner in reversed(parts):
            form = form.beside(inner)
    schema, read = _usual(hint)
    if not {"type", "enum"} & form.schema.keys():
        form = replace(form, schema={**schema, **form.schema})
    return form.beside(replace(last, read=read))


def _usual(hint: Any) -> tuple[Mapping[str, Any], Callable[[At, Any], object]]:
    """Return how values of a type are written, and what reads them."""
    if get_origin(hint) is tuple:
        form = _whole(get_args(hint)[0], Form())
        schema = {"type": "array", "items": form.schema, "minItems": 1}
        each = form.read or _same
        return schema, lambda at, rows: tuple(each(at / n, row) for n, row in enumerate(rows))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}, lambda _, value: hint(value)
    if isinstance(hint, type) and issubclass(hint, KeyRecord):
        return schema_of(hint), hint.read
    return _SCHEMAS.get(hint, {}), _same


_SCHEMAS: Final[dict[Any, Mapping[str, Any]]] = {
    str: TEXT,
    bool: {"type": "boolean"},
    int: {"type": "integer"},
}


def _same(_: At, value: object) -> object:
    return value
