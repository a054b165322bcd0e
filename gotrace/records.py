# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost next to nothing to define.

The standard library's decorator writes the source of up to six methods for each class and compiles
them: 0.3 ms a class, and there are two hundred. Most commands use few of a class's methods, and
many classes not at all. Here each is compiled when it is called for the first time. For what is
made of them they are dataclasses, and for type checkers these functions are those of the standard
library, which is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["MISSING", "Field", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import MISSING, Field, dataclass, field, fields, replace
else:
    MISSING = object()

    class Field:
        """One field, with the attributes that the standard library's ``Field`` has."""

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

        def __init__(self, default, default_factory, init, repr, hash, compare, metadata, kw_only):
            self.name = self.type = None
            self.init = init
            self.hash = compare if hash is None else hash
            self.default = default
            self.default_factory = default_factory
            self.repr = repr
            self.compare = compare
            self.metadata = {} if metadata is None else metadata
            self.kw_only = kw_only

    def field(
        *,
        default=MISSING,
        default_factory=MISSING,
        init=True,
        repr=True,
        hash=None,
        compare=True,
        metadata=None,
        kw_only=None,
    ):
        """Return a field for ``dataclass``; parameters as in the standard library."""
        return Field(default, default_factory, init, repr, hash, compare, metadata, kw_only)

    def fields(record):
        """Return the fields of a class or of one of its objects."""
        return tuple(record._record_fields.values())

    def replace(record, /, **changes):
        """Return a copy in which some fields differ."""
        for name in record._record_fields:
            if name not in changes:
                changes[name] = getattr(record, name)
        return record.__class__(**changes)

    def dataclass(cls=None, /, *, eq=True, frozen=False, slots=False, order=False, kw_only=False):
        """Make a class a dataclass; parameters as in the standard library."""

        def decorate(cls):
            return _made(cls, eq, frozen, slots, order, kw_only)

        return decorate if cls is None else decorate(cls)

    def _made(cls, eq, frozen, slots, order, kw_only):
        own = {}
        for name, annotation in cls.__annotations__.items():
            if annotation.startswith("ClassVar"):
                continue
            found = cls.__dict__.get(name, MISSING)
            each = found if isinstance(found, Field) else field(default=found)
            each.name, each.type = name, annotation
            if each.kw_only is None:
                each.kw_only = kw_only
            own[name] = each
            # Slots and class attributes of one name exclude each other.
            if each.default is MISSING or slots:
                if found is not MISSING:
                    delattr(cls, name)
            else:
                setattr(cls, name, each.default)
        every = {}
        for base in cls.__mro__[-1:0:-1]:
            every.update(base.__dict__.get("_record_fields", {}))
        every.update(own)
        if slots:
            cls = _with_slots(cls, own)
        cls._record_fields = every
        cls.__dataclass_fields__ = _ForTheLibrary("__dataclass_fields__")
        cls.__dataclass_params__ = _ForTheLibrary("__dataclass_params__")
        cls._record_parameters = {"eq": eq, "frozen": frozen, "order": order}
        cls.__match_args__ = tuple(
            name for name, each in every.items() if each.init and not each.kw_only
        )
        has_own = cls.__dict__
        _to_write(cls, "__init__", _init)
        if "__repr__" not in has_own:
            _to_write(cls, "__repr__", _repr)
        if eq and "__eq__" not in has_own:
            _to_write(cls, "__eq__", _eq)
        if eq and has_own.get("__hash__") is None:  # defining __eq__ makes it None
            if frozen:
                _to_write(cls, "__hash__", _hash)
            else:
                cls.__hash__ = None
        if order:
            for name, operator in _ORDER.items():
                _to_write(cls, name, _comparison(operator))
        if frozen:
            _freeze(cls, every)
            if slots and "__getstate__" not in has_own:
                # Pickling would set attributes.
                cls.__getstate__, cls.__setstate__ = _state, _set_state
        return cls

    def _with_slots(cls, own):
        inherited = {
            name
            for base in cls.__mro__[1:]
            for name in _names_of_slots(base.__dict__.get("__slots__", ()))
        }
        members = {
            name: value
            for name, value in cls.__dict__.items()
            if name not in ("__dict__", "__weakref__")
        }
        members["__slots__"] = tuple(name for name in own if name not in inherited)
        made = type(cls)(cls.__name__, cls.__bases__, members)
        made.__qualname__ = cls.__qualname__
        return made

    def _names_of_slots(slots):
        return (slots,) if isinstance(slots, str) else slots

    def _to_write(cls, name, source):
        """Give a class a method that writes the real one when it is called, and calls that."""

        def first(self, *arguments, **named):
            real = source(cls)
            real.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, real)
            return real(self, *arguments, **named)

        setattr(cls, name, first)

    def _compiled(name, parameters, lines, names):
        body = "\n ".join(lines) or "pass"
        exec(f"def {name}({parameters}):\n {body}", names)
        return names[name]

    def _init(cls):
        every = [each for each in cls._record_fields.values() if each.init]
        frozen = cls._record_parameters["frozen"]
        names = {"_missing": MISSING, "_set": object.__setattr__}
        positional = [each for each in every if not each.kw_only]
        by_name = [each for each in every if each.kw_only]
        parameters, lines = ["self"], []
        for each in [*positional, None, *by_name]:
            if each is None:
                parameters += ["*"] if by_name else []
                continue
            value = name = each.name
            if each.default_factory is not MISSING:
                names[f"_factory_{name}"] = each.default_factory
                parameters.append(f"{name}=_missing")
                value = f"_factory_{name}() if {name} is _missing else {name}"
            elif each.default is not MISSING:
                names[f"_default_{name}"] = each.default
                parameters.append(f"{name}=_default_{name}")
            else:
                parameters.append(name)
            if not frozen:
                lines.append(f"self.{name} = {value}")
                continue
            slot = getattr(cls, name, None)
            if type(slot) is type(Field.name):  # the descriptor of a slot: the fastest way
                names[f"_set_{name}"] = slot.__set__
                lines.append(f"_set_{name}(self, {value})")
            else:
                lines.append(f"_set(self, {name!r}, {value})")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        return _compiled("__init__", ", ".join(parameters), lines, names)

    def _tuple_of(record, cls, use="compare"):
        used = [name for name, each in cls._record_fields.items() if getattr(each, use)]
        return "(" + "".join(f"{record}.{name}, " for name in used) + ")"

    def _comparison(operator):
        def source(cls):
            lines = [
                "if other.__class__ is self.__class__:",
                f" return {_tuple_of('self', cls)} {operator} {_tuple_of('other', cls)}",
                "return NotImplemented",
            ]
            return _compiled("compare", "self, other", lines, {})

        return source

    _eq = _comparison("==")
    _ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}

    def _hash(cls):
        return _compiled("__hash__", "self", [f"return hash({_tuple_of('self', cls, 'hash')})"], {})

    def _repr(cls):
        from reprlib import recursive_repr

        shown = [name for name, each in cls._record_fields.items() if each.repr]

        def represent(self):
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
            return f"{self.__class__.__qualname__}({values})"

        return recursive_repr("...")(represent)

    def _freeze(cls, names):
        def refuse(what, name):
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot {what} field {name!r}")

        def __setattr__(self, name, value):
            if type(self) is cls or name in names:
                refuse("assign to", name)
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):
            if type(self) is cls or name in names:
                refuse("delete", name)
            super(cls, self).__delattr__(name)

        cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__

    def _state(self):
        return [getattr(self, name) for name in self._record_fields]

    def _set_state(self, state):
        for name, value in zip(self._record_fields, state, strict=True):
            object.__setattr__(self, name, value)

    class _ForTheLibrary:
        """An attribute by which the standard library knows dataclasses, made when it is asked."""

        def __init__(self, name):
            self._name = name

        def __get__(self, record, cls):
            import dataclasses

            def made(each):
                default = dataclasses.MISSING if each.default is MISSING else each.default
                factory = each.default_factory
                return dataclasses.field(
                    default=default,
                    default_factory=dataclasses.MISSING if factory is MISSING else factory,
                    init=each.init,
                    repr=each.repr,
                    hash=each.hash,
                    compare=each.compare,
                    metadata=each.metadata,
                    kw_only=each.kw_only,
                )

            listed = [(name, each.type, made(each)) for name, each in cls._record_fields.items()]
            like = dataclasses.make_dataclass(cls.__name__, listed, **cls._record_parameters)
            return getattr(like, self._name)
