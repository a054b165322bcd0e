# SPDX-License-Identifier: Apache-2.0
"""Expressions: Go's literals and precedence, and what is said about mistakes."""

from __future__ import annotations

import json
import re
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

from gotrace.probes.parser import (
    AssertExpr,
    BinaryExpr,
    BinaryOperator,
    CallExpr,
    DerefExpr,
    ExitExpr,
    Expression,
    FieldExpr,
    IndexExpr,
    LiteralExpr,
    LiteralKind,
    LookupExpr,
    MeasureFunction,
    NameExpr,
    Parser,
    QuantifierExpr,
    SliceExpr,
    SpecialExpr,
    TextFunction,
    UnaryExpr,
    UnaryOperator,
)
from gotrace.probes.tokens import Source, SpecError, TokenKind, tokenize
from tests import toolchains


def parse(text: str) -> Expression:
    source = Source(text)
    parser = Parser(source, tokenize(source))
    expression = parser.expression()
    if parser.token.kind is not TokenKind.END:
        raise parser.error("the end was expected")
    return expression


def literal(text: str) -> object:
    expression = parse(text)
    assert isinstance(expression, LiteralExpr)
    return expression.value


NUMBERS = ["0", "42", "0x1F", "0X_1f", "0b101", "0o17", "017", "1_000_000", "0xFFFF_FFFF_FFFF_FFFF"]
NUMBERS += [
    "1.5",
    ".5",
    "1.",
    "1.E+3",
    "1e3",
    "1E+3",
    "2.5e-3",
    "1_0.2_5",
    "0x1p-2",
    "0x1.8p3",
    "0X.8P1",
]
NUMBERS += ["01.5", "0e0", "089.5", "'a'", "'\\n'", "'\\x41'", "'\u4e16'", "'\\u4e16'", "'\\''"]
NUMBERS += ["'\\377'", "'\\U0001F600'", "'\"'"]
STRINGS = [
    r'"plain"',
    r'""',
    r'"\a\b\f\n\r\t\v\\\""',
    r'"\x00\xff\377\u00e9\U0001F600"',
    r"`raw\n`",
]
STRINGS += ['"h\u00e9\u4e16"', "`a\nb`", "`a\r\nb`"]
DURATIONS = ["10ms", "1h30m", "1.5s", "500us", "500\u00b5s", "500\u03bcs", "3ns", ".5s", "1m0.001s"]


