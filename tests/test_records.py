# SPDX-License-Identifier: Apache-2.0
"""gotrace's dataclasses beside the standard library's."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import gotrace
from gotrace import records

STANDARD = SimpleNamespace(
    dataclass=dataclasses.dataclass,
    field=dataclasses.field,
    fields=dataclasses.fields,
    replace=dataclasses.replace,
)


def described() -> dict[str, Any]:
    """Return what there is to be known of every dataclass of gotrace, by its name."""
    found = {}
    for module in pkgutil.walk_packages(gotrace.__path__, "gotrace."):
        for value in vars(importlib.import_module(module.name)).values():
            if not isinstance(value, type) or value.__module__ != module.name:
                continue
            if "__dataclass_fields__" in vars(value):
                found[f"{module.name}.{value.__qualname__}"] = _described(value)
    return found


def _described(cls: Any) -> dict[str, Any]:
    taken = ("__eq__", "__hash__", "__repr__", "__setattr__", "__lt__", "__getstate__")
    parameters = inspect.signature(cls).parameters.values()
    return {
        "parameters": [f"{one.kind} {one.name}: {one.annotation}" for one in parameters],
        "fields": [
            {
                "default": _text(one.default),
                "factory": _text(one.default_factory),
                "metadata": sorted(map(str, one.metadata)),
                "kw_only": bool(one.kw_only),
            }
            | {
                name: getattr(one, name)
                for name in ("name", "type", "init", "repr", "hash", "compare")
            }
            for one in dataclasses.fields(cls)
        ],
        "match": cls.__match_args__,
        "slots": getattr(cls, "__slots__", None),
        "own": sorted(name for name in taken if name in vars(cls)),
        "hashable": cls.__hash__ is not None,
        "class attributes": sorted(
            name for name in vars(cls) if not name.startswith("__") and name not in _slots(cls)
        ),
        "qualified": cls.__qualname__,
    }


def _slots(cls: type) -> tuple[str, ...]:
    return tuple(cls.__dict__.get("__slots__", ()))


def _text(value: object) -> str:
    if value is dataclasses.MISSING:
        return "missing"
    return getattr(value, "__qualname__", None) or repr(value)


PRINT = """
import dataclasses, json, sys
from gotrace import records
for name in ("MISSING", "dataclass", "field", "fields", "replace"):
    setattr(records, name, getattr(dataclasses, name))
from tests.test_records import described
json.dump(described(), sys.stdout)
"""


def test_all_classes_are_as_the_standard_library_makes_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, timeout=120
    )
    expected = json.loads(done.stdout)
    found = json.loads(json.dumps(described()))
    assert len(expected) > 200
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name] == one, name


def pair(define: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return what ``define`` returns with gotrace's functions, and with the standard library's."""
    return define(records), define(STANDARD)


def plain(library: Any) -> Any:
    @library.dataclass(frozen=True, slots=True)
    class Base:
        """A base."""

        a: int
        b: str = "x"

    @library.dataclass(frozen=True, slots=True)
    class Derived(Base):
        """One with all kinds of fields."""

        kind: ClassVar[int] = 3
        c: list[int] = library.field(default_factory=list)
        d: int = library.field(default=0, compare=False)
        e: int = library.field(default=0, repr=False)
        f: int = library.field(default=5, kw_only=True, hash=False)

        @property
        def double(self) -> int:
            return self.a * 2

    return Derived


def changeable(library: Any) -> Any:
    @library.dataclass
    class Changeable:
        """One that can be changed."""

        a: int
        b: list[int] = library.field(default_factory=list)
        c: int = library.field(init=False)

        def __post_init__(self) -> None:
            self.c = self.a + 1

    return Changeable


def ordered(library: Any) -> Any:
    @library.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        """One that has an order."""

        a: int
        b: int = library.field(default=0, compare=False)

    return Ordered


def outcome(call: Callable[[], object]) -> object:
    """Return the result, or the error in words."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def test_instances_behave_alike() -> None:
    def told(cls: Any) -> list[object]:
        one, same, other = cls(1, "y", [2], f=7), cls(1, "y", [2], 9, f=7), cls(2)
        return [
            repr(one),
            repr(other),
            one == same,
            one == other,
            one == (1, "y"),
            one != same,
            outcome(lambda: hash(one)),  # it has a list
            hash(cls(1, "y", (), f=7)) == hash(cls(1, "y", (), f=8)),
            hash(cls(1, "y", ())) == hash((1, "y", (), 0)),
            one.double,
            cls.kind,
            cls(1).c is not cls(1).c,
            outcome(lambda: setattr(one, "a", 3)),
            outcome(lambda: delattr(one, "a")),
            outcome(cls),
            outcome(lambda: cls(1, nothing=2)),
            outcome(lambda: cls(1, "", [], 0, 0, 5)),
            repr(dataclasses.replace(one, a=5)),
            dataclasses.asdict(one),
            dataclasses.is_dataclass(one),
            str(inspect.signature(cls)),
            hasattr(one, "__dict__"),
        ]

    mine, theirs = pair(plain)
    assert told(mine) == told(theirs)
    assert repr(records.replace(mine(1), b="z")) == repr(dataclasses.replace(theirs(1), b="z"))
    assert [one.name for one in records.fields(mine)] == list("abcdef")


def test_those_that_change_behave_alike() -> None:
    def told(cls: Any) -> list[object]:
        one = cls(1)
        one.b.append(4)
        before = one == cls(1, [4])
        one.a = 9
        return [repr(one), before, one == cls(9, [4]), cls.__hash__, hasattr(cls, "b"), cls(3).c]

    mine, theirs = pair(changeable)
    assert told(mine) == told(theirs)


def test_an_order_is_that_of_the_compared_fields() -> None:
    def told(cls: Any) -> list[object]:
        one, same, more = cls(1, 5), cls(1, 2), cls(2)
        return [one < same, one <= same, one < more, more > one, outcome(lambda: one < 3)]

    mine, theirs = pair(ordered)
    assert told(mine) == told(theirs)


@records.dataclass(frozen=True, slots=True)
class Pickled:
    """One that pickle finds by its name."""

    a: int
    b: object = None


def test_they_go_through_pickle_and_show_recursion() -> None:
    values: list[object] = []
    one = Pickled(1, values)
    assert pickle.loads(pickle.dumps(Pickled(2, "x"))) == Pickled(2, "x")
    values.append(one)
    assert repr(one) == "Pickled(a=1, b=[...])"


def test_a_first_instance_may_be_of_a_class_derived_from_one() -> None:
    mine, _ = pair(plain)

    class Further(mine):  # type: ignore[misc, valid-type]
        """A class that is not a dataclass."""

        def __init__(self, a: int) -> None:
            super().__init__(a, "further")

    assert repr(Further(3)).endswith(".Further(a=3, b='further', c=[], d=0, f=5)")


def test_a_dataclass_of_the_standard_library_is_no_base() -> None:
    with pytest.raises(TypeError, match="another kind"):

        @records.dataclass(frozen=True, slots=True)
        class Mixed(ordered(STANDARD)):  # type: ignore[misc]
            """One of both."""

            c: int = 0
