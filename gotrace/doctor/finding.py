"""Hold what a check found out about the machine or a target, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Finding",
    "State",
]


class State(Enum):
    """Say what a check's result means for tracing."""

    FINE = "fine"
    FALLS_BACK = "falls back"  # tracing is possible, with less or by other means
    MEND = "must be mended"  # or tracing is not possible


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold one check's result.

    ``advice`` says what follows, for something that falls back, or how it is mended. ``log`` is
    what a compiler or the verifier printed.
    """

    check: str
    state: State
    found: str
    advice: str | None = None
    log: str = ""
