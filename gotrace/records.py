# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost little where they are defined: a run uses few of those that it imports.

``dataclass`` is the standard library's, and for mypy it is that very one. Where a class has slots,
its ``__init__`` is written and compiled when it is called for the first time, and records are
compared and hashed without code of their own; the standard library makes the rest if somebody asks
for it. To make all methods of each class took a third of the time that importing a command took,
and to make those of the classes that a run uses took a sixth of the time until it traced.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

#: Options and methods with which a class is made at once: they are rare.
_RARE = {"order", "unsafe_hash", "weakref_slot", "__eq__", "__hash__", "__setattr__", "__delattr__"}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(written: Any = None, /, **options: Any) -> Any:
        """Return a class as ``dataclasses.dataclass`` does."""
        if written is None:
            return lambda written: dataclass(written, **options)
        if not options.get("slots") or _RARE & {*options, *written.__dict__}:
            return dataclasses.dataclass(**options)(written)
        return _later(written, options)


class _Fields:
    """The fields as the standard library knows them: to read them has it make the class."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __get__(self, one: object, kind: type) -> Any:
        return self._make().__dataclass_fields__


def _later(written: Any, options: dict[str, Any]) -> Any:
    """Return a class with slots, as it was written, whose methods are made when they are needed."""
    own = {"__dict__", "__weakref__"}  # of the class as it was written, not of others like it
    content = {name: value for name, value in written.__dict__.items() if name not in own}
    original = dict(content)
    fields = {name: field for base in written.__mro__[:0:-1] for name, field in _of(base).items()}
    names = [
        name
        for name, kind in content.get("__annotations__", {}).items()
        if not kind.startswith("ClassVar")
    ]
    for name in names:
        value = content.pop(name, dataclasses.MISSING)
        fields[name] = _field(name, value, options.get("kw_only", False))
    inherited = {name for base in written.__mro__ for name in base.__dict__.get("__slots__", ())}
    content["__slots__"] = tuple(name for name in names if name not in inherited)
    content["__match_args__"] = tuple(
        field.name for field in fields.values() if field.init and not field.kw_only
    )
    kind: type[type] = type(written)
    new = functools.partial(kind, written.__name__, written.__bases__)
    cls: Any = new(content)
    cls.__qualname__ = written.__qualname__
    cls._declared_fields = fields

    def make() -> Any:
        # Two threads may do so at once: without a lock, which a process that forks could keep.
        made: Any = dataclasses.dataclass(**options)(new(original))
        for name in ("__repr__", "__dataclass_params__", "__dataclass_fields__"):
            setattr(cls, name, made.__dict__[name])
        return cls

    def init(self: object, *arguments: Any, **named: Any) -> None:
        cls.__init__ = _init(cls, [*fields.values()], options.get("frozen", False))
        cls.__init__(self, *arguments, **named)

    if "__init__" not in content:
        cls.__init__ = init
    if "__repr__" not in content:
        cls.__repr__ = lambda self: make().__repr__(self)
    cls.__dataclass_fields__ = _Fields(make)
    if options.get("eq", True):
        compared = [field for field in fields.values() if field.compare]
        cls.__eq__ = _eq(_values(compared))
        cls.__hash__ = None
    if options.get("frozen"):
        if options.get("eq", True):
            hashed = (field for field in compared if field.hash is not False)
            cls.__hash__ = _hash(_values(hashed))
        cls.__setattr__ = _refusal(cls, names, "__setattr__", "assign to")
        cls.__delattr__ = _refusal(cls, names, "__delattr__", "delete")
        cls.__getstate__, cls.__setstate__ = _state, _set_state
    return cls


def _of(base: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a class that another is made of."""
    declared = base.__dict__.get("_declared_fields", base.__dict__.get("__dataclass_fields__", {}))
    return dict(declared)


def _field(name: str, value: Any, is_named: bool) -> dataclasses.Field[Any]:
    """Return a field of a class, with its default or with the ``field`` that stands there."""
    is_field = isinstance(value, dataclasses.Field)
    # As a copy: the standard library writes into the field that stands in the class.
    field: dataclasses.Field[Any] = (
        copy.copy(value) if is_field else dataclasses.field(default=value)
    )
    field.name = name
    if field.kw_only is dataclasses.MISSING:
        field.kw_only = is_named
    return field


def _init(cls: Any, fields: Sequence[dataclasses.Field[Any]], is_frozen: bool) -> Any:
    """Return the method that sets the fields of a new record."""
    known: dict[str, Any] = {"given": object()}
    parameters: dict[Any, list[str]] = {False: [], True: []}
    lines = []
    for field in fields:
        name, default = field.name, ""
        value = name
        if field.default_factory is not dataclasses.MISSING:
            known[f"make_{name}"] = field.default_factory
            default, value = "=given", f"make_{name}() if {name} is given else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"default_{name}"] = field.default
            default = f"=default_{name}"
        if field.init:
            parameters[field.kw_only].append(name + default)
        elif default:
            value = f"make_{name}()" if default == "=given" else f"default_{name}"
        else:
            continue
        if is_frozen:
            known[f"set_{name}"] = getattr(cls, name).__set__
            lines.append(f" set_{name}(self, {value})\n")
        else:
            lines.append(f" self.{name} = {value}\n")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()\n")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *named])}):\n"
    exec(head + ("".join(lines) or " pass\n"), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values(fields: Iterable[dataclasses.Field[Any]]) -> Callable[[object], Any]:
    """Return a function that returns the values of fields, which are compared and hashed."""
    names = [field.name for field in fields]
    if len(names) > 1:
        return operator.attrgetter(*names)
    # As tuples, too: they find a value equal to itself even if it is not, as NaN.
    return lambda one: tuple([getattr(one, name) for name in names])


def _eq(values: Callable[[object], Any]) -> Callable[[object, object], Any]:
    def __eq__(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: Callable[[object], Any]) -> Callable[[object], int]:
    return lambda self: hash(values(self))


def _refusal(cls: type, names: Sequence[str], name: str, verb: str) -> Callable[..., None]:
    """Return a method that lets no field be changed."""

    def method(self: object, field: str, *value: Any) -> None:
        if type(self) is cls or field in names:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {field!r}")
        getattr(super(cls, self), name)(field, *value)

    return method


# As in the standard library, which has them for frozen classes with slots, to be pickled.


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
