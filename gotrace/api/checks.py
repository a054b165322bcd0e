# SPDX-License-Identifier: Apache-2.0
"""Bounds of what a caller of the library may ask for, its warnings, and the system's refusals."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from gotrace.calls import LostCalls
from gotrace.errors import GotraceError, UsageError
from gotrace.session.keys import MAX_KEY_TEXT, KeyText, key_of
from gotrace.session.open_calls import Diagnostic
from gotrace.session.run import NoteKind, Run
from gotrace.text import counted

#: Where calls are seen returning.
ReturnsName = Literal["ret", "landing", "auto"]
_MAX_WARNINGS = 5


class TracingWarning(UserWarning):
    """Something is not traced, or not as asked; the message says what and why."""


def checked_budget(share: float | None) -> float | None:
    """Return a share of a CPU; raise UsageError if it is none."""
    if share is not None and not 0 < share <= 100:
        raise UsageError(f"budget is {share}: give a part of one CPU, 0.02 for 2%")
    return share


def check_budget(run: Run[Any, Any], lossy: bool = False) -> None:
    """Raise an error for calls that the budget left unmeasured; if ``lossy``, warn of them."""
    texts = [note.text for note in run.news() if note.kind is NoteKind.BUDGET]
    if texts and not lossy:
        raise GotraceError("; ".join(texts))
    for text in texts:
        _warn_caller(text)


def missing(run: Run[Any, Any], lost: Mapping[str, int]) -> dict[str, int]:
    """Return how much was lost, or skipped by the kernel."""
    return {what: n for what, n in (*lost.items(), ("skipped", run.meter.skipped())) if n}


def check_lost(run: Run[Any, Any], lossy: bool, lost: Mapping[str, int]) -> None:
    """Raise LostCalls if anything was lost, or skipped by the kernel, unless ``lossy``."""
    found = missing(run, lost)
    if found and not lossy:
        raise LostCalls(found)


def checked_text_size(size: int) -> int:
    """Return how many bytes of a text are compared; raise UsageError if they are too many."""
    if size > MAX_KEY_TEXT:
        raise UsageError(
            f"string_size is {size}: values are compared by {MAX_KEY_TEXT} bytes at most"
        )
    return size


def one_value(text: str) -> KeyText:
    """Return the value that histograms are made of. Raises UsageError for several."""
    of = key_of([text])
    if len(of.expressions) > 1:
        raise UsageError(f"of is {text!r}: give one value to make histograms of")
    return of


def check_numbers(seconds: float | None, depth: int = 0, **numbers: int | None) -> None:
    """Raise UsageError for a time or a number that is not positive, and for a depth beyond 5."""
    if seconds is not None and not 0 < seconds < 1e9:
        raise UsageError(f"seconds is {seconds}: give a positive number, or leave it out")
    for name, number in numbers.items():
        if number is not None and not 0 < number <= sys.maxsize:
            raise UsageError(f"{name} is {number}: give a positive whole number, or leave it out")
    if not 0 <= depth <= 5:
        raise UsageError(f"depth is {depth}: give 0 to 5")


def some_patterns(patterns: Sequence[str]) -> Sequence[str]:
    """Return patterns; raise UsageError if there are none."""
    if not patterns:
        raise UsageError("no functions were given: type a pattern, such as 'main.*'")
    return patterns


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn the system's refusals into a GotraceError."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError, say, of the caller's own handler of a signal
        what = f"{error.filename}: " if error.filename else ""
        raise GotraceError(f"cannot trace: {what}{error.strerror or error}") from error


def warn_of_notes(run: Run[Any, Any]) -> None:
    """Warn of functions that are not traced."""
    notes = (*run.warnings(), *run.inlined("seen"))
    texts = [note.text for note in notes if note.kind is not NoteKind.FAILED]
    for text in texts[:_MAX_WARNINGS]:
        _warn_caller(text)
    if len(texts) > _MAX_WARNINGS:
        _warn_caller(f"and {len(texts) - _MAX_WARNINGS} more warnings")


def warn_of_unwound(counts: Mapping[Diagnostic, int]) -> None:
    """Warn of calls that have no time, and no results."""
    if calls := counts[Diagnostic.UNWOUND]:
        text = "{} call{s} did not return, unwound by a panic or runtime.Goexit: not in the results"
        _warn_caller(counted(text, calls))


def _warn_caller(text: str) -> None:
    """Warn at the line that has called this package."""
    frame, level = sys._getframe(1), 2
    package = os.path.dirname(__file__)
    while os.path.dirname(frame.f_code.co_filename) == package and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TracingWarning, stacklevel=level)
