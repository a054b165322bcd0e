# SPDX-License-Identifier: Apache-2.0
"""What a run takes is said again if the program was idle when it was counted."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gotrace.cli.why import PriceWatch
from gotrace.report.output import JsonOutput


@dataclass
class Probes:
    """In the place of those of a scheduler."""

    COUNTED = "does it {} times a second"
    program_ns = 200


def test_a_price_is_said_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    watch = PriceWatch(JsonOutput(out), "--tree")
    watch.begin(cast(Any, Probes()), 0.05)
    for changes in (100_000, 300_000, 400_000, 900_000):  # of which each takes a microsecond
        watch.saw(changes // 2)
        now += 1.0
        watch.saw(changes // 2)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["changes"] for row in rows] == [300_000, 900_000]
    assert rows[0]["message"] == (
        "now this program does it 300,000 times a second: --tree takes about 30% of one CPU"
    )
