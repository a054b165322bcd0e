# SPDX-License-Identifier: Apache-2.0
"""Go's own attributes; pyelftools, which names all others, gives these by number.

Source: src/cmd/internal/dwarf/dwarf_defs.go (Go 1.27).
"""

from __future__ import annotations

import enum


class GoAttribute(enum.IntEnum):
    """Attributes that Go's compiler and linker add to DWARF's (DW_AT_go_*)."""

    KIND = 0x2900
    KEY = 0x2901
    ELEM = 0x2902
    EMBEDDED_FIELD = 0x2903
    RUNTIME_TYPE = 0x2904
    PACKAGE_NAME = 0x2905
    DICT_INDEX = 0x2906
    CLOSURE_OFFSET = 0x2907
