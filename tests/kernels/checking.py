# SPDX-License-Identifier: Apache-2.0
"""Run checks in a guest, one after the other, and report what each has seen."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernels.order import Order, Result


@dataclass
class Checks:
    """Run checks one after the other and print a line for each; a failure ends its check only."""

    order: Order
    failed: bool = False

    def run(self, check: str, method: str, function: Callable[[], str]) -> None:
        """Run one check, which returns what it saw or raises, and print its result."""
        if not self.order.wants(check):
            return
        before = time.monotonic()
        try:
            detail, ok = function(), True
        except Exception as error:
            detail, ok = failure(error), False
        self.report(Result(check, method, ok, round(time.monotonic() - before, 1), detail))

    def report(self, result: Result) -> None:
        self.failed = self.failed or not result.ok
        sys.stdout.write(result.to_line())
        sys.stdout.flush()

    def of_one_run(
        self, method: str, run: Callable[[], Any], checks: Mapping[str, Callable[[Any], str]]
    ) -> None:
        """Run a tool once and hold several checks against what it printed.

        The first check's time is that of the run. Where the run fails, all fail.
        """
        if not any(map(self.order.wants, checks)):
            return
        before = time.monotonic()
        try:
            seen = run()
        except Exception as error:
            for check in checks:
                seconds = round(time.monotonic() - before, 1)
                self.report(Result(check, method, False, seconds, failure(error)))
            return
        spent = time.monotonic() - before
        for check, function in checks.items():
            if not self.order.wants(check):
                continue
            began = time.monotonic()
            try:
                detail, ok = function(seen), True
            except Exception as error:
                detail, ok = failure(error), False
            seconds = round(spent + time.monotonic() - began, 1)
            self.report(Result(check, method, ok, seconds, detail))
            spent = 0.0


def failure(error: BaseException) -> str:
    """Return an error in one line: its words, or the assertion that does not hold, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if "/tests/" in f.filename), frames[-1])
    words = str(error) or f"does not hold: {place.line}"
    sys.stderr.write("".join(traceback.format_exception(error)))
    return f"{words[:400]} ({Path(place.filename).name}:{place.lineno})"
