# SPDX-License-Identifier: Apache-2.0
"""Maps of latency over time: no call is lost in them, in whatever form they are drawn."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.histogram import BUCKETS, Histogram, bucket_bounds
from gotrace.report.heat import HeatColumn, HeatMaps, HeatRows, legend, level_of
from gotrace.report.heat_page import heat_page
from gotrace.report.heat_text import HeatStyle, heat_lines
from gotrace.results.rows import Row
from gotrace.session.latency_rows import Interval, LatencyGroup
from gotrace.session.why.parts import PartSums, PartTotals
from gotrace.values.model import StringValue
from tests.profiles.test_html import Page

EVIL = "main.</title><script>alert('x')</script>&amp;\x1b[2J\u202e\udcff\n"


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC0")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def times(**buckets: int) -> Histogram:
    """Return calls by bucket: b100=3 are three calls, each of the least time of bucket 100."""
    made = Histogram()
    for name, count in buckets.items():
        ns = bucket_bounds(int(name[1:]))[0]
        made.merge(Histogram(count, count * ns, ns, ns, Counter({int(name[1:]): count})))
    return made


def interval(
    number: int, *groups: LatencyGroup, rest: Sequence[Row] = (), seconds: float = 1.0
) -> Interval:
    return Interval(groups, rest, 1_700_000_000 + number, seconds, 1)


def why(**parts: int) -> dict[int | None, PartSums]:
    return {None: PartSums({name: PartTotals(ns, 1) for name, ns in parts.items()})}


def total(maps: HeatMaps) -> int:
    return sum(one.total().times.count for one in maps.maps()[0])


def test_each_thing_has_a_map_and_the_most_time_is_first() -> None:
    maps = HeatMaps()
    for number in range(3):
        quick = LatencyGroup("main.quick", times(b100=5))
        slow = LatencyGroup("main.slow", times(b300=1, b310=number + 1))
        maps.add(interval(number, quick, slow))
    (first, second), others = maps.maps()
    assert (first.title, second.title, others) == ("main.slow", "main.quick", 0)
    assert first.share + second.share == pytest.approx(1)
    assert [first.cells[n].times.buckets for n in range(3)] == [{300: 1, 310: n} for n in (1, 2, 3)]
    assert [column.ended for column in maps.columns] == [1_700_000_000 + n for n in range(3)]
    top, others = maps.maps(1)
    assert ([one.title for one in top], others) == (["main.slow"], 1)


def test_titles_say_what_a_map_is_of() -> None:
    maps = HeatMaps()
    groups = [
        LatencyGroup("main.f", times(b9=1), 7, "goroutine 7 [main.work]", 41),
        LatencyGroup("main.f", times(b8=1), by={"key": StringValue(b"a\x1b", 2)}),
        LatencyGroup("main.f", times(b7=1), by={}),
        LatencyGroup("main.f", times(b6=1), program="shop"),
        LatencyGroup(None, times(b5=1), program="shop"),
        LatencyGroup(None, times(b4=1)),
    ]
    maps.add(interval(0, *groups))
    assert [one.title for one in maps.maps()[0]] == [
        "main.f, goroutine 7 [main.work]",
        r'main.f, key = "a\x1b"',
        "main.f, (others)",
        "shop:main.f",
        "shop",
        "",
    ]


def test_calls_that_are_not_drawn_are_counted() -> None:
    maps = HeatMaps()
    maps.add(interval(0, LatencyGroup("main.f", times(b1=1)), rest=[{"count": 11}]))
    assert maps.others == 11


@given(st.integers(1, 200), st.sampled_from([2, 4, 10]))
def test_columns_are_joined_where_there_are_too_many(intervals: int, most: int) -> None:
    maps = HeatMaps(most)
    for number in range(intervals):
        maps.add(interval(number, LatencyGroup("main.f", times(b50=1, b60=2), why=why(running=3))))
    assert len(maps.columns) <= most
    assert sum(column.seconds for column in maps.columns) == intervals
    for before, after in zip(maps.columns, maps.columns[1:], strict=False):
        assert after.began == before.ended
    assert total(maps) == 3 * intervals
    (one,), _ = maps.maps()
    assert set(one.cells) == set(range(len(maps.columns)))
    assert one.total().parts == {"running": 3 * intervals}
    # A column has the calls of its own seconds.
    for number, column in enumerate(maps.columns):
        assert one.cells[number].times.count == 3 * column.seconds


@given(st.sets(st.integers(0, BUCKETS - 1), max_size=30), st.integers(1, 60))
def test_rows_hold_all_buckets(buckets: set[int], most: int) -> None:
    rows = HeatRows.of(buckets, most)
    assert 1 <= rows.count <= most
    found = rows.counts(Histogram(buckets=Counter(dict.fromkeys(buckets, 1))))
    assert sum(found.values()) == len(buckets)
    for bucket in buckets:
        low, high = bucket_bounds(bucket)
        within = [row for row in found if low < rows.bounds(row)[1] and high > rows.bounds(row)[0]]
        assert any(row <= rows.place((low + high) // 2) < row + 1 for row in within)
    for row in range(rows.count - 1):
        assert rows.bounds(row)[1] == rows.bounds(row + 1)[0]
    assert all(len(str(edge).rstrip("0")) <= 2 for edge in rows.edges), "they are round"
    assert list(rows.edges) == sorted(set(rows.edges))


@given(st.integers(1, 10**6), st.integers(1, 8))
def test_the_legend_is_of_the_levels(most: int, levels: int) -> None:
    found = legend(most, levels)
    assert found[-1][0] == levels == level_of(most, most, levels)
    for level, least in found:
        assert level_of(least, most, levels) == level
        assert least == 1 or level_of(least - 1, most, levels) < level
    assert level_of(0, most, levels) == 0


def filled(intervals: int = 30) -> HeatMaps:
    maps = HeatMaps()
    for number in range(intervals):
        slow = times(b300=9, b340=number % 3)
        parts = why(running=slow.sum // 2, **{"blocked: select": slow.sum - slow.sum // 2})
        maps.add(
            interval(
                number,
                LatencyGroup(EVIL, slow, why=parts),
                LatencyGroup("main.g", times(b100=100, b101=1)),
            )
        )
    return maps


def drawn(maps: HeatMaps, style: HeatStyle) -> list[str]:
    return [*heat_lines(maps.maps()[0], maps.columns, style)]


def test_a_map_on_a_terminal() -> None:
    maps = HeatMaps()
    for number, count in enumerate((1, 4, 16)):
        maps.add(interval(number, LatencyGroup("main.f", times(b160=count, b192=1))))
    lines = drawn(maps, HeatStyle(rows=4))
    assert lines[1] == "main.f"
    assert lines[2].startswith("24 calls, total ") and "(100%)" in lines[2]
    assert lines[3:6] == [
        "      20us |░░░|",
        "      10us |   |",
        "       5us |░▒█|",
    ]
    assert lines[6] == "            22:13:19 22:13:22"
    assert lines[7].strip() == (
        "a column is 1s; calls in a cell: ░ from 1, ▒ from 3, ▓ from 7, █ from 16"
    )
    ascii_lines = drawn(maps, HeatStyle(rows=4, blocks=False))
    assert ascii_lines[3:6] == [
        "      20us |...|",
        "      10us |   |",
        "       5us |.:#|",
    ]
    assert "".join(ascii_lines).isascii()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    lines = drawn(filled(120), HeatStyle(width=width, rows=8))
    rows = [line for line in lines if line.endswith("|") or "| " in line]
    assert rows
    cells = {len(line.split("|")[1]) for line in rows}
    assert len(cells) == 1 and cells.pop() <= max(width - 12, 8)
    assert all(line.isprintable() for line in lines)


def test_parts_of_the_time_have_a_line_each() -> None:
    lines = drawn(filled(), HeatStyle(rows=8))
    parts = [line for line in lines if re.search(r"% \|", line)]
    names = {line.rsplit("| ", 1)[1] for line in parts}
    assert names == {"running", "blocked: select"} and len(parts) == 2
    assert all(line.lstrip().startswith("50%") for line in parts)


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b" not in "".join(drawn(filled(), HeatStyle()))
    coloured = "".join(drawn(filled(), HeatStyle(colour=True)))
    assert "\x1b[31m" in coloured
    plain = re.sub(r"\x1b\[\d*m", "", coloured)
    assert plain == "".join(drawn(filled(), HeatStyle()))


@pytest.mark.parametrize(
    ("encoding", "blocks"), [("utf-8", True), ("ascii", False), ("latin-1", False)]
)
def test_what_the_terminal_cannot_show_is_ascii(encoding: str, blocks: bool) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert HeatStyle.for_stream(out, 80, 8, False).blocks is blocks


def svg_of(text: str) -> list[ElementTree.Element]:
    """Return the pictures of a page, as a parser of XML reads them."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_the_page_has_all_calls() -> None:
    maps = filled()
    text = heat_page("latency of main.*", maps.maps()[0], maps.columns, ["1 call lost"])
    pictures = svg_of(text)
    assert len(pictures) == 2
    name = "{http://www.w3.org/2000/svg}title"
    for picture, one in zip(pictures, maps.maps()[0], strict=True):
        titles = [title.text or "" for title in picture.iter(name)]
        counts = [int(title.split(": ")[1].split(" ")[0]) for title in titles if " call" in title]
        assert sum(counts) == one.total().times.count
        width, height = int(picture.get("width", "")), int(picture.get("height", ""))
        for cell in picture.iter("{http://www.w3.org/2000/svg}rect"):
            x, y = float(cell.get("x", "")), float(cell.get("y", ""))
            assert 0 <= x and x + float(cell.get("width", "")) <= width
            assert 0 <= y and y + float(cell.get("height", "")) <= height + 0.1
    assert "1 call lost" in text
    bands = [title.text or "" for title in pictures[0].iter(name) if "%" in (title.text or "")]
    assert len(bands) == 2 * len(maps.columns)
    assert all(band.startswith(("running: 50.0%", "blocked: select: 50.0%")) for band in bands)


