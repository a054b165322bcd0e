# SPDX-License-Identifier: Apache-2.0
"""The error root: everything that can be reported to a user in one line, and in whose words."""

from __future__ import annotations

from typing import ClassVar

_speaks_as_command = False


def speak_as_command() -> None:
    """Have this process's errors and warnings name options, not the parameters of the library."""
    global _speaks_as_command
    _speaks_as_command = True


def said(command: str, library: str) -> str:
    """Return the words for something that commands and the library are asked in different ways."""
    return command if _speaks_as_command else library


def needs_one_process(what: str) -> str:
    """Return why a measurement cannot be without a process."""
    how = said("give -p PID or a command", "use attach(pid) or start(command)")
    return f"{what} one process: {how}"


class GotraceError(Exception):
    """One failure in one line: what failed, on what, why, what to do.

    ``exit_code`` is the process's exit status when the error reaches the command line.
    """

    exit_code: ClassVar[int] = 1


class UsageError(GotraceError):
    """Words on the command line that make no sense together."""

    exit_code = 2


class WrongTypeError(UsageError, TypeError):
    """An argument of the library that its function does not declare, or not with this type."""


class NoMatchError(GotraceError):
    """Nothing in the target matches what was asked for."""

    exit_code = 3
