# SPDX-License-Identifier: Apache-2.0
"""Hold gotrace's way to float registers, a signal, against a program that must not mind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import build, newest
from tests.tools.harness import CLONE, Fixture, tool
from tests.tools.trace import calls_of

pytestmark = pytest.mark.live

WORK = CLONE / "tests" / "real" / "work"


def program() -> Path:
    return build(WORK, newest())


@pytest.mark.parametrize(
    "probe",
    [
        "runtime.sighandler(x float64, a, b, c uintptr)",
        "runtime.doSigPreempt(x float64, a uintptr)",
    ],
)
def test_no_signal_for_a_function_of_the_signal_handler(probe: str) -> None:
    """It would start the handler again when that has ended, and so on: the thread would hang.

    The functions take no floats; the signatures are others of the same size.
    """
    with Fixture([program()]) as fixture:
        fixture.say()
        fixture.read_until("busy")
        with tool("gotrace", "--json", "--entry", "-p", str(fixture.pid), probe) as tracing:
            tracing.lines_until('{"kind":"call"')
            fixture.say("status")
            fixture.read_until("status ")
            truth = fixture.work("end")  # once all goroutines have come to their end
            result = tracing.end()
        assert fixture.finish() == 0
    assert truth["wrong"] == 0, fixture.errors
    calls = calls_of(result, probe.partition("(")[0])
    assert calls
    unavailable = {"$unavailable": "in a float register that could not be read"}
    assert all(call["args"]["x"] == unavailable for call in calls)