def test_the_page_fetches_and_runs_nothing() -> None:
    maps = filled()
    page = Page(heat_page(EVIL, maps.maps()[0], maps.columns, [EVIL]))
    tags = {tag for tag, _ in page.elements}
    assert tags == {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "span"),
        *("svg", "rect", "path", "text"),
    }
    assert not any(
        {"src", "href", "onload", "onclick"} & attributes.keys() for _, attributes in page.elements
    )
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    shown = r"main.</title><script>alert('x')</script>&amp;\x1b[2J\u202e\xff\n"
    assert shown in [text.strip() for tag, text in page.texts if tag == "h2"]
    assert shown in [text.strip() for tag, text in page.texts if tag == "h1"]


def test_few_calls_look_like_the_page_in_dark_and_in_light() -> None:
    light, dark = heat_page("latency", [], []).split("@media (prefers-color-scheme: dark)")
    found = [re.findall(r"\.c\d { fill: (#\w+)", part) for part in (light, dark)]
    assert len(found[0]) == 8 and found[1] == found[0][::-1]


def test_a_page_of_nothing() -> None:
    assert "No calls." in heat_page("latency of main.f", [], [])
    column = HeatColumn(1_700_000_001, 1.0)
    assert "<svg" not in heat_page("latency of main.f", [], [column])


def test_a_long_run_is_a_page_that_opens() -> None:
    """It has no more columns than fit, and not more than some megabytes."""
    maps = HeatMaps()
    for number in range(5000):
        spread = {f"b{bucket}": 1 for bucket in range(100 + number % 50, 500, 9)}
        maps.add(interval(number, LatencyGroup("main.f", times(**spread))))
    text = heat_page("latency of main.f", maps.maps()[0], maps.columns)
    assert len(text) < 6_000_000
