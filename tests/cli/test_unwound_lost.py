# SPDX-License-Identifier: Apache-2.0
"""Calls that did not return are counted apart where the calls lost are not shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.cli.tracing import _footer
from gotrace.session.decode import Undecided
from gotrace.session.events import HEADER, CallFlag, is_unwound
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.reading import RecordReader
from gotrace.session.trace import CallTracer


@pytest.mark.parametrize(
    ("dropped", "in_kernel", "shown", "missing"),
    [
        (60_003, 0, 9, 1_691),
        (0, 60_003, 9, 1_691),
        (1_000, 0, 1_700, 0),
        (0, 0, 9, 0),  # calls of other threads, say: nothing is lost
        (60_003, 0, None, 0),
    ],
)
def test_lost_calls_that_did_not_return(
    dropped: int, in_kernel: int, shown: int | None, missing: int
) -> None:
    counts = dict.fromkeys(Diagnostic, 0)
    counts |= {Diagnostic.UNWOUND: 1_700, Diagnostic.EVENTS_LOST: in_kernel}
    tracer: Any = SimpleNamespace(
        dropped=dropped,
        window=SimpleNamespace(late=2),
        diagnostics=lambda: counts,
        open_calls=lambda: 0,
        skipped=lambda: 0,
        LOSSES=CallTracer.LOSSES,
    )
    notices = list(
        _footer(RecordReader(tracer), ProbePlan((), ()), Undecided(), 497, shown, "a hint")
    )
    *others, last = [each.message for each in notices]
    assert last == "2 calls shown out of order"
    said = [one for one in others if one.endswith(" that did not return among those lost: a hint")]
    assert said == (
        [f"{missing} calls that did not return among those lost: a hint"] * bool(missing)
    )


def test_flags_of_a_record() -> None:
    flags = {flag: is_unwound(HEADER.pack(*[0] * 8, flag, 0, 0)) for flag in CallFlag}
    assert [flag for flag, unwound in flags.items() if unwound] == [CallFlag.PANIC, CallFlag.GOEXIT]
