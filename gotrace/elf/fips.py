# SPDX-License-Identifier: Apache-2.0
"""The code that a program hashes when it starts in FIPS mode.

Go 1.24 and newer: the linker puts the functions of ``crypto/internal/fips140`` in one range, and
where that is, with its hash, in ``go:fipsinfo`` (src/cmd/link/internal/ld/fips.go). The program
ends if the range has another hash (src/crypto/internal/fips140/check/check.go).
"""

from __future__ import annotations

import struct

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage

_SECTION = ".go.fipsinfo"
_MAGIC = b"\xff Go fipsinfo \xff\x00"
#: The magic, the hash, where this is itself, and where the first range, the code, begins and ends.
_INFO = struct.Struct("<16s32s3Q")


def hashed_code(image: ElfImage) -> tuple[int, int]:
    """Return where the code begins and ends, as link-time addresses; an empty range without it."""
    section = image.section(_SECTION)
    if section is not None:
        places = [section.address]
    else:
        places = [] if image.sections else image.occurrences(_MAGIC)
    for place in places:
        try:
            content = image.read_relocated(place, _INFO.size)
        except ElfError:
            continue
        magic, _, own, start, end = _INFO.unpack(content)
        if magic == _MAGIC and own == place:
            return start, end
    return 0, 0
