# SPDX-License-Identifier: Apache-2.0
"""Arithmetic and texts in expressions mean what they mean to Go: its compiler is asked."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
from pathlib import Path

import pytest

from gotrace.gotypes.types import (
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    Parameter,
    Signature,
    basic_type,
)
from gotrace.probes import evaluate as evaluation
from gotrace.probes.evaluate import evaluate
from gotrace.probes.parser import ChangeFunction
from gotrace.probes.scope import Scope
from gotrace.probes.spec import parse_probe
from gotrace.probes.tokens import SpecError
from gotrace.probes.typed import AccessPath, Typed, operands
from gotrace.values.model import (
    DurationValue,
    MapValue,
    NamedValue,
    Nil,
    SequenceValue,
    StringValue,
    UnavailableValue,
    Value,
    unwrapped,
)
from tests.probes.go_types import basic, slice_of
from tests.toolchains import newest

WHOLE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int", "uint"]
OPERATORS = ["+", "-", "*", "/", "%", "&", "|", "^", "&^", "<<", ">>"]
EXPRESSIONS = 400


def types() -> list[tuple[str, GoType]]:
    """Return three variables of each type."""
    names = [*WHOLE, "float32", "float64"]
    return [(f"{name}_{n}", basic(name)) for name in names for n in range(3)]


class Maker:
    """Make values and expressions by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, of: GoType) -> int | float:
        if of.kind in (Kind.FLOAT32, Kind.FLOAT64):
            number = self.random.choice([0.0, 1.5, -2.25, 1e30, -3e-5, self.random.uniform(-9, 9)])
            if of.kind is Kind.FLOAT32:
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            return number
        bits = 8 * of.size
        number = self.random.choice([0, 1, 2, 7, (1 << bits) - 1, 1 << bits - 1, 1 << bits - 2])
        number ^= self.random.getrandbits(bits) if self.random.random() < 0.5 else 0
        return number - (1 << bits) if of.name[0] == "i" and number >> bits - 1 else number

    def expression(self, name: str, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.2:
            return f"{name}_{self.random.randrange(3)}"
        if name.startswith("float"):
            operator = self.random.choice("+-*/")
        else:
            operator = self.random.choice(OPERATORS)
        left = self.expression(name, depth + 1)
        if operator in ("<<", ">>"):
            right = f"{self.random.choice(WHOLE)}_{self.random.randrange(3)}"
        elif self.random.random() < 0.2:
            right = str(self.random.choice([1, 2, 3, 7, 100]))
        else:
            right = self.expression(name, depth + 1)
        sign = self.random.choice(["", "", "-", "+", "^"])
        return f"{sign if sign != '^' or name in WHOLE else ''}({left} {operator} {right})"


def in_source(value: int | float, of: GoType) -> str:
    """Return a value in Go, exactly."""
    if of.name == "float64":
        return f"math.Float64frombits({struct.unpack('<Q', struct.pack('<d', value))[0]})"
    if of.name == "float32":
        return f"math.Float32frombits({struct.unpack('<I', struct.pack('<f', value))[0]})"
    return str(value)


def in_go(program: str, directory: Path) -> str:
    source = directory / "main.go"
    source.write_text(program)
    go = newest()
    command = [str(go.go), "run", str(source)]
    run = subprocess.run(command, capture_output=True, text=True, env=go.env(), check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def scope(*parameters: Parameter) -> Scope:
    return Scope("main.f", Signature("main.f", parameters, ()))


def resolved(text: str, within: Scope) -> Typed:
    return parse_probe(f'main.f "%v", {text}').resolve(within).values[0]


def valued(text: str, within: Scope, values: dict[str, Value]) -> Value:
    typed = resolved(text, within)
    found: dict[AccessPath, Value] = {
        operand.path: values[operand.path.root.name] for operand in operands(typed)
    }
    return evaluate(typed, found, {})


def test_go_computes_the_same(tmp_path: Path) -> None:
    maker = Maker(20261122)
    variables = types()
    values = {name: maker.value(of) for name, of in variables}
    wanted = [
        maker.expression(maker.random.choice([*WHOLE, "float32", "float64"]))
        for _ in range(EXPRESSIONS)
    ]
    declared = "".join(
        f"var {name} {of.name} = {in_source(value, of)}\n"
        for (name, of), value in zip(variables, values.values(), strict=True)
    )
    shown = "".join(f"show(func() any {{ return {text} }})\n" for text in wanted)
    program = (
        'package main\nimport ("fmt"; "math")\n'
        "func show(f func() any) {\n"
        '\tdefer func() { if recover() != nil { fmt.Println("panic") } }()\n'
        "\tswitch v := f().(type) {\n"
        "\tcase float32: fmt.Println(math.Float32bits(v))\n"
        "\tcase float64: fmt.Println(math.Float64bits(v))\n"
        "\tdefault: fmt.Println(v)\n\t}\n}\n"
        f"{declared}func main() {{\n{shown}}}\n"
    )
    lines = in_go(program, tmp_path).splitlines()
    assert len(lines) == EXPRESSIONS
    within = scope(*(Parameter(name, of) for name, of in variables))
    for text, line in zip(wanted, lines, strict=True):
        value = valued(text, within, dict(values))
        if isinstance(value, UnavailableValue):
            assert line == "panic", text
            continue
        kind = resolved(text, within).type.kind
        if isinstance(value, float) and math.isnan(value):
            exact = math.nan
            read = int(line)
            form = ("<f", "<I") if kind is Kind.FLOAT32 else ("<d", "<Q")
            assert math.isnan(struct.unpack(form[0], struct.pack(form[1], read))[0]), text
            continue
        if kind is Kind.FLOAT32:
            assert isinstance(value, float)
            exact = struct.unpack("<I", struct.pack("<f", value))[0]
        elif kind is Kind.FLOAT64:
            assert isinstance(value, float)
            exact = struct.unpack("<Q", struct.pack("<d", value))[0]
        else:
            assert isinstance(value, int)
            exact = value
        assert str(exact) == line, text


TEXTS = [b"GET", b"\xc3\x84BC", "\u0130I\u0131".encode(), "\u03a3\u03a3\u03a3".encode(), b"A\xffB"]
TEXTS += [b"", b"\xe1\xba\x9e", b"\xf0\x90\x90\x80", b"A\xe2\x82", "\u01c5\u1e9e\u212b".encode()]


def test_go_lowers_the_same(tmp_path: Path) -> None:
    listed = "".join(f"show({json.dumps(list(text))[1:-1]})\n" for text in TEXTS)
    program = (
        'package main\nimport ("fmt"; "strings")\n'
        'func show(b ...byte) { fmt.Printf("%x\\n", strings.ToLower(string(b))) }\n'
        f"func main() {{\n{listed}}}\n"
    )
    for text, line in zip(TEXTS, in_go(program, tmp_path).splitlines(), strict=True):
        value = valued("lower(key)", KEYED, {"key": StringValue(text, len(text))})
        assert isinstance(value, StringValue)
        assert (value.text.hex(), value.length) == (line, len(value.text)), text


STRING = basic_type(Kind.STRING)
HEADER = MapType("http.Header", Kind.MAP, 8, 8, Lazy.of(STRING), Lazy.of(slice_of(STRING)))
KEYED = scope(
    Parameter("key", STRING),
    Parameter("h", HEADER),
    Parameter("counts", MapType("c", Kind.MAP, 8, 8, Lazy.of(basic("int32")), Lazy.of(STRING))),
    Parameter("n", basic("int")),
    Parameter("i8", basic("int8")),
    Parameter("ok", basic("bool")),
    Parameter("f", basic("float64")),
    Parameter("d", basic("time.Duration", Kind.INT64)),
    Parameter("tags", slice_of(STRING)),
    Parameter("x", InterfaceType("interface {}", Kind.INTERFACE, 16, 8, True)),
)


def text(content: str, length: int | None = None) -> StringValue:
    return StringValue(content.encode(), len(content) if length is None else length)


def header(length: int, **entries: str) -> MapValue:
    pairs = tuple(
        (text(key.replace("_", "-")), SequenceValue("[]string", (text(value),), 1))
        for key, value in entries.items()
    )
    return MapValue("http.Header", pairs, length)


TAGS = SequenceValue("[]string", (text("a"), text("b")), 2)
TENANT = header(2, X_Tenant="acme", Accept="*/*")


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ('h["X-Tenant"][0] == "acme"', {"h": TENANT}, True),
        ('h["X-Other"] == nil', {"h": TENANT}, True),
        ('len(h["X-Tenant"]) == 1 && len(h["X-Other"]) == 0', {"h": TENANT}, True),
        ('h["X-Other"][0] == "acme"', {"h": TENANT}, None),
        ("h[key][0] == key", {"h": header(1, a="a"), "key": text("a")}, True),
        ('h["X"] == nil', {"h": header(9, Y="z")}, None),  # not all of it was copied
        ('h["Y"][n - 1] == "z"', {"h": header(9, Y="z"), "n": 1}, True),
        ('h["Y"] == nil', {"h": Nil("http.Header")}, True),
        ('counts[7] == ""', {"counts": MapValue("c", ((8, text("a")),), 1)}, True),
        ('counts[n] == "a"', {"counts": MapValue("c", ((8, text("a")),), 1), "n": 8}, True),
        ('tags[n] == "b"', {"tags": TAGS, "n": 1}, True),
        ('tags[n] == "b"', {"tags": SequenceValue("[]string", (), 0), "n": 1}, None),
        ("n % 10 == 7 && n & 1 != 0", {"n": 17}, True),
        ("n / i8 == 1", {"n": 1, "i8": 0}, "numbers of one type"),
        ("1 / n == 1", {"n": 0}, None),
        ('lower(key) == "get"', {"key": text("GeT")}, True),
        ('prefix(lower(key), "us")', {"key": text("USER", 9)}, True),
        ('suffix(key, "ER")', {"key": text("USER")}, True),
        ('suffix(key, "ER")', {"key": text("USER", 9)}, None),
        ('suffix(key, "USERS")', {"key": text("USER", 4)}, False),
        ("d / 2 > 5ms", {"d": DurationValue(11_000_000)}, True),
        ("-d < 0 && d > 1 * 10ms", {"d": DurationValue(11_000_000)}, True),
        ("d > 10", {}, "a duration has a unit: did you mean 10ms?"),
        ("$duration > 10", {}, "did you mean 10ms?"),
        ("ok & ok", {}, "did you mean &&?"),
        ("n + f > 1", {}, "numbers of one type"),
        ("n % 0 == 1", {}, "division by zero"),
        ("f % 2 == 0", {}, "does not go with %"),
        ("n << -1 > 0", {}, "does not fit"),
        ('key + "a" == key', {}, "does not go with +"),
        ("tags[-1] == key", {}, "an index must not be negative"),
        ("tags[key] == key", {}, "an index must be a whole number"),
        ("h[n] == nil", {}, "the keys of a http.Header are strings"),
        ("x.(string) == key", {}, "is not looked at here"),
        ("$exit(n) == 1", {}, "leave out $exit()"),
        ("$exit($duration) > 1s", {}, "takes an argument"),
        ("$like(key) == key", {}, "$like() is the whole of an expression"),
        ("$err != nil", {}, "no result of type error"),
        ("lower(n) == key", {}, "lower() takes a text"),
        ("type(n) == nil", {}, "is not an interface: its type is always the same"),
    ],
)
def test_what_expressions_mean(
    expression: str, values: dict[str, Value], expected: bool | str | None
) -> None:
    if isinstance(expected, str):
        with pytest.raises(SpecError) as caught:
            resolved(expression, KEYED)
        assert expected in str(caught.value)
        return
    value = valued(expression, KEYED, values)
    assert (None if isinstance(value, UnavailableValue) else value) is expected


