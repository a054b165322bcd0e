# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost a start little: most of what makes one is made when it is needed.

The standard library compiles six methods of each class as the class is defined, and imports
``inspect`` for that: 0.5 to 0.8 ms a class with Python 3.11. A command defines two hundred of them,
of which it needs some; that was half of the time that all of its imports took.

Here a class's ``__init__`` is compiled when its first instance is made, and nothing else is. Type
checkers see the standard library's own functions, and what that asks of a dataclass is there:
``dataclasses.replace``, ``fields``, ``asdict`` and ``inspect.signature`` work. Options that gotrace
does not use are left out. ``tests/test_records.py`` holds all classes to the standard library's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from reprlib import recursive_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["MISSING", "Field", "dataclass", "field", "fields", "replace"]

#: The place of a default that there is not.
_MISSING: Any = type("_Missing", (), {"__slots__": (), "__repr__": lambda _: "<missing>"})()
_NOTHING: Mapping[str, Any] = MappingProxyType({})

_OWN = "__record__"


class _Field:
    """One field, as its class declares it; see ``dataclasses.Field``."""

    __slots__ = (
        "compare",
        "default",
        "default_factory",
        "hash",
        "init",
        "kw_only",
        "metadata",
        "name",
        "repr",
        "type",
    )

    def __init__(
        self,
        default: Any,
        default_factory: Any,
        init: bool,
        repr: bool,
        hash: bool | None,
        compare: bool,
        metadata: Mapping[str, Any] | None,
        kw_only: bool | None,
    ) -> None:
        self.name = ""
        self.type: Any = None
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.repr = repr
        self.hash = hash
        self.compare = compare
        self.metadata = _NOTHING if metadata is None else MappingProxyType(dict(metadata))
        self.kw_only = kw_only

    def standard(self) -> Any:
        """Return the standard library's field of this kind."""
        import dataclasses

        options = {
            name: value
            for name in ("default", "default_factory")
            if (value := getattr(self, name)) is not _MISSING
        }
        same = ("init", "repr", "hash", "compare", "metadata", "kw_only")
        return dataclasses.field(**options, **{name: getattr(self, name) for name in same})


class _Record:
    """What is known of a class: its fields, and how it was asked for."""

    __slots__ = ("_standard", "compared", "fields", "frozen", "hashed", "options")

    def __init__(self, own: Mapping[str, _Field], frozen: bool, options: dict[str, Any]) -> None:
        self.fields = own
        self.frozen = frozen
        self.options = options
        self.compared = _values([each.name for each in own.values() if each.compare])
        self.hashed = _values(
            [
                each.name
                for each in own.values()
                if (each.compare if each.hash is None else each.hash)
            ]
        )
        self._standard: type | None = None

    def standard(self, owner: type) -> type:
        """Return a class of the same fields that the standard library has made."""
        if self._standard is None:
            import dataclasses

            self._standard = dataclasses.make_dataclass(
                owner.__name__,
                [(each.name, each.type, each.standard()) for each in self.fields.values()],
                **self.options,
            )
        return self._standard


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of an object."""
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        get = attrgetter(names[0])
        return lambda record: (get(record),)
    return lambda record: ()


class _Standard:
    """An attribute that the standard library's dataclasses have, made when it is asked for."""

    def __init__(self, get: Callable[[type], Any]) -> None:
        self._get = get

    def __get__(self, instance: object, owner: type) -> Any:
        return self._get(getattr(owner, _OWN).standard(owner))


def _signature(standard: type) -> Any:
    import inspect

    return inspect.signature(standard)


_STANDARD = {
    "__dataclass_fields__": _Standard(attrgetter("__dataclass_fields__")),
    "__dataclass_params__": _Standard(attrgetter("__dataclass_params__")),
    "__signature__": _Standard(_signature),
}


def _dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    kw_only: bool = False,
) -> Any:
    """Make a class a dataclass; see ``dataclasses.dataclass``."""
    if cls is None:
        return lambda each: _made(each, frozen, slots, eq, order, kw_only)
    return _made(cls, frozen, slots, eq, order, kw_only)


