# SPDX-License-Identifier: Apache-2.0
"""Compare predicates, in the kernel and in the tool, with what Go makes of them.

Predicates and values are made by chance; the fixture evaluates the same predicates on the same
values with Go's own operators and package strings.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Result, of_kind, tool
from tests.tools.trace import lost

pytestmark = [pytest.mark.live, pytest.mark.apart]

Json = dict[str, Any]

_PREDICATES = 24  # functions that the fixture has
_VALUES = 80
#: Bytes captured of a string that a predicate may look at to its end. All such strings of a
#: predicate share them: here there are three at most, s, b and t.
_CAPTURED = 1792
_NEEDLES = ["needle", "a needle of more than one word", "x", "ab", "b" * 9, "a needle"]
_TEXTS = ["", "user:42", "user:" + "y" * 60, "z" * 70, "w" * 300]
_LENGTHS = [0, 3, 8, 30, 127, 128, 129, 255, 256, 257, 300, 511, 512, 530]


@dataclass
class Expression:
    """A condition as the fixture takes it, and as a probe writes it."""

    Operator: str
    Of: str = ""
    Other: str = ""
    Text: str = ""
    Number: int = 0
    Parts: list[Expression] = field(default_factory=list)

    def written(self, random: random.Random) -> str:
        parts = [part.written(random) for part in self.Parts]
        if self.Operator == "!":
            return f"!({parts[0]})"
        if self.Operator in ("&&", "||"):
            return f"({parts[0]} {self.Operator} {parts[1]})"
        if self.Operator == "n <":
            return f"n < {self.Number}"
        if self.Operator == "len >":
            return f"len({self.Of}) > {self.Number}"
        if self.Operator == "slice":
            bounds = random.choice(("2:7", ":7][2:", "2:][:5"))
            return f"(len(s) >= 7 && s[{bounds}] == {json.dumps(self.Text)})"
        if self.Operator in ("any", "all"):
            operator = "==" if self.Operator == "any" else "<="
            return f"{self.Operator}(b, c, c {operator} {self.Number})"
        if self.Operator == "count":
            return f"count(b, i, c, c == {ord('a')} && i >= 1) > {self.Number}"
        of = self.Of
        if self.Operator in ("contains", "prefix"):
            of = random.choice(("s", "b")) if of == "s" else of  # b has the bytes of s
            return f"{self.Operator}({of}, {json.dumps(self.Text)})"
        return f"{of} {self.Operator} {self.Other or json.dumps(self.Text)}"


class Maker:
    """Make predicates and values by chance."""

    def __init__(self, seed: int, lengths: list[int]) -> None:
        self.random = random.Random(seed)
        self._lengths = lengths

    def expression(self, depth: int = 0) -> Expression:
        form = self.random.random()
        if depth < 3 and form < 0.35:
            operator = self.random.choice(("&&", "||"))
            return Expression(
                operator, Parts=[self.expression(depth + 1), self.expression(depth + 1)]
            )
        if depth < 3 and form < 0.5:
            return Expression("!", Parts=[self.expression(depth + 1)])
        return self.condition()

    def condition(self) -> Expression:
        operator = self.random.choice(
            ("contains",) * 5
            + ("prefix",) * 2
            + ("==", "!=", "<", "n <", "len >", "slice", "any", "all", "count")
        )
        of = self.random.choice("sst")
        if operator == "contains":
            return Expression(operator, of, Text=self.random.choice(_NEEDLES))
        if operator == "prefix":
            text = self.random.choice(_TEXTS)
            return Expression(operator, of, Text=text[: self.random.randrange(len(text) + 1)])
        if operator == "slice":
            return Expression(operator, "s", Text=self.random.choice(("er:42", "er:yy", "zzzzz")))
        if operator in ("any", "all"):
            return Expression(operator, "s", Number=self.random.choice(b" acdenxy"))
        if operator == "count":
            return Expression(operator, "s", Number=self.random.randrange(60))
        if operator in ("n <", "len >"):
            return Expression(operator, of, Number=self.random.randrange(200))
        if operator == "<" or self.random.random() < 0.2:
            return Expression(operator, of, Other="t" if of == "s" else "s")
        return Expression(operator, of, Text=self.random.choice(_TEXTS))

    def text(self) -> str:
        if self.random.random() < 0.25:
            return self.random.choice(_TEXTS) + self.random.choice(("", "", "more"))
        text = "".join(self.random.choices("acde ", k=self.random.choice(self._lengths)))
        if self.random.random() < 0.6:
            at = self.random.choice((0, len(text), self.random.randrange(len(text) + 1)))
            text = text[:at] + self.random.choice(_NEEDLES) + text[at:]
        return text

    def value(self) -> Json:
        s = self.text()
        t = s if self.random.random() < 0.2 else self.text()
        return {"S": s, "T": t, "N": self.random.randrange(200)}


def found_and_truth(maker: Maker, form: str) -> tuple[list[list[int]], list[list[int]], Result]:
    """Trace the calls of predicates; return the values kept by each, Go's choice, and the run."""
    predicates = [maker.expression() for _ in range(_PREDICATES)]
    values = [maker.value() for _ in range(_VALUES)]
    probes = [
        f"main.look{number:02} ({form.format(predicate.written(maker.random))}) "
        + '"%d %d %d", id, len(s), n'
        for number, predicate in enumerate(predicates)
    ]
    order = {"Values": values, "Predicates": predicates}
    with (
        Fixture([build(FIXTURES / "trace_predicates", newest())]) as fixture,
        tool("gotrace", "--json", "-p", str(fixture.ready), *probes) as tracing,
    ):
        truth: Any = fixture.work(json.dumps(order, default=vars))
        # At an end that the program itself makes, all is shown however long that takes.
        assert fixture.finish() == 0
        result = tracing.result()
    assert result.status == 0, result.errors
    found: list[list[int]] = [[] for _ in predicates]
    for row in of_kind(result, "call"):
        id, length, n = map(int, row["message"].split())
        assert (length, n) == (len(values[id]["S"]), values[id]["N"])
        found[int(row["func"].removeprefix("main.look"))].append(id)
    return found, truth, result


