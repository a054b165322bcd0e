# SPDX-License-Identifier: Apache-2.0
"""What predicates and the expressions of formats mean, over decoded values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from gotrace.gotypes.types import InterfaceType, Kind, Parameter, Signature
from gotrace.probes.constants import RELATIONS
from gotrace.probes.evaluate import NO_RESULT, decide, evaluate, why_undecided
from gotrace.probes.parser import BinaryOperator
from gotrace.probes.scope import Scope
from gotrace.probes.spec import parse_probe
from gotrace.probes.typed import AccessPath, Typed, operands
from gotrace.records import replace
from gotrace.values.model import (
    BytesValue,
    DurationValue,
    ErrorValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)
from tests.probes.go_types import SCOPE, SPECIALS, basic, predicate, slice_of, struct_of


def values_of(typed: Typed, by_name: Mapping[str, Value]) -> dict[AccessPath, Value]:
    return {
        operand.path: by_name[operand.path.root.name]
        for operand in operands(typed)
        if operand.path.root.name in by_name
    }


def text(content: bytes, length: int | None = 0) -> StringValue:
    """Return a string, which is longer than its content if ``length`` says so."""
    return StringValue(content, len(content) if length == 0 else length)


GONE = UnavailableValue("nil pointer")
BOOM = ErrorValue("*errors.errorString", "request timeout: boom", PointerValue("*T", 1))
CUT = ErrorValue("*errors.errorString", "abc", Nil(""), "abc", 9)
GAP = ErrorValue("*os.SyscallError", "abc: <gone>", Nil(""), "abc")
LENGTHY = ErrorValue("*errors.errorString", "a" * 200, Nil(""), "a" * 200, 300)


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("n > 3", {"n": 4}, True),
        ("n > 3", {"n": 3}, False),
        ("n < -1", {"n": -2}, True),
        ("u > 0x7fffffffffffffff", {"u": 1 << 63}, True),
        ("n == i8", {"n": -1, "i8": -1}, True),
        ("n == u32", {"n": -1, "u32": 0xFFFFFFFF}, False),
        ("n > 3", {"n": GONE}, None),
        ("n > 3 || ok", {"n": GONE, "ok": True}, True),
        ("n > 3 || ok", {"n": GONE, "ok": False}, None),
        ("n > 3 && ok", {"n": GONE, "ok": False}, False),
        ("ok && n > 3", {"n": GONE, "ok": True}, None),
        ("!(n > 3)", {"n": GONE}, None),
        ("p == nil || *p > 3", {"p": Nil("*int")}, True),
        ("p != nil && *p > 3", {"p": Nil("*int")}, False),
        ("!ok", {"ok": False}, True),
        ("ok == false", {"ok": False}, True),
        ("d > 10ms", {"d": DurationValue(11_000_000)}, True),
        ("d == 10ms", {"d": DurationValue(11_000_000)}, False),
        ("$duration > 10ms", {}, True),
        ("$goid == 7 && $pid == 100 && $tid != 100", {}, True),
        ('$comm == "server"', {}, True),
        ('prefix($func, "main.")', {}, True),
        ("f > 1.5", {"f": 1.5000001}, True),
        ("f == f", {"f": float("nan")}, False),
        ("!(f < 1)", {"f": float("nan")}, True),
        ("f >= 1", {"f": float("nan")}, False),
        ("g == 0.1", {"g": 0.1}, True),  # decoded float32 values are shortest decimals
        ("f == 0.1", {"f": 0.10000000149011612}, False),
        ("f == g", {"f": 0.10000000149011612, "g": 0.1}, True),
        ('key == "user"', {"key": text(b"user")}, True),
        ('key == "user"', {"key": text(b"user", 5)}, False),
        ('key != "user"', {"key": text(b"user", 5)}, True),
        ('key == "user:42"', {"key": text(b"user", 7)}, None),
        ('key == "xser:42"', {"key": text(b"user", 7)}, False),
        ('key == ""', {"key": 0}, True),  # asks for the length alone
        ('"" < key', {"key": 3}, True),
        ('key < "b"', {"key": text(b"a")}, True),
        ('key < "b"', {"key": text(b"a", 300)}, True),
        ('key < "abc"', {"key": text(b"ab", 300)}, None),
        ('key > "ab"', {"key": text(b"ab", 300)}, True),
        ('key >= "ab"', {"key": text(b"ab")}, True),
        ('key < "\\xff"', {"key": text("\u00e9".encode())}, True),
        ("key == kind", {"key": text(b"a"), "kind": NamedValue("main.Kind", text(b"a"))}, True),
        ("key == kind", {"key": text(b"a", 9), "kind": text(b"a", 9)}, None),
        ("key <= kind", {"key": text(b"a", 9), "kind": text(b"a")}, False),
        ('prefix(key, "us")', {"key": text(b"user")}, True),
        ('prefix(key, "user:")', {"key": text(b"user")}, False),
        ('prefix(key, "user:")', {"key": text(b"user", 9)}, None),
        ('prefix(key, "xs")', {"key": text(b"user", 9)}, False),
        ('prefix(key, "x")', {"key": text(b"", 9)}, None),
        ('prefix(key, "")', {"key": text(b"")}, True),
        # Shorter than what it should begin with, however much of it is known.
        ('prefix(key, "user:")', {"key": text(b"us", 4)}, False),
        ('key == "user"', {"key": text(b"", 4)}, None),
        ('key == "user"', {"key": text(b"x", 4)}, False),
        ('key != "user"', {"key": text(b"x", 4)}, True),
        ('key != "user"', {"key": text(b"us", 4)}, None),
        ('contains(key, "se")', {"key": text(b"user")}, True),
        ('contains(key, "sex")', {"key": text(b"user", 99)}, None),
        ('!contains(key, "sex")', {"key": text(b"user", 99)}, None),
        ('contains(key, "sex")', {"key": text(b"use" * 32, 97)}, None),
        # The one byte that is missing does not make it one.
        ('contains(key, "sex")', {"key": text(b"user" * 32, 129)}, False),
        ('contains(key, "sex")', {"key": text(b"user" * 32, 128)}, False),
        ('contains(key, "sex")', {"key": text(b"", 2)}, False),
        ('contains(key, "se")', {"key": text(b"user", 99)}, True),
        ('contains(key, "x")', {"key": text(b"a" * 999 + b"x")}, True),
        ('!contains(key, "x")', {"key": text(b"a" * 999 + b"x")}, False),
        ('prefix(b, "\\x00\\xff")', {"b": BytesValue("[]uint8", b"\0\xff\1", 3, 3)}, True),
        ('prefix(b, "a")', {"b": Nil("[]uint8")}, False),
        ('prefix(b, "")', {"b": Nil("[]uint8")}, True),
        ("b == nil", {"b": BytesValue("[]uint8", b"", 0, 8)}, False),
        ("err != nil", {"err": BOOM}, True),
        ("err == nil", {"err": Nil("error")}, True),
        ("err == nil", {"err": InterfaceValue("error", None, None)}, False),
        ('contains($ret2, "timeout")', {"err": BOOM}, True),
        ('contains(err, "timeout")', {"err": Nil("error")}, False),
        ('!contains(err, "timeout")', {"err": Nil("error")}, True),
        ('contains(err, "timeout")', {"err": InterfaceValue("error", "main.E", None)}, None),
        ('contains(err, "bc")', {"err": CUT}, True),
        ('contains(err, "x")', {"err": CUT}, None),
        ('!contains(err, "x")', {"err": CUT}, None),
        # The words in the place of what is missing are not the error's.
        ('contains(err, "gone")', {"err": GAP}, None),
        ('contains(err, "abc")', {"err": GAP}, True),
        ('contains(err, "x")', {"err": LENGTHY}, None),
        ('prefix(err, "abc")', {"err": CUT}, True),
        ('prefix(err, "abcd")', {"err": CUT}, None),
        ('prefix(err, "abcd")', {"err": GAP}, None),
        ('prefix(err, "abd")', {"err": GAP}, False),
        ('prefix(err, "abcdefghijkl")', {"err": CUT}, False),
        ("p == q", {"p": PointerValue("*int", 8, 1), "q": PointerValue("*int", 8, 1)}, True),
        ("p != q", {"p": Nil("*int"), "q": PointerValue("*int", 8, 1)}, True),
        ('3 < 4 && "a" != "b"', {}, True),
    ],
)
def test_what_a_predicate_means(
    expression: str, values: Mapping[str, Value], expected: bool | None
) -> None:
    typed = predicate(expression)
    captured = values_of(typed, values)
    for path in list(captured):
        if path.steps and isinstance(captured[path], Nil):
            captured[path] = GONE  # what lies behind a nil pointer
    truth = evaluate(typed, captured, SPECIALS)
    assert truth == (
        UnavailableValue("an operand is unavailable") if expected is None else expected
    )
    assert (decide(typed, captured, SPECIALS) is True) is (expected is True)


CUT_TEXT = text(b"user", 99)


@pytest.mark.parametrize(
    ("expression", "key", "decided"),
    [
        ('contains(key, "x")', CUT_TEXT, None),
        ('!contains(key, "x")', CUT_TEXT, None),
        ('contains(key, "x") || ok', CUT_TEXT, None),
        ('contains(key, "x") && ok', CUT_TEXT, False),
        # One of the two is true, but that is not looked into.
        ('contains(key, "x") || !contains(key, "x")', CUT_TEXT, None),
        ('contains(key, "x")', UnavailableValue("memory not readable"), None),
        ('contains(key, "x")', NO_RESULT, False),
        ('contains(key, "x") || i8 == 1', NO_RESULT, True),
        # Whatever the string says, a nil pointer is not followed.
        ('contains(key, "x") && r.URL.Path == "a"', CUT_TEXT, False),
        ('contains(key, "x") || r.URL.Path == "a"', CUT_TEXT, None),
        ('!(contains(key, "x") || r.URL.Path == "a")', CUT_TEXT, False),
    ],
)
def test_undecided_is_what_more_bytes_might_keep(
    expression: str, key: Value, decided: bool | None
) -> None:
    typed = predicate(expression)
    captured = values_of(typed, {"key": key, "ok": False, "i8": 1, "r": GONE})
    assert decide(typed, captured, SPECIALS) is decided


@pytest.mark.parametrize(
    ("expression", "key", "why"),
    [
        ('contains(key, "x")', CUT_TEXT, "a string is longer than what is copied of it"),
        ('!contains(key, "x")', UnavailableValue("memory not readable"), "memory not readable"),
        (
            'contains(key, "x") || r.URL.Path == "a"',
            UnavailableValue("type not known"),
            "type not known",
        ),
        (
            'r.URL.Path == "a" || contains(key, "x")',
            CUT_TEXT,
            "a string is longer than what is copied of it",
        ),
        ("len(key) > 1000", UnavailableValue("capture limit reached"), "capture limit reached"),
        # One of two texts is of no interest where the other one cannot be read.
        ("key == lower(key)", UnavailableValue("memory not readable"), "memory not readable"),
    ],
)
def test_what_was_not_known_is_the_reason(expression: str, key: Value, why: str) -> None:
    typed = predicate(expression)
    captured = dict.fromkeys((operand.path for operand in operands(typed)), key)
    captured |= values_of(typed, {"r": GONE})
    assert decide(typed, captured, SPECIALS) is None
    assert why_undecided(typed, captured, SPECIALS) == why


def test_values_of_a_format_are_evaluated() -> None:
    spec = parse_probe('main.f "%v %v %v %v %v", n, n > 3, $duration, $comm, "x"')
    resolved = spec.resolve(SCOPE)
    captured = values_of(resolved.values[0], {"n": 4})
    shown = [evaluate(value, captured, SPECIALS) for value in resolved.values]
    assert shown == [4, True, DurationValue(12_000_000), text(b"server"), text(b"x")]
    assert evaluate(resolved.values[0], {}, {}) == UnavailableValue("not captured")
    assert evaluate(resolved.values[2], {}, {}) == UnavailableValue("$duration is not known here")


def ints(elements: Iterable[int], length: int) -> SequenceValue:
    return SequenceValue("[]int", tuple(elements), length)


#: Conditions on elements, and the same over all of them.
OF_ELEMENTS: dict[str, Callable[[tuple[int, ...]], bool]] = {
    "any(ns, x, x > 1)": lambda xs: any(x > 1 for x in xs),
    "!any(ns, i, x, x == i)": lambda xs: not any(x == i for i, x in enumerate(xs)),
    "all(ns, x, x > 0 || ok)": lambda xs: all(x > 0 for x in xs),
    "!all(ns, x, any(ns, y, y > x))": lambda xs: not all(any(y > x for y in xs) for x in xs),
    "count(ns, x, x == 2) == 2": lambda xs: xs.count(2) == 2,
    "count(ns, x, x == 2) != 2": lambda xs: xs.count(2) != 2,
    "2 > count(ns, x, x > 0)": lambda xs: sum(x > 0 for x in xs) < 2,
    "count(ns, x, x > 0) >= count(ns, x, x > 1)": lambda xs: True,
    "any(ns, x, x > 1) == ok": lambda xs: not any(x > 1 for x in xs),
    "len(ns) > 1 && any(ns[1:], x, x > 1)": lambda xs: any(x > 1 for x in xs[1:]),
}


@pytest.mark.parametrize("expression", OF_ELEMENTS)
def test_elements_that_are_not_captured_decide_where_all_that_they_may_be_agree(
    expression: str,
) -> None:
    parameters = (*SCOPE.signature.parameters, Parameter("ns", slice_of(basic("int"))))
    scope = replace(SCOPE, signature=replace(SCOPE.signature, parameters=parameters))
    typed = predicate(expression, scope)
    decided = 0
    for length in range(4):
        all_of = list(itertools.product(range(3), repeat=length))
        for size in range(length + 1):
            for known in {elements[:size] for elements in all_of}:
                values: dict[str, Value] = {"ns": ints(known, length), "ok": False}
                captured = values_of(typed, values)
                captured |= {
                    operand.path: length for operand in operands(typed) if operand.path.steps
                }
                found = decide(typed, captured, SPECIALS)
                truths = {OF_ELEMENTS[expression](xs) for xs in all_of if xs[:size] == known}
                decided += found is not None
                assert found is None or truths == {found}, (known, length)
                if size == length:
                    assert truths == {found}
                elif found is None:
                    why = why_undecided(typed, captured, SPECIALS)
                    assert (
                        why == "there are more elements than are copied: ask for more by elements"
                    )
    assert decided > 20


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ('any(tags, t, contains(t, "ab"))', {"tags": (text(b"x"), text(b"ab", 9))}, True),
        ('any(tags, t, t == "abc")', {"tags": (text(b"ab", 9),)}, False),
        ('any(tags, t, suffix(t, "abc"))', {"tags": (text(b"ab", 9),)}, None),
        ('all(tags, t, t == "ab")', {"tags": ()}, True),
        ("any(b, c, c == 'x')", {"b": BytesValue("[]uint8", b"axa", 900)}, True),
        ("any(b, c, c == 'y')", {"b": BytesValue("[]uint8", b"axa", 3)}, False),
        ("any(b, c, c == 'y')", {"b": UnavailableValue("memory not readable")}, None),
        ("any(b, c, c == 'y')", {"b": GONE}, False),
        ("any(b, c, c == 'y') || ok", {"b": Nil("[]uint8"), "ok": True}, True),
        ('key[1:3] == "se"', {"key": text(b"user")}, True),
        ('key[1:3] == "se"', {"key": text(b"us", 9)}, None),
        ('key[1:3] == "xe"', {"key": text(b"us", 9)}, False),
        ('prefix(key[n:], "er")', {"key": text(b"user"), "n": 2}, True),
        ('key[5:] == ""', {"key": text(b"user")}, False),
        ('!(key[5:] == "")', {"key": text(b"user")}, False),
        ('key[n:1] == ""', {"key": text(b"user"), "n": 2}, False),
        ("len(key[1:]) == 3", {"key": text(b"us", 4)}, True),
        ("len(b[:n]) == 3", {"b": BytesValue("[]uint8", b"a", 5, 8), "n": 3}, True),
        # Beyond the length there may be more.
        ("len(b[:n]) == 6", {"b": BytesValue("[]uint8", b"a", 5, 8), "n": 6}, None),
        ("len(b[:n]) == 9", {"b": BytesValue("[]uint8", b"a", 5, 8), "n": 9}, False),
        (
            "any(tags, t, t == key) && n > 1",
            {"tags": (text(b"a"),), "key": text(b"a"), "n": 2},
            True,
        ),
    ],
)
def test_what_elements_and_slices_mean(
    expression: str, values: Mapping[str, Value], expected: bool | None
) -> None:
    typed = predicate(expression)
    known: dict[str, Value] = {
        name: SequenceValue("[]string", value, len(value)) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
    assert decide(typed, values_of(typed, known), SPECIALS) is expected


def test_entries_of_a_map_have_keys_and_values() -> None:
    header = MapValue("map[string]int", ((text(b"a"), 1), (text(b"b"), 2)), 3)
    truths = {
        'any(r.Header, k, k == "b")': True,
        'any(r.Header, k, v, k == "a" && v == 1)': True,
        'any(r.Header, k, v, k == "a" && v == 2)': None,
        "all(r.Header, k, v, v < 2)": False,
        "count(r.Header, _, v, v > 0) > 1": True,
        "count(r.Header, _, v, v > 0) > 2": None,
    }
    for expression, expected in truths.items():
        typed = predicate(expression)
        captured: dict[AccessPath, Value] = {one.path: header for one in operands(typed)}
        assert decide(typed, captured, SPECIALS) is expected


def test_a_value_in_an_interface_among_elements_is_of_a_type() -> None:
    item = struct_of("main.Item", ("Price", basic("int")))
    anything = InterfaceType("interface {}", Kind.INTERFACE, 16, 8, is_empty=True)
    parameters = (Parameter("xs", slice_of(anything)),)
    scope = Scope("main.f", Signature("main.f", parameters, ()), types=lambda text: (item, False))
    typed = predicate("any(xs, x, x.(main.Item).Price > 3)", scope)

    def decided(*values: Value) -> bool | None:
        return decide(typed, values_of(typed, {"xs": SequenceValue("", values, len(values))}), {})

    dear = StructValue("main.Item", (("Price", 4),))
    assert decided(Nil("interface {}"), InterfaceValue("interface {}", "main.Item", dear))
    assert decided(Nil("interface {}"), InterfaceValue("interface {}", "main.Other", dear)) is False
    assert decided(InterfaceValue("interface {}", None, None)) is None


#: Letters and what strings.ToLower gives of each: some take more bytes then, some fewer.
LOWER = {"a": "a", "A": "a", "b": "b", "\u212a": "k", "\u023a": "\u2c65"}
OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
TEXTS = ["".join(letters) for size in range(4) for letters in itertools.product(LOWER, repeat=size)]


def lowered(content: str) -> str:
    return "".join(map(LOWER.__getitem__, content))


def changed(operand: str, content: str) -> bytes:
    """Return what an operand means of a text."""
    return (lowered(content) if operand.startswith("lower(") else content).encode()


def related(operator: str) -> Callable[[bytes, bytes], bool]:
    return RELATIONS[BinaryOperator(operator)]


def of_one() -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield conditions on a text, and what they mean of all of it."""
    tests: dict[str, Callable[[bytes, bytes], bool]] = {
        'prefix({}, "{}")': bytes.startswith,
        'suffix({}, "{}")': bytes.endswith,
        'contains({}, "{}")': bytes.__contains__,
        **{f'{{}} {operator} "{{}}"': related(operator) for operator in OPERATORS},
    }

    def meant(
        test: Callable[[bytes, bytes], bool], operand: str, needle: str
    ) -> Callable[[str], bool]:
        return lambda content: test(changed(operand, content), needle.encode())

    for form, test in tests.items():
        for operand in ("key", "lower(key)"):
            for needle in ("", "a", "aA", "ba", "aab", "k", "\u2c65a"):
                if form.startswith("{}") and needle == "" and operand == "key":
                    continue  # the length alone decides
                yield form.format(operand, needle), meant(test, operand, needle)