def _made(cls: type, frozen: bool, slots: bool, eq: bool, order: bool, kw_only: bool) -> type:
    """Return the class, or the one in its place that has slots."""
    found: dict[str, _Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        if _OWN in base.__dict__:
            found |= base.__dict__[_OWN].fields
        elif "__dataclass_fields__" in base.__dict__:
            raise TypeError(f"{base.__name__} is a dataclass of another kind than {cls.__name__}")
    for name, annotation in cls.__annotations__.items():
        if not str(annotation).startswith("ClassVar["):
            found[name] = _declared(cls, name, annotation, kw_only)
    record = _Record(found, frozen, {"frozen": frozen, "eq": eq, "order": order})
    body = cls.__dict__
    new: dict[str, Any] = {
        "__match_args__": tuple(
            each.name for each in found.values() if each.init and not each.kw_only
        )
    }
    if "__repr__" not in body:
        new["__repr__"] = _repr
    if eq:
        if "__eq__" not in body:
            new["__eq__"] = _equality(record.compared)
        # Python itself sets it to None where a class has __eq__ only.
        if body.get("__hash__") is None:
            new["__hash__"] = _hashing(record.hashed) if frozen else None
    if order:
        new |= {name: _ordering(name, record.compared) for name in _ORDER}
    if frozen:
        new |= {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}
    if slots:
        cls = _slotted(cls, found)
        if frozen and "__getstate__" not in body:
            new |= {"__getstate__": _state, "__setstate__": _set_state}
    if "__init__" not in body:
        new["__init__"] = _first_init(cls)
    for name, value in {**new, **_STANDARD, _OWN: record}.items():
        setattr(cls, name, value)
    return cls


def _declared(cls: type, name: str, annotation: Any, kw_only: bool) -> _Field:
    """Return a class's own field, and leave its default, if it has one, as the class's."""
    default = cls.__dict__.get(name, _MISSING)
    if isinstance(default, _Field):
        declared = default
        if declared.default is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, declared.default)
    else:
        declared = _Field(default, _MISSING, True, True, None, True, None, None)
    declared.name, declared.type = name, annotation
    if declared.kw_only is None:
        declared.kw_only = kw_only
    return declared


def _slotted(cls: type, found: Mapping[str, _Field]) -> type:
    """Return the class again, with slots for those fields that no base has one for."""
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    body = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in found and name not in ("__dict__", "__weakref__")
    }
    body["__slots__"] = tuple(name for name in found if name not in inherited)
    slotted = type(cls)(cls.__name__, cls.__bases__, body)
    slotted.__qualname__ = cls.__qualname__
    return slotted


def _first_init(cls: type) -> Callable[..., None]:
    """Return what makes a class's first instance: it compiles ``__init__``, and calls that."""

    def first(self: Any, /, *args: Any, **named: Any) -> None:
        made = _compiled_init(cls)
        cls.__init__ = made  # type: ignore[misc]
        made(self, *args, **named)

    return first


def _compiled_init(cls: type) -> Any:
    own: _Record = cls.__dict__[_OWN]
    known: dict[str, Any] = {"_missing": _MISSING, "__name__": cls.__module__}
    places: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for name, each in own.fields.items():
        value = name
        if not each.init:
            if each.default_factory is _MISSING:
                continue
            value = f"_made_{name}()"
        elif each.default_factory is not _MISSING:
            (named if each.kw_only else places).append(f"{name}=_missing")
            value = f"_made_{name}() if {name} is _missing else {name}"
        elif each.default is not _MISSING:
            (named if each.kw_only else places).append(f"{name}=_default_{name}")
            known[f"_default_{name}"] = each.default
        else:
            (named if each.kw_only else places).append(name)
        known[f"_made_{name}"] = each.default_factory
        if not own.frozen:
            body.append(f"_self.{name} = {value}")
            continue
        slot = getattr(cls, name, None)
        if type(slot).__name__ == "member_descriptor":
            known[f"_set_{name}"] = slot.__set__  # type: ignore[union-attr]
            body.append(f"_set_{name}(_self, {value})")
        else:
            known["_set"] = object.__setattr__
            body.append(f"_set(_self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("_self.__post_init__()")
    parameters = ["_self", *places, *(["*", *named] if named else [])]
    lines = "".join(f"\n    {line}" for line in body or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):{lines}", known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _fields_of(record: Any) -> Mapping[str, _Field]:
    own: _Record = getattr(record, _OWN)
    return own.fields


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (
        f"{each.name}={getattr(self, each.name)!r}"
        for each in _fields_of(self).values()
        if each.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return equal


def _hashing(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")


def _ordering(name: str, values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    of_tuples = getattr(tuple, name)

    def compared(self: Any, other: Any) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return of_tuples(values(self), values(other))

    return compared


def _refuse_setting(self: Any, name: str, value: Any) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: Any, name: str) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in _fields_of(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(_fields_of(self), state, strict=True):
        object.__setattr__(self, name, value)


def _field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[str, Any] | None = None,
    kw_only: bool | None = None,
) -> Any:
    """Return a field of which more is to be said than its default; see ``dataclasses.field``."""
    return _Field(default, default_factory, init, repr, hash, compare, metadata, kw_only)


def _fields(record: Any) -> tuple[_Field, ...]:
    """Return the fields of a class, or of an instance."""
    return tuple(_fields_of(record).values())


def _replace(record: Any, /, **changes: Any) -> Any:
    """Return a copy of a record with other values of some fields."""
    for name, each in _fields_of(record).items():
        if each.init and name not in changes:
            changes[name] = getattr(record, name)
    return type(record)(**changes)


if TYPE_CHECKING:
    from dataclasses import MISSING, Field, dataclass, field, fields, replace
else:
    MISSING, Field = _MISSING, _Field
    dataclass, field, fields, replace = _dataclass, _field, _fields, _replace
