# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost little where they are defined: a run uses few of those that it imports.

For mypy, ``dataclass``, ``field``, ``fields`` and ``replace`` are the standard library's. A class's
``__init__`` is written and compiled when it is called for the first time, and records are compared
and hashed without code of their own. The standard library makes the rest if somebody asks for it.
It is not imported before that: it imports ``inspect``, and with that takes half as long as the
interpreter's start. To make all methods of each class took a third of the time that importing a
command took, and to make those of the classes that a run uses took a sixth of the time until it
traced.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

#: Options, and methods of their own, that no record has.
_UNKNOWN = {"unsafe_hash", "weakref_slot", "__eq__", "__hash__", "__setattr__", "__delattr__"}

if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
else:
    MISSING = object()

    class Field:
        """A field as the keywords of ``dataclasses.field`` declare it."""

        def __init__(self, name: str, kind: str, keywords: dict[str, Any]) -> None:
            self.name, self.type, self.keywords = name, kind, keywords
            self.default = keywords.get("default", MISSING)
            self.default_factory = keywords.get("default_factory", MISSING)
            self.init = keywords.get("init", True)
            self.compare = keywords.get("compare", True)
            self.hash = keywords.get("hash")
            self.kw_only = keywords.get("kw_only", False)
            self.metadata = keywords.get("metadata", {})

    def field(**keywords: Any) -> Field:
        """Return a field as ``dataclasses.field`` does."""
        return Field("", "", {word: one for word, one in keywords.items() if one is not MISSING})

    def fields(kind: Any) -> tuple[Field, ...]:
        """Return the fields of a record or of its class."""
        return tuple(kind._declared_fields.values())

    def replace(one: Any, /, **changes: Any) -> Any:
        """Return a record as another one, but for some fields."""
        kept = [each.name for each in fields(one) if each.init and each.name not in changes]
        return type(one)(**{name: getattr(one, name) for name in kept}, **changes)

    def dataclass(written: Any = None, /, **options: Any) -> Any:
        """Return a class as ``dataclasses.dataclass`` does."""
        if written is None:
            return lambda written: dataclass(written, **options)
        declared = {
            name: one
            for base in written.__mro__[:0:-1]
            for name, one in base.__dict__.get("_declared_fields", {}).items()
        }
        content = dict(written.__dict__)
        own = {
            name: _field(name, kind, content, options.get("kw_only", False))
            for name, kind in content.get("__annotations__", {}).items()
            if not kind.startswith("ClassVar")
        }
        written._declared_fields = declared | own
        assert not _UNKNOWN & {*options, *content}
        return _later(written, [*own], options)


def _field(name: str, kind: str, content: Any, is_named: bool) -> Field[Any]:
    """Return a field of a class, with its default or with the ``field`` that stands there."""
    value = content.get(name, MISSING)
    keywords = {} if value is MISSING else {"default": value}
    if isinstance(value, Field):
        keywords = value.keywords  # type: ignore[attr-defined]
    return Field(name, kind, {"kw_only": is_named, **keywords})  # type: ignore[call-arg, arg-type]


