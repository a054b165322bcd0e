# SPDX-License-Identifier: Apache-2.0
"""What the time of spans goes into: parts that add up, and are those that the program knows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gotrace.fleet.config import parse_config
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

#: Functions, and the part that they are known to spend their time in.
WAITS = {
    "main.sleeps": "go.why.blocked.sleep",
    "main.selects": "go.why.blocked.select",
    "main.locks": "go.why.blocked.sync.Mutex.Lock",
    "main.nanosleeps": "go.why.syscall",
}
LONG = 20_000_000  # ns that each wait of the program takes, at least


@pytest.mark.live
@pytest.mark.apart
def test_parts_add_up_to_spans(tmp_path: Path) -> None:
    """In two processes at a time, whose goroutines have the same addresses."""
    program = Path(shutil.copy(build(FIXTURES / "live_why", newest()), tmp_path / "why"))
    received = Received()
    spans = "".join(f"  - {{probe: {name}, why: true, rate: 1000/s}}\n" for name in WAITS)
    with over_http(received) as endpoint:
        config = tmp_path / "c.yaml"
        config.write_text(
            f"listen: 127.0.0.1:0\ntargets: [{{name: w, exe: {program}}}]\n"
            f"spans:\n{spans}  - {{probe: main.receives, rate: 1000/s}}\n"
            f"  - {{probe: main.sends ($blocked > 1h), rate: 1000/s}}\n"
            f"otlp: {{endpoint: '{endpoint}'}}\nbudget: 100%\n"
        )
        with (
            Daemon(config, probes=1) as daemon,
            Fixture([program]) as one,
            Fixture([program]) as other,
        ):
            one.say("waits")
            other.say("waits")
            for fixture in (one, other):
                fixture.read_until("truth ")
                fixture.finish()
            received.wait_for_spans(2 * (len(WAITS) + 1))
            daemon.end()
    found: dict[str, list[int]] = {}
    for _, span in received.spans:
        parts = {k: v for k, v in attributes(span.attributes).items() if k.startswith("go.why.")}
        took = span.end_time_unix_nano - span.start_time_unix_nano
        assert sum(parts.values()) == (took if span.name in WAITS else 0), span.name
        found.setdefault(span.name, []).append(parts.get(WAITS.get(span.name, ""), 0))
    assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(
        [*WAITS, "main.receives"], 2
    )
    # Who ends a wait begins to count before it does, which a machine that is busy can hold up.
    assert all(ns > 0.4 * LONG for name in WAITS for ns in found[name])


def test_the_configuration_of_parts() -> None:
    text = "targets: [{name: a, exe: /a}]\notlp: {endpoint: 'http://a'}\nspans:\n  - {probe: f"
    assert [parse_config("x", text + more).spans[0].why for more in ("}", ", why: true}")] == [
        False,
        True,
    ]
