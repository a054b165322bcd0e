# SPDX-License-Identifier: Apache-2.0
"""Keep requests on disk until a collector takes them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from gotrace.errors import GotraceError

__all__ = ["Spool"]

_NAME = re.compile(r"([0-9]{20})-([0-9]{1,6})\.otlp", re.ASCII)


class Spool:
    """A directory of requests, each a file whose name has its number and how many spans it has.

    One thread uses it. What an earlier process has left is sent first.
    """

    def __init__(self, path: str, most: int) -> None:
        """Use a directory of at most so many bytes. Raises GotraceError."""
        self._place = Path(path)
        self._most = most
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = sorted(
                (int(match[1]), int(match[2]))
                for match in map(_NAME.fullmatch, os.listdir(path))
                if match
            )
            self._files = found
            self._bytes = sum(self._path(*one).stat().st_size for one in found)
            for half in self._place.glob("*.part"):
                half.unlink()
            if not os.access(path, os.W_OK | os.X_OK):
                raise GotraceError(f"otlp: disk: {path} cannot be written to")
        except OSError as error:
            raise GotraceError(f"otlp: disk: {path}: {error.strerror}") from error

    def __len__(self) -> int:
        return len(self._files)

    def _path(self, number: int, count: int) -> Path:
        return self._place / f"{number:020d}-{count}.otlp"

    def add(self, data: bytes, count: int) -> bool:
        """Keep a request of some spans; return whether there was room for it."""
        if self._bytes + len(data) > self._most:
            return False
        number = self._files[-1][0] + 1 if self._files else 1
        path = self._path(number, count)
        half = path.with_suffix(".part")
        try:
            descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            half.rename(path)
        except OSError:
            with suppress(OSError):
                half.unlink()
            return False
        self._files.append((number, count))
        self._bytes += len(data)
        return True

    def oldest(self) -> tuple[bytes, int] | None:
        """Return the oldest request and how many spans it has, None if there is no more."""
        while self._files:
            with suppress(OSError):
                return self._path(*self._files[0]).read_bytes(), self._files[0][1]
            self._files.pop(0)  # somebody has removed it
        return None

    def drop_oldest(self) -> None:
        """Remove the oldest request."""
        path = self._path(*self._files.pop(0))
        with suppress(OSError):
            self._bytes -= path.stat().st_size
            path.unlink()
