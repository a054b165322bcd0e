# SPDX-License-Identifier: Apache-2.0
"""Choose calls by predicates and show them by formats, as users write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool
from tests.tools.trace import calls_of, message_lines, program, text_calls, trace

pytestmark = pytest.mark.live

Json = dict[str, Any]


def url(args: Json) -> Json:
    """Return r.URL of a call, empty where it or r is nil."""
    found: Json = (args["r"] or {}).get("URL") or {}
    return found


#: What a probe says, and what that means for a call's arguments and results; where an operand
#: cannot be had, behind a nil pointer, the comparison is unknown and does not keep the call.
PREDICATES: list[tuple[str, Callable[[Json, Json], object]]] = [
    ("n > 0", lambda a, r: a["n"] > 0),
    ("n != -900 && n <= 3", lambda a, r: a["n"] != -900 and a["n"] <= 3),
    ("level < -100 || level >= 100", lambda a, r: not -100 <= a["level"] < 100),
    ("ok", lambda a, r: a["ok"]),
    ("!ok && n >= 0", lambda a, r: not a["ok"] and a["n"] >= 0),
    ('key == "user:7"', lambda a, r: a["key"] == "user:7"),
    ('key != "user:7"', lambda a, r: a["key"] != "user:7"),
    ('key == ""', lambda a, r: a["key"] == ""),
    ("len(key) > 10", lambda a, r: len(a["key"].encode()) > 10),
    ('prefix(key, "user:")', lambda a, r: a["key"].startswith("user:")),
    ('contains(key, "needle")', lambda a, r: "needle" in a["key"]),
    ('!contains(key, "er:")', lambda a, r: "er:" not in a["key"]),
    ('key == "grüße"', lambda a, r: a["key"] == "grüße"),
    ('r.Method == "POST"', lambda a, r: a["r"] and a["r"]["Method"] == "POST"),
    ('r.URL.Path == "/api/v2"', lambda a, r: url(a).get("Path") == "/api/v2"),
    ("r.URL.Port > 8020", lambda a, r: url(a).get("Port", 0) > 8020),
    ("r == nil", lambda a, r: a["r"] is None),
    ("r != nil && r.URL == nil", lambda a, r: a["r"] is not None and not url(a)),
    ("len(r.Tags) >= 2", lambda a, r: a["r"] and len(a["r"]["Tags"] or ()) >= 2),
    ('r.Tags[1] == "two"', lambda a, r: a["r"] and "two" in (a["r"]["Tags"] or ())),
    ("r.Sizes[2] > 400", lambda a, r: a["r"] and a["r"]["Sizes"][2] > 400),
    ('r.Next.URL.Path == "/next"', lambda a, r: a["r"] and a["r"]["Next"]),
    ("f < 0.5", lambda a, r: a["f"] < 0.5),
    ("err != nil", lambda a, r: r["err"] is not None),
    ("err == nil && n < 0", lambda a, r: r["err"] is None and a["n"] < 0),
    ('prefix($ret1, "answer 1")', lambda a, r: r["answer"].startswith("answer 1")),
    ('len(answer) == 0 || $ret == "answer 99"', lambda a, r: r["answer"] in ("", "answer 99")),
    ("arg4 == 99", lambda a, r: a["n"] == 99),
    ("$goid == 1 && $duration < 1h", lambda a, r: True),
]


def name(number: int) -> str:
    return f"main.try{number:02}"


#: Ways to write a predicate; all but the first need what the kernel does not know.
FORMS = {
    "kernel": ("{}",),
    "user-space": ('{} || $comm == "another"', '($func == "nothing" || {}) && $comm != "another"'),
}


@pytest.mark.parametrize("where", FORMS)
def test_predicates(where: str) -> None:
    """Whether the kernel decides or user space has to, the calls kept are the same."""
    probes = [
        f"{name(number)} ({FORMS[where][number % len(FORMS[where])].format(f'({predicate})')})"
        for number, (predicate, _) in enumerate(PREDICATES, 1)
    ]
    _, result = trace(program(), "tries", "--json", "--depth", "3", name(0), *probes)
    calls = calls_of(result, name(0))
    assert len(calls) == 48
    found, wanted = {}, {}
    for number, (predicate, meaning) in enumerate(PREDICATES, 1):
        kept = [row["args"]["id"] for row in calls if meaning(row["args"], row["results"])]
        wanted[predicate] = kept
        found[predicate] = [row["args"]["id"] for row in calls_of(result, name(number))]
        assert kept
    assert found == wanted
    assert of_kind(result, "lost") == []


def test_values_are_whole_where_predicates_had_to_search() -> None:
    """What is captured behind the predicate is there however long that has searched."""
    probe = f'{name(1)} (contains(key, "needle") || n > 0)'
    _, result = trace(program(), "tries", "--json", "--depth", "3", name(0), probe)
    by_id = {row["args"]["id"]: row for row in calls_of(result, name(0))}
    kept = calls_of(result, name(1))
    assert len(kept) > 20
    for row in kept:
        assert row["args"] == by_id[row["args"]["id"]]["args"]
        assert row["results"] == by_id[row["args"]["id"]]["results"]


def test_formats_are_those_of_go() -> None:
    text = "%s|%q|%x|%v|%T;%d|%x|%5d|%-5d|%05d|%+d|%v;%f|%.2f|%g|%e|%v|%8.3f;"
    text += "%t|%v|%v|%+v|%T|%x|%v%%"
    values = "s, s, s, s, s, n, n, n, n, n, n, n, f, f, f, f, f, f, b, b, v, v, v, raw, $ret1"
    truth, result = trace(program(), "formats", f'main.format "{text}", {values}')
    (line,) = message_lines(result, "main.format")
    assert line.split(";") == truth["Formatted"]


def test_paths_and_specials() -> None:
    probe = (
        f'{name(1)} (id == 6) "%s %s:%d %v %d %s %s", r.Method, r.URL.Host, r.URL.Port, r.Tags, '
    )
    probe += "len(r.Tags), *r.URL, $ret1"
    _, result = trace(program(), "tries", probe)
    (line,) = message_lines(result, name(1))
    expected = "GET example.org:8006 [one two three] 3 {example.org /api/v1/users %!s(uint16=8006)}"
    assert line == f"{expected} answer -678"
    probe = 'main.pause ($duration > 1ms) "%v|%d|%d|%d|%s|%s", $duration, $pid, $tid, $goid, '
    probe += "$comm, $func"
    _, result = trace(program(), "pauses", probe)
    lines = message_lines(result, "main.pause")
    assert len(lines) >= 5
    for line in lines:
        duration, pid, tid, goid, comm, func = line.split("|")
        assert re.fullmatch(r"\d+(\.\d+)?ms", duration)
        assert 1 <= float(duration[:-2])
        assert (int(pid) <= int(tid), goid, comm, func) == (True, "1", "trace_calls", "main.pause")


def test_http_client_as_anybody_would_ask() -> None:
    probe = 'net/http.(*Transport).RoundTrip "%s %s -> %v", req.Method, req.URL.Path, $ret1'
    with Fixture([build(FIXTURES / "bench_http", newest())]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), probe) as tracing:
            fixture.say("0.1 2")
            served = int(fixture.read_until("done ")[0])
            result = tracing.end()
        assert fixture.finish() == 0
    messages = [row["message"] for row in calls_of(result, "net/http.(*Transport).RoundTrip")]
    assert len(messages) == served > 10
    assert all(text.startswith("GET /path -> &{200 OK 200 HTTP/1.1 1 1 ") for text in messages)


def test_json_has_the_message() -> None:
    _, result = trace(program(), "tries", "--json", f'{name(1)} (id < 2) "%d!", id')
    rows = calls_of(result, name(1))
    assert [row["message"] for row in rows] == ["0!", "1!"]
    assert [(row["args"], row["results"]) for row in rows] == [({}, {})] * 2


def test_operands_behind_nil_are_told_as_such() -> None:
    _, result = trace(program(), "tries", f'{name(1)} (id == 5 || id == 10) "%s", r.URL.Path')
    assert message_lines(result, name(1)) == ["<unavailable: nil pointer>"] * 2


def test_captured_variables() -> None:
    """Captured by value and by reference; a reference leads to what the variable is now."""
    probe = 'main.closures.func1 (count < 3) "%s %d %d %d", text, count, n, $ret'
    truth, result = trace(program(), "closures", probe)
    lines = message_lines(result, "main.closures.func1")
    assert lines == ["captured 0 1 9", "captured 1 2 11"]
    assert truth["Count"] == 6


def test_signature_of_a_stripped_program() -> None:
    signature = "main.said(text string) string"
    probe = f'{signature} (prefix(text, "line") || len(text) > 300) "%d %q", len(text), $ret'
    _, result = trace(program(mode="stripped"), "hostile", "-Z", "4", probe)
    assert message_lines(result, "main.said") == [
        r'15 "line"... (len 15)',
        r'400 "éé"... (len 400)',
    ]


@pytest.mark.parametrize(
    ("probe", "column", "hint"),
    [
        ("main.nest (m > 3)", 12, "n"),
        ("main.nest (n > )", 16, ""),
        ('main.nest (n == "x")', 17, "int"),
        ("main.nest (tag.Path)", 11, "string"),
        ('main.nest "%d %s", n', 15, "%s"),
        ('main.nest "%d", tag', 17, "%"),
        ('main.try00 "%s", r.Url.Path', 18, "URL"),
        ('main.nest "%v", $ret3', 17, "$ret1"),
        ("main.nest ($durations > 1ms)", 12, "$duration"),
    ],
)
def test_errors_name_the_column(probe: str, column: int, hint: str) -> None:
    result = run_tool("gotrace", f"{program()}:{probe}")
    assert result.status == 2
    (line,) = result.errors.splitlines()
    assert line.startswith("gotrace: ")
    assert probe in line
    found = re.search(r"column (\d+)", line)
    assert found is not None
    assert int(found[1]) == len(f"{program()}:") + column
    assert hint in line.partition("column")[2]


def test_list_leaves_out_what_a_probe_does_not_fit() -> None:
    none = run_tool("gotrace", "-l", f"{program()}:main.nest (nothing > 3)")
    assert (none.status, none.lines) == (2, [])
    result = run_tool("gotrace", "-l", "--json", f'{program()}:main.* (tag != "")')
    assert [row["func"] for row in of_kind(result, "function")] == ["main.nest"]


def names_shown(result: Result) -> list[str]:
    return [call.partition("(")[0] for call in text_calls(result)]


def test_functions_that_a_probe_does_not_fit_are_left_out() -> None:
    _, result = trace(program(), "recursion hostile", "main.*s*d (len(text) > 0)", "main.nest")
    assert set(names_shown(result)) == {"main.said", "main.nest"}
    assert "main.closures" not in result.errors
