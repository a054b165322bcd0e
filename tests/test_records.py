# SPDX-License-Identifier: Apache-2.0
"""Hold the classes of ``gotrace.records`` to those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from typing import Any, ClassVar

import pytest

from gotrace.records import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A record with each kind of field."""

    limit: ClassVar[int] = 7
    offset: int
    label: str = "here"
    seen: list[int] = field(default_factory=list, compare=False)
    fixed: int = field(default=3, init=False, repr=False)

    def moved(self, by: int) -> Place:
        return replace(self, offset=self.offset + by)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlace(Place):
    """One that inherits fields, and has a method of its own that the other calls."""

    name: str

    def __post_init__(self) -> None:
        self.seen.append(self.offset)


class Plain(Place):
    """One without a decorator: it may have further attributes."""

    __slots__ = ("more",)

    def __init__(self) -> None:
        Place.__init__(self, 5)
        self.more = 1


@dataclass(slots=True)
class Count:
    """A record that can be changed."""

    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    """One without slots."""

    verbose: bool = False
    words: list[str] = field(default_factory=list, metadata={"help": "all"})


@dataclass(frozen=True, slots=True, order=True)
class Ordered:
    """One that has an order."""

    number: int
    words: tuple[str, ...] = field(default=(), compare=False)


def test_without_slots() -> None:
    options = Options(words=["a"])
    assert Options.verbose is options.verbose is False
    assert not hasattr(Options, "words")
    assert vars(options) == {"verbose": False, "words": ["a"]}
    assert options == replace(options, verbose=False) != replace(options, verbose=True)
    assert repr(options) == "Options(verbose=False, words=['a'])"
    assert fields(Options)[1].metadata == dataclasses.fields(Options)[1].metadata == {"help": "all"}
    assert pickle.loads(pickle.dumps(options)) == options == copy.copy(options)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.verbose = True  # type: ignore[misc]


def test_ordered() -> None:
    assert Ordered(1) <= Ordered(1, ("a",)) >= Ordered(1) < Ordered(2) > Ordered(1)
    with pytest.raises(TypeError):
        assert Ordered(1) < 1  # type: ignore[operator]
    assert sorted([Ordered(2), Ordered(1, ("a",))]) == [Ordered(1), Ordered(2)]
    assert replace(Ordered(1), words=("b",)).words == ("b",)
    assert [each.name for each in fields(Ordered)] == ["number", "words"]


def test_content() -> None:
    place = Place(1)
    assert (place.offset, place.label, place.seen, place.fixed, place.limit) == (
        1,
        "here",
        [],
        3,
        7,
    )
    assert repr(place) == "Place(offset=1, label='here', seen=[])"
    assert place.moved(2) == Place(3, seen=[9]) != Place(4)
    assert {Place(1): 2}[Place(1)] == 2
    assert [each.name for each in dataclasses.fields(NamedPlace)] == [
        *("offset", "label", "seen", "fixed"),
        "name",
    ]
    assert [each.name for each in fields(NamedPlace)] == [
        each.name for each in dataclasses.fields(NamedPlace)
    ]
    assert dataclasses.replace(place, label="there") == replace(place, label="there")
    assert Place.__match_args__ == ("offset", "label", "seen")
    assert not hasattr(place, "__dict__")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'offset'"):
        Place()  # type: ignore[call-arg]


def test_inherited() -> None:
    named = NamedPlace(2, name="n")
    assert named.seen == [2]
    assert repr(named) == "NamedPlace(offset=2, label='here', seen=[2], name='n')"
    assert named != Place(2)
    assert [*NamedPlace.__slots__] == ["name"]
    assert Plain().offset == 5


def test_changes() -> None:
    for place in (Place(1), NamedPlace(1, name="n"), Plain()):
        with pytest.raises(
            dataclasses.FrozenInstanceError, match="cannot assign to field 'offset'"
        ):
            place.offset = 2  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'offset'"):
            del place.offset
    with pytest.raises(dataclasses.FrozenInstanceError):
        Place(1).other = 2  # type: ignore[attr-defined]
    count = Count()
    count.calls += 1
    assert count == Count(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)


def test_copies() -> None:
    named = NamedPlace(2, name="n")
    assert copy.deepcopy(named) == copy.copy(named) == named
    written = pickle.dumps(named)
    # In a process in which no method of the class has been called.
    asked = (
        "import pickle, sys\n"
        "from tests.test_records import Place\n"
        "match pickle.loads(sys.stdin.buffer.read()):\n"
        "    case Place(offset, label) as one: print(offset, label, one)\n"
    )
    found = subprocess.run([sys.executable, "-c", asked], input=written, capture_output=True)
    assert found.stdout.decode() == f"2 here {named}\n", found.stderr


def test_threads_that_are_the_first_at_once() -> None:
    for _ in range(20):

        @dataclass(frozen=True, slots=True)
        class Fresh:
            number: int
            more: list[int] = field(default_factory=list, compare=False)

        start = threading.Barrier(8)
        found: list[Any] = []

        def use(kind: Any = Fresh, start: threading.Barrier = start) -> None:
            start.wait()
            found.append(kind(1) == kind(1) and hash(kind(1)) == hash(kind(1)))  # noqa: B023

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 8


def test_nothing_is_made_before_it_is_used() -> None:
    """It is what this is for: a class that only stands there has no method of its own yet."""

    @dataclass(frozen=True, slots=True)
    class Fresh:
        number: int

    assert Fresh.__init__.__qualname__ == "_make_if_asked.<locals>.init"
    Fresh(1)
    assert Fresh.__init__.__qualname__ != "_make_if_asked.<locals>.init"
