# SPDX-License-Identifier: Apache-2.0
"""Programs in FIPS mode, which end at their start if their own code has a breakpoint, live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon, configured
from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, Toolchain, build, each_since, newest
from tests.tools.harness import Fixture, json_counts, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

METHODS = ("multi", "perf-cookie", "perf-ip")
FIPS = {**os.environ, "GODEBUG": "fips140=on"}
OTHER = {key: value for key, value in os.environ.items() if key != "GODEBUG"}
HASHES = "crypto/internal/fips140/sha256.*"
SUM = "crypto/internal/fips140/sha256.(*Digest).Sum"
LEFT_OUT = "left out: a program in FIPS mode ends if it finds a breakpoint in this code"
CALLS = 7


def program(toolchain: Toolchain | None = None, *flags: str) -> Path:
    return build(FIXTURES / "live_fips", toolchain or newest(), flags=flags)


def starts(built: Path) -> None:
    """Start the program in FIPS mode: it gets as far as its work, and ends well."""
    with Fixture([built], env=FIPS) as fixture:
        fixture.work("1")
        assert fixture.finish() == 0


def again(fixture: Fixture) -> None:
    """Have a process run its file once more: it is ready again."""
    fixture.say("again")
    assert int(fixture.read_until("ready ")[0]) == fixture.ready
    fixture.work("1")


@pytest.mark.parametrize("method", METHODS)
def test_every_process_of_a_file(method: str) -> None:
    built = program()
    words = ("--json", "--attach", method, f"{built}:{HASHES}", f"{built}:main.digest")
    with Fixture([built], env=FIPS) as fixture, tool("gofunccount", *words) as counting:
        again(fixture)
        starts(built)
        truth = fixture.work(str(CALLS))
        result = counting.end()
        assert fixture.finish() == 0
    assert result.status == 0
    assert json_counts(result) == {"main.digest": truth["main.digest"] + 2}


@each_since(24)
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w", "-buildmode=pie")], ids=["", "stripped"])
def test_commands(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    built = program(toolchain, *flags)
    with tool("gofunccount", "--json", "*", "-x", "runtime.*", "--", built, env=FIPS) as counting:
        counting.read_until("ready ")
        counting.say()
        result = counting.result()
    assert result.status == 0
    (ended,) = of_kind(result, "exited")
    assert ended["status"] == 0
    assert LEFT_OUT in of_kind(result, "warning")[0]["message"]


@pytest.mark.parametrize("method", METHODS)
def test_one_process_in_fips_mode(method: str) -> None:
    built = program()
    with Fixture([built], env=FIPS) as fixture:
        words = ("--attach", method, "-p", str(fixture.ready), "crypto/*", "main.digest")
        with tool("gofunccount", "--json", *words) as counting:
            starts(built)
            fixture.work("1")
            again(fixture)
            result = counting.result()  # the process runs another program
        assert fixture.finish() == 0
    assert result.status == 0
    assert json_counts(result)["main.digest"] in (1, 2)
    assert LEFT_OUT in of_kind(result, "warning")[0]["message"]


@pytest.mark.parametrize("method", METHODS)
def test_one_process_in_no_such_mode(method: str) -> None:
    """Breakpoints are where no other process gets them, and there alone."""
    built = program()
    with Fixture([built], env=OTHER) as fixture:
        words = ("--json", "--attach", method, "-p", str(fixture.ready), HASHES, "main.digest")
        with tool("gofunccount", *words) as counting:
            starts(built)
            truth = fixture.work(str(CALLS))
            result = counting.end()
        assert fixture.finish() == 0
    counts = json_counts(result, truth)
    kept = of_kind(result, "warning")[0]["message"] if method != "multi" else ""
    assert counts == (truth if method == "multi" else {**truth, SUM: 0})
    assert ("if it finds a breakpoint in this code" in kept) == (method != "multi")


def test_returns_are_not_seen_in_that_code() -> None:
    """What it calls itself is measured at RETs."""
    built = program()
    words = ("--returns", "landing", "-v", f"{built}:runtime.growslice")
    with Fixture([built], env=FIPS) as fixture, tool("gofunclatency", "--json", *words) as timing:
        moved = timing.lines_until('{"kind":"moved"')
        starts(built)
        result = timing.end()
        assert fixture.finish() == 0
    assert result.status == 0
    assert '"returns":"ret"' in moved


def test_nothing_else_is_asked_for() -> None:
    result = run_tool("gofunccount", "-d", "1", f"{program()}:{SUM}")
    assert (result.status, result.lines) == (3, [])
    assert "a program in FIPS mode ends if it finds a breakpoint in this code" in result.errors
    assert len(result.errors.splitlines()) == 1


def test_gotraced(tmp_path: Path) -> None:
    built = program()
    metrics = "  - {name: crypto, type: counter, probe: 'crypto/*'}"
    config = configured(tmp_path, built, metrics)
    with Fixture([built], env=FIPS) as fixture, Daemon(config, probes=1) as daemon:
        again(fixture)
        starts(built)
        assert any("left out" in line for line in daemon.log)
        daemon.end()
        assert fixture.finish() == 0


@pytest.mark.thorough
def test_boringcrypto() -> None:
    """BoringSSL's module checks itself in each process."""
    syso = newest().go.parents[1] / "src/crypto/internal/boring/syso"
    if not any(syso.glob("*.syso")):
        skip_or_fail("this Go has no BoringSSL")
    env = {"GOEXPERIMENT": "boringcrypto"}
    built = build(FIXTURES / "live_fips", newest(), env=env)
    with tool("gofunccount", "--json", "*", "-x", "runtime.*", "--", built, env=OTHER) as counting:
        counting.read_until("ready ")
        counting.say()
        result = counting.result()
    (ended,) = of_kind(result, "exited")
    assert ended["status"] == 0
    assert LEFT_OUT in of_kind(result, "warning")[0]["message"]
