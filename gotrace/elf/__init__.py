# SPDX-License-Identifier: Apache-2.0
"""Bytes in, records out: ELF images, symbols, DWARF, function tables.

May import: errors. Start reading at ``image.ElfImage`` (one file), ``functions.load_functions``
(its functions by name and address).
"""

from __future__ import annotations

from gotrace.errors import GotraceError


class ElfError(GotraceError):
    """A file that is not a usable ELF image, or a table in it that is damaged."""
