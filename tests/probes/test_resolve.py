# SPDX-License-Identifier: Apache-2.0
"""Expressions over a function's names: which values are meant, Go's type rules, messages."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.capture.paths import PathMark, PathStep
from gotrace.errors import GotraceError
from gotrace.gotypes.from_text import SignatureError, UnknownTypeError
from gotrace.gotypes.types import GoType, Kind, basic_type
from gotrace.probes.parser import BinaryOperator, Expression, Parser
from gotrace.probes.resolve import resolve, resolve_predicate
from gotrace.probes.scope import Phase, RootKind, Scope
from gotrace.probes.tokens import Source, SpecError, TokenKind, tokenize
from gotrace.probes.typed import (
    Comparison,
    Constant,
    Domain,
    Logic,
    NilTest,
    Operand,
    Typed,
    operands,
    phase_of,
    string_bytes_needed,
)
from tests.probes.go_types import SCOPE


def parse(text: str) -> Expression:
    source = Source(text)
    parser = Parser(source, tokenize(source))
    expression = parser.expression()
    if parser.token.kind is not TokenKind.END:
        raise parser.error("the end was expected")
    return expression


def typed(text: str, scope: Scope = SCOPE) -> Typed:
    return resolve(Source(text), parse(text), scope)


@given(st.text(alphabet="rnkey.()[]*!&|=<>\"'`$0x1_e, plenfix", max_size=40))
def test_any_text_gives_an_expression_or_a_plain_error(text: str) -> None:
    try:
        typed(text)
    except GotraceError as error:
        assert "\n" not in str(error)


D, LEN, CAP = PathMark.DEREF, PathMark.LEN, PathMark.CAP


@pytest.mark.parametrize(
    ("text", "root", "steps", "type_name"),
    [
        ("n", "n", (), "int"),
        ("arg1", "r", (), "*net/http.Request"),
        ("arg2", "n", (), "int"),
        ("$ret", "~r0", (), "int"),
        ("$ret1", "~r0", (), "int"),
        ("$ret2", "err", (), "error"),
        ("err", "err", (), "error"),
        ("outer", "outer", (), "int"),
        ("r.URL.Path", "r", (D, "URL", D, "Path"), "string"),
        ("(*r).Method", "r", (D, "Method"), "string"),
        ("r.Next.Next.Size", "r", (D, "Next", D, "Next", D, "Size"), "int32"),
        ("r.ID", "r", (D, "Base", D, "ID"), "int64"),
        ("r.Base.label", "r", (D, "Base", D, "label"), "string"),
        ("r.Ports[2]", "r", (D, "Ports", 2), "uint16"),
        ("tags[7]", "tags", (7,), "string"),
        ("key[0]", "key", (0,), "uint8"),
        ("*p", "p", (D,), "int"),
        ("len(key)", "key", (LEN,), "int"),
        ("cap(b)", "b", (CAP,), "int"),
        ("len(r.Header)", "r", (D, "Header", LEN), "int"),
        ("cap(ch)", "ch", (CAP,), "int"),
        ("len(tags[1])", "tags", (1, LEN), "int"),
    ],
)
def test_names_lead_to_values(
    text: str, root: str, steps: tuple[PathStep, ...], type_name: str
) -> None:
    operand = typed(text)
    assert isinstance(operand, Operand)
    groups = {
        RootKind.PARAMETER: SCOPE.signature.parameters,
        RootKind.RESULT: SCOPE.signature.results,
        RootKind.CAPTURED: SCOPE.captured,
    }
    found = operand.path.root
    assert groups[found.kind][found.index].name == root
    assert operand.path.steps == steps
    assert operand.type.name == type_name


def test_an_array_has_a_constant_length() -> None:
    assert typed("len(r.Ports)") == Constant(3, SCOPE.signature.parameters[1].type)
    assert typed('len("four") == 4') == Constant(True, typed("ok").type)


def test_results_and_durations_are_known_on_return_only() -> None:
    assert phase_of(typed("n > 3 && $goid == 1")) is Phase.ENTRY
    assert phase_of(typed("n > 3 && $ret == 1")) is Phase.RETURN
    assert phase_of(typed("!($duration > 10ms)")) is Phase.RETURN
    assert phase_of(typed('contains(err, "x")')) is Phase.RETURN


def test_operands_are_listed_once() -> None:
    expression = typed('r.Method == "GET" || r.Method == "PUT" && prefix(key, "user:") && n < n')
    names = [(operand.path.root.name, operand.path.steps) for operand in operands(expression)]
    assert names == [("r", (D, "Method")), ("key", ()), ("n", ())]
    needed = {path.root.name: count for path, count in string_bytes_needed(expression).items()}
    assert needed == {"r": 4, "key": 5}


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("n == i8", Domain.SIGNED),
        ("u == u8", Domain.UNSIGNED),
        ("n < u32", Domain.SIGNED),
        ("u8 > i8", Domain.SIGNED),
        ("d > 10ms", Domain.SIGNED),
        ("$duration > d", Domain.SIGNED),
        ("$pid == n", Domain.SIGNED),
        ("n > 1e6", Domain.SIGNED),
        ("n == 'a'", Domain.SIGNED),
        ("f > 1", Domain.FLOAT),
        ("f < g", Domain.FLOAT),
        ("key == kind", Domain.STRING),
        ('kind < "m"', Domain.STRING),
        ("ok == true", Domain.UNSIGNED),
        ("p == q", Domain.UNSIGNED),
        ("u == 0xffffffffffffffff", Domain.UNSIGNED),
    ],
)
def test_values_that_compare(text: str, domain: Domain) -> None:
    comparison = typed(text)
    assert isinstance(comparison, Comparison)
    assert comparison.domain is domain


def test_a_constant_goes_to_the_right_side() -> None:
    comparison = typed("10 < n")
    assert isinstance(comparison, Comparison)
    assert comparison.operator is BinaryOperator.GREATER
    assert isinstance(comparison.right, Constant)
    test = typed("nil != p")
    assert isinstance(test, NilTest)
    assert not test.equal


def test_a_constant_is_rounded_to_a_float32() -> None:
    comparison = typed("g == 0.1")
    assert isinstance(comparison, Comparison)
    assert isinstance(comparison.right, Constant)
    assert comparison.right.value == 0.10000000149011612


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("keyy == 1", 1, "main.f has no 'keyy': did you mean key"),
        ("key == k7", 8, "main.f has no 'k7': a text is in quotes, \"k7\"; there are r, n"),
        ("key == keyy", 8, "did you mean key?"),
        ("n == k7", 6, "there are r, n, u,"),
        ("duration > 1", 1, "did you mean $duration?"),
        ("retval == 1", 1, "did you mean $ret?"),
        ("zzz", 1, "there are r, n, u,"),
        ("_", 1, "main.f has no '_'"),
        ("~r0", 1, "expected a name"),
        ("arg0", 1, "parameters are numbered from 1: arg1 is the first"),
        ("arg27", 1, "main.f has 26 parameters: arg1 to arg26"),
        ("$ret0", 1, "results are numbered from 1: $ret1 is the first"),
        ("$ret3", 1, "main.f has 2 results: $ret1 to $ret2"),
        ("$durration", 1, "did you mean $duration?"),
        ("$key", 1, "named without $, key"),
        ("$xyzzy", 1, "there is no $xyzzy: $ret, $ret2, $err, $goid"),
        ("n == 1 && r.method", 11, "no field 'method': did you mean Method?"),
        ("r.Foo", 1, "its fields are Method, URL, Size"),
        ("err.msg", 1, "an error is an interface, which has no fields"),
        ("tags.x", 1, "index an element first"),
        ("r.Header.x", 1, "len() gives its length"),
        ("n.x", 1, "an int has no fields"),
        ("opaque.x", 1, "nothing describes the fields of C.thing"),
        ("*n", 1, "an int is not a pointer"),
        ("generic.x", 1, "instances for all pointer types share this code"),
        ("*generic", 1, "instances for all pointer types share this code"),
        ("r.Header[0]", 1, "is compared with a string"),
        ("*raw", 1, "an unsafe.Pointer does not say what it points to"),
        ("points[n] == 1", 1, "is not looked up: its keys are main.Points"),
        ("n[0]", 1, "has no elements: arrays, slices, strings and maps"),
        ("r.Ports[3]", 1, "no element [3]: the last is [2]"),
        ("len(n)", 5, "has no len()"),
        ("cap(key)", 5, "has no cap()"),
        ("cap(r.Header)", 5, "only slices, arrays and channels have"),
        ("3.x", 1, "not a number"),
        ("$goid.x", 1, "has fields"),
        ("-key == 1", 1, "only a number can have - before it"),
        ("n && ok", 1, "this is an int and no condition: compare it, as in == 0"),
        ("ok || key", 7, 'compare it, as in == "GET"'),
        ("!p", 2, "compare it with nil"),
        ("*r && ok", 1, "compare a part of it"),
        ("n == nil", 1, "an int is never nil: compare it with 0"),
        ("key == nil", 1, 'compare it with ""'),
        ("*r == nil", 1, "is never nil"),
        ("p < nil", 1, "nil is compared with == and != only"),
        ("nil == nil", 1, "a nil and a nil cannot be compared by =="),
        ("key.(int)", 1, "a string is not an interface: leave .(...) out"),
        ('1 + "x"', 1, "an integer and a string do not go with +"),
        ("(1 << 400) * (1 << 400)", 1, "the number is too large"),
        ("$trace(1)", 1, "$trace() is of a parameter or result, or a field of one"),
        ("nil", 1, "nil needs"),
        ('n == "3"', 6, "is compared with a number, not with a string"),
        ("key == 3", 8, "is compared with a string"),
        ("ok == 1", 7, "with true or false"),
        ("n == 1.5", 6, "1.5 is not a whole number, and this is an int"),
        ("u8 == 300", 7, "300 does not fit a uint8, which is 0 to 255"),
        ("u > -1", 5, "-1 does not fit a uint64"),
        ("g > 1e39", 5, "the number does not fit a float32"),
        ("n == u", 6, "an int cannot be compared with a uint64"),
        ("n == f", 6, "an int cannot be compared with a float64"),
        ("n == key", 6, "cannot be compared with a string"),
        ("p == r", 6, "cannot be compared with"),
        ("ok < true", 1, "== and != only"),
        ("p < q", 1, "== and != only"),
        ('err == "x"', 1, 'contains($ret, "timeout") looks into its message'),
        ("rd == rd", 1, "is compared with nil only"),
        ('b == "x"', 1, "prefix() and contains() look into it"),
        ("tags == tags", 1, "is compared with nil only"),
        ("fn == fn", 1, "is compared with nil only"),
        ("*r == *r", 1, "compare a field of it"),
        ("r.Ports == r.Ports", 1, "compare an element of it"),
        ("c == c", 1, "cannot be compared here"),
        ("opaque == 1", 1, "nothing describes C.thing"),
        ('1 == "1"', 1, "an integer and a string"),
        ("prefix(n, `a`)", 8, "looks into a string, a []byte or an error, and this is an int"),
        ("prefix(addr, `a`)", 8, "this is a net.IP"),
        ("prefix(`a`, `a`)", 8, "this is a constant"),
        ("prefix(key, kind)", 13, "looks for a constant"),
        ("prefix(key, 3)", 13, "looks for a constant"),
        ("any(key, c, c == 1)", 5, 'contains(s, "text") looks into a string'),
        ("all(n, c, c == 1)", 5, "slices, arrays and maps, and this is an int"),
        ("any(tags, t, t.x == 1)", 14, "a string has no fields"),
        ("any(tags, t, t)", 14, 'compare it, as in == "GET"'),
        ("any(tags, _, _)", 14, "main.f has no '_'"),
        ("any(tags, t, ok) && t == key", 21, "main.f has no 't'"),
        ("any(r.Header, k, k == 3)", 23, "is compared with a string"),
        ('contains(tags, "x")', 10, 'any(tags, it, it == "x") looks for an element'),
        ("count(tags, t, ok) && ok", 1, "this is an int and no condition"),
        ('key[2:1] == ""', 1, "the bounds are reversed: 2 > 1"),
        ('key[-1:] == ""', 5, "a bound must not be negative"),
        ('key[kind:] == ""', 5, "a bound must be a whole number, not a main.Kind"),
        ('key["a":] == ""', 5, "is compared with a number"),
        ("len(r.Ports[:4]) > 0", 14, "[3]uint16 ends at 3"),
        ("n[1:] == 1", 1, "an int cannot be sliced"),
        ("r.Header[1:] == nil", 1, "cannot be sliced"),
        ("$exit(key[:1]) == key", 1, "leave out $exit()"),
        ('type(rd) == "io.Reader"', 1, "what is in this interface is not looked at here"),
    ],
)
def test_types_are_checked(text: str, column: int, reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        typed(text)
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("$ret2 == nil", "results of main.f have no certain numbers, since"),
        ("arg2 == 1", "parameters of main.f have no certain numbers, since"),
    ],
)
def test_numbers_that_are_not_certain_are_refused(text: str, reason: str) -> None:
    assert typed(text)
    unordered = replace(SCOPE, unordered=frozenset({RootKind.PARAMETER, RootKind.RESULT}))
    with pytest.raises(SpecError, match=reason):
        resolve_predicate(Source(text), parse(text), unordered)
    # Names, and the last error, are the same in any order.
    for certain in ("n == 1", "$err == nil"):
        assert resolve_predicate(Source(certain), parse(certain), unordered) == typed(certain)


def _known(name: str) -> tuple[GoType, bool]:
    if not name.endswith("main.T"):
        raise (SignatureError if name == "T" else UnknownTypeError)(f"there are two {name}")
    return basic_type(Kind.INT, "fixture/main.T"), False


_HASHES = {"fixture/main.T": {7}, "main.U": {9, 8}}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('type(rd) == "fixture/main.T"', "7"),
        ('type(rd) == "main.T"', "7"),
        ('"main.U" != type(rd)', "8 and 9"),
        ('type(rd) != "main.Absent"', "True"),
    ],
)
def test_types_are_compared_by_their_hashes(text: str, wanted: str) -> None:
    scope = replace(SCOPE, types=_known, hashes=lambda name: _HASHES.get(name, set()))
    found = resolve_predicate(Source(text), parse(text), scope)
    constants = [str(one.value) for one in _parts(found) if isinstance(one, Constant)]
    assert " and ".join(constants) == wanted
    assert {one.path.steps for one in operands(found)} <= {(PathMark.TYPE,), (PathMark.TYPE_HASH,)}
    wrong = {'type(rd) == "main.Absent"': "no type of the program has this name"}
    wrong['type(rd) < "main.T"'] = "types are compared with == and != only"
    for predicate, reason in wrong.items():
        with pytest.raises(SpecError, match=reason):
            resolve_predicate(Source(predicate), parse(predicate), scope)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("*main.Abcent", "no type of the program has this name: did you mean *main.Absent?"),
        ("zzz.Z", "no type of the program has this name"),
        ("T", "there are two T"),
    ],
)
def test_whoever_types_the_name_of_no_type_is_told(name: str, why: str) -> None:
    """If it is a recipe's, a release may lack the type."""
    notes: dict[str, str] = {}
    scope = replace(
        SCOPE, types=_known, hashes=lambda name: set(), declared=lambda: ("main.Absent",)
    )
    equal, other = (f'type(rd) {operator} "{name}"' for operator in ("==", "!="))
    with pytest.raises(SpecError) as caught:
        resolve_predicate(Source(equal), parse(equal), scope)
    assert str(caught.value).endswith(why)
    for one in (scope, replace(scope, notes=notes)):
        resolve_predicate(Source(other), parse(other), one)
    assert [text.partition(" is true of any type: ")[2] for text in notes.values()] == [why]


def _parts(typed: Typed) -> list[Typed]:
    return (
        [*_parts(typed.left), *_parts(typed.right)]
        if isinstance(typed, Logic | Comparison)
        else [typed]
    )


@pytest.mark.parametrize("text", ["n", "key", "r", "3", "$duration", "len(key)"])
def test_a_predicate_is_a_condition(text: str) -> None:
    with pytest.raises(SpecError, match="no condition: compare"):
        resolve_predicate(Source(text), parse(text), SCOPE)
    condition = resolve_predicate(Source("ok"), parse("ok"), SCOPE)
    assert isinstance(condition, Operand)


def test_arguments_without_names_are_listed_with_their_types() -> None:
    first, *others = SCOPE.signature.parameters
    parameters = (replace(first, name="arg1"), *others)
    scope = replace(SCOPE, signature=replace(SCOPE.signature, parameters=parameters))
    with pytest.raises(SpecError, match=r"no such names: type arg1 \(\*http\.Request\), n, u, "):
        typed("zzz", scope)
    with pytest.raises(SpecError, match="did you mean key"):
        typed("keyy", scope)