def cuts(lengths: Iterable[int]) -> Iterator[tuple[Value, list[str]]]:
    """Yield texts of which a beginning was captured, and all that they may be."""
    for length in lengths:
        ends = [text for text in TEXTS if len(text.encode()) == length]
        for known in {text.encode()[:size] for text in ends for size in range(length + 1)}:
            yield StringValue(known, length), [t for t in ends if t.encode().startswith(known)]


def gaps() -> Iterator[tuple[Value, list[str]]]:
    """Yield errors of whose messages a beginning is certain, and nothing of what follows."""
    for known in ("", "a", "A", "b", "aA", "ab", "aab", "\u212a"):
        value = ErrorValue("*main.E", f"{known}<gone>", Nil(""), known)
        yield value, [text for text in TEXTS if text.startswith(known)]


@pytest.mark.parametrize("name", ["key", "err"])
def test_a_text_that_is_cut_decides_where_all_that_it_may_be_agree(name: str) -> None:
    undecided = decided = 0
    for expression, test in of_one():
        if name == "err" and "(" not in expression.replace("lower(key)", ""):
            continue  # errors are compared with nil only
        typed = predicate(expression.replace("key", name))
        for value, completions in gaps() if name == "err" else cuts(range(6)):
            found = decide(typed, values_of(typed, {name: value}), SPECIALS)
            truths = set(map(test, completions))
            if found is None:
                undecided += 1
                continue
            decided += 1
            assert truths == {found}, (expression, value)
    assert undecided > 100 < decided


