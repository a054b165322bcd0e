# SPDX-License-Identifier: Apache-2.0
"""The options of gooffcpu, for its parser and its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.cli.stack_options import StackOptions
from gotrace.session.choices import WaitState


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GooffcpuOptions(StackOptions):
    """The options of gooffcpu."""

    state: WaitState
    names: bool
    reason: list[str]
    wakers: bool
    open: bool
    system: bool
    budget: float | None
