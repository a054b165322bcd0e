# SPDX-License-Identifier: Apache-2.0
"""Keep the names of programs' functions for the next press of a key, by build ID.

They are in the user's own cache, ``gotrace/names`` in ``XDG_CACHE_HOME`` or ``~/.cache``. If that
cannot be written, or belongs to someone else, nothing is kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gotrace.elf.image import ElfImage

_FORMAT = b"gotrace names 1\n"
_SECTIONS = (".note.go.buildid", ".note.gnu.build-id")
_MAX_FILES = 32
_MAX_BYTES = 64 << 20


def kept_names(image: ElfImage, read: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Return the names that ``read`` finds in a file, or has found in one with its build ID."""
    key = _key(image)
    if key is None:
        return read()
    path = _folder() / key
    kept = _kept(path)
    if kept is None:
        kept = read()
        with suppress(OSError):
            _keep(path, kept)
    return kept


def _key(image: ElfImage) -> str | None:
    """Return a name for files with a file's build ID, None if it has none."""
    found = [image.section(name) for name in _SECTIONS]
    ids = [bytes(image.section_bytes(section)) for section in found if section is not None]
    if not ids:
        return None
    # A stripped program has the build ID of the whole one, and fewer names.
    return hashlib.blake2b(b"".join([*ids, b"%d" % len(image.data)]), digest_size=16).hexdigest()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "gotrace", "names")


def _kept(path: Path) -> Sequence[str] | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if not stat.S_ISREG(found.st_mode) or not is_own or found.st_size > _MAX_BYTES:
            return None
        data = stream.read()
    if not data.startswith(_FORMAT):
        return None
    try:
        text = zlib.decompress(data[len(_FORMAT) :]).decode()
    except (zlib.error, UnicodeDecodeError):
        return None
    with suppress(OSError):
        os.utime(path)
    return text.split("\n")


def _keep(path: Path, names: Sequence[str]) -> None:
    """Write names; raises OSError. Those with a line's end are not completed anyway."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = zlib.compress("\n".join(name for name in names if name.isprintable()).encode(), 1)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(_FORMAT + data)
            file.flush()
            os.rename(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
    files = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in files[_MAX_FILES:]:
        old.unlink()
