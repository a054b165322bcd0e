# SPDX-License-Identifier: Apache-2.0
"""Write profiles to files, in the forms that their names ask for."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gotrace.errors import GotraceError
from gotrace.profiles.folded import folded
from gotrace.profiles.html import html
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.text import printable

#: The ending of folded stacks' names.
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
    ".htm": html,
}
#: The endings of profiles' names.
PROFILES = tuple(_FORMS)


def is_profile(path: str) -> bool:
    """Return whether a file's name asks for a profile."""
    return path.lower().endswith(PROFILES)


def write_profile(
    path: str | os.PathLike[str], profile: StackProfile, make: Make | None = None
) -> None:
    """Write a profile in the form that its file's name asks for, or else in pprof's.

    ``make`` is another form, whatever the name is. Raises GotraceError.
    """
    name = os.fspath(path)
    if make is None:
        make = next((form for end, form in _FORMS.items() if name.lower().endswith(end)), pprof)
    write_content(path, make(profile))


def write_content(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file. Raises GotraceError."""
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    with written_whole(path) as part, open(part, "wb") as file:
        file.write(content)


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[str]:
    """Write a file as a whole, or not at all: yield the name that is to be written to.

    Raises GotraceError for what the system refuses meanwhile, and for links of other users.
    """
    name = os.fspath(path)
    try:
        real = real_path(name)
        if _is_written_in_place(name):
            yield name
            return
        descriptor, part = _beside(real)
        os.close(descriptor)
        try:
            yield part
            os.replace(part, real)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise _cannot(name, error) from error


def check_place(path: str) -> None:
    """Raise GotraceError if a file cannot be written there; nothing is changed."""
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        real = real_path(path)
        if not _is_written_in_place(path):
            descriptor, part = _beside(real)
            os.close(descriptor)
            os.unlink(part)
    except OSError as error:
        raise _cannot(path, error) from error


def real_path(path: str) -> str:
    """Return the path of a file to write without its links, each of which may be followed.

    The kernel's fs.protected_symlinks refuses to open links of other users in directories that all
    may write to. It sees nothing of a file that is replaced, and may be off: so this is its rule.
    Raises GotraceError, or OSError.
    """
    at, links = "/" if path.startswith("/") else os.getcwd(), 0
    left = path.split("/")[::-1]
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        found = os.path.join(at, name)
        try:
            link, parent = os.lstat(found), os.stat(at)
        except OSError:  # opening it says why
            return os.path.normpath(os.path.join(found, *left[::-1]))
        if not stat.S_ISLNK(link.st_mode):
            at = found
            continue
        is_shared = parent.st_mode & _SHARED == _SHARED
        if is_shared and link.st_uid not in (os.geteuid(), parent.st_uid):
            raise GotraceError(
                f"{path}: cannot write: {printable(found)} is a link of another user's in a"
                " directory that all may write to: give another path"
            )
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(found)
        at = "/" if target.startswith("/") else at
        left += target.split("/")[::-1]
    return at


_SHARED = stat.S_ISVTX | stat.S_IWOTH
_MAX_LINKS = 40  # as of path_resolution(7)


def _is_written_in_place(path: str) -> bool:
    """Return whether a file cannot be replaced: a terminal, a pipe, one in a closed directory."""
    if not os.path.exists(path):
        return False
    directory = os.path.dirname(os.path.realpath(path))
    is_closed = not os.access(directory, os.W_OK) and os.access(path, os.W_OK)
    return is_closed or not os.path.isfile(path)


def _beside(real: str) -> tuple[int, str]:
    """Create a file in the directory of another, with its rights as far as it is there."""
    descriptor, part = tempfile.mkstemp(prefix=".gotrace-", dir=os.path.dirname(real))
    try:
        mode = os.stat(real).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o666 & ~_umask()
    os.fchmod(descriptor, mode)
    return descriptor, part


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _cannot(path: str, error: OSError) -> GotraceError:
    return GotraceError(f"{path}: cannot write: {error.strerror or error}")
