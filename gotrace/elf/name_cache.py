# SPDX-License-Identifier: Apache-2.0
"""Keep the names of programs' functions for the next press of a key, by build ID."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence

from gotrace.elf.image import ElfImage
from gotrace.kept import kept_folder

_FORMAT = b"gotrace names 1\n"
_SECTIONS = (".note.go.buildid", ".note.gnu.build-id")
_MAX_FILES = 32
_MAX_BYTES = 256 << 20


def kept_names(image: ElfImage, read: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Return the names that ``read`` finds in a file, or has found in one with its build ID."""
    key = _key(image)
    if key is None:
        return read()
    with kept_folder("names", _MAX_FILES, _MAX_BYTES) as folder:
        kept = None if folder is None else _kept(folder.read(key))
        if kept is None:
            kept = read()
            if folder is not None:
                folder.write(key, _packed(kept))
    return kept


def _key(image: ElfImage) -> str | None:
    """Return a name for files with a file's build ID, None if it has none."""
    found = [image.section(name) for name in _SECTIONS]
    ids = [bytes(image.section_bytes(section)) for section in found if section is not None]
    if not ids:
        return None
    # A stripped program has the build ID of the whole one, and fewer names.
    return hashlib.blake2b(b"".join([*ids, b"%d" % len(image.data)]), digest_size=16).hexdigest()


def _kept(data: bytes | None) -> Sequence[str] | None:
    if data is None or not data.startswith(_FORMAT):
        return None
    try:
        return zlib.decompress(data[len(_FORMAT) :]).decode().split("\n")
    except (zlib.error, UnicodeDecodeError):
        return None


def _packed(names: Sequence[str]) -> bytes:
    """Return a file's bytes. Names with a line's end are not completed anyway."""
    text = "\n".join(name for name in names if name.isprintable())
    return _FORMAT + zlib.compress(text.encode(), 1)
