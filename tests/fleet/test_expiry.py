# SPDX-License-Identifier: Apache-2.0
"""Label sets that no call has any more make room, in the kernel as well, and no call is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon, configured, wait_until
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.tools.harness import Fixture

NAMES = ("errors_total", "seconds_count", "bytes_count")


def has_any(daemon: Daemon) -> bool:
    text = daemon.get("/metrics")
    return any(f"{name}{{" in text for name in NAMES)


@pytest.mark.live
@pytest.mark.apart
def test_others_only_while_it_is_full(server: Path, tmp_path: Path) -> None:
    metrics = """\
  - {name: errors, type: counter, probe: main.handle, labels: {pid: $pid}, series: 2, idle: 1s}
  - {name: seconds, type: histogram, probe: main.handle, labels: {pid: $pid}, series: 2, idle: 1s}
  - {name: bytes, type: histogram, probe: main.handle, labels: {pid: $pid}, series: 2, idle: 1s,
     of: len(key)}
  - {name: all, type: counter, probe: main.handle}"""
    pids: set[str] = set()
    with Daemon(configured(tmp_path, server, metrics), probes=4) as daemon:
        calls = rounds = 0
        until = time.monotonic() + 80
        while rounds < 3:
            assert time.monotonic() < until, rounds
            with Fixture([server]) as one, Fixture([server]) as two, Fixture([server]) as three:
                running = (one, two, three)
                for fixture in running:
                    calls += fixture.work("1 20 2")["Calls"]
                found = daemon.samples()
                assert found["all_total"] == {(): calls}
                for fixture in running:
                    fixture.finish()
            own = {str(fixture.ready) for fixture in running}
            rows = [found[name] for name in NAMES]
            for row in rows:
                assert sum(row.values()) == 60  # nothing is left of those before, nor missing
            # The kernel's rows are free some seconds after their series have ended.
            shown = [{dict(at)["pid"] for at in row} for row in rows]
            if all(len(each & own) == 2 and "others" in each for each in shown):
                rounds += 1
                pids |= own
            wait_until(lambda: not has_any(daemon))
        ended = daemon.samples()["gotraced_metric_ended_series_total"]
        assert ended[(("metric", "errors"),)] >= 9
        daemon.end()
    assert len(pids) == 9
