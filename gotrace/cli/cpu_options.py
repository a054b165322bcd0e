# SPDX-License-Identifier: Apache-2.0
"""The options of gooncpu, for its parser and its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.cli.stack_options import StackOptions


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GooncpuOptions(StackOptions):
    """The options of gooncpu."""

    frequency: int
    goroutines: bool
    label: str | None
    stacks: bool
    kernel: bool
    off: bool
    functions: list[str]