@pytest.mark.slow
def test_two_texts_that_are_cut_decide_where_all_that_they_may_be_agree() -> None:
    undecided = decided = 0
    texts = list(cuts((1, 2, 3)))
    operands_of = itertools.product(("key", "lower(key)"), OPERATORS, ("kind", "lower(kind)"))
    for left, operator, right in operands_of:
        typed = predicate(f"{left} {operator} {right}")
        for (key, keys), (kind, kinds) in itertools.product(texts, texts):
            values = values_of(typed, {"key": key, "kind": kind})
            found = decide(typed, values, SPECIALS)
            if found is None:
                undecided += 1
                continue
            decided += 1
            truths = {
                related(operator)(changed(left, one), changed(right, other))
                for one in keys
                for other in kinds
            }
            assert truths == {found}, (typed, key, kind)
    assert undecided > 100 < decided


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        # What is certain decides, although the text goes on.
        ('lower(key) == "abc"', text(b"ABC", 99), False),
        ('lower(key) == "abc"', text(b"abC\xc3", 99), False),
        ('lower(key) != "abcd"', text(b"ABC", 99), None),
        ("lower(key) != key", text(b"abc", 99), None),
        ("lower(key) != key", text(b"abC", 99), True),
        ('suffix(key, "abc")', text(b"xxxab", 6), None),
        ('suffix(key, "abc")', text(b"xxxax", 6), False),
        ('contains(key, "abc")', text(b"xxxab", 6), None),
        ('contains(key, "abc")', text(b"xxxax", 6), False),
        ('contains(key, "abc")', text(b"xxxxx", 8), None),
        ('suffix(lower(key), "abc")', text(b"xxxx", 5), None),
        ('contains(key, "ab")', text(b"ab", None), True),
        ('key == "ab"', text(b"ab", None), False),
        ('suffix(key, "ab")', text(b"ab", None), None),
    ],
)
def test_what_is_certain_of_a_text_decides(
    expression: str, value: Value, expected: bool | None
) -> None:
    typed = predicate(expression)
    assert decide(typed, values_of(typed, {"key": value}), SPECIALS) is expected
