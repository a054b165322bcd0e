# SPDX-License-Identifier: Apache-2.0
"""One probe in parts: binary, pattern, signature, predicate, format; and errors with columns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.errors import GotraceError, UsageError
from gotrace.gotypes.from_text import parse_signature
from gotrace.gotypes.types import Kind
from gotrace.probes.parser import Expression
from gotrace.probes.pattern import split_target
from gotrace.probes.scope import MAX_LABEL_KEY, Scope
from gotrace.probes.spec import ProbeSpec, parse_key, parse_label, parse_probe
from gotrace.probes.tokens import SpecError
from gotrace.probes.typed import Typed
from tests.probes.go_types import SCOPE

FILES = {"/usr/bin/x", "./a b (x86)/srv"}


def probe(text: str, *, regex: bool = False) -> ProbeSpec:
    def split(target: str) -> tuple[str | None, str]:
        return split_target(target, FILES.__contains__, lambda name: None)

    return parse_probe(text, regex=regex, split=split)


def typed(spec: ProbeSpec, expression: Expression | Typed) -> str:
    """Return what was typed for an expression."""
    return spec.source.text[expression.span.start : expression.span.end]


def parts(spec: ProbeSpec) -> tuple[str | None, str, str | None, str | None]:
    predicate = typed(spec, spec.predicate) if spec.predicate else None
    return spec.binary, spec.pattern, spec.signature, predicate


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("main.main", "main.main"),
        ("  main.main  ", "main.main"),
        ("main.(*Store).Get", "main.(*Store).Get"),
        ("*", "*"),
        ("(*Store).Get", "(*Store).Get"),
        ("main.(*S*", "main.(*S*"),
        ("main.Map[go.shape.int]", "main.Map[go.shape.int]"),
        ("main.Map[...]", "main.Map[...]"),
        ("main.F[func(int) string]", "main.F[func(int) string]"),
        ("main.(*G[go.shape.struct { A int; B string }]).M", None),
        ("main.F.func1", "main.F.func1"),
        ("main.(*T).M-fm", "main.(*T).M-fm"),
        ("main.glob..func1", "main.glob..func1"),
        ("type:.eq.main.T", "type:.eq.main.T"),
        ("type:.eq.struct { a int; b string }", None),
        ('m.F[struct { A int "json:\\"a]\\"" }]', None),
        ("go:(*struct { io.Reader }).Read", None),
        ("gopkg.in/yaml%2ev3.(*Decoder).Decode", None),
    ],
)
def test_a_pattern_keeps_its_parentheses_and_spaces(text: str, pattern: str | None) -> None:
    pattern = pattern or text
    assert parts(probe(text)) == (None, pattern, None, None)
    assert parts(probe(f"/usr/bin/x:{text.strip()}")) == ("/usr/bin/x", pattern, None, None)
    filtered = probe(f'{text} (n > 3 && key == "a:b (c)") "%d", n')
    assert parts(filtered) == (None, pattern, None, '(n > 3 && key == "a:b (c)")')
    assert typed(filtered, filtered.values[0]) == "n"
    signed = probe(f"{text.strip()}(n int, s string) (int, error) (n > 3)")
    assert parts(signed) == (None, pattern, f"{pattern}(n int, s string) (int, error)", "(n > 3)")


@pytest.mark.parametrize(
    ("text", "signature", "predicate"),
    [
        ("main.add()", "main.add()", None),
        ("main.add(x int, y int) int", "main.add(x int, y int) int", None),
        ("main.add(x int) (x > 3)", "main.add(x int)", "(x > 3)"),
        ("main.add(x int) (int)", "main.add(x int) (int)", None),
        ("main.add(x int) (v int, err error)", "main.add(x int) (v int, err error)", None),
        ("main.add(x main.T) (main.T, error)", "main.add(x main.T) (main.T, error)", None),
        ("main.add(ok bool) (ok)", "main.add(ok bool)", "(ok)"),
        ("main.add(x int) (!(x == 3))", "main.add(x int)", "(!(x == 3))"),
        ("main.add(x int) (len(s))", "main.add(x int)", "(len(s))"),
        ('main.add(s string) (prefix(s, "a"))', "main.add(s string)", '(prefix(s, "a"))'),
        (
            "main.add(f func(a int) bool) *main.T (ok)",
            "main.add(f func(a int) bool) *main.T",
            "(ok)",
        ),
        ("main.add() map[string]int (ok)", "main.add() map[string]int", "(ok)"),
        ("main.add() func(int) string (ok)", "main.add() func(int) string", "(ok)"),
        ("main.add() struct { a int } (ok)", "main.add() struct { a int }", "(ok)"),
        ("main.add(c <-chan int) chan<- int (ok)", "main.add(c <-chan int) chan<- int", "(ok)"),
        ('main.add(x int) int "%d", x', "main.add(x int) int", None),
        ("main.add(x int) int `%d`, x", "main.add(x int) int", None),
        ('main.add(x int)"%d", x', "main.add(x int)", None),
        ("main.(*T).M(x int) (ok)", "main.(*T).M(x int)", "(ok)"),
    ],
)
def test_a_signature_follows_the_name_at_once(
    text: str, signature: str, predicate: str | None
) -> None:
    spec = probe(text)
    assert parts(spec)[2:] == (signature, predicate)


def test_a_given_signature_gives_the_names() -> None:
    spec = probe('main.add(x int, y uint8) int (x > 300 && y < 200) "%d %d", x, $ret')
    assert spec.signature is not None
    signature = parse_signature(spec.signature)
    resolved = spec.resolve(Scope(signature.name, signature))
    assert [value.type.kind for value in resolved.values] == [Kind.INT, Kind.INT]


def test_the_binary_is_told_from_the_rest() -> None:
    spec = probe('./a b (x86)/srv:main.f (key == "/usr/bin/x:main.f")')
    assert parts(spec)[:2] == ("./a b (x86)/srv", "main.f")
    with pytest.raises(UsageError, match="no file '/usr/bin/gone'"):
        probe("/usr/bin/gone:main.f (n > 3)")


def test_a_regular_expression_ends_at_the_first_space() -> None:
    spec = probe(r"main\.(get|put)(\[.*\])?$ (n > 3)", regex=True)
    assert parts(spec) == (None, r"main\.(get|put)(\[.*\])?$", None, "(n > 3)")


def test_a_new_users_probe() -> None:
    text = 'net/http.(*Transport).RoundTrip "%s %s -> %v", req.Method, req.URL.Path, $ret1'
    spec = probe(text)
    assert spec.pattern == "net/http.(*Transport).RoundTrip"
    assert spec.format is not None
    assert [d.text for d in spec.format.directives] == ["%s", "%s", "%v"]
    assert [typed(spec, v) for v in spec.values] == ["req.Method", "req.URL.Path", "$ret1"]


def test_a_format_may_be_raw_and_without_values() -> None:
    assert probe(r"main.f `a\t%%`").format.text == r"a\t%%"  # type: ignore[union-attr]
    assert probe(r'main.f "a\t%%"').format.text == "a\t%%"  # type: ignore[union-attr]
    assert probe("main.f").format is None


@pytest.mark.parametrize(
    ("text", "there", "reason"),
    [
        ("", "", "expected a function"),
        ("   ", "", "expected a function"),
        ("/usr/bin/x: (n > 3)", "(", "expected a function"),
        ("main.f(len(key) > 10)", "(len(key) > 10)", "put a space before a predicate"),
        ('main.f(key == "a")', '(key == "a")', "put a space before a predicate"),
        ("main.f(x int", "(x int", "closing )"),
        ("main.f(x int)int", "", ""),
        ("main.f n > 3", "n", "put a condition in parentheses"),
        ("main.f n", "n", 'expected (PREDICATE) or "FORMAT"'),
        (
            "main.f(x int) (int, error)n",
            "n",
            'expected (PREDICATE) or "FORMAT", EXPR... after a space',
        ),
        ("main.f (n > 3) n", "n", 'expected "FORMAT"'),
        ("main.f (n > 3", "", "expected )"),
        ("main.f (n > 3))", ")", 'expected "FORMAT"'),
        ("main.f '%d', n", "'%d'", "strings are"),
        ("main.f '%', n", "'%'", "double quotes"),
        ('main.f "%d" n', "n", "expected ,"),
        ('main.f "%d", n key', "key", "expected ,"),
        ('main.f "%d",', "", "expected a name"),
        ('main.f "%d %s", n', "%s", "there is no value for %s"),
        (r'main.f "\u00e9%d\t%s", n', "%s", "there is no value for %s"),
        ('main.f "%d", n, key', "key", "the format has 1 verb"),
        ('main.f "", key', "key", "the format has 0 verbs"),
        (r'main.f "\n%y", n', "%y", "there is no verb %y"),
        ('main.f "100%", n', "%", "%% is a percent sign"),
        ("main.f `a%!`, n", "%!", "there is no verb %!"),
        ("\x1bmain.f n", "n", "parentheses"),
    ],
)
def test_errors_name_the_place(text: str, there: str, reason: str) -> None:
    if not reason:  # the space before the result may be left out, as in Go
        assert probe(text).signature == text
        return
    with pytest.raises(SpecError) as caught:
        probe(text)
    message = str(caught.value)
    assert reason in message
    assert message.isprintable()
    assert f"at '{there}'" in message if there else "at the end" in message
    place = text[caught.value.column - 1 :]
    assert place.startswith(there)


def test_keys_have_bounds() -> None:
    with pytest.raises(SpecError, match="expressions have at most 4096 characters"):
        parse_key("n" * 4097)
    assert parse_label(f'$label("{"k" * MAX_LABEL_KEY}")') == "k" * MAX_LABEL_KEY
    with pytest.raises(UsageError, match=r"a label's key has at most \d+ bytes, and this one"):
        parse_label(f'$label("{"k" * (MAX_LABEL_KEY + 1)}")')


def test_resolving_names_the_place_in_the_whole_probe() -> None:
    text = '/usr/bin/x:main.f (n > 3 && keyy == "a") "%d", n'
    with pytest.raises(SpecError, match=re.escape("did you mean key")) as caught:
        probe(text).resolve(SCOPE)
    assert text[caught.value.column - 1 :].startswith("keyy")
    with pytest.raises(SpecError, match="%d does not print string values: use %s") as caught:
        probe('main.f "%v %d", n, key').resolve(SCOPE)
    assert caught.value.column == 20


def test_a_long_probe_is_shown_around_the_place() -> None:
    text = "main.f (" + " && ".join(["n > 3"] * 40) + " && nn > 3 && " + "n > 3)"
    with pytest.raises(SpecError) as caught:
        probe(text).resolve(SCOPE)
    message = str(caught.value)
    assert f"column {text.index('nn') + 1}, at 'nn'" in message
    assert len(message) < 400


@given(st.text(alphabet="main.f(*T)[] {}\"'`\\%d,$ret0:><=!&|/\n\x00", max_size=60))
def test_any_text_gives_a_probe_or_a_plain_error(text: str) -> None:
    try:
        spec = probe(text)
    except GotraceError as error:
        assert "\n" not in str(error)
    else:
        assert spec.pattern
        assert spec.pattern in text


@pytest.mark.parametrize("text", ["(", "[", "{", "[(", 'f["'])
def test_a_hostile_probe_takes_no_time(text: str) -> None:
    with pytest.raises(SpecError, match="at most 4096 characters"):
        probe("main.f" + text * 100_000)
    try:
        probe("main." + (text * 4000)[:4000])
    except SpecError as error:
        assert len(str(error)) < 400


def test_a_probe_can_be_narrowed_to_special_values() -> None:
    bare = parse_probe("main.f").only({"goid": 7, "tid": 8})
    assert bare.predicate == parse_probe("main.f ($tid == 8 && $goid == 7)").predicate
    both = parse_probe("main.f (n > 3 || n < 1)").only({"goid": 7})
    assert both.predicate == parse_probe("main.f ($goid == 7 && (n > 3 || n < 1))").predicate
    assert parse_probe("main.f").only({}).predicate is None
