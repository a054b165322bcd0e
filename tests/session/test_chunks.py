# SPDX-License-Identifier: Apache-2.0
"""Read every kind of result from maps that come in many chunks, as with very many CPUs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import gotrace
from gotrace.kernel import syscalls as kernel
from gotrace.probes.spec import parse_key
from gotrace.session.keys import KeyRequest
from gotrace.session.latency import LatencyOptions, LatencyRequest
from gotrace.session.open_calls import Diagnostic
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.session.waits.states import StateKind, StateMeter, state_probes
from gotrace.target.target import Target
from gotrace.values.model import StringValue
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, elided

pytestmark = pytest.mark.live

#: No chunk that is read here has more; a hash map's has to hold its longest bucket.
_FEW = 5


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have maps read by a few entries; return how many chunks each reading took, as they come."""
    monkeypatch.setattr(kernel, "_CHUNK_ENTRIES", _FEW)
    monkeypatch.setattr(kernel, "_CHUNK_BYTES", 0)
    read: list[int] = []
    original = kernel.map_lookup_batch

    def counted(
        fd: int, key_size: int, value_size: int, count: int, start: int | None = None
    ) -> Iterator[object]:
        read.append(0)
        at = len(read) - 1
        for chunk in original(fd, key_size, value_size, count, start):
            read[at] += 1
            yield chunk

    monkeypatch.setattr(kernel, "map_lookup_batch", counted)
    return read


@contextmanager
def at_work(path: Path) -> Iterator[tuple[Fixture, Target]]:
    with Fixture([path]) as fixture, ExitStack() as opened:
        target = Target.of(fixture.ready, None)
        opened.callback(target.close)
        yield fixture, target
        assert fixture.finish() == 0


def test_counts(chunks: list[int]) -> None:
    truth = {}
    with (
        at_work(build(FIXTURES / "live_count", newest())) as (fixture, _),
        gotrace.attach(fixture.ready) as go,
    ):

        def work() -> None:
            truth.update(fixture.work()["calls"])
            go.stop()

        counts: Counter[str] = Counter()
        found = go.count("main.*", "reflect.*", "fmt.*", exclude=["main.loop"], ready=work)
        for name, calls in found.items():
            counts[elided(name)] += calls
    assert {name: counts[name] for name in truth} == truth
    assert max(chunks) > 50


def test_rows_by_value(chunks: list[int], tmp_path: Path) -> None:
    copied = shutil.copy(build(FIXTURES / "live_keys", newest()), tmp_path)
    key = parse_key("key")
    with at_work(Path(copied)) as (fixture, target):
        request = KeyRequest(
            target=target, asked=Asked(["main.handle"]), verb="count", done="", key=key
        )
        with open_run(request) as run:
            meter = run.meter
            truth = fixture.work("1 2000 101")
            meter.stop()
            rows = meter.take().rows
    seen = {}
    for row in rows:
        assert row.values is not None
        (value,) = row.values
        assert isinstance(value, StringValue)
        seen[value.text.decode()] = row.calls
    assert seen == truth["Keys"]
    assert max(chunks) > 100


def test_histograms_and_irregular_calls(chunks: list[int]) -> None:
    with at_work(build(FIXTURES / "live_latency", newest())) as (fixture, target):
        asked = Asked(["main.thrown", "main.task"])
        options = LatencyOptions(per_function=True, per_goroutine=True)
        with open_run(LatencyRequest(target=target, asked=asked, options=options)) as run:
            meter = run.meter
            truth = fixture.work("panics workers")
            meter.stop()
            found, irregular = meter.take(), meter.diagnostics()
            left = meter.open_calls()
    assert truth["Unwound"] >= irregular[Diagnostic.UNWOUND] > 0
    assert (irregular[Diagnostic.STACKS_FULL], left) == (0, 0)
    workers = {one["Goid"]: one["Times"]["Calls"] for one in truth["Workers"]}
    seen: Counter[int] = Counter()
    for who, times in found.goroutines.items():
        seen[who.goid] += times.times.count
    assert {goid: seen[goid] for goid in workers} == workers
    assert max(chunks) > len(workers) // _FEW


def test_waits_by_stack(chunks: list[int]) -> None:
    truth: dict[str, dict[str, int]] = {}
    with (
        at_work(build(FIXTURES / "live_waits", newest())) as (fixture, _),
        gotrace.attach(fixture.ready) as go,
    ):

        def work() -> None:
            truth.update(fixture.work("ways"))
            go.stop()

        waits = go.waits(force=True, ready=work)
    seen: Counter[str] = Counter()
    for wait in waits:
        for frame in wait.stack:
            seen[frame.function.removeprefix("main.")] += wait.count
    assert {name: seen[name] for name in truth} == {n: known["count"] for n, known in truth.items()}
    assert max(chunks) > 1


def test_waits_by_reason(chunks: list[int]) -> None:
    """As gotraced adds them up."""
    with at_work(build(FIXTURES / "live_waits", newest())) as (fixture, target):
        (file,) = target.binaries(None)
        with StateMeter(state_probes(target, file), None) as meter:
            truth = fixture.work("ways")
            meter.stop()
            sums, lost = meter.take(), meter.losses()
    assert not any(lost.values())
    blocked = {each.reason: each for each in sums if each.kind is StateKind.BLOCKED}
    for name, reason in (("receives", "chan receive"), ("sends", "chan send")):
        known = truth[name]
        assert blocked[reason].count >= known["count"] > 0
        assert blocked[reason].ns >= known["least"]
    assert max(chunks) >= 258 // _FEW
