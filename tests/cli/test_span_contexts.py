# SPDX-License-Identifier: Apache-2.0
"""The spans that contexts hold are those that the program itself finds in them, call by call.

The program is built with types that are named and laid out as OpenTelemetry's; tests/real has it
with those.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gotrace.capture.ops import MAX_CONTEXTS
from tests.toolchains import FIXTURES, build, newest, require
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

#: For programs that are stripped.
HANDLE = "main.handle(ctx context.Context, key string) int"
SERVE = "main.(*server).serve(w int, r *net/http.Request) int"
#: What is not followed, and what is said instead.
NOT_FOLLOWED = {
    "long": f"no span in the first {MAX_CONTEXTS} contexts, and there are more",
    "odd": "context of a type that is not followed: main.odd",
    "odd span": "span of a type that is not followed: main.oddSpan",
}
Call = tuple[str, str, str, bool]


def traced(program: Path, order: str, command: str, *words: str) -> tuple[list[Call], Result]:
    """Return what the program knows of its calls, and what a tool has shown of them."""
    with Fixture([program]) as fixture:
        with tool(command, "--json", "-p", str(fixture.ready), *words) as tracing:
            truth = fixture.work(order)["calls"]
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    assert [row for row in of_kind(result, "lost") if row["what"] != "undecided"] == []
    return [(call["Key"], call["Trace"], call["Span"], call["Sampled"]) for call in truth], result


def messages(result: Result) -> list[str]:
    return [call["message"] for call in of_kind(result, "call")]


def check_calls(program: Path) -> None:
    """Hold what contexts of all kinds have to what the program finds in them."""
    form = '"[%q, %q, %q, %v]", key, $trace, $span, $sampled'
    truth, result = traced(program, "calls", "gotrace", f"{HANDLE} {form}")
    assert len(truth) >= 20
    assert len({call[1] for call in truth}) == 4
    for (key, *ids), message in zip(truth, messages(result), strict=True):
        if key in NOT_FOLLOWED:
            assert message.count(NOT_FOLLOWED[key]) == 3
        else:
            assert json.loads(message) == [key, *ids]


def check_requests(program: Path) -> None:
    """Hold likewise what requests have."""
    form = '"%q %q", $trace, $span(r.ctx)'
    truth, result = traced(program, "requests", "gotrace", f"{SERVE} {form}")
    _, trace, span, _ = truth[0]
    nil = "<unavailable: nil pointer>"
    assert messages(result) == [f'"{trace}" "{span}"', '"" ""', f"{nil} {nil}"]


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("minor", "flags"),
    [
        ("1.19", ()),
        ("1.21", ("-buildmode=pie",)),
        (None, ("-ldflags=-s -w", "-buildmode=pie")),
    ],
)
def test_ids_are_those_that_the_program_finds(minor: str | None, flags: tuple[str, ...]) -> None:
    toolchain = newest() if minor is None else require(minor)
    program = build(FIXTURES / "live_spans", toolchain, flags=flags)
    check_calls(program)
    check_requests(program)


@pytest.fixture
def program() -> Path:
    return build(FIXTURES / "live_spans", newest())


@pytest.mark.live
@pytest.mark.apart
def test_contexts_in_structs_and_in_results(program: Path) -> None:
    truth, result = traced(program, "held", "gotrace", 'main.within "%s", $trace(held.ctx)')
    assert messages(result) == [truth[0][1]]
    form = '"%s, %s, %s", $trace, $trace($ret1), $span($ret)'
    truth, result = traced(program, "starts", "gotrace", f"main.start {form}")
    _, trace, span, _ = truth[0]
    assert messages(result) == [f", {trace}, {span}"]


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("condition", "is_wanted"),
    [
        ('$trace != "" && !$sampled', lambda call: call[1] and not call[3]),
        ('$trace == "a00102030405060708090a0b0c0d0eff"', lambda call: call[0] == "remote"),
        (
            'prefix($span, "0ff0") || len($trace) == 0',
            lambda call: call[2].startswith("0ff0") or not call[1],
        ),
    ],
)
def test_predicates(program: Path, condition: str, is_wanted: Callable[[Call], bool]) -> None:
    """Contexts that are not followed decide nothing; their calls are counted."""
    truth, result = traced(program, "calls", "gotrace", f'{HANDLE} ({condition}) "%s", key')
    wanted = [call[0] for call in truth if call[0] not in NOT_FOLLOWED and is_wanted(call)]
    assert messages(result) == wanted != []
    assert [row["calls"] for row in of_kind(result, "lost")] == [len(NOT_FOLLOWED)]


@pytest.mark.live
@pytest.mark.apart
def test_calls_are_added_up_by_traces(program: Path) -> None:
    words = ("--by", "$trace, $sampled", "main.handle")
    truth, result = traced(program, "calls", "gofunccount", *words)
    wanted = Counter((call[1], call[3]) for call in truth if call[0] not in NOT_FOLLOWED)
    rows = of_kind(result, "count")
    shown = {json.dumps(row["by"]): row["count"] for row in rows}
    assert sum(shown.values()) == len(truth)
    for (trace, sampled), count in wanted.items():
        assert shown[json.dumps({"$trace": trace, "$sampled": sampled})] == count


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ('main.inside "%s", $trace', "no parameter that is a context.Context or an *http.Request"),
        ('main.handle "%s", $trace(key)', "is of a context.Context, and this is a string"),
        ('main.handle "%d", $trace[0]', "an id has no fields: compare the whole id"),
        ("main.handle ($trace)", "compare it, as in"),
    ],
)
@pytest.mark.live
@pytest.mark.apart
def test_what_is_not_a_context_is_refused(program: Path, probe: str, reason: str) -> None:
    result = run_tool("gotrace", f"{program}:{probe}")
    assert result.status == 2
    assert len(result.errors.splitlines()) == 1
    assert reason in result.errors


@pytest.mark.live
@pytest.mark.apart
def test_a_program_without_spans(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(FIXTURES / "live_recipes", newest()), tmp_path))
    result = run_tool("gotrace", f'{program}:net/http.(*ServeMux).ServeHTTP "%s", $trace')
    assert result.status == 2
    assert len(result.errors.splitlines()) == 1
    assert "has no types of go.opentelemetry.io/otel/trace" in result.errors
