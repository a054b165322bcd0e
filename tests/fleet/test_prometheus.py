# SPDX-License-Identifier: Apache-2.0
"""Prometheus itself scrapes gotraced, and PromQL's answers are what the program has counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon, calls_of, configured, keys, server
from tests.prometheus import Prometheus, prometheus
from tests.tools.harness import Fixture

__all__ = ["keys", "server"]  # fixtures

METRICS = """\
  - {name: handles, type: counter, probe: main.handle, labels: {failed: '$ret2 != nil'}}
  - {name: handle_seconds, type: histogram, probe: main.handle}
  - {name: key_bytes, type: histogram, probe: main.handle, of: len(key), buckets: {from: 1, to: 64}}
"""


@pytest.mark.live
@pytest.mark.apart
def test_promql_has_the_programs_own_numbers(server: Path, tmp_path: Path) -> None:
    program = prometheus()
    if program is None:
        pytest.skip("there is no Prometheus: make setup-test")
    place = tmp_path / "prometheus"
    place.mkdir()
    with (
        Daemon(configured(tmp_path, server, METRICS), probes=3) as daemon,
        Prometheus(program, daemon.port, place) as engine,
    ):
        engine.wait_for('up{job="gotraced"}', 1)
        # Series without labels are there from the beginning: their first rise is seen.
        engine.wait_for('handle_seconds_count{target="keys"}', 0)
        first = calls_of(server, "2 150 10")
        engine.wait_for('handle_seconds_count{target="keys"}', first["Calls"])
        with Fixture([server]) as fixture:  # the program again: another process
            second = fixture.work("1 200 10")
            total = first["Calls"] + second["Calls"]
            engine.wait_for("sum(handles_total)", total)
            engine.wait_for("gotraced_target_processes", 1)
            fixture.finish()
        nil = first["Errors"]["nil"] + second["Errors"]["nil"]
        engine.wait_for('handles_total{failed="false"}', nil)
        engine.wait_for(
            'sum(handles_total{failed="true"}) / sum(handles_total)', (total - nil) / total
        )
        engine.wait_for("resets(handle_seconds_count[1h])", 0)
        engine.wait_for('handle_seconds_bucket{le="+Inf"}', total)
        lengths = {
            len(key): first["Keys"].get(key, 0) + second["Keys"].get(key, 0)
            for key in (*first["Keys"], *second["Keys"])
        }
        assert set(lengths) == {len("user:0")}
        engine.wait_for('key_bytes_bucket{le="4.0"}', 0)
        engine.wait_for('key_bytes_bucket{le="8.0"}', total)
        engine.wait_for("key_bytes_sum / key_bytes_count", len("user:0"))
        (quantile,) = engine.ask("histogram_quantile(0.5, key_bytes_bucket)").values()
        assert 4 < quantile <= 8
        engine.wait_for('gotraced_probe_hits_total{probe="handles"} >= bool ' + str(total), 1)
        daemon.end()
        engine.wait_for('up{job="gotraced"}', 0)
