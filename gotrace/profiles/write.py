# SPDX-License-Identifier: Apache-2.0
"""Write profiles to files, in the forms that their names ask for."""

from __future__ import annotations

import os
from collections.abc import Callable

from gotrace.errors import GotraceError
from gotrace.profiles.folded import folded
from gotrace.profiles.html import html
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope

__all__ = ["FOLDED", "Make", "is_profile", "write_content", "write_profile"]

#: What names of folded stacks end in.
FOLDED = ".folded"

#: Makes the content of a file.
Make = Callable[[StackProfile], bytes | str]

#: The forms by the ends of their files' names.
_FORMS: dict[str, Make] = {
    ".pb.gz": pprof,
    ".pprof": pprof,
    ".speedscope.json": speedscope,
    FOLDED: folded,
    ".html": html,
}


def is_profile(path: str) -> bool:
    """Return whether a file's name asks for a profile."""
    return path.endswith(tuple(_FORMS))


def write_profile(
    path: str | os.PathLike[str], profile: StackProfile, make: Make | None = None
) -> None:
    """Write a profile in the form that its file's name asks for, or else in pprof's.

    ``make`` is another form, whatever the name is. Raises GotraceError.
    """
    name = os.fspath(path)
    if make is None:
        make = next((form for end, form in _FORMS.items() if name.endswith(end)), pprof)
    write_content(path, make(profile))


def write_content(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file. Raises GotraceError."""
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise GotraceError(f"{os.fspath(path)}: cannot write: {error.strerror or error}") from error
