# SPDX-License-Identifier: Apache-2.0
"""Latency over time, drawn: the calls of maps are the program's own."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.test_html import Page
from tests.report.test_heat import svg_of
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, run_tool, tool, tool_command
from tests.tools.latency import program

pytestmark = [pytest.mark.live, pytest.mark.apart]

TITLE = "{http://www.w3.org/2000/svg}title"


def calls_of(path: Path) -> dict[str, int]:
    """Return the calls in the cells of each map of a page, by the map's heading."""
    text = path.read_text()
    heads = [text.strip() for tag, text in Page(text).texts if tag == "h2"]
    titles = [[title.text or "" for title in picture.iter(TITLE)] for picture in svg_of(text)]
    counts = [[re.search(r": ([\d,]+) calls?$", title) for title in each] for each in titles]
    sums = [sum(int(found[1].replace(",", "")) for found in each if found) for each in counts]
    return dict(zip(heads, sums, strict=True))


def draw(
    path: Path, order: str, *words: str, functions: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    with Fixture([program()]) as fixture:
        asked = ("-p", str(fixture.ready), "-i", "50ms", "-o", str(path), *words, *functions)
        with tool("gofunclatency", *asked) as measuring:
            truth = fixture.work(order)
            result = measuring.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, [*result.lines, *result.errors.splitlines()]


def test_a_page_has_the_calls_of_each_function(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    functions = ("main.slow", "main.short")
    truth, lines = draw(path, "slow", "-F", "--why", functions=functions)
    found = calls_of(path)
    assert found["main.slow"] == truth["Functions"]["main.slow"]["Calls"] == 101
    assert any(re.fullmatch(r"wrote \d maps? to .*x\.html\n?", line) for line in lines)
    # Intervals are in the page alone.
    assert not any(": count" in line for line in lines)
    text = path.read_text()
    assert "where the time went:" in text and re.search(r"</span>running \d", text)


def test_goroutines_have_maps(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    truth, _ = draw(path, "workers", "-g", functions=("main.task",))
    found = calls_of(path)
    goids = {}
    for head, count in found.items():
        match = re.match(r"main\.task, goroutine (\d+) \[", head)
        assert match is not None
        goids[int(match[1])] = count
    assert len(found) == 20
    assert goids == {each["Goid"]: each["Times"]["Calls"] for each in truth["Workers"]}


def test_values_have_maps(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    with Fixture([build(FIXTURES / "live_keys", newest())]) as fixture:
        words = ("-p", str(fixture.ready), "-i", "1", "-o", str(path), "--by", "$caller")
        with tool("gofunclatency", *words, "main.handle") as measuring:
            truth = fixture.work("1 100 20")
            assert measuring.end().status == 0
        assert fixture.finish() == 0
    assert calls_of(path) == {
        'main.handle, $caller = "main.viaFirst"': truth["First"],
        'main.handle, $caller = "main.viaSecond"': truth["Calls"] - truth["First"],
    }


def heat(environment: dict[str, str]) -> list[str]:
    """Return what --heat prints where there is no terminal."""
    env = {**os.environ, **environment}
    with Fixture([program()]) as fixture:
        words = ("--heat", "-i", "50ms", "-p", str(fixture.ready), "main.slow")
        with tool("gofunclatency", *words, env=env) as measuring:
            fixture.work("slow")
            result = measuring.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return result.lines


def test_maps_without_a_terminal_are_drawn_once() -> None:
    lines = heat({"PYTHONIOENCODING": "utf-8"})
    assert sum(re.match(r"101 calls, total ", line) is not None for line in lines) == 1
    assert any("░" in line or "█" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_maps_are_ascii_where_the_terminal_is() -> None:
    lines = heat({"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert any(re.match(r" +\S+ \|[ .:+#]+\|$", line) for line in lines)
    assert "".join(lines).isascii()


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_sees_maps_again_at_each_interval(no_colour: str) -> None:
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": no_colour, "PYTHONIOENCODING": "utf-8"}
    with Fixture([program()]) as fixture:
        words = ("--heat", "-i", "100ms", "-d", "1", "-p", str(fixture.ready), "main.slow")
        command = tool_command("gofunclatency", *words)
        with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=env) as drawing:
            os.close(terminal)
            shown = b""
            while b"Hit Ctrl-C" not in shown:
                shown += os.read(controller, 4096)
            fixture.work("slow")
            try:
                while data := os.read(controller, 4096):
                    shown += data
            except OSError:  # the other end is closed
                pass
            assert drawing.wait() == 0
        assert fixture.finish() == 0
    os.close(controller)
    text = shown.decode()
    assert text.count("\x1b[H\x1b[2J") > 4
    assert ("\x1b[3" in text) is not bool(no_colour)
    assert "101 calls, total" in text.rpartition("\x1b[2J")[2]


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.html"
    with Fixture([program()]) as fixture:
        words = ("-q", "-p", str(fixture.ready), "-d", "0.1", "-i", "1", "-o", str(path))
        result = run_tool("gofunclatency", *words, "main.slow")
        assert fixture.finish() == 0
    assert result.status == 1
    line = f"gofunclatency: {path}: cannot write: No such file or directory\n"
    assert line in result.errors


def test_names_made_to_mislead_are_not_markup(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[2J"
    programs = [tmp_path / f"{number}{name.replace('/', '_')}" for number in (1, 2)]
    for each in programs:
        shutil.copy(program(), each)
    path = tmp_path / "x.html"
    with Fixture([programs[0]]) as one, Fixture([programs[1]]) as two:
        words = ("-p", f"{one.ready},{two.ready}", "-i", "1", "-o", str(path), "main.slow")
        with tool("gofunclatency", *words) as measuring:
            one.work("slow")
            two.work("slow")
            assert measuring.end().status == 0
        assert one.finish() == two.finish() == 0
    text = path.read_text()
    assert "<script" not in text and "\x1b" not in text
    assert len(calls_of(path)) == 2
