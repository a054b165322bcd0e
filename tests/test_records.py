# SPDX-License-Identifier: Apache-2.0
"""Hold gotrace.records to the standard library's dataclasses: the same source, by either."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import pkgutil
import subprocess
import sys
from typing import Any, ClassVar

import pytest

import gotrace
from gotrace import records

SOURCE = '''
from __future__ import annotations
from functools import cached_property
from typing import ClassVar

@dataclass(frozen=True, slots=True)
class Point:
    """A point."""
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, hash=False)
    kind: ClassVar[str] = "point"

@dataclass(frozen=True, slots=True)
class Space(Point):
    z: int = 3
    note: str = field(default="", compare=False, repr=False)
    unit: str = field(default="m", kw_only=True)

@dataclass(frozen=True)
class Lazy:
    x: int
    @cached_property
    def twice(self) -> int:
        return 2 * self.x

@dataclass(slots=True)
class Open:
    x: int
    sum: int = field(init=False)
    def __post_init__(self) -> None:
        self.sum = self.x + 1

@dataclass
class Plain:
    x: int = 1

class Derived(Point):
    """Not a dataclass itself."""

@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    b: int
    a: int = 1

@dataclass(frozen=True, slots=True, order=True)
class Ordered:
    major: int
    text: str = field(default="", compare=False)
    def __repr__(self) -> str:
        return "own"

@dataclass(frozen=True, slots=True)
class Odd:
    x: int
    def __eq__(self, other: object) -> bool:
        return True
    def __hash__(self) -> int:
        return 7

@dataclass(eq=False, slots=True)
class Same:
    x: int

@dataclass(frozen=True, slots=True)
class Ring:
    held: list
'''
EXPRESSIONS = [
    "Point(1)",
    "Point(1, names=['a'], y=5)",
    "Point()",
    "Point(1, 2, [], 4)",
    "Point(w=1)",
    "Point(1) == Point(1), Point(1) != Point(2), Point(1) == Space(1), Point(1) == 1",
    "hash(Point(1)) == hash(Point(1, names=['b']))",
    "hash(Point(1, 2))",
    "Point(1).names is Point(1).names",
    "Point(1).kind, Point.kind",
    "setattr(Point(1), 'x', 2)",
    "delattr(Point(1), 'x')",
    "Point(1).__dict__",
    "Point.y.__class__.__name__",
    "Point.__match_args__, Space.__match_args__, Named.__match_args__, Open.__match_args__",
    "Space(1, 2, [], 4, 'n', unit='km')",
    "Space(1, note='a') == Space(1, note='b')",
    "Space.__slots__, Point.__slots__",
    "replace(Space(1), z=9, unit='cm')",
    "replace(Point(1), w=9)",
    "Lazy(3).twice, Lazy(3)",
    "setattr(Lazy(1), 'twice', 2)",
    "Open(1).sum, Open(1), Open(1) == Open(1)",
    "hash(Open(1))",
    "Open(1, 2)",
    "Plain(), Plain.x, Plain(3).__dict__",
    "Derived(1), Derived(1) == Point(1), Derived(1) == Derived(1)",
    "setattr(Derived(1), 'x', 2)",
    "Named(b=1), Named(1)",
    "Named(a=2, b=1)",
    "sorted([Ordered(2), Ordered(1, 'x')])[0].text",
    "Ordered(1) < Ordered(2), Ordered(1) >= Ordered(1), Ordered(2) <= Ordered(1)",
    "Ordered(1) < 1",
    "repr(Ordered(1)), Ordered(1, 'a') == Ordered(1, 'b')",
    "Odd(1) == 5, hash(Odd(1))",
    "(lambda one: (one == one, one == Same(1), len({one, Same(1)})))(Same(1)), Same(1)",
    "(lambda r: (r.held.append(r), repr(r))[1])(Ring([]))",
    "[f.name for f in fields(Space)], [f.kw_only for f in fields(Space)]",
    "[(f.name, f.compare, f.repr) for f in fields(Space(1))]",
    "copy.copy(Point(1, 2, ['x'])), copy.deepcopy(Space(1, 2, ['x']))",
    "asdict(Space(1, names=['a']))",
    "is_dataclass(Point), is_dataclass(Derived(1))",
    "library_replace(Space(1), z=9)",
    "[f.name for f in library_fields(Space)], len(library_fields(Open))",
    "Point.__doc__, Point.__qualname__, Point.__module__, Point(1).__init__.__name__",
]


#: The library looks names of annotations up in the class's module.
_ = ClassVar


def _names(home: Any) -> dict[str, Any]:
    names = {
        "__name__": __name__,
        "dataclass": home.dataclass,
        "field": home.field,
        "fields": home.fields,
        "replace": home.replace,
        "copy": copy,
        "asdict": dataclasses.asdict,
        "is_dataclass": dataclasses.is_dataclass,
        "library_replace": dataclasses.replace,
        "library_fields": dataclasses.fields,
    }
    exec(SOURCE, names)
    return names


OURS, LIBRARY = _names(records), _names(dataclasses)


def _outcome(expression: str, names: dict[str, Any]) -> str:
    try:
        return repr(eval(expression, names))
    except Exception as error:
        # What of its class a message names differs by Python's version.
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_records_do_as_dataclasses_do(expression: str) -> None:
    found = _outcome(expression, OURS)
    assert found == _outcome(expression, LIBRARY)
    assert found == _outcome(expression, OURS)  # methods have been written by now


@records.dataclass(frozen=True, slots=True)
class Sent:
    """A record that is pickled."""

    x: int
    y: tuple[int, ...] = ()


def test_records_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def _classes() -> list[type]:
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(gotrace.__path__, "gotrace."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and "_record_fields" in value.__dict__:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return list(found.values())


def test_records_of_this_project_are_dataclasses() -> None:
    classes = _classes()
    assert len(classes) > 150
    for found in classes:
        assert dataclasses.is_dataclass(found)
        names = [each.name for each in dataclasses.fields(found)]
        assert names == [each.name for each in records.fields(found)]


def test_no_command_imports_what_records_replace() -> None:
    for tool in ("gofunccount", "gofunclatency", "gotrace"):
        code = f"import sys, gotrace.cli.{tool}; print({{'dataclasses'}} & {{*sys.modules}})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "set()\n", done.stderr
