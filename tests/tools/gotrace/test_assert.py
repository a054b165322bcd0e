# SPDX-License-Identifier: Apache-2.0
"""Assertions are held to a program whose requests make known numbers of calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.assertions import ledger
from tests.toolchains import FIXTURES, build, newest, require
from tests.tools.harness import Fixture, Result, of_kind, run_tool

pytestmark = pytest.mark.live

REQUESTS = 40
#: The request that makes more calls than the others.
ODD = 7
HOLDS, FAILS = (0, "holds"), (4, "does not hold")
UNDECIDED, MISSING = (5, "cannot be decided"), (3, "nothing matched")
_PER = "per main.handle"
_ASKED = "main.(*cache).Get before main.query"
_SQL = "database/sql.(*DB).QueryContext"


def _program(minor: str | None = None) -> Path:
    return build(FIXTURES / "live_asserted", require(minor) if minor else newest())


def _run(way: str, *words: str, status: str = "", minor: str | None = None) -> Result:
    command = [str(_program(minor)), way, str(REQUESTS), *([status] if status else [])]
    return run_tool("gotrace", "assert", "--json", *words, "--", *command)


def _verdicts(result: Result) -> list[dict[str, Any]]:
    return of_kind(result, "assertion")


#: Each with the least, the median and the most that there are of a request; None in the whole run.
_KNOWN = [
    ("queries", f"main.query <= 1 {_PER}", FAILS, (1, 1, 12)),
    ("queries", f"{_SQL} <= 1 {_PER}", FAILS, (1, 1, 12)),
    ("queries", f"{_SQL} <= 12 {_PER}", HOLDS, (1, 1, 12)),
    ("queries", f"main.query (want == 1) == 0 {_PER}", FAILS, (0, 0, 11)),
    ("queries", f"main.query (want == 1) == 0 {_PER} (id != 7)", HOLDS, (0, 0, 0)),
    ("queries", "main.query == 1 in main.handle", FAILS, (1, 1, 12)),
    ("queries", "main.query == 92", HOLDS, (92, 92, 92)),
    ("queries", "main.query (id == 7) <= 11", FAILS, (12, 12, 12)),
    ("queries", "main.handle >= 41", FAILS, (40, 40, 40)),
    ("spread", f"main.query <= 3 {_PER}", FAILS, (3, 3, 5)),
    ("spread", f"main.query >= 3 {_PER}", HOLDS, (3, 3, 5)),
    ("spread", "main.query == 0 in main.handle", HOLDS, (0, 0, 0)),
    ("pooled", f"main.query <= 2 {_PER}", FAILS, (2, 2, 6)),
    ("pooled", f"main.query <= 6 {_PER}", HOLDS, (2, 2, 6)),
    ("retries", f"main.attempt <= 2 {_PER}", FAILS, (2, 2, 4)),
    ("retries", f"main.attempt ($err != nil) <= 1 {_PER}", FAILS, (1, 1, 3)),
    ("panics", f"main.query <= 1 {_PER}", FAILS, (1, 1, 2)),
    ("cached", f"main.(*cache).Get == 1 {_PER}", HOLDS, (1, 1, 1)),
    ("cached", f"main.query <= 1 {_PER}", HOLDS, (0, 0, 1)),
    ("asks", f"{_ASKED} {_PER}", FAILS, (0, 0, 1)),
    ("asks", f"{_ASKED} {_PER} (id != 7)", HOLDS, (0, 0, 0)),
    ("asks", f"{_ASKED} in main.handle", FAILS, (0, 0, 1)),
    ("asksAndSpreads", f"{_ASKED} {_PER}", FAILS, (0, 0, 5)),
    ("asksAndPanics", f"main.fails before main.query {_PER}", FAILS, (0, 0, 1)),
    ("asksAndPanics", f"main.fails before main.query {_PER} (id != 7)", HOLDS, (0, 0, 0)),
    ("resets", f"main.query == 1 {_PER} (id > 4)", HOLDS, (1, 1, 1)),
    ("asksAndHands", f"{_ASKED} {_PER}", FAILS, (0, 0, 6)),
]


@pytest.mark.parametrize("way", sorted({way for way, *_ in _KNOWN}))
@pytest.mark.parametrize("minor", ["1.27", pytest.param("1.19", marks=pytest.mark.slow)])
def test_verdicts_have_the_numbers_that_the_program_knows(way: str, minor: str) -> None:
    known = [one for one in _KNOWN if one[0] == way]
    result = _run(way, *(text for _, text, *_ in known), minor=minor)
    found = _verdicts(result)
    assert [row["assertion"] for row in found] == [text for _, text, *_ in known]
    for (_, text, (_, outcome), numbers), row in zip(known, found, strict=True):
        assert row["outcome"] == outcome, row
        assert (row["least"], row["median"], row["most"]) == numbers, row
        if " per " in text or " in " in text:
            assert row["roots"] == REQUESTS - ("id != 7" in text) - 4 * ("id > 4" in text)
            assert ("worst" in row) == (outcome == FAILS[1])
        if "worst" in row:
            assert row["worst"]["root"]["call"]["args"]["id"] == ODD
            assert row["broken"] == 1
    assert result.status == max(status for _, _, (status, _), _ in known)


@pytest.mark.parametrize(
    ("way", "words", "expected"),
    [
        ("hidden", (f"main.query <= 1 {_PER}",), UNDECIDED),
        ("hidden", (f"main.query == 0 {_PER}",), UNDECIDED),
        ("hidden", (f"main.query >= 1 {_PER}",), UNDECIDED),
        ("hidden", (f"main.query <= 41 {_PER}", "--allow-unattributed"), HOLDS),
        ("hidden", (f"main.query >= 1 {_PER}", "--allow-unattributed"), UNDECIDED),
        ("hidden", ("main.query == 0 in main.handle",), HOLDS),
        ("asks", (f"{_ASKED} in main.handle",), FAILS),  # without edges, if none is asked for
        ("spread", ("main.query == 0 in main.handle",), HOLDS),
        ("asksElsewhere", (f"{_ASKED} {_PER}",), UNDECIDED),
        ("asksAfterGo", (f"{_ASKED} {_PER}",), UNDECIDED),
        ("hidden", (f"main.query before main.(*cache).Get {_PER}",), MISSING),
        ("hidden", (f"{_ASKED} {_PER}",), UNDECIDED),  # whose queries they are is not known
        ("asks", (f"{_ASKED} in main.spread",), MISSING),
        ("retries", (f"{_ASKED} {_PER}",), MISSING),  # no query lacks it, but there is none
        ("queries", (f"main.none before main.query {_PER}",), MISSING),
        ("inlines", (f"main.small before main.query {_PER}",), MISSING),
        ("inlines", (f"main.small == 0 {_PER} (id < 7)",), UNDECIDED),
        ("inlines", (f"main.small <= 1 {_PER}",), UNDECIDED),  # one of two is traced
        ("inlines", (f"main.small <= 2 {_PER}",), HOLDS),
        ("inlines", (f"main.small == 0 {_PER}",), FAILS),
        ("inlines", ("main.small == 2",), HOLDS),
        ("nothing", (f"main.small == 0 {_PER}",), HOLDS),  # inlined, and not called there either
        ("nothing", (f"main.none == 0 {_PER}",), MISSING),
        ("nothing", ("main.query == 0 per main.none",), MISSING),
        ("nothing", ("main.none == 0",), MISSING),
        ("nothing", ("main.query <= 3 per main.spread",), MISSING),  # it is not called
        ("nothing", ("main.query <= 99 per main.worker",), MISSING),  # it does not end
    ],
)
def test_what_is_not_known_or_not_there_does_not_hold(
    way: str, words: tuple[str, ...], expected: tuple[int, str]
) -> None:
    result = _run(way, *words)
    (row,) = _verdicts(result)
    assert (result.status, row["outcome"]) == expected, row
    assert bool(row["why"]) == (expected in (UNDECIDED, MISSING))


def test_missing_functions_may_be_allowed_and_the_command_runs_in_any_case() -> None:
    assert _run("nothing", "--allow-missing", "main.none == 0").status == 0
    assert _run("nothing", "--allow-missing", "main.none == 0", status="9").status == 9
    assert _run("nothing", "main.none == 0", status="9").status == 9


def test_a_command_that_fails_keeps_its_status() -> None:
    result = _run("queries", f"main.query <= 1 {_PER}", status="9")
    assert result.status == 9
    assert [row["outcome"] for row in _verdicts(result)] == [FAILS[1]]


def test_a_root_that_had_not_ended_with_the_program_is_not_forgotten() -> None:
    result = _run("stuck", f"main.query <= 1 {_PER}", status="0")
    (row,) = _verdicts(result)
    assert (result.status, row["outcome"]) == UNDECIDED
    assert row["why"] == ["1 call of main.handle had not ended"]


def test_a_process_that_runs_is_judged_by_what_has_ended() -> None:
    with Fixture([_program(), "served", "0"]) as fixture:
        words = (f"main.query <= 1 {_PER}", f"main.query <= 12 {_PER}", "main.query >= 1")
        result = run_tool(
            *("gotrace", "assert", "--json", "--force", "-d", "2", "-p", str(fixture.ready)), *words
        )
    first, second, third = _verdicts(result)
    assert (first["outcome"], first["most"]) == (FAILS[1], 12)
    assert second["outcome"] == third["outcome"] == HOLDS[1]
    assert result.status == FAILS[0]


def test_the_table_shows_the_worst_root_with_its_arguments() -> None:
    command = [str(_program()), "queries", str(REQUESTS)]
    result = run_tool("gotrace", "assert", f"main.query <= 1 {_PER}", "--", *command)
    text = "\n".join(line.rstrip("\n") for line in result.lines)
    assert "does not hold for 1 of 40 roots; the worst:" in text
    assert "main.handle(id=7, " in text
    assert text.count("main.query(id=7, want=1) = 1") == 11


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("main.query",), "asserts nothing"),
        (("main.query <= 1", "--record", "x"), "the bound is to be found"),
        (('main.query "%d", id <= 1',), "leave out the format"),
        (("main.query (nuber > 1) <= 1",), "main.query has no 'nuber'"),
        (("runtime.* <= 1 per main.handle",), "takes 200: give a narrower pattern"),
        ((), "needs an assertion"),
        (("main.query <= 1", "-o", "x.trace"), "writes x.txt or x.ndjson"),
    ],
)
def test_mistakes_are_refused_before_the_command_starts(words: tuple[str, ...], why: str) -> None:
    result = _run("nothing", *words)
    assert result.status == 2
    assert why in result.errors
    assert not result.lines


def test_bounds_that_were_found_hold_until_there_are_more_calls(tmp_path: Path) -> None:
    path, report = tmp_path / "perf.assert", tmp_path / "x.xml"
    result = _run("cached", "--record", str(path), f"main.query {_PER}", "main.(*cache).Get")
    assert [row["outcome"] for row in _verdicts(result)] == ["recorded"] * 2
    *_, per, whole = path.read_text().splitlines()
    assert (per, whole) == (f"main.query <= 1 {_PER}", "main.(*cache).Get <= 40")
    assert _run("cached", "-f", str(path)).status == 0
    result = _run("queries", "--github", "--junit", str(report), "-f", str(path))
    assert result.status == FAILS[0]
    source = FIXTURES / "live_asserted" / "main.go"
    (line,) = (line for line in result.errors.splitlines() if line.startswith("::error "))
    at = int(line.split("line=")[1].split(",")[0])
    assert "func handle(" in source.read_text().splitlines()[at - 1]
    assert 'failures="1" errors="0"' in report.read_text()


def test_bounds_are_not_recorded_that_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "perf.assert"
    path.write_text("as it was")
    assert _run("hidden", "--record", str(path), f"main.query {_PER}").status == UNDECIDED[0]
    assert _run("queries", "--record", str(path), "main.query", status="9").status == 9
    assert path.read_text() == "as it was"


def _checked(way: str, *words: str) -> list[gotrace.AssertionVerdict]:
    with gotrace.start([str(_program()), way, str(REQUESTS)]) as go:
        return go.check(*words)


def test_scripts_get_the_verdicts_of_the_command() -> None:
    words = ("main.query == 92", f"main.query <= 1 {_PER}", "main.none == 0")
    found = _checked("queries", *words)
    names = ("assertion", "outcome", "roots", "broken", "least", "median", "most")
    for verdict, row in zip(found, _verdicts(_run("queries", *words)), strict=True):
        assert [getattr(verdict, name) for name in names] == [row[name] for name in names]
    assert [verdict.holds for verdict in found] == [True, False, False]
    worst, place = found[1].worst, found[1].place
    assert worst is not None and worst.root.call.args["id"] == ODD
    assert place is not None and place[0].endswith("main.go")
    assert [one.outcome for one in _checked("queries", words[0])] == [HOLDS[1]]
    with pytest.raises(gotrace.NoMatchError, match=r"main\.none"):
        _checked("nothing", "main.none == 0")


def test_a_script_may_check_a_process_that_runs() -> None:
    with Fixture([_program(), "served", "0"]) as fixture, gotrace.attach(fixture.ready) as go:
        (found,) = go.check("main.query >= 1", seconds=1)
    assert found.holds


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("_MAX_ROOTS", "10 calls of main.handle too many"),
        ("_MAX_PENDING", r"[\d,]+ calls of main.query that do not return, or were too many"),
    ],
)
def test_beyond_a_limit_nothing_holds(
    limit: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"main.query <= 5 {_PER}"
    monkeypatch.setattr(ledger, limit, REQUESTS + 300)
    (found,) = _checked("spread", words)
    assert found.holds, found
    monkeypatch.setattr(ledger, limit, REQUESTS - 10)
    (found,) = _checked("spread", words)
    assert found.outcome == UNDECIDED[1]
    assert re.fullmatch(why, found.why[0])


def test_go_itself_is_not_traced_in_place_of_the_tests() -> None:
    result = run_tool("gotrace", "assert", "main.f == 0", "--", "go", "test", "./...")
    assert result.status == 2
    assert "go test -exec 'sudo gotrace assert" in result.errors


def test_a_file_has_assertions_beside_those_of_the_line(tmp_path: Path) -> None:
    path = tmp_path / "perf.assert"
    path.write_text(f"# of requests\nmain.query <= 12 {_PER}\n")
    result = _run("queries", "-f", str(path), "main.query == 92")
    assert [row["outcome"] for row in _verdicts(result)] == [HOLDS[1]] * 2
    assert result.status == 0
