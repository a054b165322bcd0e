# SPDX-License-Identifier: Apache-2.0
"""Label sets that no call has any more make room, in the kernel as well, and no call is lost."""

from __future__ import annotations

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
    """Each round has goroutines of its own, three of them, and there is room for two."""
    metrics = """\
  - {name: errors, type: counter, probe: main.handle, labels: {g: $goid}, series: 2, idle: 2s}
  - {name: seconds, type: histogram, probe: main.handle, labels: {g: $goid}, series: 2, idle: 2s}
  - {name: bytes, type: histogram, probe: main.handle, labels: {g: $goid}, series: 2, idle: 2s,
     of: len(key)}
  - {name: all, type: counter, probe: main.handle}"""
    earlier: set[str] = set()
    config = configured(tmp_path, server, metrics)
    with (
        Daemon(config, probes=4, patience=300.0) as daemon,
        Fixture([server], patience=300.0) as fixture,
    ):
        calls, rounds, good = 0, 0, dict.fromkeys(NAMES, 0)
        while min(good.values()) < 3:
            assert rounds < 20, good
            rounds += 1
            calls += fixture.work("3 20 2")["Calls"]
            found = daemon.samples()
            assert found["all_total"] == {(): calls}
            new: set[str] = set()
            for name in NAMES:
                # Nothing is left of the rounds before, and nothing is missing.
                assert sum(found[name].values()) == 60
                shown = {dict(at)["g"] for at in found[name]}
                # The kernel's rows are free a little later than series end, of each metric at
                # another time: so a round can come too soon for some, and the next for others.
                good[name] += len(shown) == 3 and "others" in shown
                new |= shown - {"others"}
            assert not new & earlier
            earlier |= new
            wait_until(lambda: not has_any(daemon))
        ended = daemon.samples()["gotraced_metric_ended_series_total"]
        assert ended[(("metric", "errors"),)] >= 9
        daemon.end()
        fixture.finish()
