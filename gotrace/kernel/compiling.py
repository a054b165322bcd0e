# SPDX-License-Identifier: Apache-2.0
"""Announce that a BPF program is about to be compiled, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable

_told: list[Callable[[], None]] = []


def tell_of_compiling(told: Callable[[], None]) -> None:
    """Have a function called, in whatever thread, before this process compiles a program."""
    _told.append(told)


def say_compiling() -> bool:
    """Call what was given to ``tell_of_compiling``; return whether anybody was told."""
    for told in _told:
        told()
    return bool(_told)
