# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost little where they are defined: a run uses few of those that it imports.

``dataclass`` is the standard library's, and for mypy it is that very one. Where a class has slots,
its methods are written and compiled when one of them is called for the first time. To do so for
each class took a third of the time that importing a command took.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
#: Attributes that are also copied from the class for which the standard library made methods.
_ATTRIBUTES = ("__match_args__", "__dataclass_params__", "__dataclass_fields__")
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
    """The fields of a class whose methods are not made yet: to read them makes the methods."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __get__(self, one: object, kind: type) -> Any:
        return self._make().__dataclass_fields__


def _later(written: Any, options: dict[str, Any]) -> Any:
    """Return a class with slots, as it was written, whose methods are made when they are needed."""
    own = {"__dict__", "__weakref__"}  # of the class as it was written, not of others like it
    content = {name: value for name, value in written.__dict__.items() if name not in own}
    original = dict(content)
    names = [
        name
        for name, kind in content.get("__annotations__", {}).items()
        if not kind.startswith(("ClassVar", "KW_ONLY"))
    ]
    inherited = {name for base in written.__mro__ for name in base.__dict__.get("__slots__", ())}
    content["__slots__"] = tuple(name for name in names if name not in inherited)
    for name in names:
        content.pop(name, None)
    kind: type[type] = type(written)
    new = functools.partial(kind, written.__name__, written.__bases__)
    cls: Any = new(content)
    cls.__qualname__ = written.__qualname__

    def make() -> Any:
        # Two threads may do so at once: without a lock, which a process that forks could keep.
        made: Any = dataclasses.dataclass(**options)(new(original))
        for name in (*_METHODS, *_ATTRIBUTES):
            if name in made.__dict__:
                setattr(cls, name, made.__dict__[name])
        return cls

    for name in _METHODS:
        if name not in content and options.get(_OPTIONS[name], True):
            setattr(cls, name, _at_first(name, make))
    cls.__dataclass_fields__ = _Fields(make)
    if options.get("frozen"):
        cls.__setattr__ = _refusal(cls, names, "__setattr__", "assign to")
        cls.__delattr__ = _refusal(cls, names, "__delattr__", "delete")
        cls.__getstate__, cls.__setstate__ = _state, _set_state
    elif options.get("eq", True):
        cls.__hash__ = None
    return cls


_OPTIONS = {"__init__": "init", "__repr__": "repr", "__eq__": "eq", "__hash__": "eq"}


def _at_first(name: str, make: Callable[[], Any]) -> Callable[..., Any]:
    """Return a method that makes the real one, which replaces it, and calls that."""

    def method(self: object, *arguments: Any, **named: Any) -> Any:
        return getattr(make(), name)(self, *arguments, **named)

    return method


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
