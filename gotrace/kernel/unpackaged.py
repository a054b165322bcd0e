# SPDX-License-Identifier: Apache-2.0
"""Options to leave out of a run whose program no package carries, so that it needs no compiler."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.errors import said

#: The user's options, by the settings that exist, or have another value, only with them; if the
#: library has them, what they are there.
_ASKED: dict[str, str | tuple[str, str]] = {
    "WHY": ("--why", "why=True"),
    "WHY_PARTS": ("--why", "why=True"),
    "WHY_BANDS": ("--why", "why=True"),
    "SLOWER": "--slower",
    "GOROUTINES": ("-g", "by_goroutine=True"),
    "OF": ("--of", "of"),
    "KEY": ("--by", "by"),
    "STACK_KEY": ("$stack in --by", "$stack in by"),
    "NESTED": "spans",
    "LAYOUTS": "all programs but one",
    "TGID_1": "all processes but one",
}


def what_to_leave_out(shape: frozenset[str], others: Sequence[frozenset[str]]) -> str | None:
    """Return the fewest options without which a run can use another program of its source.

    Return None if there are none: the kernel needs another program, or each program differs in
    more than in what a user asks for.
    """
    found = [asked for each in others if (asked := _asked(shape, each)) is not None]
    fewest = min(map(len, found), default=0)
    return next((" and ".join(asked) for asked in found if len(asked) == fewest), None)


def _asked(shape: frozenset[str], other: frozenset[str]) -> list[str] | None:
    """Return the options in which a shape differs from another, None if it differs in more."""
    own, others = _names(shape - other), _names(other - shape)
    comes_along = _WITH_THEM | _WITH_WHY if "WHY" in own else _WITH_THEM
    if not own <= _ASKED.keys() | comes_along or not others <= own:
        return None
    words = (words for name, words in _ASKED.items() if name in own)
    return list(dict.fromkeys(one if isinstance(one, str) else said(*one) for one in words))


def _names(definitions: frozenset[str]) -> set[str]:
    return {each.partition("=")[0] for each in definitions}


#: Settings that exist only with one of these: of --by, of processes, and of --why.
_WITH_THEM = {
    *("KEYS", "KEY_ROWS", "TIMES", "ROWS", "STRIPES", "HISTOGRAMS", "HISTOGRAM_ROWS", "WIDE"),
    "UNIT",
    *(f"TGID_{number}" for number in range(2, 9)),
}
_WITH_WHY = {
    *("WHY_ROWS", "WHY_SAVED", "WHY_SITES", "WHY_THREADS", "WHY_UNNAMED", "WHY_CALLERS"),
    *("WHY_CLASSES", "TASK_PID", "TASK_STATE"),
    *("TASK_THROTTLED", "TASK_CFS_RQ", "CFS_RQ_THROTTLED", "CFS_RQ_RQ", "RQ_CLOCK"),
    *("TASK_RUN_DELAY", "TASK_LAST_QUEUED", "G_STATUS", "G_SYSCALLPC", "G_SCHED_PC"),
    *("G_SCHED_BP", "G_COROARG"),
}
