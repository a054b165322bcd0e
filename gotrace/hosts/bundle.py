# SPDX-License-Identifier: Apache-2.0
"""The bundle that is unpacked on hosts which have no command of their own."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from gotrace.errors import UsageError

__all__ = ["Bundle", "read_bundle"]

_TOP = "gotrace/bin/"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed bundle: its bytes, and the digest by which hosts know it."""

    data: bytes
    digest: str


def read_bundle(path: str, tool: str) -> Bundle:
    """Return what ``make bundle`` has made, which has to have a command. Raises UsageError."""
    try:
        data = Path(path).read_bytes()
        with tarfile.open(path, "r:gz") as tar:
            names = tar.getnames()
    except (OSError, tarfile.TarError, EOFError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--push {path}: {reason}: make bundle makes one") from error
    if f"{_TOP}{tool}" not in names:
        raise UsageError(f"--push {path}: has no {_TOP}{tool}: it is not what make bundle makes")
    return Bundle(data, hashlib.sha256(data).hexdigest())
