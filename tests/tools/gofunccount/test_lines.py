# SPDX-License-Identifier: Apache-2.0
"""Lines of the source in gofunccount: a count is exact, or ``>=``, or there is none.

How often each line is executed is written beside it in the fixture.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from unittest.mock import ANY

import pytest

import gotrace
from tests.toolchains import FIXTURES, Toolchain, build, each_since, minor, newest
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

SOURCE = FIXTURES / "live_lines"
LINES = (SOURCE / "main.go").read_text().splitlines()
_TRUTH = re.compile(r"// ([=!])(\d+)$")


_HOT = FIXTURES / "live_hot_line"


def _hot_line() -> str:
    lines = (_HOT / "main.go").read_text().splitlines()
    return f"main.go:{next(number for number, text in enumerate(lines, 1) if '// hot' in text)}"


def truth() -> dict[int, tuple[str, int]]:
    """Return the executions of each line, and whether it must be counted exactly."""
    marked = {line: _TRUTH.search(text) for line, text in enumerate(LINES, 1)}
    return {line: (found[1], int(found[2])) for line, found in marked.items() if found}


def counted(binary: Path, *words: str) -> Result:
    return run_tool("gofunccount", "--json", *words, "--", binary, stdin=subprocess.DEVNULL)


def rows_of(result: Result) -> dict[int, tuple[int, int]]:
    """Return the executions of each line, and in how many places they are not all counted."""
    assert result.status == 0, result.errors
    found = {}
    for row in of_kind(result, "count"):
        file, _, line = row["func"].rpartition(":")
        assert file == "main.go"
        found[int(line)] = row["count"], row["uncounted_places"]
    return found


@each_since(19)
def test_a_line_is_counted_exactly_or_said_not_to_be(toolchain: Toolchain) -> None:
    found = rows_of(counted(build(SOURCE, toolchain), f"main.go:1-{len(LINES)}"))
    known = truth()
    for line in found.keys() & known.keys():
        count, uncounted = found[line]
        _, executed = known[line]
        assert count <= executed if uncounted else count == executed, LINES[line - 1]
    assert not [line for line in known if not known[line][1] and found.get(line, (0, 0))[0]]
    if toolchain == newest():
        exact = {line for line, (_, uncounted) in found.items() if not uncounted}
        missing = {line for line, (mark, _) in known.items() if mark == "!"} - exact
        assert not missing, [LINES[line - 1] for line in sorted(missing)]


@pytest.mark.parametrize(
    ("attach", "flag"), [("multi", "-ldflags=-s -w"), ("perf-cookie", "-buildmode=pie")]
)
def test_each_way_of_attaching_and_building(attach: str, flag: str) -> None:
    line = next(line for line, text in enumerate(LINES, 1) if "note(x) // !6" in text)
    binary = build(SOURCE, newest(), flags=(flag,))
    assert rows_of(counted(binary, "--attach", attach, f"main.go:{line}")) == {line: (6, 0)}


def test_lines_are_counted_from_a_function() -> None:
    first = next(line for line, text in enumerate(LINES, 1) if text.startswith("func ranges("))
    found = rows_of(counted(build(SOURCE, newest()), "main.ranges:+0", "main.ranges:+5"))
    assert found == {first: (2, 0), first + 5: (6, 0)}


def test_a_list_says_which_lines_can_be_counted() -> None:
    listed = run_tool("gofunccount", "--json", "-l", "main.go:1-90", "--", build(SOURCE, newest()))
    rows = {row["line"]: row for row in of_kind(listed, "function")}
    assert rows and rows.keys() <= set(range(1, 91))
    reasons = {place["unproven"] for row in rows.values() for place in row["inlined"]}
    assert {None, "loop_head", "vanished", "branch", "fused"} <= reasons
    for row in rows.values():
        places = [place["place"] for place in row["inlined"]]
        assert row["site"] == next((place for place in places if place is not None), None)


def test_rows_are_in_the_order_of_the_source_and_each_line_is_one() -> None:
    binary = build(SOURCE, newest())
    first = next(line for line, text in enumerate(LINES, 1) if "got := b && even(n)" in text)
    lines = f"main.go:{first}-{first + 30}"
    result = counted(binary, lines, f"main.go:{first + 1}", "main.chains:+2")
    found = list(rows_of(result))
    assert found == sorted(found) and len(found) == len(set(found)) and min(found) < first
    assert not any("another line" in str(row.get("message")) for row in result.objects)
    by_count = list(rows_of(counted(binary, "--sort", "count", lines)).values())
    assert by_count == sorted(by_count, key=lambda row: row[0])


_OTHER_FILE = """package main

var S [16]int

//go:noinline
func next(i int) int { S[1]++; return i + 1 }

//go:noinline
func post(n int) {
	S[9] = n
L:
	for i := 0; ; i = next(i) {
//line body.go:1
		if i > n {
			break L
		}
		S[i&7]++
//line main.go:18
	}
}

