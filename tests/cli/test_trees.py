# SPDX-License-Identifier: Apache-2.0
"""A request is shown once all records have been read that may say more of it."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gotrace.cli.trees import _Printer
from gotrace.requests.assemble import Assembler
from gotrace.requests.edges import EdgeKind
from gotrace.requests.waiting import LINGER
from gotrace.session.reading import Missing, RecordReader
from tests.requests.test_assemble import ROOT, call, edge, played  # noqa: F401


class Reader(RecordReader):
    """A reader of nothing, for a process that may have been stopped until now."""

    is_done = False

    def __init__(self) -> None:
        super().__init__(cast(Any, None))
        self.until = 0.0

    @property
    def complete(self) -> float:
        return self.until

    def missing(self) -> Missing:
        return Missing()


def test_a_tool_that_was_stopped_reads_on_first(
    played: Assembler,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clock goes on meanwhile, and records wait in the kernel's buffers."""
    shown: list[object] = []
    options = SimpleNamespace(
        files=SimpleNamespace(text=None),
        has_json=False,
        time=False,
        max_events=None,
    )
    reader = Reader()
    monkeypatch.setattr(_Printer, "_made", lambda _, request: request)
    files = SimpleNamespace(add=shown.append, lost=None)
    output = SimpleNamespace(out=None)
    printer = _Printer(*cast(Any, (options, played, reader, output, [files])))
    records = [edge(EdgeKind.BEGIN, 1, 100, 100, 50), call(ROOT, 1, 100, 200)]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def take(*some: bytes) -> list[object]:
        printer.take(iter(some), math.inf, lambda: False)
        return shown

    reader.until = now
    assert take(*records) == []
    now += 60  # it is stopped
    reader.until += LINGER / 2
    assert take() == []
    reader.until += LINGER
    assert len(take()) == 1
