# SPDX-License-Identifier: Apache-2.0
"""How often the engine looks at what probes have spent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gotrace.fleet import engine as module
from gotrace.fleet.config import parse_config
from gotrace.fleet.engine import Engine
from gotrace.overhead import ProbeCost

CONFIG = """\
listen: 127.0.0.1:0
targets: [{name: shop, exe: /nowhere/shop}]
metrics: [{name: gets, type: counter, probe: main.get}]
"""


def test_a_new_probe_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 1000.0, list[float]()
    engine = Engine(parse_config("c", CONFIG), ProbeCost(1, 1))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(engine, "_mind_budget", looks.append)
    monkeypatch.setattr(engine, "_settle", lambda now: None)

    def looks_in(seconds: int) -> int:
        nonlocal now
        looks.clear()
        for _ in range(100 * seconds):
            now += 0.01
            engine._mind_new()
        return len(looks)

    assert looks_in(10) == 0  # beside those of each second
    engine._be_new()
    assert looks_in(1) in range(16, 21)
    assert looks_in(10) == 0
    monkeypatch.undo()
    engine.close()