#: Ways to ask: what the kernel can decide, and what it has to leave to the tool.
_FORMS = {"kernel": "{}", "tool": '$comm == "another" || ({})'}


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_predicates_are_those_of_go(form: str, seed: int) -> None:
    found, truth, result = found_and_truth(Maker(seed, _LENGTHS), _FORMS[form])
    assert found == truth
    assert lost(result) == {}
    assert sum(map(len, truth)) > 300


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("seed", range(2))
def test_what_is_not_decided_is_counted(form: str, seed: int) -> None:
    """Of strings that are longer than what is captured, no call is shown that Go would not keep."""
    lengths = [*_LENGTHS, *[_CAPTURED - 1, _CAPTURED, _CAPTURED + 1, 3000, 9000] * 3]
    found, truth, result = found_and_truth(Maker(seed, lengths), _FORMS[form])
    missing = 0
    for kept, wanted in zip(found, truth, strict=True):
        assert set(kept) <= set(wanted)
        missing += len(wanted) - len(kept)
    counts = lost(result)
    assert counts.keys() == {"undecided"}
    assert 0 < missing <= counts["undecided"]


@pytest.mark.parametrize("form", _FORMS)
def test_a_string_is_searched_as_far_as_it_is_captured(form: str) -> None:
    places = [0, 100, 122, 123, 250, 600, _CAPTURED - 6, _CAPTURED - 5, 5000]
    values = [{"S": "." * at + "needle" + "." * 3000, "T": "", "N": 0} for at in places]
    # Of the last but one, a byte that could not make it a needle is missing.
    sizes = (5, 129, _CAPTURED, _CAPTURED + 1, _CAPTURED + 6)
    values += [{"S": "." * size, "T": "", "N": 0} for size in sizes]
    contains = Expression("contains", "s", Text="needle")
    both = [contains, Expression("!", Parts=[contains])]
    probes = [
        f'main.look{number:02} ({_FORMS[form].format(text)}) "%d", id'
        for number, text in enumerate(('contains(s, "needle")', '!contains(s, "needle")'))
    ]
    order = json.dumps({"Values": values, "Predicates": both}, default=vars)
    with (
        Fixture([build(FIXTURES / "trace_predicates", newest())]) as fixture,
        tool("gotrace", "-p", str(fixture.ready), *probes) as tracing,
    ):
        truth: Any = fixture.work(order)
        assert fixture.finish() == 0
        result = tracing.result()
    shown = [line.split()[-2:] for line in result.lines if "main.look" in line]
    assert [int(id) for name, id in shown if name == "main.look00"] == truth[0][:7]
    assert [int(id) for name, id in shown if name == "main.look01"] == truth[1][:4]
    assert "6 calls not shown: the predicate could not be decided" in result.errors
