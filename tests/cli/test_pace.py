# SPDX-License-Identifier: Apache-2.0
"""Say that no call has been seen, after five seconds in which the tool itself has run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.cli import pace as module
from gotrace.cli.pace import pace
from gotrace.report.output import Notice


def warnings(monkeypatch: pytest.MonkeyPatch, stop: float, seen_after: float) -> list[Any]:
    """Return the kinds of warnings of a run of 9 s.

    Its first wait takes ``stop`` seconds more, as of a process that is stopped, and calls are seen
    ``seen_after`` seconds after that wait.
    """
    now, stopped_until = 0.0, stop

    def is_over(seconds: float) -> bool:
        nonlocal now
        now += stop if not now and stop else max(seconds, 0.001)
        return now > 9

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(module, "time", clock)
    run: Any = SimpleNamespace(
        begin=lambda seconds: None,
        began=0.0,
        is_over=is_over,
        news=list,
        asked=None,
        end=None,
        target=SimpleNamespace(process=None),
        attached=SimpleNamespace(stopped_at=None),
    )
    notices: list[Notice] = []
    output: Any = SimpleNamespace(patience=SimpleNamespace(), notice=notices.append)
    options: Any = SimpleNamespace(duration=None)
    seen = lambda: now >= stopped_until + seen_after  # noqa: E731
    for _ in pace(options, run, output, lambda over: False, 0.025, seen):
        pass
    return [notice.fields["what"] for notice in notices]


def test_no_call_in_five_seconds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings(monkeypatch, 0, 5.5) == ["silent"]
    assert warnings(monkeypatch, 0, 4.5) == []


def test_a_stop_of_the_tool_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings(monkeypatch, 6, 0.2) == []
    assert warnings(monkeypatch, 6, 1.5) == ["silent"]
