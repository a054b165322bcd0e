# SPDX-License-Identifier: Apache-2.0
"""Keep requests on disk until a collector takes them."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from contextlib import suppress

from gotrace.errors import GotraceError
from gotrace.fleet.trusted import open_folder

_NAME = re.compile(r"([0-9]{20})-([0-9]{1,6})(?:-([0-9]{1,2}))?\.otlp", re.ASCII)
_HALF = re.compile(r"[0-9]{20}-[0-9]{1,6}(-[0-9]{1,2})?\.part", re.ASCII)


class Spool:
    """A directory of requests, each a file whose name has its number and how many spans it has.

    If others were taken while it was refused, the name has how often that was.

    One thread uses it, and one process. The files of an earlier process are sent first. All is done
    below one descriptor, as the path may lead elsewhere later. Files of other users are left alone.
    """

    def __init__(self, path: str, most: int) -> None:
        """Use a directory of at most so many bytes. Raises GotraceError."""
        self._most = most
        self._folder = open_folder(path)
        self._is_locked = False
        #: Why the last request was not kept, None if it was.
        self.problem: str | None = None
        try:
            self._is_locked = _lock(self._folder)
            if not self._is_locked:
                reason = "another gotraced uses it: give each of them a directory of its own"
                raise GotraceError(f"otlp: disk: {path}: {reason}")
            names = os.listdir(self._folder)
            matches = [match for name in names if (match := _NAME.fullmatch(name))]
            files = sorted((int(one[1]), int(one[2]), int(one[3] or 0)) for one in matches)
            found = {one: self._found(_named(*one)) for one in files}
            #: The bytes of each file, the oldest first.
            self._files = {one: its.st_size for one, its in found.items() if _is_own(its)}
            for half in filter(_HALF.fullmatch, names):
                os.unlink(half, dir_fd=self._folder)
        except OSError as error:
            self.close()
            raise GotraceError(f"otlp: disk: cannot use {path}: {error.strerror}") from error
        except GotraceError:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Close the directory; its files stay."""
        if self._is_locked:
            _unlock(self._folder)
        os.close(self._folder)

    def _found(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False)

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._folder)

    def add(self, data: bytes, count: int, refused: int = 0) -> bool:
        """Keep a request of some spans; return whether it is kept: ``problem`` says why not.

        ``refused`` is how often it was refused while others were taken, below 100.
        """
        self.problem = None
        if not self._has_room(len(data)):
            self.problem = f"it has {self._most >> 20} MB"
            return False
        number = next(reversed(self._files))[0] + 1 if self._files else 1
        while os.access(_named(number, count, refused), os.F_OK, dir_fd=self._folder):
            number += 1  # of the exporter beside this one in a reload
        name = _named(number, count, refused)
        half = name.replace(".otlp", ".part")
        try:
            descriptor = self._open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                os.rename(half, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except OSError:
                os.unlink(half, dir_fd=self._folder)
                raise
        except OSError as error:
            self.problem = error.strerror
            return False
        self._files[number, count, refused] = len(data)
        return True

    def _has_room(self, size: int) -> bool:
        if sum(self._files.values()) + size <= self._most:
            return True
        there = set(os.listdir(self._folder))  # somebody may have made room
        self._files = {one: its for one, its in self._files.items() if _named(*one) in there}
        return sum(self._files.values()) + size <= self._most

    def oldest(self) -> tuple[bytes, int, int] | None:
        """Return the oldest request, how many spans it has, and how often it was refused.

        None after the last.
        """
        while self._files:
            one = next(iter(self._files))
            with suppress(OSError):
                return self._read(_named(*one)), *one[1:]
            del self._files[one]  # somebody has removed it
        return None

    def _read(self, name: str) -> bytes:
        """Return a file's bytes. Raises OSError if it is not this user's."""
        # Not blocking: on what should not be here, such as a pipe, it would.
        with open(self._open(name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not _is_own(os.fstat(file.fileno())):
                raise PermissionError(name)
            return file.read()

    def drop_oldest(self) -> None:
        """Remove the oldest request."""
        one = next(iter(self._files))
        del self._files[one]
        with suppress(OSError):
            os.unlink(_named(*one), dir_fd=self._folder)


#: Directories that this process has locked: a descriptor that holds the lock, and for how many.
#: A reload uses one for the exporter that begins and the one that ends.
_held: dict[tuple[int, int], tuple[int, int]] = {}
_LOCKING = 5.0  # seconds: as long as what an ended gotraced has left may keep its descriptors


def _place(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _lock(folder: int) -> bool:
    """Keep other processes from a directory; return whether no other one has it."""
    until = time.monotonic() + _LOCKING
    holder, users = _held.get(_place(folder), (-1, 0))
    while not users:
        with suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = os.dup(folder)
            break
        if time.monotonic() >= until:
            return False
        time.sleep(0.1)
    _held[_place(folder)] = holder, users + 1
    return True


def _unlock(folder: int) -> None:
    holder, users = _held.pop(_place(folder))
    if users > 1:
        _held[_place(folder)] = holder, users - 1
    else:  # in words: forked processes have this descriptor, too
        fcntl.flock(holder, fcntl.LOCK_UN)
        os.close(holder)


def _named(number: int, count: int, refused: int) -> str:
    return f"{number:020d}-{count}{f'-{refused}' if refused else ''}.otlp"


def _is_own(found: os.stat_result) -> bool:
    """Return whether this is a file of this user's that has no other name."""
    is_file = stat.S_ISREG(found.st_mode)
    return is_file and found.st_uid == os.geteuid() and found.st_nlink == 1
