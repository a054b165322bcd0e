# SPDX-License-Identifier: Apache-2.0
"""The daemon's histograms see frequent calls returning in their callers, and miss none."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.test_gotraced import Daemon, Samples
from tests.fleet.test_groups import configured
from tests.fleet.test_reload import reloaded
from tests.toolchains import BUILD_MODES, FIXTURES, build, newest
from tests.tools.gofunclatency.test_loops import FUNCTIONS, KINDS, truth_of
from tests.tools.harness import Fixture

pytestmark = [pytest.mark.live, pytest.mark.apart]

METRICS = {name: f"m{number}" for number, name in enumerate(FUNCTIONS)}
LINES = [f"name: {name}, type: histogram, probe: '{probe}'" for probe, name in METRICS.items()]
#: Some milliseconds in a second at RETs, less at landings: they may stay there.
RARE = ("main.down", "main.thrower", "main.caught")
PINNED = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
KEYED = "name: keyed, type: histogram, probe: main.plain, labels: {n: n % 2}"


@pytest.fixture(params=["default"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    program = build(FIXTURES / "live_loops", newest(), flags=BUILD_MODES[request.param])
    return Path(shutil.copy(program, tmp_path / "loops"))


def wait_for_moves(daemon: Daemon, names: Sequence[str]) -> None:
    """Read the log until functions, each as often as it is named, have moved."""
    missing = Counter(names)
    while missing:
        rest = daemon.read_until("gotraced: INFO: s: main.")[0]
        if "calls are seen returning in their callers" in rest:
            missing -= Counter(["main." + rest.split(": ")[0]])


def count(found: Samples, name: str) -> float:
    return sum(found[f"{name}_count"].values())


def lost(found: Samples) -> dict[str, float]:
    rows = found["gotraced_probe_lost_total"]
    sums: dict[str, float] = {}
    for labels, calls in rows.items():
        reason = dict(labels)["reason"]
        sums[reason] = sums.get(reason, 0.0) + calls
    return {reason: calls for reason, calls in sums.items() if calls}


def play(fixture: Fixture, daemon: Daemon, names: Sequence[str]) -> Any:
    """Have the fixture go through all kinds until functions have moved, and once more."""
    fixture.say(f"run {KINDS}")
    wait_for_moves(daemon, names)
    fixture.say()
    fixture.read_until("done")
    fixture.say(f"run {KINDS}")
    truth = truth_of(fixture)
    fixture.finish()
    return Counter(truth)


@pytest.mark.parametrize("server", ["pie"], indirect=True)  # elsewhere in each process
def test_no_call_is_missing_wherever_it_returns(server: Path, tmp_path: Path) -> None:
    """In two processes, with metrics that come and go, and in a file that replaces the first."""
    often = [name for name in FUNCTIONS if name not in RARE]
    config = configured(tmp_path, server, [*LINES, KEYED])
    with Daemon(config, "-v", probes=len(LINES) + 1) as daemon:
        # On one CPU both take less than the budget before their functions have moved.
        with Fixture([*PINNED, server]) as fixture, Fixture([*PINNED, server]) as other:
            other.say(f"run {KINDS}")
            truth = play(fixture, daemon, [*often, "main.plain"])
            truth += Counter(truth_of(other))
            other.finish()
        with Fixture([server]) as fixture:
            fixture.say(f"run {KINDS}")
            for lines in (LINES[1:], LINES):  # one leaves, and comes as a group of its own
                configured(tmp_path, server, [*lines, KEYED])
                reloaded(daemon)
            wait_for_moves(daemon, ["main.plain"])
            truth += Counter(truth_of(fixture))
            fixture.finish()
        os.rename(shutil.copy(server, tmp_path / "other"), server)
        with Fixture([server]) as fixture:
            daemon.read_until("gotraced: INFO: keyed in s ")  # attached, the last of them
            truth += play(fixture, daemon, [*often, "main.plain"])
        found = daemon.samples()
        daemon.end()
    unwound = truth.pop("unwound")
    truth["main.thrower"] -= unwound
    plain = truth.pop("main.plain")
    assert {name: count(found, METRICS[name]) for name in truth} == truth
    assert count(found, "keyed") == plain > count(found, METRICS["main.plain"]) > 0
    assert lost(found) == {"unwound": unwound}  # once: of the metric whose calls they are


def test_a_landing_that_loops_pass_without_a_call_is_left(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, ["name: rare, type: histogram, probe: main.rare"])
    with Daemon(config, "-v", probes=1) as daemon, Fixture([server]) as fixture:
        fixture.say("run often")
        wait_for_moves(daemon, ["main.rare"])
        fixture.say()
        fixture.read_until("done")
        fixture.say("run often rare")
        why = daemon.read_until("gotraced: INFO: s: main.rare: calls are seen returning at RETs")[0]
        assert "other code comes by more often than it returns" in why
        wait_for_moves(daemon, ["main.rare"])  # where the other loop ends
        truth = truth_of(fixture)
        fixture.finish()
        found = daemon.samples()
        assert count(found, "rare") == truth["main.rare"] and not lost(found)
        daemon.end()
