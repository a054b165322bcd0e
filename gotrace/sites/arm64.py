# SPDX-License-Identifier: Apache-2.0
"""The rules of arm64: which instruction of a function is probed, and where it returns.

All instructions are words of 4 bytes, so no disassembler is needed: the few kinds that matter are
told apart by their bits (Arm Architecture Reference Manual, chapter C4).

*The kernel.* Branches, RET, ADR and ADRP are simulated within the breakpoint's trap, in every
version; loads of literals, exclusive loads and stores, and what raises exceptions are refused; all
else is single-stepped (arch/arm64/kernel/probes/decode-insn.c).

*The stack check* ends in ``b.ls`` to where the stack grows (``stacksplit`` in
src/cmd/internal/obj/arm64/obj7.go, Go 1.15 to 1.27). Each call executes it once without taking it,
and the assembler marks the check as a place where no goroutine is preempted.

*Restartable sequences.* What the assembler makes of one instruction by means of R27, its own
register, is begun again if a goroutine is preempted within (``isRestartable`` in
src/cmd/internal/obj/arm64/asm7.go). A probe on the first instruction of such a sequence is hit once
more. So no site is behind the check, where a large frame is made by one, nor on an ``adrp x27``,
of which the linker may have made an ``adr``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from gotrace.elf.functions import FuncInfo, Origin
from gotrace.sites.records import MAX_SIZE, Branch, Choice, Exits, Flow, SiteError, SiteForm

_RET = 0xD65F03C0  # of the link register
_SP = ZR = 31
_LR, _G, _TEMPORARY = 30, 28, 27
#: Registers that carry no argument: R16 to R25, R27 and the frame pointer.
_FREE = frozenset({*range(16, 26), _TEMPORARY, 29})
#: Vector registers from here on carry none.
_FREE_FLOATS = 16
#: Compilers emit a dozen instructions before a function's first branch; leaves have more.
_MAX_WALK = 64
#: Words of a stack check: a large frame's takes nine (Go 1.15).
_MAX_CHECK = 12

#: The last byte of a word that may be a branch: b, bl, b.cond, cbz, cbnz, tbz, tbnz, br, blr, ret.
_BRANCHES = re.compile(rb"[\x14-\x17\x94-\x97\x54\x34-\x37\xb4-\xb7\xd6\xd7]")
#: The same for direct calls and jumps: b, bl.
_CALLS = re.compile(rb"[\x14-\x17\x94-\x97]")
#: The same for what loads a literal.
_LITERALS = re.compile(rb"[\x18\x58\x98\x1c\x5c\x9c]")


class Arm64:
    """The machine code of arm64, as `gotrace.sites.machine` describes it."""

    call_size = 4
    is_aligned = True

    def entry(
        self, code: bytes, function: FuncInfo, values: bool, at_rets: bool, stack: bool
    ) -> Choice:
        """Choose the entry site.

        It is the branch of the stack check. In a function without one, it is the first simulated
        instruction that a straight line leads to. For calls that are only counted (``at_rets``)
        that may be its RET, and behind what accesses memory by a pointer: see
        `Site.faults`. In all others it is the first instruction, which is single-stepped. A C
        function that jumps by a table is probed there as well, if it begins with its prologue: a
        table can have any form, but never leads back to a prologue.
        """
        branch = _check(code)
        if branch is not None:
            return Choice(branch, SiteForm.BRANCH, 0)
        is_go = function.origin is Origin.PCLNTAB
        if not is_go and self.is_prologue(code, 0) and self.jumps_by_table(code):
            return Choice(0, SiteForm.FIRST, 0)
        found = _first_simulated(code, values, at_rets, stack)
        if found is not None and _branch_to_start(code, found.offset, function) is None:
            return found
        at = _last_of_sequence(code)
        back = _branch_to_start(code, at, function)
        if back is not None:
            raise SiteError(
                f"{function.name}: no exact entry site: the jump at {function.entry + back:#x} "
                "leads back to its first instruction"
            )
        if len(code) < at + 4 or _is_refused(_word(code, at)):
            raise SiteError(f"{function.name}: the kernel allows no probe on its first instruction")
        return Choice(at, SiteForm.FIRST, 0)

    def exits(self, code: bytes) -> Exits:
        """Return a function's ways out."""
        flow = self.control_flow(code)
        targets = (jump.target for jump in flow.branches if not 0 <= jump.target < len(code))
        return Exits(flow.returns, tuple(targets), flow.tail_jumps, flow.undecodable)

    def control_flow(self, code: bytes) -> Flow:
        """Return where a function branches and returns.

        A jump to a register that the instruction before loads from a table, or computes by
        addition, is a switch and stays in the function; others leave it. A word that is read as a
        literal is not an instruction. A return that checks a signature of its address (``retaa``)
        is one that the kernel allows no probe on: the code counts as undecodable there.
        """
        returns: list[int] = []
        branches: list[Branch] = []
        calls: list[Branch] = []
        tail_jumps = 0
        for at, word in _branches(code):
            target = _target(word)
            if target is not None:
                is_call = word >> 26 == 0x25
                (calls if is_call else branches).append(Branch(at, at + target))
                tail_jumps += not is_call and not 0 <= at + target < len(code)
            elif word & 0xFFFFFC1F == 0xD65F0000:
                returns.append(at)
            elif word & 0xFFFFFC1F == 0xD61F0000:
                tail_jumps += not _is_switch(code, at, word >> 5 & 31)
            elif word & 0xFFFFFBFF == 0xD65F0BFF:
                return Flow(tuple(returns), tuple(branches), tuple(calls), tail_jumps, at)
        end = None if len(code) % 4 == 0 else len(code) & ~3
        return Flow(tuple(returns), tuple(branches), tuple(calls), tail_jumps, end)

    def step_over(self, code: bytes, falls_through: bool) -> tuple[int, int] | None:
        """Return the size of the first instruction, and the number that it adds to SP."""
        if len(code) < 4:
            return None
        word = _word(code, 0)
        if _is_simulated(word):
            is_conditional = _target(word) is not None and word >> 26 not in (0x05, 0x25)
            is_address = word & 0x1F000000 == 0x10000000
            return (4, 0) if is_address or (is_conditional and falls_through) else None
        effect = _effect(word)
        return None if effect is None else (4, effect.sp)

    def float_written(self, code: bytes) -> int | None:
        """Return the float register that the first instruction may write."""
        if len(code) < 4 or _is_simulated(_word(code, 0)):
            return None
        word = _word(code, 0)
        is_vector = word & 0x0E000000 == 0x0E000000 and not _is_comparing_floats(word)
        is_load = word & 0x0A000000 == 0x08000000 and bool(word >> 26 & 1)
        return word & 31 if is_vector or is_load else None

    def swaps(self, code: bytes) -> bool:
        """Return whether code compares and swaps: ``cas``.

        For processors without it there is a loop beside, which is like those of other atomics.
        """
        return any(word & 0x3FA07C00 == 0x08A07C00 for word in _words(code))

    def is_call(self, code: bytes, at: int) -> bool:
        return _word(code, at) >> 26 == 0x25

    def may_branch(self, code: bytes, address: int) -> Iterator[tuple[int, bool, int]]:
        """Yield words that may be direct calls and jumps: they may be literals."""
        for match in _CALLS.finditer(code[3::4]):
            at = match.start() * 4
            word = _word(code, at)
            yield at, word >> 31 == 1, address + at + _signed(word & 0x3FFFFFF, 26) * 4

    def jump_tables(self, code: bytes, address: int, loads: bool) -> Iterable[int]:
        """Return the addresses that code computes, if it jumps by a table."""
        return self.addressed(code, address) if self.jumps_by_table(code) else ()

    def fixed_tables(self, code: bytes) -> Iterable[int]:
        """Return nothing: an instruction has no room for an address."""
        return ()

    def jumps_by_table(self, code: bytes) -> bool:
        """Return whether code has a jump to a register that was loaded or added up for it."""
        return any(
            word & 0xFFFFFC1F == 0xD61F0000 and _is_switch(code, at, word >> 5 & 31)
            for at, word in _branches(code)
        )

    def is_prologue(self, code: bytes, at: int) -> bool:
        """Return whether an instruction is ``stp`` or ``str`` to ``[sp, #-n]!``, or lowers SP."""
        word = _word(code, at)
        pushes = word & 0xFFC003E0 == 0xA98003E0 or word & 0xFFE00FE0 == 0xF8000FE0
        return pushes or word & 0xFF8003FF == 0xD10003FF

    def field_of_local(self, code: bytes) -> tuple[int, int] | None:
        """Return where the stack has the first pointer that is loaded to load from behind it."""
        words = _words(code)
        for word, following in pairwise(words):
            is_local = word & 0xFFC003E0 == 0xF94003E0  # ldr from SP
            if is_local and following & 0xFFC003E0 == 0xF9400000 | (word & 31) << 5:
                return (word >> 10 & 0xFFF) * 8, (following >> 10 & 0xFFF) * 8
        return None

    def null_tests(self, code: bytes) -> list[tuple[int, int]]:
        """Return the ``cbz`` of X2 and X3, and which of them is tested."""
        return [
            (number * 4, (word & 31) - 2)
            for number, word in enumerate(_words(code))
            if word & 0xFF00001E == 0xB4000002
        ]

    def returns_no_case(self, code: bytes) -> bool:
        """Return whether code begins with ``selectgo``'s result if no case is ready."""
        return _words(code[:8]) == (0x92800000, 0x92800001)  # mov x0,#-1; mov x1,#-1

    def passes_nil(self, before: bytes) -> bool:
        """Return whether a function's first argument is nil, by the code before its call."""
        # mov x0,xzr; up to Go 1.19 mov x0,#0
        return _words(before)[-1] in (0xAA1F03E0, 0xD2800000)

    def addressed(self, code: bytes, address: int) -> Iterator[int]:
        """Yield addresses that ADRP and the instructions with its register after it may access.

        Words are taken in their order, whatever jumps over them.
        """
        pages: dict[int, int] = {}
        for number, word in enumerate(_words(code)):
            rd, rn = word & 31, word >> 5 & 31
            if word & 0x9F000000 == 0x90000000:
                pages[rd] = (address + number * 4 & ~0xFFF) + _page_offset(word)
                continue
            if rn in pages:
                if word & 0xFFC00000 == 0x91000000:  # add
                    pages[rd] = pages[rn] + (word >> 10 & 0xFFF)
                    yield pages[rd]
                    continue
                effect = _effect(word)
                if effect is not None and effect.displacement is not None:
                    yield pages[rn] + effect.displacement
            effect = _effect(word)
            for register in effect.writes if effect else ():
                pages.pop(register, None)

    def first_field(self, code: bytes) -> int | None:
        """Return the offset of the first word that is loaded far into the first argument."""
        for word in _words(code):
            if word & 0xFFC003E0 == 0xF9400000 and (word >> 10 & 0xFFF) * 8 >= _FAR:
                return (word >> 10 & 0xFFF) * 8
        return None


