# SPDX-License-Identifier: Apache-2.0
"""How long a run goes on reading and writing once it has ended."""

from __future__ import annotations

import time

import pytest

from gotrace.cli.pace import turns
from gotrace.cli.stream import Patience
from gotrace.errors import UsageError


@pytest.mark.parametrize(("words", "least", "most"), [("", 0, 1), ("0", 0, 1), ("60.5", 60, 62)])
def test_a_run_has_more_time_where_that_is_asked_for(
    words: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_DRAIN", words)
    patience = Patience()
    now = time.monotonic()
    patience.end(now)
    assert least <= next(turns(patience, 1000)) - now <= most
    patience.end(now - 2)
    assert patience.is_over() == (least == 0)


@pytest.mark.parametrize("words", ["x", "-1", "inf", "nan"])
def test_what_is_not_a_number_of_seconds_is_refused(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_DRAIN", words)
    with pytest.raises(UsageError, match=f"GOTRACE_DRAIN is a number of seconds, not '{words}'"):
        Patience()
