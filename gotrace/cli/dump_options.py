# SPDX-License-Identifier: Apache-2.0
"""The options of gostacks, for its parser and its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.cli.options import SummaryOptions
from gotrace.goroutines.model import State


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GostacksOptions(SummaryOptions):
    """The options of gostacks."""

    core: list[str] | None
    all: bool
    goroutine: list[int]
    state: list[State]
    reason: list[str]
    longer: int | None
    system: bool
    args: bool
    by_label: list[str]
    folded: bool
    output: str | None
    speedscope: str | None
    watch: bool
    patterns: list[str]
    #: The process.
    pid: int | None = None