class _Made:
    """An attribute by which the standard library knows its classes: to read it has it make one."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name, self._make = name, make

    def __get__(self, one: object, kind: type) -> Any:
        return getattr(self._make(), self._name)


def _later(written: Any, names: Sequence[str], options: dict[str, Any]) -> Any:
    """Return a class, as it was written, whose methods are made when they are needed."""
    own = {"__dict__", "__weakref__"}  # of the class as it was written, not of others like it
    content = {name: value for name, value in written.__dict__.items() if name not in own}
    kind: type[type] = type(written)
    new = functools.partial(kind, written.__name__, written.__bases__)
    cls: Any
    if options.get("slots", False):
        cls = _with_slots(written, names, dict(content), new)
    else:
        cls = _with_defaults(written, names)
    declared = written._declared_fields.values()
    cls.__match_args__ = tuple(one.name for one in declared if one.init and not one.kw_only)  # type: ignore[misc]
    _make_if_asked(cls, names, content, options, new)
    _compare_later(cls, options)
    if options.get("frozen", False):
        cls.__setattr__ = _refusal(cls, names, "__setattr__", "assign to")
        cls.__delattr__ = _refusal(cls, names, "__delattr__", "delete")
        if options.get("slots", False):
            cls.__getstate__, cls.__setstate__ = _state, _set_state
    return cls


def _with_slots(
    written: Any, names: Sequence[str], content: dict[str, Any], new: Callable[[Any], Any]
) -> Any:
    """Return a class like the one that was written, with slots for its own fields."""
    inherited = {name for base in written.__mro__ for name in base.__dict__.get("__slots__", ())}
    for name in names:
        content.pop(name, None)
    cls = new(content | {"__slots__": tuple(name for name in names if name not in inherited)})
    cls.__qualname__ = written.__qualname__
    return cls


def _with_defaults(cls: Any, names: Sequence[str]) -> Any:
    """Return a class that has the defaults of its own fields in place of their declarations."""
    for name in names:
        if (default := cls._declared_fields[name].default) is not MISSING:
            setattr(cls, name, default)
        elif name in cls.__dict__:
            delattr(cls, name)
    return cls


def _make_if_asked(
    cls: Any,
    names: Sequence[str],
    content: dict[str, Any],
    options: dict[str, Any],
    new: Callable[[Any], Any],
) -> None:
    """Have a class get its ``__init__`` when it is called, and the rest when that is asked for."""
    declared = cls._declared_fields

    def make() -> Any:
        # Two threads may do so at once: without a lock, which a process that forks could keep.
        import dataclasses

        fields = {name: dataclasses.field(**declared[name].keywords) for name in names}
        made: Any = dataclasses.dataclass(**options)(new(content | fields))
        if "__repr__" in made.__dict__:
            cls.__repr__ = made.__repr__
        for name in ("__dataclass_params__", "__dataclass_fields__"):
            setattr(cls, name, made.__dict__[name])
        return cls

    def init(self: object, *arguments: Any, **named: Any) -> None:
        cls.__init__ = _init(cls, [*declared.values()], options.get("frozen", False))
        cls.__init__(self, *arguments, **named)

    if "__init__" not in content and options.get("init", True):
        cls.__init__ = init
    if "__repr__" not in content and options.get("repr", True):
        cls.__repr__ = lambda self: make().__repr__(self)
    for name in ("__dataclass_params__", "__dataclass_fields__"):
        setattr(cls, name, _Made(name, make))


def _compare_later(cls: Any, options: dict[str, Any]) -> None:
    """Have records of a class compared and hashed by the values of their fields."""
    compared = [one for one in cls._declared_fields.values() if one.compare]
    if options.get("eq", True):
        cls.__eq__ = _compared(_values(compared), operator.eq)
        hashed = (one for one in compared if one.hash is not False)
        cls.__hash__ = _hash(_values(hashed)) if options.get("frozen", False) else None
    for name in ("__lt__", "__le__", "__gt__", "__ge__") if options.get("order") else ():
        setattr(cls, name, _compared(_values(compared), getattr(operator, name)))


def _init(cls: Any, fields: Sequence[Field[Any]], is_frozen: bool) -> Any:
    """Return the method that sets the fields of a new record."""
    known: dict[str, Any] = {"given": object()}
    parameters: dict[Any, list[str]] = {False: [], True: []}
    lines = []
    for field in fields:
        name, default = field.name, ""
        value = name
        if field.default_factory is not MISSING:
            known[f"make_{name}"] = field.default_factory
            default, value = "=given", f"make_{name}() if {name} is given else {name}"
        elif field.default is not MISSING:
            known[f"default_{name}"] = field.default
            default = f"=default_{name}"
        if field.init:
            parameters[field.kw_only].append(name + default)
        elif default:
            value = f"make_{name}()" if default == "=given" else f"default_{name}"
        else:
            continue
        setter = getattr(getattr(cls, name, None), "__set__", None)  # of a slot
        if not is_frozen:
            lines.append(f" self.{name} = {value}\n")
        elif setter is None:
            lines.append(f" self.__dict__[{name!r}] = {value}\n")
        else:
            known[f"set_{name}"] = setter
            lines.append(f" set_{name}(self, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()\n")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *named])}):\n"
    exec(head + ("".join(lines) or " pass\n"), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values(fields: Iterable[Field[Any]]) -> Callable[[object], Any]:
    """Return a function that returns the values of fields, which are compared and hashed."""
    names = [field.name for field in fields]
    if len(names) > 1:
        return operator.attrgetter(*names)
    # As tuples, too: they find a value equal to itself even if it is not, as NaN.
    return lambda one: tuple([getattr(one, name) for name in names])


def _compared(
    values: Callable[[object], Any], by: Callable[[Any, Any], Any]
) -> Callable[[object, object], Any]:
    def method(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return by(values(self), values(other))

    return method


def _hash(values: Callable[[object], Any]) -> Callable[[object], int]:
    return lambda self: hash(values(self))


def _refusal(cls: type, names: Sequence[str], name: str, verb: str) -> Callable[..., None]:
    """Return a method that lets no field be changed."""

    def method(self: object, field: str, *value: Any) -> None:
        if type(self) is cls or field in names:
            import dataclasses

            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {field!r}")
        getattr(super(cls, self), name)(field, *value)

    return method


# As in the standard library, which has them for frozen classes with slots, to be pickled.


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
