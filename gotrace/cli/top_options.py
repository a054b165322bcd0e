# SPDX-License-Identifier: Apache-2.0
"""The options of gotop, for its parser and its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.cli.options import Options


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GotopOptions(Options):
    """The options of gotop."""

    processes: list[str]
    delay: float
    waits: bool
    functions: list[str]
    requests: str | None
    force: bool
    batch: bool
    number: int | None
    top: int | None
