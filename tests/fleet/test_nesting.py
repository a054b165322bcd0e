# SPDX-License-Identifier: Apache-2.0
"""Spans of one goroutine nest as its calls did."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.fleet.telemetry import nesting
from gotrace.fleet.telemetry.nesting import PATIENCE, Call, Nesting
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

#: A call's calls.
Tree = list["Tree"]
trees: st.SearchStrategy[Tree] = st.recursive(
    st.just([]), lambda below: st.lists(below, max_size=4), max_leaves=30
)


def ended(
    tree: Tree, clock: list[int], parent: int | None, found: list[Call[tuple[int, int | None]]]
) -> None:
    """Add a call and those within it, in the order in which they end."""
    clock[0] += 1
    start = clock[0]
    for below in tree:
        ended(below, clock, start, found)
    clock[0] += 1
    found.append(Call((1, 1), start, clock[0], parent is not None, (start, parent), 1))


@given(st.lists(trees, min_size=1, max_size=4))
def test_calls_are_within_those_that_they_were_made_in(forest: list[Tree]) -> None:
    clock = [0]
    calls: list[Call[tuple[int, int | None]]] = []
    for tree in forest:
        ended(tree, clock, None, calls)
    kept: Nesting[tuple[int, int | None]] = Nesting()
    found = [tree for call in calls for tree in kept.add(call, 0.0)]
    assert list(kept.rest()) == []
    assert len(found) == len(forest)
    for whole in found:
        for call, above in whole:
            start, parent = call.item
            assert (whole[above][0].start if above is not None else None) == parent, start
    assert sum(map(len, found)) == len(calls)


def shown(found: Iterable[nesting.Tree[str]]) -> list[list[tuple[str, int | None]]]:
    return [[(call.item, parent) for call, parent in tree] for tree in found]


def test_what_was_within_a_call_that_is_not_seen_stands_by_itself() -> None:
    kept: Nesting[str] = Nesting()
    assert shown(kept.add(Call((1, 1), 2, 3, True, "inner"), 0.0)) == []
    assert shown(kept.add(Call((1, 2), 1, 9, False, "other goroutine"), 0.0)) == [
        [("other goroutine", None)]
    ]
    found = shown(kept.add(Call((1, 1), 5, 6, False, "next"), 0.0))
    assert found == [[("inner", None)], [("next", None)]]


def test_nothing_is_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Nesting[str] = Nesting()
    assert shown(kept.add(Call((1, 1), 2, 3, True, "a"), 5.0)) == []
    assert shown(kept.add(Call((1, 2), 2, 3, True, "b"), 20.0)) == []
    assert shown(kept.overdue(5.0 + PATIENCE)) == []
    assert shown(kept.overdue(5.1 + PATIENCE)) == [[("a", None)]]
    monkeypatch.setattr(nesting, "MAX_BYTES", 100)
    assert shown(kept.add(Call((1, 3), 2, 3, True, "c", 60), 21.0)) == []
    assert shown(kept.add(Call((1, 4), 2, 3, True, "d", 60), 22.0)) == [
        [("b", None)],
        [("c", None)],
    ]
    assert shown(kept.rest()) == [[("d", None)]]


def configured(program: Path, endpoint: str, *spans: str) -> Path:
    """Return a configuration, beside the program, that sends these spans of it."""
    config = program.with_name("c.yaml")
    rows = "".join(f"  - {span}\n" for span in spans)
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: k, exe: {program}}}]\nspans:\n{rows}"
        f"otlp: {{endpoint: '{endpoint}'}}\nbudget: 100%\n"
    )
    return config


@pytest.mark.live
@pytest.mark.apart
def test_spans_hang_below_the_calls_that_enclose_them(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(FIXTURES / "live_keys", newest()), tmp_path / "keys"))
    received = Received()
    with over_http(received) as endpoint:
        config = configured(
            program,
            endpoint,
            "{probe: main.via*, rate: 100000/s}",
            "{probe: main.handle, rate: 100000/s}",
            "{name: zero, probe: main.handle (shard == 0), rate: 100000/s}",
            "{name: never, probe: main.nothing}",
        )
        with Daemon(config, "-v", probes=1) as daemon:
            assert any("span never" in line for line in daemon.log)
            with Fixture([program]) as fixture:
                truth = fixture.work("2 100 10")
                fixture.finish()
            received.wait_for_spans(2 * truth["Calls"] + truth["Shards"]["0"])
            daemon.end()
    spans = {span.span_id: span for _, span in received.spans}
    assert len(spans) == len(received.spans)
    names = Counter(span.name for span in spans.values())
    first, calls = truth["First"], truth["Calls"]
    assert names == {
        "main.viaFirst": first,
        "main.viaSecond": calls - first,
        "main.handle": calls,
        "zero": truth["Shards"]["0"],
    }
    outer = [span for span in spans.values() if span.name.startswith("main.via")]
    assert all(not span.parent_span_id for span in outer)
    assert len({span.trace_id for span in outer}) == calls
    below: Counter[str] = Counter()
    for span in spans.values():
        if span.name == "main.handle":
            parent = spans[span.parent_span_id]
            below[parent.name] += 1
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano < span.start_time_unix_nano
            assert span.end_time_unix_nano < parent.end_time_unix_nano
            goroutines = [attributes(one.attributes)["go.goroutine.id"] for one in (span, parent)]
            assert goroutines[0] == goroutines[1]
    assert below == {"main.viaFirst": first, "main.viaSecond": calls - first}


@pytest.mark.live
@pytest.mark.apart
def test_calls_within_others_are_sent_where_those_are(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(FIXTURES / "live_keys", newest()), tmp_path / "keys"))
    received = Received()
    with over_http(received) as endpoint:
        handles = "{probe: main.handle, rate: 100000/s}"
        config = configured(program, endpoint, "{probe: main.via*, rate: 1/h}", handles)
        with Daemon(config, probes=1) as daemon:
            with Fixture([program]) as fixture:
                calls = fixture.work("1 200 10")["Calls"]
                fixture.finish()
            received.wait_for_spans(2)
            daemon.end()
    assert calls == 200
    (inner,) = [span for _, span in received.spans if span.parent_span_id]
    (outer,) = [span for _, span in received.spans if not span.parent_span_id]
    assert (inner.parent_span_id, inner.trace_id) == (outer.span_id, outer.trace_id)
