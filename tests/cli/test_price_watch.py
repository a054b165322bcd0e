# SPDX-License-Identifier: Apache-2.0
"""What a run takes is said again if the program was idle when it was counted."""

from __future__ import annotations

import io
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gotrace.cli.why import PriceWatch
from gotrace.report.output import JsonOutput


def test_a_price_is_said_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, others = 100.0, 0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    watch = PriceWatch(cast(Any, None), JsonOutput(out), "gotrace tree")
    target = SimpleNamespace(command="x")  # in the place of a scheduler's probes
    probes = SimpleNamespace(COUNTED="does it {} times a second", program_ns=200, target=target)
    watch.accept(cast(Any, probes))
    hits = cast(Any, SimpleNamespace(others=lambda: others))
    for changes in (9_000_000, 100_000, 300_000, 400_000, 900_000):  # each takes a microsecond
        others, now = others + changes, now + 1.0
        watch.look(hits)
        watch.look(hits)
    watch.look(None)
    first, *rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert first["share"] is None
    assert first["message"] == (
        "what gotrace tree takes of a CPU is not known before the program runs"
    )
    assert [row["changes"] for row in rows] == [300_000, 900_000]
    assert rows[0]["message"] == (
        "now this program does it 300,000 times a second: gotrace tree takes about 30% of one CPU"
    )
