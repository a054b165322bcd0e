# SPDX-License-Identifier: Apache-2.0
"""The error root: everything that can be reported to a user in one line."""

from __future__ import annotations

from typing import ClassVar


class GotraceError(Exception):
    """One failure in one line: what failed, on what, why, what to do.

    ``exit_code`` is the process's exit status when the error reaches the command line.
    """

    exit_code: ClassVar[int] = 1


class UsageError(GotraceError):
    """Words on the command line that make no sense together."""

    exit_code = 2


class NoMatchError(GotraceError):
    """Nothing in the target matches what was asked for."""

    exit_code = 3
