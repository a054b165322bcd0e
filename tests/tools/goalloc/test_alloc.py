# SPDX-License-Identifier: Apache-2.0
"""Who allocates memory: as the program's own counters have it, within the error that is printed."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.session.oncpu.allocs import AllocRequest
from gotrace.session.why.price import Price
from tests.profiles.raw import raw_text
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest, program_of
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = pytest.mark.live

program = program_of("live_alloc")

#: Standard errors that one of ten numbers exceeds once in two thousand times.
SIGMAS = 4
ROUNDS = 4000


def unsampled(toolchain: Toolchain, *flags: str) -> Path:
    """Return the program without samples of its own."""
    return build(FIXTURES / "live_alloc", toolchain, flags=("-tags=unsampled", *flags))


def sampled(
    path: Path, *words: str | Path, rounds: int | str = ROUNDS
) -> tuple[dict[str, int], Result]:
    """Return the bytes of the fixture's functions, and the samples of the same time."""
    with Fixture([path]) as fixture:
        with tool("goalloc", "-p", str(fixture.ready), "--force", *words) as sampling:
            truth = fixture.work(str(rounds))
            result = sampling.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def check_shares(truth: dict[str, int], result: Result, method: str = "samples") -> dict[str, Any]:
    """Hold functions to the program's own counters and return the head of the reading."""
    (head,) = of_kind(result, "alloc")
    rows = {row["func"]: row for row in of_kind(result, "alloc_function")}
    whole = sum(truth.values())
    for name, size in truth.items():
        row, share = rows[name], size / whole
        error = row["self_error"] / head["alloc_bytes"]
        assert row["self_bytes"] / head["alloc_bytes"] == pytest.approx(
            share, abs=SIGMAS * error + 0.002
        ), name
        if method == "samples":
            assert error <= 2 * share / math.sqrt(share * head["samples"]) + 0.002
    off = SIGMAS / math.sqrt(head["samples"]) if method == "samples" else 0.01
    assert head["sampled_bytes"] == pytest.approx(whole, rel=off)
    assert head["method"] == method
    return head


@each_toolchain
def test_shares_are_those_of_the_program(toolchain: Toolchain) -> None:
    truth, result = sampled(program(toolchain), "--json")
    head = check_shares(truth, result)
    if head["counter_bytes"] is not None:
        assert head["alloc_bytes"] == pytest.approx(head["counter_bytes"], rel=1e-6)
        assert head["counter_bytes"] == pytest.approx(sum(truth.values()), rel=0.02)
    stacks = of_kind(result, "alloc_stack")
    assert sum(row["samples"] for row in stacks) == head["samples"]
    objects = sum(row["objects"] for row in stacks if row["stack"][0]["func"] == "main.left")
    assert objects == pytest.approx(truth["main.left"] / 64, rel=0.5)


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_a_program_without_symbols_or_at_any_address(mode: str) -> None:
    head = check_shares(*sampled(program(mode=mode), "--json"))
    assert (head["counter_bytes"] is None) is (mode == "stripped")


def test_labels_keep_goroutines_apart(tmp_path: Path) -> None:
    file = tmp_path / "x.pb.gz"
    _, result = sampled(program(), "--json", "--by", '$label("worker")', "-o", file)
    sums: Counter[str] = Counter()
    for row in of_kind(result, "alloc_stack"):
        sums[row["by"]['$label("worker")']] += row["alloc_bytes"]
    (head,) = of_kind(result, "alloc")
    for worker in ("0", "1", "2"):
        assert sums[worker] / head["alloc_bytes"] == pytest.approx(1 / 3, abs=0.08)
    assert "alloc_space" in raw_text(file)


def test_text_says_the_error_and_what_the_runtime_has_counted() -> None:
    _, result = sampled(program(), "--top", "3")
    text = "\n".join(result.lines)
    assert "by the runtime's counter" in text
    assert "SHARE   ERROR  FUNCTION" in text
    assert "main.large" in text


@each_toolchain
def test_spans_of_a_program_that_samples_nothing(toolchain: Toolchain) -> None:
    path = unsampled(toolchain, "-ldflags=-s -w")
    if int(toolchain.minor.split(".")[1]) < 19:
        with Fixture([path]) as fixture:
            words = "-p", str(fixture.ready), "-d", "1"
            results = [run_tool("goalloc", *words), run_tool("goalloc", "--spans", *words)]
            fixture.finish()
        assert [result.status for result in results] == [1, 1]
        assert "MemProfileRate is 0" in results[0].errors
        assert "--spans is for programs of Go 1.19 and 1.21 to 1.27" in results[1].errors
        return
    truth, result = sampled(path, "--json")
    head = check_shares(truth, result, "spans")
    stacks = of_kind(result, "alloc_stack")
    objects = sum(row["objects"] for row in stacks if row["stack"][0]["func"] == "main.kilobyte")
    assert objects == pytest.approx(truth["main.kilobyte"] / 1024, rel=0.01)
    whole = sum(row["alloc_bytes"] for row in stacks) + head["others_bytes"]
    assert whole == head["alloc_bytes"] and head["others_bytes"] < whole / 1000


