# SPDX-License-Identifier: Apache-2.0
"""Files kept from one run to the next, in the user's own cache.

It is ``gotrace`` in ``XDG_CACHE_HOME`` or ``~/.cache``. A folder of it is used only if no other
user could have written there. Everything in it can be removed at any moment. If it cannot be
written, nothing is kept.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gotrace.records import dataclass

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: A file's name, which is a digest, and what it is called until it is whole.
_NAME = re.compile(r"[0-9a-f-]{32,}")
_TEMPORARY = re.compile(r"\.[0-9a-f-]{32,}\.[0-9a-f]{16}")
_DAY, _HOUR = 86400.0, 3600.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TOP = "gotrace"


class _RefusedError(Exception):
    """Why a folder is not used."""


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """An open folder, and how many files and bytes it may have; a file has a quarter of these."""

    path: Path
    descriptor: int
    max_files: int
    max_bytes: int

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where there is none that can be used."""
        most = self.max_bytes // 4
        data = trusted_bytes(name, self.descriptor, _problem, most, os.O_NOFOLLOW)
        if data is not None:
            with suppress(OSError):
                used = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mtime
                if time.time() - used > _DAY:  # those used last are kept longest
                    os.utime(name, dir_fd=self.descriptor, follow_symlinks=False)
        return data

    def names(self) -> list[str]:
        """Return the names of the files, in order."""
        try:
            return sorted(os.listdir(self.descriptor))
        except OSError:
            return []

    def write(self, name: str, data: bytes) -> None:
        """Keep a file, where that is possible."""
        temporary = f".{name}.{os.urandom(8).hex()}"
        here = self.descriptor
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(temporary, flags, 0o600, dir_fd=here)
        except OSError:  # a file system that is full, or read only
            return
        try:
            with open(file, "wb") as stream:
                stream.write(data)
            os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=here)
            if not isinstance(error, OSError):
                raise
        self._make_room()

    def entries(self) -> list[tuple[float, int, str]]:
        """Return when each file of ours was used last, its size and its name."""
        found = []
        for name in self.names():
            if _NAME.fullmatch(name) or _TEMPORARY.fullmatch(name):
                with suppress(OSError):
                    file = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                    found.append((file.st_mtime, file.st_size, name))
        return found

    def _make_room(self) -> None:
        """Remove the files that were used least recently, and those that were never finished."""
        kept, size, now = 0, 0, time.time()
        for used, file_size, name in sorted(self.entries(), reverse=True):
            kept, size = kept + 1, size + file_size
            is_left_over = _TEMPORARY.fullmatch(name) and now - used > _HOUR
            if is_left_over or kept > self.max_files or size > self.max_bytes:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.descriptor)


def trusted_bytes(
    path: str | Path,
    folder: int | None,
    problem: Callable[[os.stat_result], str | None],
    most: int,
    flags: int = 0,
) -> bytes | None:
    """Return the bytes of a regular file that has no ``problem``, None if it cannot be used."""
    # Not blocking: on what should not be here, such as a pipe, it would.
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or problem(found) or found.st_size > most:
            return None
        return os.read(file, found.st_size)
    except OSError:
        return None
    finally:
        os.close(file)


def _problem(found: os.stat_result) -> str | None:
    """Return why a file or folder is not trusted, None where it is."""
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if found.st_mode & OTHERS_WRITE:
        return "others can write to it"
    return None


def _places() -> list[Path]:
    """Return where the cache can be, the best first.

    With sudo, HOME may be the caller's: then it is root's own home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return [Path(base)]
    homes = [os.environ.get("HOME", ""), _own_home()]
    return [Path(home, ".cache") for home in dict.fromkeys(homes) if home.startswith("/")]


def _own_home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # as in a container
        return ""


def _open(base: Path, folder: str) -> int:
    """Open a folder in a user's cache, made where it is not there.

    Raises OSError, or _RefusedError where others could have changed what is there.
    """
    resolved = Path(os.path.realpath(base))
    for above in reversed([resolved, *resolved.parents]):
        try:
            found = os.stat(above, follow_symlinks=False)
        except FileNotFoundError:
            os.mkdir(above, 0o700)
            continue
        if found.st_uid not in (0, os.geteuid()):
            raise _RefusedError(f"{above} belongs to another user")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _RefusedError(f"others can write to {above}")
    descriptor = os.open(resolved, _DIRECTORY)
    for name in (_TOP, folder):
        parent = descriptor
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
        problem = _problem(os.fstat(descriptor))
        if problem is not None:
            os.close(descriptor)
            raise _RefusedError(problem)
    return descriptor


@contextmanager
def kept_folder(
    name: str, max_files: int, max_bytes: int, refused: list[tuple[Path, str]] | None = None
) -> Iterator[KeptFolder | None]:
    """Open a folder, None where there is none that can be used.

    ``refused`` takes the folders that are not used, and why.
    """
    for base in _places():
        path = base / _TOP / name
        try:
            descriptor = _open(base, name)
        except (OSError, _RefusedError) as error:
            if refused is not None:
                reason = error.strerror if isinstance(error, OSError) else None
                refused.append((path, reason or str(error)))
            continue
        try:
            yield KeptFolder(path, descriptor, max_files, max_bytes)
        finally:
            os.close(descriptor)
        return
    yield None