def test_literals_mean_what_they_mean_to_go(tmp_path: Path) -> None:
    calls = [f'fmt.Sprintf("%x", float64({text}))' for text in NUMBERS]
    calls += [f'fmt.Sprintf("%x", {text})' for text in STRINGS]
    calls += [f"parse({json.dumps(text)})" for text in DURATIONS]
    source = tmp_path / "literals.go"
    source.write_text(
        'package main\n\nimport ("encoding/json"; "fmt"; "os"; "time")\n\n'
        "func parse(s string) string {\n"
        "\td, err := time.ParseDuration(s)\n\tif err != nil { panic(err) }\n"
        "\treturn fmt.Sprint(int64(d))\n}\n\n"
        "func main() {\n\tjson.NewEncoder(os.Stdout).Encode([]string{\n"
        + "".join(f"\t\t{call},\n" for call in calls)
        + "\t})\n}\n"
    )
    program = toolchains.build(source, toolchains.newest())
    done = subprocess.run([program], capture_output=True, check=True, text=True)
    said = json.loads(done.stdout)
    numbers, said = said[: len(NUMBERS)], said[len(NUMBERS) :]
    for text, truth in zip(NUMBERS, numbers, strict=True):
        value = literal(text)
        assert isinstance(value, int | Fraction)
        assert float(value) == float.fromhex(truth), text
    strings, durations = said[: len(STRINGS)], said[len(STRINGS) :]
    for text, truth in zip(STRINGS, strings, strict=True):
        value = literal(text)
        assert isinstance(value, bytes)
        assert value.hex() == truth, text
    assert [str(literal(text)) for text in DURATIONS] == durations


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("08", 1, "octal"),
        ("0b12", 1, "not a number"),
        ("0xg", 1, "not a number"),
        ("1__0", 1, "not a number"),
        ("1_", 1, "not a number"),
        ("10d", 1, "durations end in"),
        ("2i", 1, "imaginary"),
        ("1e999", 1, "the exponent of 1e999 is too large"),
        ("1e99999999999", 1, "exponent"),
        ("9" * 101, 1, "a number has at most 100 characters"),
        ("300000000h", 1, "292 years"),
        ("0.5ns", 1, "whole number of nanoseconds"),
        ('"abc', 1, "closing"),
        ("`abc", 1, "closing"),
        (r'"a\qb"', 3, "unknown escape"),
        (r'"\400"', 2, "more than a byte"),
        (r'"\ud800"', 2, "not a Unicode character"),
        (r'"\'"', 2, "unknown escape"),
        ('"a\nb"', 3, "the line ends"),
        ("''", 1, "empty rune"),
        ("'ab'", 1, "more than one character"),
        ("\u201cGET\u201d", 1, "typographic"),
        ("$", 1, "expected a name after $"),
        ("n \x00", 3, "unexpected character"),
    ],
)
def test_what_is_no_literal_is_said(text: str, column: int, reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        parse(text)
    assert caught.value.column == column


def bracketed(expression: Expression) -> str:
    """Write an expression with all its parentheses."""
    if isinstance(expression, BinaryExpr):
        left, right = bracketed(expression.left), bracketed(expression.right)
        return f"({left} {expression.operator.value} {right})"
    if isinstance(expression, UnaryExpr | DerefExpr):
        operator = "*" if isinstance(expression, DerefExpr) else expression.operator.value
        return f"({operator}{bracketed(expression.operand)})"
    if isinstance(expression, FieldExpr):
        return f"{bracketed(expression.operand)}.{expression.name}"
    if isinstance(expression, IndexExpr):
        return f"{bracketed(expression.operand)}[{expression.index}]"
    if isinstance(expression, CallExpr):
        arguments = ", ".join(map(bracketed, expression.arguments))
        return f"{expression.function.value}({arguments})"
    if isinstance(expression, QuantifierExpr):
        parts = (expression.collection, *expression.names, expression.condition)
        return f"{expression.function.value}({', '.join(map(bracketed, parts))})"
    if isinstance(expression, SliceExpr):
        bounds = (bracketed(one) if one else "" for one in (expression.low, expression.high))
        return f"{bracketed(expression.operand)}[{':'.join(bounds)}]"
    if isinstance(expression, LookupExpr):
        return f"{bracketed(expression.operand)}[{bracketed(expression.key)}]"
    if isinstance(expression, AssertExpr):
        return f"{bracketed(expression.operand)}.({expression.type_text})"
    if isinstance(expression, ExitExpr):
        return f"$exit({bracketed(expression.operand)})"
    if isinstance(expression, LiteralExpr):
        return str(expression.value)
    assert isinstance(expression, NameExpr | SpecialExpr)
    return expression.name if isinstance(expression, NameExpr) else f"${expression.name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a || b && c == d", "(a || (b && (c == d)))"),
        ("a && b || c && d", "((a && b) || (c && d))"),
        ("a == b == c", "((a == b) == c)"),
        ("a || b || c", "((a || b) || c)"),
        ("(a || b) && c", "((a || b) && c)"),
        ("!a == b", "((!a) == b)"),
        ("!(a == b)", "(!(a == b))"),
        ("!!a && -1<n", "((!(!a)) && ((-1) < n))"),
        ("*p.x[0] == 3", "((*p.x[0]) == 3)"),
        ("any(a.b, x, x.c > 1 || x.d) && e", "(any(a.b, x, ((x.c > 1) || x.d)) && e)"),
        ("count(m, k, v, k == v) > any", "(count(m, k, v, (k == v)) > any)"),
        ("a[:b+1][1:] == a[:]", "(a[:(b + 1)][1:] == a[:])"),
        ("(*p).x > 0x10", "((*p).x > 16)"),
        ("len(s.items[0].id)>=$duration", "(len(s.items[0].id) >= $duration)"),
        ("prefix(k, `a`)!=true", "(prefix(k, b'a') != True)"),
        ("s[0x1] <= 'a'", "(s[1] <= 97)"),
        ("len == cap", "(len == cap)"),
        ("id % 10 == 7", "((id % 10) == 7)"),
        ("a + b * c - d | e", "(((a + (b * c)) - d) | e)"),
        ("flags & 4 != 0 || a &^ b << 2 > 1", "(((flags & 4) != 0) || (((a &^ b) << 2) > 1))"),
        ("-a - -^b", "((-a) - (-(^b)))"),
        ('h["a"][i + 1]', "h[b'a'][(i + 1)]"),
        ("rw.(*http.response).status", "rw.(*http.response).status"),
        ("x.(func(int) (a, b)) == nil", "(x.(func(int) (a, b)) == None)"),
        ("$exit(*p.x) > 0", "($exit((*p.x)) > 0)"),
        ("lower(a.b)", "lower(a.b)"),
        ("type(a.b)", "type(a.b)"),
        ("\u00fcber.gr\u00f6\u00dfe == nil", "(\u00fcber.gr\u00f6\u00dfe == None)"),
    ],
)
def test_operators_bind_as_in_go(text: str, expected: str) -> None:
    assert bracketed(parse(text)) == expected


