# SPDX-License-Identifier: Apache-2.0
"""Pages that show flame graphs: what is in them, as a parser of HTML reads it."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from gotrace.profiles.html import VIEWER, html
from gotrace.profiles.rows import Line, StackProfile
from gotrace.profiles.speedscope import speedscope
from tests.profiles.test_profiles import CALLS, MAIN, profile_of

EVIL = "</script><!--<script>alert('x')</title>&amp;\x1b[2J\u2028\udcff"


class Page(HTMLParser):
    """What a page consists of: its elements, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.texts:
            tag, text = self.texts[-1]
            self.texts[-1] = tag, text + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def test_the_page_has_the_profile_and_its_viewer() -> None:
    profile = profile_of([([MAIN, Line("main.big", "/app/main.go", 3)], 90), ([MAIN], 10)])
    page = Page(html(profile))
    assert [tag for tag, _ in page.elements] == [
        *("html", "head", "meta", "meta", "title", "style", "script", "script"),
        *("body", "script", "script"),
    ]
    scripts = [text for tag, text in page.texts if tag == "script"]
    assert json.loads(scripts[0]) == json.loads(speedscope(profile))
    assert scripts[2].strip() == (VIEWER / "speedscope.js").read_text().strip()
    # The license of what is copied goes with each copy.
    assert [(VIEWER / "LICENSE").read_text() in comment for comment in page.comments] == [True]


def test_nothing_is_fetched() -> None:
    text = html(profile_of([([MAIN], 1)]))
    page = Page(text)
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.elements)
    (policy,) = (
        attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "http" not in policy and "*" not in policy
    assert "url(" not in (VIEWER / "speedscope.css").read_text()
    assert "sourceMappingURL=" not in text


def test_names_are_not_markup() -> None:
    profile = profile_of([([MAIN, Line(EVIL, EVIL, 1)], 1)])
    profile = StackProfile(CALLS, profile.rows, EVIL)
    text = html(profile)
    page, plain = Page(text), Page(html(profile_of([([MAIN], 1)])))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert len(page.comments) == 1
    (title,) = (text for tag, text in page.texts if tag == "title")
    assert title.strip() == (r"</script><!--<script>alert('x')</title>&amp;\x1b[2J\u2028\xff")
    (embedded,) = (text for tag, text in page.texts if tag == "script" and '"frames"' in text[:400])
    assert json.loads(embedded) == json.loads(speedscope(profile))
    assert "<" not in embedded


def test_the_viewer_is_as_it_was_released() -> None:
    """The digest is that of the npm package's file, whose last line names a source map."""
    code = (VIEWER / "speedscope.js").read_bytes()
    released = code + b"//# sourceMappingURL=speedscope-Y2522XSH.js.map\n"
    assert hashlib.sha256(released).hexdigest() == (
        "12b7fcfa95b1f07633886569903e0117043d810c83951ac9084e34c689ef1044"
    )
    assert re.match(r"speedscope@1\.25\.0\n", (VIEWER / "release.txt").read_text())
    assert {path.name for path in VIEWER.iterdir()} == {
        *("LICENSE", "release.txt", "speedscope.css", "speedscope.js"),
    }
    # In a page these would end the script, or begin a comment in it.
    assert b"</script" not in code.lower() and b"<!--" not in code


def test_a_page_of_nothing_is_a_page() -> None:
    page = Page(html(profile_of([])))
    assert json.loads(next(text for tag, text in page.texts if tag == "script"))["profiles"]


def test_the_page_is_small(tmp_path: Path) -> None:
    assert len(html(profile_of([([MAIN], 1)]))) < 500_000