def test_what_spans_take_is_counted_before_it_is_paid() -> None:
    path = unsampled(newest(), "-ldflags=-s -w")
    with Fixture([path]) as fixture:
        fixture.say("1000000")
        result = run_tool("goalloc", "--force", "--json", "-p", str(fixture.ready), "-d", "2")
    assert result.status == 0, result.errors
    (price,) = [row for row in of_kind(result, "warning") if row.get("what") == "why_price"]
    (head,) = of_kind(result, "alloc")
    assert price["changes"] == pytest.approx(head["samples"] / 2, rel=0.8)
    assert price["changes"] > 1000
    assert price["share"] == pytest.approx(2e-6 * price["changes"], rel=0.01)


def test_the_library_refuses_what_takes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllocRequest, "price", lambda request: Price(200_000, 2000))
    said = r"uses up 200,000 spans a second: allocations\(\) would take about 40% of one CPU"
    with Fixture([unsampled(newest())]) as fixture, gotrace.attach(fixture.ready) as go:
        with pytest.raises(gotrace.GotraceError, match=said):
            go.allocations(seconds=0.1)
        with pytest.warns(gotrace.TracingWarning, match="by spans"):
            go.allocations(seconds=0.1, force=True)


def test_spans_of_a_program_that_samples() -> None:
    truth, result = sampled(program(), "--json", "--spans")
    check_shares(truth, result, "spans")
    (warned,) = (row for row in of_kind(result, "warning") if "fixed rhythm" in row["message"])
    assert warned["message"].startswith("by spans:")


@pytest.mark.parametrize("rounds", [4, "rare 400000"])
def test_a_rhythm_of_spans_is_within_three_errors(rounds: int | str) -> None:
    """Before the collector has run, and if a function has each 126th object: a span has 128."""
    truth, result = sampled(unsampled(newest()), "--json", rounds=rounds)
    (head,) = of_kind(result, "alloc")
    own = {row["func"]: row for row in of_kind(result, "alloc_function")}
    for name in ("main.left", "main.right"):
        row = own.get(name, {"self_bytes": 0, "self_error": own["main.left"]["self_error"]})
        assert abs(row["self_bytes"] - truth[name]) <= 3 * row["self_error"] + 65536, name
    assert own["main.left"]["self_error"] > head["alloc_bytes"] / 1000


def test_a_program_that_collects_in_its_rhythm_deceives_spans() -> None:
    """The limit that the run warns of: of two that allocate as much, one is never seen."""
    _, result = sampled(unsampled(newest()), "--json", rounds="rhythm 100")
    own = {row["func"]: row["self_bytes"] for row in of_kind(result, "alloc_function")}
    left, right = (own.get(f"main.{name}", 0) for name in ("left", "right"))
    assert not 0.1 < left / (left + right) < 0.9
    (warned,) = (row for row in of_kind(result, "warning") if "fixed rhythm" in row["message"])
    assert "MemProfileRate is 0" in warned["message"]


def test_a_command_that_will_sample_nothing_is_known_before(tmp_path: Path) -> None:
    (lines := tmp_path / "lines").write_text("100\n\n")
    with lines.open() as stdin:
        command = "-c", str(unsampled(newest()))
        run_tool("goalloc", "-o", file := tmp_path / "x.ndjson", *command, stdin=stdin)
    result = Result(0, file.read_text().splitlines(), "")
    assert of_kind(result, "alloc")[0]["method"] == "spans"
    assert any(row["func"] == "main.large" for row in of_kind(result, "alloc_function"))


def test_a_script_gets_the_same() -> None:
    with Fixture([program()]) as fixture:
        with gotrace.attach(fixture.ready) as go:
            found = go.allocations(ready=lambda: fixture.say(str(ROUNDS)), seconds=3)
        truth = fixture.answer()
        fixture.finish()
    own = {one.function: one for one in found.functions}
    assert found.samples and own["main.large"].self_bytes
    assert own["main.large"].self_error < own["main.large"].self_bytes
    assert own["main.large"].self_bytes / found.bytes == pytest.approx(
        truth["main.large"] / sum(truth.values()), abs=0.1
    )
