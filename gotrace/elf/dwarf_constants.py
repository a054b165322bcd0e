"""Name the numbers of DWARF that the reader knows: tags, attributes and attribute forms.

Sources: DWARF 5, section 7.5; the attributes 0x2900 to 0x2907 are Go's own
(src/cmd/internal/dwarf/dwarf_defs.go, Go 1.27).
"""

from __future__ import annotations

import enum

__all__ = ["ADDRESS_INDEX_FORMS", "STRING_FORMS", "Attr", "Form", "Tag"]


class Tag(enum.IntEnum):
    """Name the DIE tags (DW_TAG_*) that the reader looks at."""

    ARRAY_TYPE = 0x01
    ENUMERATION = 0x04
    FORMAL_PARAMETER = 0x05
    MEMBER = 0x0D
    POINTER_TYPE = 0x0F
    COMPILE_UNIT = 0x11
    STRUCTURE_TYPE = 0x13
    SUBROUTINE_TYPE = 0x15
    TYPEDEF = 0x16
    SUBRANGE_TYPE = 0x21
    BASE_TYPE = 0x24
    CONST = 0x26
    SUBPROGRAM = 0x2E
    VARIABLE = 0x34
    VOLATILE = 0x35
    UNSPECIFIED_TYPE = 0x3B


class Attr(enum.IntEnum):
    """Name the attributes (DW_AT_*) that the reader looks at."""

    SIBLING = 0x01
    LOCATION = 0x02
    NAME = 0x03
    BYTE_SIZE = 0x0B
    LOW_PC = 0x11
    HIGH_PC = 0x12
    LANGUAGE = 0x13
    PRODUCER = 0x25
    UPPER_BOUND = 0x2F
    ABSTRACT_ORIGIN = 0x31
    CALLING_CONVENTION = 0x36
    COUNT = 0x37
    DATA_MEMBER_LOCATION = 0x38
    DECL_LINE = 0x3B
    ENCODING = 0x3E
    SPECIFICATION = 0x47
    TYPE = 0x49
    VARIABLE_PARAMETER = 0x4B
    RANGES = 0x55
    TRAMPOLINE = 0x56
    STR_OFFSETS_BASE = 0x72
    ADDR_BASE = 0x73
    RNGLISTS_BASE = 0x74
    LOCLISTS_BASE = 0x8C
    GO_KIND = 0x2900
    GO_KEY = 0x2901
    GO_ELEM = 0x2902
    GO_EMBEDDED_FIELD = 0x2903
    GO_RUNTIME_TYPE = 0x2904
    GO_PACKAGE_NAME = 0x2905
    GO_DICT_INDEX = 0x2906
    GO_CLOSURE_OFFSET = 0x2907


class Form(enum.IntEnum):
    """Name the attribute forms (DW_FORM_*) of DWARF 2 to 5 that a linked program can hold."""

    ADDR = 0x01
    BLOCK2 = 0x03
    BLOCK4 = 0x04
    DATA2 = 0x05
    DATA4 = 0x06
    DATA8 = 0x07
    STRING = 0x08
    BLOCK = 0x09
    BLOCK1 = 0x0A
    DATA1 = 0x0B
    FLAG = 0x0C
    SDATA = 0x0D
    STRP = 0x0E
    UDATA = 0x0F
    REF_ADDR = 0x10
    REF1 = 0x11
    REF2 = 0x12
    REF4 = 0x13
    REF8 = 0x14
    REF_UDATA = 0x15
    SEC_OFFSET = 0x17
    EXPRLOC = 0x18
    FLAG_PRESENT = 0x19
    STRX = 0x1A
    ADDRX = 0x1B
    DATA16 = 0x1E
    LINE_STRP = 0x1F
    REF_SIG8 = 0x20
    IMPLICIT_CONST = 0x21
    LOCLISTX = 0x22
    RNGLISTX = 0x23
    STRX1 = 0x25
    STRX2 = 0x26
    STRX3 = 0x27
    STRX4 = 0x28
    ADDRX1 = 0x29
    ADDRX2 = 0x2A
    ADDRX3 = 0x2B
    ADDRX4 = 0x2C


ADDRESS_INDEX_FORMS = frozenset({Form.ADDRX, Form.ADDRX1, Form.ADDRX2, Form.ADDRX3, Form.ADDRX4})
STRING_FORMS = frozenset(
    {Form.STRP, Form.LINE_STRP, Form.STRX, Form.STRX1, Form.STRX2, Form.STRX3, Form.STRX4}
)
