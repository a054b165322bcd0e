# SPDX-License-Identifier: Apache-2.0
"""What is written as an assertion, and what is refused in one line that says what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.assertions.grammar import (
    BoundScope,
    CallBound,
    Operator,
    parse_assertion,
    parse_open,
    read_assertions,
)
from gotrace.errors import GotraceError, UsageError

_GENERIC = "main.F[func() (bool, error),<-chan int]"
_TEXT = 'main.call (path == "a <= 3 per b" && n <= 4)'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("main.f == 0", ("main.f", Operator.EQUAL, 0, BoundScope.RUN, None)),
        ("main.f<=3", ("main.f", Operator.AT_MOST, 3, BoundScope.RUN, None)),
        ("  main.f  >=  12  ", ("main.f", Operator.AT_LEAST, 12, BoundScope.RUN, None)),
        ("main.f <= 3 per main.R", ("main.f", Operator.AT_MOST, 3, BoundScope.PER, "main.R")),
        ("main.f == 1 in main.R", ("main.f", Operator.EQUAL, 1, BoundScope.IN, "main.R")),
        (
            "main.(*T).f <= 3 per main.(*S).R (id > 7)",
            ("main.(*T).f", Operator.AT_MOST, 3, BoundScope.PER, "main.(*S).R (id > 7)"),
        ),
        (f"{_TEXT} == 2 per main.R", (_TEXT, Operator.EQUAL, 2, BoundScope.PER, "main.R")),
        (f"{_GENERIC} == 2", (_GENERIC, Operator.EQUAL, 2, BoundScope.RUN, None)),
        ("main.per <= 3 per main.in", ("main.per", Operator.AT_MOST, 3, BoundScope.PER, "main.in")),
    ],
)
def test_an_assertion_has_parts(text: str, parts: tuple[object, ...]) -> None:
    found = parse_assertion(text)
    assert (found.probe, found.operator, found.number, found.scope, found.root) == parts


@pytest.mark.parametrize("scope", ["per", "in"])
def test_an_order_is_a_bound_on_the_calls_that_lack_an_earlier_one(scope: str) -> None:
    text = f'main.before (s == " before b per c ") before {_GENERIC} {scope} main.R (id > 7)'
    found = parse_assertion(text)
    assert (found.earlier, found.probe) == ('main.before (s == " before b per c ")', _GENERIC)
    assert (found.scope, found.root) == (BoundScope(scope), "main.R (id > 7)")
    assert (found.operator, found.number) == (Operator.AT_MOST, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("main.a before main.b", "and the root in which that is their order"),
        ("main.a before main.b per main.R in main.S", "give two functions, and the root"),
        ("main.a before main.b before main.c per main.R", "give two functions, and the root"),
        ("before main.b per main.R", "per main.R': a function is missing, as in 'main"),
        ("main.a before main.b per ", "a function is missing"),
        ("main.f", "asserts nothing: give a bound, as in"),
        ("", "asserts nothing"),
        ("<= 3", "the function is missing before <="),
        ("main.f < 3", "there is no < here: give ==, <= or >="),
        ("main.f = 3", "there is no = here"),
        ("main.f != 3", "there is no != here"),
        ("main.f <= many", "after <= there is a number of calls"),
        ("main.f <= -1", "after <= there is a number of calls"),
        ("main.f <= 1.5 per main.R", "after <= there is a number of calls"),
        ("main.f <= 3 for main.R", "after <= there is a number of calls"),
        ("main.f <= 3 per", "the root is missing after per"),
        ("main.f <= 3 per main.R <= 4", "two bounds"),
        ("main.f <= 3 <= 4", "after <= there is a number of calls"),
        ("main.f >= 0 per main.R", "always holds"),
    ],
)
def test_anything_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_assertion(text)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("main.f", "main.f <= 7"),
        ("main.f (n < 3) in main.R", "main.f (n < 3) <= 7 in main.R"),
        (f"{_GENERIC} per main.R (id > 7)", f"{_GENERIC} <= 7 per main.R (id > 7)"),
    ],
)
def test_an_open_assertion_gets_its_number_later(text: str, closed: str) -> None:
    found = parse_open(text).closed(7)
    assert found == parse_assertion(closed)


@pytest.mark.parametrize(
    "text", ["", "main.f <= 3", "main.a before main.b per main.R", "main.f per", "per main.R"]
)
def test_an_open_assertion_is_a_function_alone(text: str) -> None:
    with pytest.raises(UsageError):
        parse_open(text)


@pytest.mark.parametrize("operator", list(Operator))
@pytest.mark.parametrize("number", range(4))
def test_bounds_are_decided_as_all_numbers_between_them_are(
    operator: Operator, number: int
) -> None:
    """The referee tries each number that there may be."""
    assertion = CallBound("", "", operator, number)
    for least in range(6):
        for most in (*range(least, 7), None):
            every = range(least, 50 if most is None else most + 1)
            holding = [assertion.holds(count) for count in every]
            assert assertion.can_hold(least, most) == any(holding)
            assert assertion.must_hold(least, most) == all(holding)


def test_a_file_has_an_assertion_a_line(tmp_path: Path) -> None:
    path = tmp_path / "perf.assert"
    path.write_text("# of requests\n\nmain.f == 0\n  # and\n  main.g <= 3 per main.R (id > 7)\n")
    texts = [one.text for one in read_assertions(str(path))]
    assert texts == ["main.f == 0", "main.g <= 3 per main.R (id > 7)"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"main.f == 0\nmain.g < 3\n", "perf.assert:2: 'main.g < 3': there is no < here"),
        (b"# nothing\n", "perf.assert has no assertion"),
        (b"\xff\n", "cannot read .*perf.assert"),
        (None, "cannot read .*perf.assert"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "perf.assert"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GotraceError, match=why):
        read_assertions(str(path))
