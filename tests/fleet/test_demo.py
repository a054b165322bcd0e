# SPDX-License-Identifier: Apache-2.0
"""make demo-fleet: what Prometheus answers is what its servers have counted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prometheus import prometheus
from tests.tools.harness import CLONE

_PATIENCE = 300.0  # seconds


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.slow
def test_queries_have_their_answers(tmp_path: Path) -> None:
    if prometheus() is None:
        pytest.skip("no Prometheus: make setup-test")
    pytest.importorskip("rotel", reason="no collector: make setup-test")
    done = subprocess.run(
        [sys.executable, CLONE / "tools" / "demo" / "fleet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(re.findall(r"^promql> (.+)\n((?:\S+ .+\n)+)", done.stdout, re.MULTILINE))
    exact = answers["sum by (target) (compute_e_total)"]
    assert re.findall(r'"(\w+)"} (\d+)\n', exact) == [
        ("cart", "200"),
        ("shop", "300"),
        ("stock", "100"),
    ]
    assert "counted shop 300, cart 200, stock 100: exact.\n" in done.stdout
    # 300 and 200 look-ups, 10 keys in 110 of which are unknown.
    failed = answers['sum by (target) (store_get_total{failed="true"})']
    assert re.findall(r'"(\w+)"} (\d+)\n', failed) == [("cart", "10"), ("shop", "20")]
    span = done.stdout.partition("The first one:\n")[2].partition("\n\n")[0]
    assert re.search(r"^ +Name +: main\.\(\*Store\)\.Get$", span, re.MULTILINE)
    assert re.search(r"^ +-> key: Str\(user:\d+\)$", span, re.MULTILINE)