func main() {
	for i := 0; i < 9; i++ {
		post(i)
	}
}
"""


def test_lines_of_another_file_in_a_loop_may_be_later(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(_OTHER_FILE)
    found = rows_of(counted(build(tmp_path, newest(), name="lines"), "main.go:10-12"))
    assert found[10] == (9, 0)  # the loop's statement after the body is the one that is pinned
    assert 12 not in found


def test_a_line_that_is_refused_has_one_beside_it_that_is_counted() -> None:
    line = next(line for line, text in enumerate(LINES, 1) if "range s.list" in text)
    binary = build(SOURCE, newest())
    refused = counted(binary, f"main.go:{line}")
    assert refused.status and "(1)" not in refused.errors
    near = re.search(r": (main\.go:\d+) is counted$", refused.errors.strip())
    assert near and counted(binary, near[1]).status == 0


@each_since(19)
def test_an_older_program_does_not_say_where_functions_begin(toolchain: Toolchain) -> None:
    result = counted(build(SOURCE, toolchain), "main.ranges:+5")
    if minor(toolchain) < 20:
        assert result.status == 2 and "do not say where functions begin" in result.errors
    else:
        assert result.status == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("main.go:2",), 3, "no code on line 2 of 'main.go' in "),
        (("main.go:99999",), 3, "the last line that has some is "),
        (("maim.go:20",), 3, "no code of a file 'maim.go' in "),
        (("type.go:1-9",), 2, "is ambiguous: "),
        (("main.go:9-2",), 2, "the last line comes before the first"),
        (("main.go:+20",), 2, "type 'main.go:20'"),
        (("main.go:L20-L30",), 2, "type 'main.go:20-30'"),
        (("main.even:20",), 2, "type FILE.go:20, or 'main.even:+20' for one "),
        (("main.go",), 2, "gofunccount takes lines of it, as 'main.go:FIRST-LAST'"),
        (("main.(*store).get+5",), 2, "type 'main.(*store).get:+5', which gofunccount takes"),
        (("--by", "n", "main.go:20"), 2, "'main.go:20' is a line, and no variables are read there"),
        (("--by", "$goid", "main.go:20 (n > 3)"), 2, "'main.go:20' is a line, and no variables "),
        (("main.nothing:+1",), 3, "no function matches 'main.nothing'"),
        (("main.s*:+1",), 2, "'main.s*' is not one function: give a line as FILE.go:LINE"),
    ],
)
def test_what_has_no_lines_is_explained(words: tuple[str, ...], status: int, said: str) -> None:
    result = run_tool("gofunccount", *words, "--", build(SOURCE, newest()))
    assert result.status == status and said in result.errors


@each_since(19)
def test_lines_by_their_callers_and_stacks(toolchain: Toolchain) -> None:
    """Where a function is inlined, its caller is the one in the source."""
    even = next(line for line, text in enumerate(LINES, 1) if text.startswith("\ttotal++ "))
    added = next(line for line, text in enumerate(LINES, 1) if text.startswith("\tnote(n) "))
    binary = build(SOURCE, toolchain)
    counts = counted(binary, "--by", "$caller", f"main.go:{even}", f"main.go:{added}")
    rows = {(row["func"], row["by"]["$caller"]): row["count"] for row in of_kind(counts, "count")}
    assert rows[f"main.go:{even}", "main.chains"] == 49
    assert rows[f"main.go:{even}", "main.switches"] == 26
    assert rows[f"main.go:{added}", "main.(*store).get"] == 5
    stacks = counted(binary, "--by", "$stack", f"main.go:{added} ($goid == 1)")
    frames = [row["by"]["$stack"][:2] for row in of_kind(stacks, "count")]
    here = {"func": "main.(*store).add", "file": ANY, "line": added}
    assert frames and all(stack[0] == here for stack in frames)
    assert "main.(*store).get" in {stack[1]["func"] for stack in frames}


def test_only_gofunccount_takes_lines() -> None:
    result = run_tool("gofunclatency", "main.go:20", "--", build(SOURCE, newest()))
    assert result.status == 2 and "'main.go:20' is a line: " in result.errors


def test_a_line_in_a_hot_loop_is_refused_unless_that_is_forced() -> None:
    """It is single-stepped: counting it would nearly stop the program."""
    line = _hot_line()
    with Fixture([build(_HOT, newest())]) as program:
        words = ("-p", str(program.ready), line)
        program.say("spin")
        refused = run_tool("gofunccount", *words)
        assert refused.status == 1 and not refused.lines
        (error,) = refused.errors.splitlines()
        assert f"{line} is executed about " in error
        assert "--force accepts it, --budget 2% ends it in time" in error
        with (
            gotrace.attach(program.ready) as go,
            pytest.raises(
                gotrace.GotraceError,
                match=re.escape("force=True accepts it, budget=0.02 ends it in time"),
            ),
        ):
            go.count(line, seconds=0.1)
        forced = run_tool("gofunccount", "--json", "--force", "-d", "0.3", *words)
        assert forced.status == 0
        (price,) = [row for row in forced.objects if row.get("what") == "stepped_price"]
        (row,) = of_kind(forced, "count")
        assert price["func"] == row["func"] == line
        assert price["share"] > 0.2 and row["count"] > 1000
        held = run_tool("gofunccount", "--json", "--budget", "2%", "-d", "1", *words)
        assert held.status == 0
        assert any(row.get("what") == "budget" for row in held.objects)
        program.finish()


def test_a_line_that_is_seldom_executed_is_counted_without_a_word() -> None:
    with Fixture([build(_HOT, newest())]) as program:
        with tool("gofunccount", "--json", "-p", str(program.ready), _hot_line()) as counting:
            program.work("300")
            result = counting.end()
        program.finish()
    assert [count for count, _ in rows_of(result).values()] == [300]
    assert not [row for row in result.objects if row.get("what") == "stepped_price"]