def test_an_expression_knows_its_place() -> None:
    text = "  (a.b == 3) && len( x ) > 2"
    expression = parse(text)
    assert isinstance(expression, BinaryExpr)
    parts = [expression, expression.left, expression.right]
    shown = [text[part.span.start : part.span.end] for part in parts]
    assert shown == ["(a.b == 3) && len( x ) > 2", "(a.b == 3)", "len( x ) > 2"]
    assert expression.left == BinaryExpr(
        BinaryOperator.EQUAL, FieldExpr(NameExpr("a"), "b"), LiteralExpr(LiteralKind.INT, 3)
    )
    assert parse("!x") == UnaryExpr(UnaryOperator.NOT, NameExpr("x"))
    assert parse("cap(x)") == CallExpr(MeasureFunction.CAP, (NameExpr("x"),))
    assert parse('contains(x, "y")') == CallExpr(
        TextFunction.CONTAINS, (NameExpr("x"), LiteralExpr(LiteralKind.STRING, b"y"))
    )


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "expected a name"),
        ("n >", 4, "expected a name"),
        ("> 10ms", 1, "the shell took it"),
        ("n = 3", 3, "no such operator: did you mean ==?"),
        ("n ~ 3", 3, "did you mean contains()?"),
        ("ok and ok", 4, "did you mean &&?"),
        ("not ok", 1, "use ! for not"),
        ("n++", 2, "did you mean + 1?"),
        ("(n == 3", 8, "expected )"),
        ("len(n", 6, "expected , or )"),
        ("len()", 1, "len() takes one value"),
        ("prefix(key)", 1, 'as in prefix(key, "user:")'),
        ("f(n)", 2, "never run"),
        ("r.f()", 4, "never run"),
        ("r.(int", 3, "the closing ) of a type"),
        ("r.(type)", 1, "expected a type, as in rw.(*net/http.response)"),
        ("r. == 1", 4, "the name of a field"),
        ("tags[]", 6, "expected a name"),
        ("tags[0:1:2]", 9, "write s[a:b]"),
        ("any(tags)", 1, "any(tags, it, it.Price > 100)"),
        ("any(tags, it.Price > 3)", 1, "any(tags, it, it.Price > 3)"),
        ("all(tags, .Price > f(3))", 1, "any(tags, it, it.Price > f(3))"),
        ("any(r.tags, {@it > 3 && n == 1})", 1, "any(r.tags, it, it > 3 && n == 1)"),
        ("any(tags, # > 3)", 1, "any(tags, it, it > 3)"),
        ("any(tags, func(x T) bool { return x > 1 })", 1, "any(tags, it, it.Price > 100)"),
        ("count(tags, a, b, c, n)", 1, "elements have a name"),
        ("any(tags, it, n > 1", 20, "expected )"),
        ("r.tags.exists(x, x > 1)", 1, "is written any(r.tags, it,"),
        ("tags.filter(x, x > 1)", 1, "is written count(tags, it,"),
        ("slices.ContainsFunc(tags, f)", 1, "is written any(xs, it,"),
        ("tags[0", 7, "expected ]"),
        ("&n", 1, "an address cannot be taken: print a pointer with %p"),
        ("r. 0", 4, "the name of a field after the dot; an index is written [0]"),
        ("(" * 60 + "n" + ")" * 60, 52, "nested more than 50"),
        ("!" * 60 + "ok", 52, "nested more than 50"),
        ("ok" + " && ok" * 150, 604, "an expression has at most 200 parts"),
        ("ok" + " && ok" * 600, 3001, "at most 1000 words"),
    ],
)
def test_mistakes_are_named_with_their_column(text: str, column: int, reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        parse(text)
    assert caught.value.column == column
    assert "\n" not in str(caught.value)
