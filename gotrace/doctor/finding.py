# SPDX-License-Identifier: Apache-2.0
"""Findings of checks on the machine or a target, and their consequences."""

from __future__ import annotations

from enum import Enum

from gotrace.records import dataclass


class CheckState(Enum):
    """The meaning of a check's result for tracing."""

    OK = "ok"
    WARN = "warn"  # tracing works, with less or by other means
    FAIL = "fail"  # tracing does not work until it is fixed


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    ``advice`` is what follows from a warning, or how to fix a failure. ``log`` is what a compiler
    or the verifier printed.
    """

    check: str
    state: CheckState
    found: str
    advice: str | None = None
    log: str = ""
