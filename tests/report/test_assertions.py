# SPDX-License-Identifier: Apache-2.0
"""Verdicts for other programs: JUnit's XML, held to pytest's, and annotations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from gotrace.assertions.grammar import parse_assertion
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict
from gotrace.report.assertions import annotation_lines, junit
from gotrace.report.calls import Clock, LineStyle, TimeStyle

_TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.fixture
def broken(): assert False
def test_is_in_error(broken): pass
"""


def _verdict(text: str, outcome: BoundOutcome, place: tuple[str, int] | None) -> BoundVerdict:
    return BoundVerdict(parse_assertion(text), outcome, 1, 1, 4, 9, 2, (), None, place)


_VERDICTS = [
    _verdict("main.a <= 3", BoundOutcome.HOLDS, ("/src/a.go", 3)),
    _verdict('main.b (s == "<&\x1b]]>") <= 3 per main.R', BoundOutcome.FAILS, ("/src/b.go", 4)),
    _verdict("main.c <= 3", BoundOutcome.UNDECIDED, ("m.org/x/in,n/c.go", 5)),
    _verdict("main.d <= 3", BoundOutcome.MISSING, None),
]


def _shape(root: ElementTree.Element, above: str = "") -> set[str]:
    """Return the names of elements and attributes, by their places."""
    place = f"{above}/{root.tag}"
    found = {place, *(f"{place}@{name}" for name in root.attrib)}
    return found.union(*(_shape(child, place) for child in root))


def test_junit_has_the_elements_that_pytest_writes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=x.xml"]
    subprocess.run([*words, "test_it.py"], cwd=tmp_path, capture_output=True, check=False)
    clock, style = Clock.started_now(TimeStyle.TIME_OF_DAY), LineStyle()
    found = ElementTree.fromstring(junit(_VERDICTS, clock, style, allow_missing=True))
    totals = {f"/testsuites@{name}" for name in ("tests", "failures", "errors")}
    others = _shape(ElementTree.parse(tmp_path / "x.xml").getroot())
    assert _shape(found) - totals <= others
    suite = found.find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "1", "1")
    names = [case.get("name") for case in suite]
    assert names == [one.assertion.text.replace("\x1b", "\\x1b") for one in _VERDICTS]


def test_annotations_name_the_source_in_the_repository() -> None:
    fails, undecided = annotation_lines(_VERDICTS, "/src", "m.org/x", allow_missing=True)
    assert fails == (
        '::error file=b.go,line=4,title=gotrace assert::main.b (s == "<&\\x1b]]>") <= 3 per main.R:'
        " does not hold for 2 of 9 roots\n"
    )
    assert undecided.startswith("::error file=in%2Cn/c.go,line=5,title=")
    *_, missing = annotation_lines(_VERDICTS, "/src", None, allow_missing=False)
    assert missing == "::error title=gotrace assert::main.d <= 3: nothing matched\n"
