# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser: they open without a network, and show what they are of.

Debian's chromium, without a window, in a network namespace that has nothing. What the page itself
asks for is in the browser's own log, whether or not it is answered.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gotrace.profiles.html import html
from gotrace.profiles.rows import Line
from gotrace.report.heat_page import heat_page
from tests.live import skip_or_fail
from tests.packages.roots import needs_all
from tests.profiles.test_html import EVIL
from tests.profiles.test_profiles import MAIN, profile_of
from tests.report.test_heat import filled
from tests.tools.harness import Fixture, tool
from tests.tools.latency import program

pytestmark = needs_all

_PATIENCE = 120.0  # seconds
_LEAST_PICTURE = 5_000  # bytes; an empty page of this size has fewer


class Browser:
    """A browser that leaves its files in a directory."""

    def __init__(self, place: Path) -> None:
        found = shutil.which("chromium")
        if found is None:
            skip_or_fail("there is no chromium: make test-packages installs Debian's")
        self._program = found
        self._place = place

    def _run(self, *words: str | Path) -> str:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"]
        options += ["--window-size=1200,800", "--virtual-time-budget=5000", "--no-first-run"]
        options += [f"--user-data-dir={self._place / 'profile'}"]
        done = subprocess.run(
            ["unshare", "--net", self._program, *options, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_PATIENCE,
            env={**os.environ, "HOME": str(self._place)},
        )
        assert done.returncode == 0
        return done.stdout

    def picture(self, page: Path) -> bytes:
        """Return what a page looks like, and keep it beside the page."""
        path = page.with_suffix(".png")
        self._run(f"--screenshot={path}", page.as_uri())
        return path.read_bytes()

    def content(self, page: Path, view: str = "") -> tuple[str, list[str]]:
        """Return a page's elements when its scripts have run, and what it asked the network for."""
        log = self._place / "network.json"
        text = self._run("--dump-dom", f"--log-net-log={log}", page.as_uri() + view)
        read = json.loads(log.read_text())
        started = read["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
        asked = [event["params"] for event in read["events"] if event["type"] == started]
        # The browser's own requests are not those of an origin.
        return text, [
            event["url"]
            for event in asked
            if "url" in event and event.get("initiator") != "not an origin"
        ]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    place = tmp_path / "browser"
    place.mkdir()
    return Browser(place)


def rows(text: str) -> list[tuple[str, str]]:
    """Return the share and the name of each row of speedscope's table of functions."""
    body = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    number = r"<td[^>]*>[\d,.a-zµ]+ \(([^)]+)\)<div.*?"
    return re.findall(rf"<tr[^>]*><td[^>]*>[^<]*<div.*?{number}</span>([^<]*)</td></tr>", body)


def test_requests_of_a_page_are_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'>")
    assert browser.content(page)[1] == ["http://127.0.0.1:9/x.png"]


def test_a_flame_graph_opens(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    big, small = Line("main.big", "/app/main.go", 3), Line(EVIL, "/app/main.go", 9)
    page.write_text(html(profile_of([([MAIN, small], 10), ([MAIN, big], 90)])))
    text, asked = browser.content(page, "#view=sandwich")
    assert asked == []
    (share, name), *others = rows(text)
    assert (share, name) == ("90%", "main.big")
    assert any("&lt;/script&gt;" in each for _, each in others)
    assert len(browser.picture(page)) > _LEAST_PICTURE


def test_a_map_opens(browser: Browser, tmp_path: Path) -> None:
    page, maps = tmp_path / "x.html", filled()
    page.write_text(heat_page("latency of main.*", maps.maps()[0], maps.columns))
    text, asked = browser.content(page)
    assert asked == []
    assert "<script>alert" not in text
    assert text.count("<svg") == 2
    assert len(browser.picture(page)) > _LEAST_PICTURE


@pytest.mark.live
def test_pages_of_a_run_open(browser: Browser, tmp_path: Path) -> None:
    """The function with the largest share is the first."""
    stacks, heat = tmp_path / "stacks.html", tmp_path / "heat.html"
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "-F")
        functions = ("main.slow", "main.short")
        with (
            tool("gofunclatency", "-p", str(fixture.ready), "-o", str(stacks), *functions) as flame,
            tool("gofunclatency", *words, "-i", "100ms", "-o", str(heat), *functions) as drawing,
        ):
            fixture.work("one slow")
            assert flame.end().status == drawing.end().status == 0
        assert fixture.finish() == 0
    text, asked = browser.content(stacks, "#view=sandwich")
    assert asked == [] and rows(text)[0][1] == "main.slow"
    text, asked = browser.content(heat)
    assert asked == []
    assert re.findall(r"<h2>(.*?)</h2>", text)[0] == "main.slow"
    for page in (stacks, heat):
        assert len(browser.picture(page)) > _LEAST_PICTURE
