# SPDX-License-Identifier: Apache-2.0
"""Refuse files and folders that another user could have changed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from gotrace.errors import UsageError

_MAX_BYTES = 1 << 20


def read_trusted(path: str, what: str = "configuration") -> str:
    """Return the text of a file that no other user could have written. Raises UsageError."""
    try:
        # Not blocking: on what should not be here, such as a pipe, it would.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        problem = None
        if not stat.S_ISREG(found.st_mode):
            problem = "it is not a file"
        elif found.st_uid not in (0, os.geteuid()):
            problem = f"user {found.st_uid} owns it: chown it to root or to who runs gotraced"
        elif found.st_mode & stat.S_IWOTH:
            problem = "every user may write to it: chmod o-w"
        elif found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
            problem = f"group {found.st_gid} may write to it: chmod g-w"
        elif found.st_size > _MAX_BYTES:
            problem = f"it has more than {_MAX_BYTES} bytes"
        if problem:
            raise UsageError(f"{what} {path} is refused: {problem}")
        data = b"".join(iter(lambda: os.read(descriptor, _MAX_BYTES), b""))
    finally:
        os.close(descriptor)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8: byte {error.start}") from error


def open_folder(path: str) -> int:
    """Return a descriptor of a folder for files of this process; make it if it is missing.

    Raises UsageError if others may write to it.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"the folder {path} is refused: {error.strerror}") from error
    found = os.fstat(descriptor)
    problem = None
    if found.st_uid not in (0, os.geteuid()):
        problem = f"user {found.st_uid} owns it: chown it to root or to who runs gotraced"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "other users may write to it: chmod go-w"
    elif not os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
        problem = "gotraced may not write to it"
    if problem:
        os.close(descriptor)
        raise UsageError(f"the folder {path} is refused: {problem}")
    return descriptor


def check_folder(path: str) -> None:
    """Make a folder for files if it is missing. Raises UsageError if others may write to it."""
    os.close(open_folder(path))
