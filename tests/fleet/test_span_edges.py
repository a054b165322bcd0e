# SPDX-License-Identifier: Apache-2.0
"""Spans are below those of their request, in whatever goroutine: by the requests' own numbers."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon, wait_until
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, build, require
from tests.tools.gotrace.test_tree import HELD, KINDS, MISLEADING, SILENT
from tests.tools.harness import Fixture

REQUESTS = 60
PROBES = ("main.handle", "main.job", "main.outer", "main.contextJob")


@dataclass
class Found:
    """What has come of one way to hand work on: spans, and of these the ones that begin traces."""

    truth: dict[str, int]
    last: int
    spans: int = 0
    traces: int = 0
    wrong: list[str] = field(default_factory=list)
    edges: Counter[str] = field(default_factory=Counter)


def configured(
    path: Path,
    program: Path,
    endpoint: str,
    more: str = "budget: 100%",
    probes: tuple[str, ...] = PROBES,
) -> Path:
    config = path / "c.yaml"
    rows = "".join(
        f"  - {{probe: {probe}, attributes: {{id: id}}, rate: 1000000/s}}\n" for probe in probes
    )
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: r, exe: {program}}}]\nspans:\n{rows}"
        f"otlp: {{endpoint: '{endpoint}', queue: 100000}}\n{more}\n"
    )
    return config


def play(path: Path, program: Path, kinds: tuple[str, ...], count: int) -> dict[str, Found]:
    """Return what has come of each way, held to the numbers of the requests."""
    found: dict[str, Found] = {}
    received, last = Received(), 0
    with (
        over_http(received) as endpoint,
        Daemon(configured(path, program, endpoint), probes=1) as daemon,
        Fixture([program]) as fixture,
    ):
        assert not [line for line in daemon.log if "below" in line]
        for kind in kinds:
            truth = fixture.work(f"{kind} {count}")
            last += truth["requests"]
            found[kind] = Found(truth, last)
        fixture.finish()
        daemon.end()  # which sends what waits
    by_id = {span.span_id: span for _, span in received.spans}
    shown = {one: attributes(span.attributes) for one, span in by_id.items()}
    assert len(by_id) == len(received.spans)
    made = sum(one.truth["requests"] + one.truth["calls"] for one in found.values())
    assert len(by_id) == made
    merged: dict[bytes, set[int]] = {}
    for name, span in by_id.items():
        number, above = shown[name]["id"], span.parent_span_id
        merged.setdefault(span.trace_id, set()).add(number)
        if not number:
            assert not above or shown[above]["id"] == 0
            continue
        one = next(each for each in found.values() if number <= each.last)
        one.spans += 1
        one.traces += not above
        one.edges[shown[name].get("gotrace.edge", "call") if above else ""] += 1
        if above and shown[above]["id"] != number:
            one.wrong.append(f"{span.name}({number}) below that of {shown[above]['id']}")
    assert {trace: numbers for trace, numbers in merged.items() if len(numbers) > 1} == {}
    return found


def copied(minor: str, path: Path) -> Path:
    """Return a program of its own: others trace the same one by its path."""
    return Path(shutil.copy(build(FIXTURES / "live_requests", require(minor)), path / "requests"))


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    "minor",
    [
        "1.27",
        pytest.param("1.19", marks=pytest.mark.slow),
        *(
            pytest.param(minor, marks=pytest.mark.thorough)
            for minor in ("1.21", "1.22", "1.23", "1.24", "1.25", "1.26")
        ),
    ],
)
def test_no_span_is_below_that_of_another_request(minor: str, tmp_path: Path) -> None:
    """In all ways that work is handed on, each of which is a configuration of plain spans."""
    program = copied(minor, tmp_path)
    kinds = (*(kind for kind in KINDS if kind != "shared"), "signals", "cond-stream", *HELD)
    found = play(tmp_path, program, kinds, REQUESTS)
    # A context that two requests share is evidence against those of others that wait.
    found |= play(tmp_path, program, ("shared",), REQUESTS)
    assert {kind: one.wrong[:3] for kind, one in found.items() if one.wrong} == {}
    # Whose work it is where that can be known: all but the beginnings of pools and queues.
    for kind in KINDS:
        one = found[kind]
        if kind != "given":  # its contexts' addresses are used again all the time
            assert one.traces <= 1.2 * one.truth["requests"], kind
    edges = sum((one.edges for one in found.values()), Counter[str]())
    assert {"call", "go", "item", "context"} <= set(edges)
    misled = play(tmp_path, program, (*MISLEADING, *SILENT), REQUESTS)
    assert {kind: one.wrong[:3] for kind, one in misled.items() if one.wrong} == {}


@pytest.mark.live
@pytest.mark.apart
def test_edges_go_first_if_spans_cost_too_much(tmp_path: Path) -> None:
    """Then spans go on by goroutines and contexts alone, and are counted as not attributed."""
    received, program = Received(), copied("1.27", tmp_path)
    with over_http(received) as endpoint:
        # Few calls, and some thirty edges for each.
        config = configured(tmp_path, program, endpoint, "budget: 2%", ("main.handle",))
        with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
            fixture.say("fan-out 6000")
            said = daemon.read_until("gotraced: WARNING: spans in r: ")[0]
            assert said.startswith("spans are not put below those of other goroutines, but for")
            assert "the budget of all is 2.0%" in said
            fixture.answer()
            before = edges(daemon)["unattributed"]
            fixture.work("fan-out 20")
            wait_until(lambda: edges(daemon)["unattributed"] >= before + 20)
            wait_until(lambda: without_edges(daemon) > 0)
            fixture.say()
            daemon.end()


def without_edges(daemon: Daemon) -> float:
    """Return for how many seconds there were spans without edges."""
    rows = daemon.samples()["gotraced_probe_seconds_total"]
    return sum(seconds for labels, seconds in rows.items() if ("state", "no_edges") in labels)


def edges(daemon: Daemon) -> Counter[str]:
    """Return how many spans were sent, by their edges."""
    rows = daemon.samples()["gotraced_spans_total"]
    return Counter({dict(labels)["edge"]: int(count) for labels, count in rows.items()})
