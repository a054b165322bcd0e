# SPDX-License-Identifier: Apache-2.0
"""The choice of sites of arm64 functions, on literal code."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.architecture import ARM64
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.sites.machine import machine_code
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import entry_site, return_sites

ENTRY = 0x401000
CODE = machine_code(ARM64)

RET, NOP = 0xD65F03C0, 0xD503201F
LOAD_GUARD, COMPARE_SP = 0xF9400B90, 0xEB3063FF  # ldr x16,[x28,#16]; cmp sp,x16
PUSH_LR, POP_LR = 0xF81F0FFE, 0xF84107FE  # str x30,[sp,#-16]!; ldr x30,[sp],#16
ADRP_TEMPORARY, ADRP_X0 = 0x9000001B, 0x90000000
LOAD_GLOBAL = 0xF9400760  # ldr x0,[x27,#8]
LOAD_FIELD = 0xF9400400  # ldr x0,[x0,#8]
ADD = 0x8B010000  # add x0,x0,x1
SPILL, STORE_ZERO = 0xF90007E0, 0xF90007FF  # str x0,[sp,#8]; str xzr,[sp,#8]
COMPARE, MOVE_FREE = 0xF100041F, 0xAA0003F3  # cmp x0,#1; mov x19,x0
MOVE_G, MOVE_SP, MOVE_LR = 0xAA0003FC, 0x9100001F, 0xAA0003FE  # mov x28,x0; mov sp,x0; mov x30,x0
LOWER, RAISE = 0xD10043FF, 0x910043FF  # sub sp,sp,#16; add sp,sp,#16
EXCLUSIVE, SVC = 0xC85F7C00, 0xD4000001  # ldxr x0,[x0]; svc #0
RETAA, BR_X3 = 0xD65F0BFF, 0xD61F0060
LOAD_TABLE, ADD_TABLE = 0xF8627823, 0x8B020023  # ldr x3,[x1,x2,lsl #3]; add x3,x1,x2


def ls(words: int) -> int:
    return 0x54000009 | (words & 0x7FFFF) << 5


def lo(words: int) -> int:
    return 0x54000003 | (words & 0x7FFFF) << 5


def cbz(words: int) -> int:
    return 0xB4000000 | (words & 0x7FFFF) << 5


def b(words: int) -> int:
    return 0x14000000 | words & 0x3FFFFFF


def bl(words: int) -> int:
    return 0x94000000 | words & 0x3FFFFFF


def literal(words: int) -> int:
    return 0x58000000 | (words & 0x7FFFF) << 5


def code(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def function(raw: bytes, name: str = "main.f") -> FuncInfo:
    return FuncInfo(name, ENTRY, ENTRY + len(raw), 0, Origin.PCLNTAB)


#: The way to morestack and back: bl, b to the entry of a function of so many words.
def grow(words: int) -> tuple[int, int]:
    return bl(0x1000), b(-words - 1)


# words; with values, where calls are measured, and where they are counted: form, offset, sp_offset
BRANCH, FIRST, EMULATED = SiteForm.BRANCH, SiteForm.FIRST, SiteForm.EMULATED
SITES: Mapping[str, tuple[Any, ...]] = {
    "small frame": ((LOAD_GUARD, COMPARE_SP, ls(2), RET, *grow(4)), *[(BRANCH, 8, 0)] * 3),
    "large frame": (
        # mov x27,#N; subs x17,sp,x27; b.lo; cmp x17,x16; b.ls
        (LOAD_GUARD, 0xD2886A1B, 0xEB3B63F1, lo(4), 0xEB10023F, ls(2), RET, *grow(7)),
        *[(BRANCH, 20, 0)] * 3,
    ),
    "system stack": ((0xF9400F90, COMPARE_SP, ls(2), RET, *grow(4)), *[(BRANCH, 8, 0)] * 3),
    "Go 1.15": (
        # ldr x1,[x28,#16]; mov x2,sp; cmp x2,x1
        (0xF9400B81, 0x910003E2, 0xEB01005F, ls(2), RET, *grow(5)),
        *[(BRANCH, 12, 0)] * 3,
    ),
    "RET": ((RET,), *[(EMULATED, 0, 0)] * 3),
    "branch": ((cbz(2), ADD, RET), *[(EMULATED, 0, 0)] * 3),
    "arguments kept": ((COMPARE, MOVE_FREE, NOP, cbz(2), ADD, RET), *[(EMULATED, 12, 0)] * 3),
    "frame": ((PUSH_LR, SPILL, bl(4), POP_LR, RET), *[(EMULATED, 8, 16)] * 3),
    # It may as well be a store to an argument on the stack.
    "spill": ((SPILL, bl(4), RET), (FIRST, 0, 0), (EMULATED, 4, 0), (EMULATED, 4, 0)),
    "argument cleared": (
        (STORE_ZERO, bl(4), RET),
        (FIRST, 0, 0),
        (EMULATED, 4, 0),
        (EMULATED, 4, 0),
    ),
    "computed": ((ADD, RET), (FIRST, 0, 0), (FIRST, 0, 0), (EMULATED, 4, 0)),
    "own frame": ((LOWER, ADD, RAISE, RET), (FIRST, 0, 0), (FIRST, 0, 0), (EMULATED, 12, 0)),
    "still lowered": ((LOWER, ADD, RET), *[(FIRST, 0, 0)] * 3),
    "leaf that saves LR": (
        (PUSH_LR, ADD, POP_LR, RET),
        (FIRST, 0, 0),
        (FIRST, 0, 0),
        (EMULATED, 12, 0),
    ),
    "LR lost": ((MOVE_LR, bl(4), RET), *[(FIRST, 0, 0)] * 3),
    "g lost": ((MOVE_G, bl(4), RET), *[(FIRST, 0, 0)] * 3),
    "SP lost": ((MOVE_SP, bl(4), RET), *[(FIRST, 0, 0)] * 3),
    "by pointer": ((LOAD_FIELD, RET), (FIRST, 0, 0), (FIRST, 0, 0), (EMULATED, 4, 0)),
    "restartable": (
        (ADRP_TEMPORARY, LOAD_GLOBAL, RET),
        (FIRST, 4, 0),
        (FIRST, 4, 0),
        (EMULATED, 8, 0),
    ),
    "restartable, then a branch": (
        (ADRP_TEMPORARY, LOAD_GLOBAL, cbz(1), RET),
        (FIRST, 4, 0),
        (EMULATED, 8, 0),
        (EMULATED, 8, 0),
    ),
    "another address": ((ADRP_X0, LOAD_FIELD, RET), *[(EMULATED, 0, 0)] * 3),
    "nil check": ((0x3940001B, RET), (FIRST, 0, 0), (FIRST, 0, 0), (EMULATED, 4, 0)),
    "system call": ((SVC, RET), None, None, None),
    "exclusive load": ((EXCLUSIVE, RET), None, None, None),
    "loop to the entry": ((ADD, cbz(-1), RET), None, None, None),
    "loop behind the entry": ((ADD, ADD, cbz(-1), RET), *[(FIRST, 0, 0)] * 3),
    # Its branch leads nowhere that the compiler would put the way to morestack.
    "no stack check": ((LOAD_GUARD, COMPARE_SP, ls(1), RET), *[(EMULATED, 8, 0)] * 3),
}


@pytest.mark.parametrize("prologue", [PUSH_LR, 0xA9BE7BFD, LOWER])  # stp x29,x30,[sp,#-32]!
def test_c_that_jumps_by_a_table_is_probed_at_its_prologue(prologue: int) -> None:
    """What leads to the branch may be a table of bytes: no form of tables is known for all of C."""
    raw = code(prologue, cbz(3), LOAD_TABLE, BR_X3, RET)
    go = function(raw)
    assert entry_site(raw, go, ARM64).address == ENTRY + 4
    site = entry_site(raw, replace(go, origin=Origin.SYMTAB), ARM64)
    assert (site.address, site.form) == (ENTRY, FIRST)
    without = code(prologue, cbz(3), ADD, RET)
    found = entry_site(without, replace(function(without), origin=Origin.SYMTAB), ARM64)
    assert found.address == ENTRY + 4


@pytest.mark.parametrize("name", SITES)
def test_entry_site(name: str) -> None:
    words, *expected = SITES[name]
    raw = code(*words)
    for (values, at_rets), wanted in zip(
        ((True, False), (False, False), (False, True)), expected, strict=True
    ):
        if wanted is None:
            with pytest.raises(SiteError):
                entry_site(raw, function(raw), ARM64, values, at_rets)
            continue
        site = entry_site(raw, function(raw), ARM64, values, at_rets)
        assert (site.form, site.address - ENTRY, site.sp_offset) == wanted, (values, at_rets)


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        ((LOAD_FIELD, RET), [0]),
        ((ADD, LOAD_FIELD, SPILL, LOAD_FIELD, cbz(1), RET), [4, 12]),
        ((ADD, RET), []),
        ((ADRP_TEMPORARY, LOAD_GLOBAL, RET), []),
    ],
)
def test_calls_that_may_panic_before_their_site_are_known(
    words: tuple[int, ...], faults: list[int]
) -> None:
    raw = code(*words)
    site = entry_site(raw, function(raw), ARM64, values=False, at_rets=True)
    assert [at - ENTRY for at in site.faults] == faults


def test_address_of_data_ends_where_the_register_is_made_anew() -> None:
    # adrp x27; add x27,x1,#16; ldr x0,[x27,#8]: what is read is no data of the program's own.
    raw = code(ADRP_TEMPORARY, 0x9100403B, LOAD_GLOBAL, cbz(1), RET)
    assert entry_site(raw, function(raw), ARM64, False, False).form is FIRST
    assert entry_site(raw, function(raw), ARM64, False, True).faults


def returns(*words: int) -> tuple[list[int], int, tuple[int, ...]]:
    raw = code(*words)
    found = return_sites(raw, function(raw), ARM64)
    jumps_to = tuple(to - ENTRY for to in found.jumps_to)
    return [site.address - ENTRY for site in found.sites], found.tail_jumps, jumps_to


def test_returns_and_jumps() -> None:
    assert returns(ADD, RET, NOP, RET) == ([4, 12], 0, ())
    assert returns(cbz(2), RET, b(8), bl(64)) == ([4], 1, (40,))
    assert returns(ADD, BR_X3) == ([], 1, ())
    assert returns(LOAD_TABLE, BR_X3, RET) == ([8], 0, ())
    assert returns(ADD_TABLE, BR_X3, RET) == ([8], 0, ())


def test_literals_are_no_instructions() -> None:
    # The 8 bytes that the first instruction loads look like a RET and a branch.
    assert returns(literal(3), ADD, RET, RET, b(64)) == ([8], 0, ())


def test_signed_returns_are_refused() -> None:
    with pytest.raises(SiteError, match="cannot be decoded"):
        returns(ADD, RETAA)


def test_stepping_over() -> None:
    assert CODE.step_over(code(ls(4)), True) == (4, 0)
    assert CODE.step_over(code(ls(4)), False) is None
    assert CODE.step_over(code(PUSH_LR), False) == (4, -16)
    assert CODE.step_over(code(LOWER), False) == (4, -16)
    assert CODE.step_over(code(ADRP_X0), False) == (4, 0)
    assert CODE.step_over(code(RET), True) is None
    assert CODE.step_over(code(MOVE_SP), True) is None
    assert CODE.float_written(code(0x1E602820)) == 0  # fadd d0,d1,d0
    assert CODE.float_written(code(0x1E612000)) is None  # fcmp d0,d1
    assert CODE.float_written(code(0xFD4007E3)) == 3  # ldr d3,[sp,#8]
    assert CODE.float_written(code(ADD)) is None


@given(st.binary(max_size=256))
def test_any_bytes_are_decided_upon(raw: bytes) -> None:
    for choose in (
        lambda: entry_site(raw, function(raw), ARM64),
        lambda: entry_site(raw, function(raw), ARM64, False, True),
        lambda: return_sites(raw, function(raw), ARM64),
    ):
        try:
            choose()
        except SiteError:
            continue
