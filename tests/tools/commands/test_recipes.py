# SPDX-License-Identifier: Apache-2.0
"""Recipes, each against the library that it is for: a program that knows what they have to show."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.probes.recipes import find_recipe, recipes, split_recipe
from gotrace.probes.spec import parse_key, parse_probe
from tests.toolchains import BUILD_MODES, FIXTURES, build, newest, require
from tests.tools.harness import CLONE, Fixture, of_kind, run_tool, tool


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("minor", "mode"),
    [
        ("1.15", "default"),
        pytest.param("1.19", "default", marks=pytest.mark.thorough),
        pytest.param("1.22", "default", marks=pytest.mark.thorough),
        ("1.24", "default"),
        ("1.27", "default"),
        ("1.27", "stripped"),
    ],
)
def test_recipes_show_what_the_program_did(minor: str, mode: str) -> None:
    path = build(FIXTURES / "live_recipes", require(minor), flags=BUILD_MODES[mode])
    names = [recipe.name for recipe in recipes() if "." not in recipe.needs.split("/")[0]]
    with Fixture([path]) as fixture:
        words = [f"@{name}" for name in names]
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as tracing:
            truth = fixture.work("")
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    assert truth.keys() == set(names)
    shown: dict[str, Counter[str]] = {name: Counter() for name in names}
    owners = {
        parse_probe(probe.function).pattern: name
        for name in names
        for probe in find_recipe(name).probes
    }
    for call in of_kind(result, "call"):
        function = call["func"].removeprefix("internal/sync")  # since Go 1.24
        function = f"sync{function}" if function.startswith(".") else function
        shown[owners[function]][call["message"]] += 1
    pauses = [text for text in shown["gc"] if text.startswith("pause of")]
    if pauses:
        [total] = [text for text in truth["gc"] if text.isdecimal()]
        truth["gc"].remove(total)
        assert len(pauses) == 2 * truth["gc"].count("finished")
        assert sum(int(text.split()[2]) for text in pauses) == int(total)
    for name, wanted in truth.items():
        # The libraries open, dial and read for themselves, too.
        missing: Counter[str] = Counter[str](wanted) - shown[name]
        assert not missing, (name, missing, shown[name])
        if name in ("net.dial", "net.short", "dns", "file.open"):  # each once
            assert {text: shown[name][text] for text in wanted} == Counter(wanted)
    assert not [text for text in shown["dns"] if text.startswith("127.0.0.9")]
    assert not [text for text in shown["net.short"] if " of 33 bytes" in text]  # a packet
    for name in ("http.server", "http.client", "http2", "sql", "process.start", "panics"):
        assert shown[name] == Counter(truth[name])
    assert of_kind(result, "lost") == []


@pytest.mark.live
@pytest.mark.apart
def test_recipes_come_with_keys_and_take_predicates() -> None:
    path = build(FIXTURES / "live_recipes", newest())
    with Fixture([path]) as fixture:
        recipe = '@http.server (req.Method == "PUT")'
        with tool("gofunclatency", "--json", "-p", str(fixture.ready), recipe) as tracing:
            fixture.work("")
            [row] = of_kind(tracing.end(), "histogram")
        assert fixture.finish() == 0
    assert row["by"] == {"method": "PUT", "path": "/made"} and row["count"] == 1


@pytest.mark.live
@pytest.mark.apart
def test_predicates_take_a_recipes_own_names() -> None:
    path = build(FIXTURES / "live_recipes", newest())
    with Fixture([path]) as fixture:
        recipe = '@http.server (status >= 400 && method == "GET" && bytes > 0)'
        with tool("gotrace", "--json", "-p", str(fixture.ready), recipe) as tracing:
            truth = fixture.work("")
            shown = [call["message"] for call in of_kind(tracing.end(), "call")]
        words = ("-p", str(fixture.ready), "@http.server", "--by")
        near, far = (run_tool("gofunccount", *words, name).errors for name in ("rout", "zzz"))
        assert fixture.finish() == 0
    assert "has no 'rout': did you mean route?" in near
    assert "has no 'zzz': there are status, " in far
    wanted = [
        text
        for text in truth["http.server"]
        if text.startswith("404 GET ") and not text.endswith(", 0 bytes")
    ]
    assert wanted
    assert sorted(shown) == sorted(wanted)


def test_names_are_replaced_where_they_are_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_RECIPES", str(tmp_path))
    (tmp_path / "mine.txt").write_text(
        "description: d\nneeds: main\n\n"
        "probe: main.f\nname: rest = size - n\nname: path = req.Path\n"
        'when: rest > 0\nformat: "path %s, rest %d", path, rest\nby: path\n'
    )
    [probe] = find_recipe("mine").probes
    assert probe.by == "path"
    assert probe.format == '"path %s, rest %d", req.Path, (size - n)'
    assert probe.text(None, 'rest * 2 > 4 && req.path == "path" && $path', False) == (
        'main.f (((size - n) > 0) && ((size - n) * 2 > 4 && req.path == "path" && $path))'
    )
    (tmp_path / "bad.txt").write_text(
        "description: d\nneeds: main\n\nprobe: main.f\nname: rest\nby: n\n"
    )
    with pytest.raises(UsageError, match=r"recipe .*name: rest: expected NAME = EXPRESSION"):
        find_recipe("bad")
    (tmp_path / "bad.txt").write_bytes(b"description: \xff\n")
    with pytest.raises(UsageError, match=r"^recipe .*bad\.txt cannot be read: .* byte 0xff"):
        find_recipe("bad")


@pytest.mark.live
@pytest.mark.apart
def test_goroutines_are_counted_by_function_and_place() -> None:
    path = build(FIXTURES / "live_recipes", newest())
    with Fixture([path]) as fixture:
        with tool("gofunccount", "--json", "-p", str(fixture.ready), "@goroutines") as counting:
            truth = fixture.work("")
            result = counting.end()
        assert fixture.finish() == 0
    place = "main.goroutines"
    [row] = [row for row in of_kind(result, "count") if row["by"]["$caller"] == place]
    assert row["by"]["fn"] == {"$func": f"{place}.func1"}
    assert row["count"] == len(truth["goroutines"])


@pytest.mark.live
@pytest.mark.apart
def test_addresses_and_statements_are_counted_in_one_form() -> None:
    path = build(FIXTURES / "live_recipes", newest())
    with Fixture([path]) as fixture:
        pid = str(fixture.ready)
        with (
            tool("gofunccount", "--json", "-p", pid, "@net.dial") as dials,
            tool("gofunclatency", "--json", "-p", pid, "@sql") as statements,
        ):
            truth = fixture.work("")
            counted = of_kind(dials.end(), "count")
            measured = of_kind(statements.end(), "histogram")
        assert fixture.finish() == 0
    addresses, made = (
        Counter[str](),
        Counter(text.split()[1].strip(",") for text in truth["net.dial"]),
    )
    for row in counted:
        addresses[row["by"]["address"]] += row["count"]
    assert {address: addresses[address] for address in made} == made
    queries = Counter[str]()
    for row in measured:
        queries[row["by"]["query"]] += row["count"]
    asked = (re.sub("^(query|exec|prepare) ", "", text) for text in truth["sql"])
    assert queries == Counter(text.split(",")[0] for text in asked)


@pytest.mark.live
@pytest.mark.apart
def test_the_list_marks_what_a_process_has() -> None:
    path = build(FIXTURES / "live_keys", newest())
    with Fixture([path]) as fixture:
        listed = run_tool("gotrace", "recipes", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    marks = {line[2:].split()[0]: line[0] for line in listed.lines}
    assert marks["@panics"] == "*" and marks["@sql"] == " "


def test_every_recipe_can_be_parsed() -> None:
    for recipe in recipes():
        for probe in recipe.probes:
            for name, _ in probe.names:
                parse_probe(probe.text(None, f"{name} != nil", False))
        assert recipe.example and f"@{recipe.name}" in recipe.example
        for probe in recipe.probes:
            parse_key(probe.by)
            assert parse_probe(probe.text(None, "$duration > 1ms", True)).format is not None


def test_a_users_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACE_RECIPES", os.pathsep.join(["/nonexistent", str(tmp_path)]))
    (tmp_path / "sql.txt").write_text(
        "# mine\ndescription: d\nneeds: main\n\nprobe: main.f\nwhen: n > 1\nby: n\n"
    )
    recipe = find_recipe("sql")
    assert recipe.probes[0].text(None, "n < 5", True) == "main.f ((n > 1) && (n < 5))"
    assert recipe.probes[0].text("/bin/x", "", False) == "/bin/x:main.f ((n > 1))"
    assert [found.path.parent for found in recipes() if found.name == "sql"] == [tmp_path]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("description: d\nneeds: x\n", "a paragraph with a probe"),
        ("description: d\n\nprobe: main.f\nby: n\n", "it has no needs"),
        ("description: d\nneeds: x\n\nprobe: main.f\n", "it has no by"),
        ("description: d\nneeds: x\n\nprobe: main.f\nat: return\nby: n\n", "expected entry"),
        ("description: d\nneeds: x\nprobe: main.f\n", "line 3: expected one of"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_RECIPES", str(tmp_path))
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(UsageError, match=reason):
        find_recipe("mine")


def test_signatures_can_be_repeated_and_functions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_RECIPES", str(tmp_path))
    same = 'probe: main.f\nsignature: (n int)\nsignature: ()\nby: n\nformat: "%d", n\n'
    (tmp_path / "mine.txt").write_text(
        f"description: d\nneeds: main\n\n{same}when: n > 1\n\n{same}when: n < 0\n"
    )
    recipe = find_recipe("mine")
    assert [probe.signatures for probe in recipe.wanted(True)] == [("(n int)", "()")] * 2
    joined, *alone = recipe.wanted(False)
    assert joined.text(None, "", False) == "main.f (((n > 1) || (n < 0)))"
    assert tuple(alone) == recipe.probes  # if one of them is of another release


def test_a_paragraph_for_some_calls_shows_them_and_counts_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_RECIPES", str(tmp_path))
    one, other = (
        f"probe: main.f\nname: size = n.{field}\nshown: n.{field} > 0\nby: fd\n"
        for field in ("a", "b")
    )
    (tmp_path / "mine.txt").write_text(f"description: d\nneeds: main\n\n{one}\n{other}")
    recipe = find_recipe("mine")
    assert [probe.text(None, "size < 5", True) for probe in recipe.wanted(True)] == [
        "main.f ((n.a > 0) && (n.a < 5))",
        "main.f ((n.b > 0) && (n.b < 5))",
    ]
    assert [probe.text(None, "size < 5", False) for probe in recipe.wanted(False)] == [
        "main.f ((n.a < 5))"
    ]


def test_the_manual_lists_all_recipes() -> None:
    names = {recipe.name for recipe in recipes()}
    text = (CLONE / "docs" / "recipes.md").read_text()
    assert set(re.findall(r"^\| `@(\S+)`", text, re.M)) == names
    manual = (CLONE / "docs" / "man" / "gotrace.8").read_text()
    assert [name for name in names if f"\\fB{name}\\fR" not in manual] == []


@pytest.mark.parametrize("name", ["@http.server", "http.server"])
def test_a_recipe_is_shown_whole(name: str) -> None:
    shown = [line.strip() for line in run_tool("gotrace", "recipes", name).lines]
    assert shown[0].startswith("@http.server  HTTP requests that a server has handled")
    assert shown.count("function: net/http.serverHandler.ServeHTTP") == 1
    assert shown[-3:] == [
        "names for --by and predicates: status, method, path, route, pattern, bytes",
        "--by unless it is given: method, path",
        "type: gotrace @http.server -p shop",
    ]
    refused = run_tool("gotrace", "recipes", f"{name}s")
    assert refused.status == 2 and "did you mean @http.server" in refused.errors


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"did you mean @http\.server"):
        find_recipe("http.sever")
    with pytest.raises(UsageError, match=r"@http: there are @http\.client, @http\.server$"):
        find_recipe("http")
    with pytest.raises(UsageError, match=r"@process: there is @process\.start$"):
        find_recipe("process")
    with pytest.raises(UsageError, match=r"may be followed by a \(PREDICATE\) only"):
        split_recipe('@sql "%s", query')
    assert split_recipe("/bin/shop:@sql ($duration > 1s)") == (
        "/bin/shop",
        "sql",
        "$duration > 1s",
    )