def test_results_have_the_operands_type() -> None:
    values: dict[str, Value] = {"d": DurationValue(3), "f": 0.5, "i8": 127}
    assert valued("d * 2", KEYED, values) == DurationValue(6)
    assert valued("f / 0", KEYED, values) == math.inf
    assert valued("i8 + 1", KEYED, values) == -128
    named = scope(Parameter("k", basic("main.Kind", Kind.INT)))
    value = valued("k << 2", named, {"k": NamedValue("main.Kind", 3)})
    assert value == NamedValue("main.Kind", 12) and unwrapped(value) == 12


def test_an_element_that_is_not_there_is_named() -> None:
    three = SequenceValue("[]string", (text("a"), text("b"), text("c")), 3)
    captured = UnavailableValue("beyond the bytes captured")
    cases: tuple[tuple[str, dict[str, Value], str], ...] = (
        ("tags[n]", {"tags": three, "n": 3}, "[3] with length 3"),
        ("tags[n - 5]", {"tags": three, "n": 3}, "[-2] with length 3"),
        ("tags[n]", {"tags": Nil("[]string"), "n": 0}, "[0] with length 0"),
        ("tags[7]", {"tags": captured}, "[7]"),  # of which nothing else is captured
    )
    for expression, values, which in cases:
        found = valued(expression, KEYED, values)
        assert found == UnavailableValue(f"index out of range {which}: test len() first")
    assert valued("tags[n]", KEYED, {"tags": captured, "n": 3}) == captured


def test_every_function_that_changes_texts_can_be_evaluated() -> None:
    assert set(evaluation._CHANGES) == set(ChangeFunction)