_FAR = 128
#: Go's UNDEF, up to 1.19.
_UNDEFINED = 0xBEA71700


def _word(code: bytes, at: int) -> int:
    return int.from_bytes(code[at : at + 4], "little")


def _page_offset(word: int) -> int:
    """Return how far the page that an ADRP addresses is from its own, in bytes."""
    return _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12


def _words(code: bytes) -> tuple[int, ...]:
    whole = len(code) // 4
    return struct.unpack_from(f"<{whole}I", code)


def _literals(code: bytes) -> set[int]:
    """Return the offsets of the words that the function's code reads as literals.

    They are behind what reads them, so that no literal is taken for an instruction.
    """
    found: set[int] = set()
    for match in _LITERALS.finditer(code[3::4]):
        at = match.start() * 4
        if at in found:
            continue
        word = _word(code, at)
        size = 4 << (word >> 30) if word >> 26 & 1 else (4, 8, 4, 0)[word >> 30]
        target = at + _signed(word >> 5 & 0x7FFFF, 19) * 4
        found.update(range(target, target + size, 4))
    return found


def _branches(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield a function's branches of all kinds: offset and word."""
    literals = _literals(code)
    for match in _BRANCHES.finditer(code[3::4]):
        at = match.start() * 4
        if at not in literals:
            yield at, _word(code, at)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _target(word: int) -> int | None:
    """Return how far a direct branch leads, None for others."""
    if word & 0x7C000000 == 0x14000000:  # b, bl
        return _signed(word & 0x3FFFFFF, 26) * 4
    if word & 0xFF000000 == 0x54000000 or word & 0x7E000000 == 0x34000000:  # b.cond, cbz, cbnz
        return _signed(word >> 5 & 0x7FFFF, 19) * 4
    if word & 0x7E000000 == 0x36000000:  # tbz, tbnz
        return _signed(word >> 5 & 0x3FFF, 14) * 4
    return None


def _is_switch(code: bytes, at: int, register: int) -> bool:
    """Return whether the instruction before a jump computes its target as switches do."""
    before = _word(code, at - 4) if at else 0
    is_table = before & 0xFFE00C00 == 0xF8600800  # ldr from base and index
    is_sum = before & 0xFF200000 in (0x8B000000, 0x8B200000)  # add
    return (is_table or is_sum) and before & 31 == register


def _check(code: bytes) -> int | None:
    """Return where the branch of Go's stack check is, None for code that begins with none.

    The check loads g.stackguard0 or g.stackguard1 into R16, up to Go 1.16 into R1, and compares SP,
    or what SP is going to be, with it. Where frames are large, conditional branches to where the
    stack grows are before that of the check, if the comparison makes no sense.
    """
    words = _words(code[: 4 * _MAX_CHECK])
    if not words or words[0] & 0xFFFFFFE0 not in (0xF9400B80, 0xF9400F80):  # ldr [x28,#16 or 24]
        return None
    for number, word in enumerate(words[1:], 1):
        if word & 0xFF00001E == 0x54000008:  # b.hi, b.ls
            target = number * 4 + (_target(word) or 0)
            # The way to morestack is laid out after the body. Anything else is not the compiler's.
            return number * 4 if word & 1 and number * 4 + 4 < target < len(code) else None
        if word & 0xFF000010 == 0x54000000:
            continue
        effect = _effect(word)
        if effect is None or effect.sp or effect.base is not None:
            return None
    return None


def _is_simulated(word: int) -> bool:
    """Return whether every kernel simulates an instruction within the breakpoint's trap."""
    return (
        word & 0xFF000010 == 0x54000000  # b.cond
        or word & 0x7C000000 in (0x14000000, 0x34000000)  # b, bl; cbz, cbnz, tbz, tbnz
        or word & 0x1F000000 == 0x10000000  # adr, adrp
        or word & 0xFFFFFC1F in (0xD61F0000, 0xD63F0000, 0xD65F0000)  # br, blr, ret
    )


#: Hints that may be single-stepped: nop, xpaclri, pac*1716, paciaz, paciasp, pacibz, pacibsp, bti.
_STEPPED_HINTS = frozenset({0, 7, 8, 10, 24, 25, 26, 27, 32, 34, 36, 38})
#: Of these, nop and bti.
_HARMLESS_HINTS = frozenset({0, 32, 34, 36, 38})


def _is_refused(word: int) -> bool:
    """Return whether the kernel allows no uprobe on an instruction."""
    if _is_simulated(word):
        return False
    if word >> 25 & 0xF in (0xA, 0xB) and word >> 29 in (0b010, 0b110):  # branches and system
        if word & 0xFFFFF01F == 0xD503201F:
            return word >> 5 & 0x7F not in _STEPPED_HINTS
        # Barriers, system instructions and reads of system registers are allowed, but for DAIF.
        return not (
            word & 0xFFC00000 == 0xD5000000
            and word & 0xFFF8F01F != 0xD500401F
            and word & 0xFFF00000 != 0xD5100000
            and word & 0xFFFFFFE0 != 0xD53B4220
        )
    return word & 0x3B000000 == 0x18000000 or word & 0x3F800000 == 0x08000000


class _Effect(NamedTuple):
    """The effect of an instruction that is followed by the next one.

    ``writes`` are general registers; ``floats`` vector registers. ``sp`` is added to the stack
    pointer, ``base`` the register by which memory is accessed, at ``displacement`` from it.
    ``stored``: the registers that are written there.
    """

    writes: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    sp: int = 0
    base: int | None = None
    displacement: int | None = None
    stored: tuple[int, ...] | None = None


#: Stands for the literals behind a function, as a base.
_LITERAL = -1


def _effect(word: int) -> _Effect | None:
    """Return an instruction's effect, None if that is not known, or is none of the above."""
    if word & 0xFFFFF01F == 0xD503201F:
        return _Effect() if word >> 5 & 0x7F in _HARMLESS_HINTS else None
    if word & 0x1C000000 == 0x10000000:
        return _immediate(word)
    if word & 0x0E000000 == 0x0A000000:
        rd, kind = word & 31, word >> 21 & 0xFF
        if kind & 0xF9 == 0x59 and rd == _SP and not word >> 29 & 1:  # SP and a register
            return None
        if kind == 0xD2 or rd == ZR:  # conditional comparison; the result is not wanted
            return _Effect()
        return _Effect((rd,))
    if word & 0x0E000000 == 0x0E000000:
        if word == _UNDEFINED:
            return None
        if _is_comparing_floats(word):
            return _Effect()
        return _Effect((word & 31,), (word & 31,))  # into either file
    if word & 0x0A000000 == 0x08000000:
        return _access(word)
    return None


def _immediate(word: int) -> _Effect | None:
    rd, rn, kind = word & 31, word >> 5 & 31, word >> 23 & 7
    if kind == 3:  # tags
        return None
    sets_flags = bool(word >> 29 & 1) if kind == 2 else word >> 29 & 3 == 3
    if kind in (2, 4) and rd == _SP and not sets_flags:
        if kind == 4 or rn != _SP or not word >> 31:
            return None
        amount = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
        return _Effect(sp=-amount if word >> 30 & 1 else amount)
    return _Effect(() if rd == ZR else (rd,))


def _is_comparing_floats(word: int) -> bool:
    return word & 0xFF20FC07 == 0x1E202000


def _one_accessed(word: int, is_vector: bool) -> tuple[bool, int, int | None] | None:
    """Return whether a register is loaded, what moves its base, and the displacement, if known."""
    size, opc = word >> 30, word >> 22 & 3
    is_load = bool(opc & 1 if is_vector else opc)
    if word >> 24 & 1:
        scale = 4 if is_vector and opc & 2 else size
        return is_load, 0, (word >> 10 & 0xFFF) << scale
    mode = word >> 10 & 3
    if word >> 21 & 1:  # if not by a register: atomic, or with a signed pointer
        return (is_load, 0, None) if mode == 2 else None
    amount = _signed(word >> 12 & 0x1FF, 9)  # unscaled, after, unprivileged, before
    return is_load, amount if mode in (1, 3) else 0, 0 if mode == 1 else amount


def _access(word: int) -> _Effect | None:
    """Return the effect of a load or a store, None for those that are not plain."""
    rt, rn, is_vector = word & 31, word >> 5 & 31, bool(word >> 26 & 1)
    displacement: int | None = None
    is_load, moved = True, 0
    registers: tuple[int, ...] = (rt,)
    if word & 0x3B000000 == 0x18000000:
        rn = _LITERAL
    elif word & 0x3FBFFC00 == 0x089FFC00:  # ldar, stlr
        is_load, displacement = bool(word >> 22 & 1), 0
    elif word & 0x3A000000 == 0x28000000:  # of a pair
        size = 4 << (word >> 30) if is_vector else 8 if word >> 31 else 4
        amount = _signed(word >> 15 & 0x7F, 7) * size
        is_load, registers = bool(word >> 22 & 1), (rt, word >> 10 & 31)
        mode = word >> 23 & 3  # no allocation, after, with a displacement, before
        moved = amount if mode in (1, 3) else 0
        displacement = 0 if mode == 1 else amount
    elif word & 0x3A000000 == 0x38000000:
        found = _one_accessed(word, is_vector)
        if found is None:
            return None
        is_load, moved, displacement = found
        if word >> 30 == 3 and word >> 22 & 3 == 2 and not is_vector:  # a prefetch
            registers = ()
    else:
        return None
    loaded = registers if is_load else ()
    writes = () if is_vector else tuple(r for r in loaded if r != ZR)
    if moved and rn != _SP:
        writes = (*writes, rn)
    return _Effect(
        writes,
        loaded if is_vector else (),
        moved if rn == _SP else 0,
        rn,
        displacement,
        None if is_load else registers,
    )


#: add $N,R27,R27
_ADD_TO_TEMPORARY = 0x91000000 | _TEMPORARY << 5 | _TEMPORARY


def _first_simulated(code: bytes, values: bool, at_rets: bool, stack: bool) -> Choice | None:
    """Return the first simulated instruction that only harmless ones precede.

    With ``values``, registers that carry arguments, g and the link register are there as they were
    at the entry, and with ``stack`` so are arguments on the stack. Without, and with ``at_rets``,
    it may be a RET behind other instructions, and be behind an access to memory by a pointer.
    """
    lowered = 0
    faults: list[int] = []
    own: set[int] = set()  # registers that hold an address in the program's own data
    saved = False
    for number, word in enumerate(_words(code[: 4 * _MAX_WALK])):
        if _is_simulated(word):
            if word & 0x1F00001F == 0x10000000 | _TEMPORARY:
                own.add(_TEMPORARY)
                continue
            is_counted = at_rets and not values and not lowered
            if number and word & 0xFFFFFC1F == 0xD65F0000 and not is_counted:
                return None
            return Choice(number * 4, SiteForm.EMULATED, lowered, tuple(faults))
        effect = _effect(word)
        if effect is None:
            return None
        if effect.base is not None and effect.base not in (_SP, _LITERAL, _G, *own):
            if values or not at_rets:
                return None
            faults.append(number * 4)
        if not _is_harmless(effect, values, lowered, stack):
            return None
        if _LR in effect.writes:
            if not saved:
                return None
        elif effect.stored is not None and _LR in effect.stored and effect.base == _SP:
            saved = True
        if word & 0xFF8003FF != _ADD_TO_TEMPORARY:
            own.difference_update(effect.writes)
        lowered -= effect.sp
        if lowered < 0:
            return None
    return None


def _is_harmless(effect: _Effect, values: bool, lowered: int, stack: bool) -> bool:
    """Return whether a site may be behind an instruction, if that does not fault."""
    if _G in effect.writes:
        return False
    if not values:
        return True
    if any(register not in _FREE for register in effect.writes):
        return False
    if any(register < _FREE_FLOATS for register in effect.floats):
        return False
    if effect.stored is None:
        return True
    # In the frame of the caller are the slots where arguments in registers are spilled, and before
    # them the arguments on the stack: a store to the first slots may be either.
    is_own = effect.displacement is not None and effect.displacement < lowered - effect.sp
    return effect.base == _SP and (is_own or not stack)


def _last_of_sequence(code: bytes) -> int:
    """Return where the assembler's sequence ends that a function begins with, 0 without one.

    All of it but the last instruction makes R27, which the last one reads. An instruction that
    reads memory by another register into R27 is not part of one: the compiler checks a pointer for
    nil with it.
    """
    at = 0
    for word in _words(code[: 4 * _MAX_CHECK]):
        effect = None if _is_simulated(word) else _effect(word)
        is_made = word & 0x1F00001F == 0x10000000 | _TEMPORARY or (
            effect is not None
            and effect.writes == (_TEMPORARY,)
            and effect.base in (None, _LITERAL, _TEMPORARY)
        )
        if not is_made:
            return at if _TEMPORARY in (word >> 5 & 31, word >> 16 & 31) else 0
        at += 4
    return 0


def _branch_to_start(code: bytes, last: int, function: FuncInfo) -> int | None:
    """Return where a branch to one of the offsets 0..``last`` is, None if there is none."""
    if len(code) > MAX_SIZE:
        raise SiteError(f"{function.name}: too large to be decoded ({len(code)} bytes)")
    for at, word in _branches(code):
        target = _target(word)
        if target is not None and 0 <= at + target <= last and word >> 26 != 0x25:
            return at
    return None
