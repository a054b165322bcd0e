# SPDX-License-Identifier: Apache-2.0
"""Find the instruction that is executed exactly as often as an inlined call, or say why not.

The compiler keeps a mark for each call that it inlines, in the block in which the call's code
begins (``OpInlMark``, cmd/compile/internal/ssa). It becomes a no-operation, unless another
instruction has the same line: that one then stands for the mark, wherever it is. So only a
no-operation proves something. Otherwise the *head* does: the block that dominates all code of the
call that no pass of the compiler moves.

From Go 1.26 on a block that accesses no memory is also executed where the call is not, mark and
all: ``branchelim`` chooses by a conditional move then, and ``fuseComparisons`` makes one comparison
of the caller's condition and the call's.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from gotrace.architecture import AMD64, Architecture
from gotrace.elf import ElfError
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.functions import FuncInfo, FunctionTable
from gotrace.elf.pclntab.inline import InlinedCall, InlineTree
from gotrace.sites.decode import Instruction
from gotrace.sites.emulation import EMULATED, refusal
from gotrace.sites.graph import Block, Graph, NeverReturns, read_graph, target_of
from gotrace.sites.hashed import is_kept_out
from gotrace.sites.records import MAX_SIZE, SiteForm
from gotrace.sites.sites import Site, SiteKind


class Unproven(Enum):
    """The reason why no place is proven to be executed exactly as often as an inlined call.

    UNPINNED: no instruction of it is left that the compiler would not move.
    SPECULATED: the compiler may have it executed where it is not called.
    HOISTED: some of its code comes before what stays in its place.
    NO_HEAD: its code has no beginning.
    LOOP_HEAD: it begins where a loop does.
    ENTRY_BLOCK: it begins where the function does, which may be executed again.
    JUMP_TABLE: the function's jumps cannot be followed.
    FIPS: a program in FIPS mode hashes the code.
    RELEASE: the rules are not known to hold for this release of Go, or for this architecture.
    REFUSED: the kernel allows no probe there.
    TAKEN: another function is counted there.
    BRANCH: the jump to its first instruction may be its own, and not its caller's.
    FAULTS: an access of its own may fault before the place is reached.
    NO_TRACE: a copy of its caller has no record of it. The compiler may have merged it with another
    call, or left it out.
    """

    UNPINNED = "unpinned"
    SPECULATED = "speculated"
    HOISTED = "hoisted"
    NO_HEAD = "no_head"
    LOOP_HEAD = "loop_head"
    ENTRY_BLOCK = "entry_block"
    JUMP_TABLE = "jump_table"
    FIPS = "fips"
    RELEASE = "release"
    REFUSED = "refused"
    TAKEN = "taken"
    BRANCH = "branch"
    FAULTS = "faults"
    NO_TRACE = "no_trace"

    @property
    def text(self) -> str:
        """Return the reason as messages have it, after "it cannot be counted there:"."""
        return _TEXTS[self]


_TEXTS = {
    Unproven.UNPINNED: "no instruction is left that is certainly the call's",
    Unproven.SPECULATED: "the compiler may run its code without a call",
    Unproven.HOISTED: "some of its code comes before its beginning",
    Unproven.NO_HEAD: "its code has no beginning of its own",
    Unproven.LOOP_HEAD: "it begins with a loop",
    Unproven.ENTRY_BLOCK: "it begins where its caller does",
    Unproven.JUMP_TABLE: "its caller's jumps cannot be followed",
    Unproven.FIPS: "a program in FIPS mode checks this code",
    Unproven.RELEASE: "this release of Go, or this architecture, is not known well enough",
    Unproven.REFUSED: "the kernel allows no probe there",
    Unproven.TAKEN: "another function is counted there",
    Unproven.BRANCH: "jumps of its own may reach its first instruction",
    Unproven.FAULTS: "it may fault before the place is reached",
    Unproven.NO_TRACE: "a copy of its caller has no record of the call",
}


#: The releases in which the rules were held against programs that count themselves.
_RELEASES = ((1, 19), (1, 27))
#: From this one on marks do not keep the compiler from executing a block that is not asked for.
_SPECULATES = (1, 26)
#: In these a store that also checks a pointer for nil keeps its own position (``nilcheckelim2``).
_KEEPS_POSITION = ((1, 25), (1, 26))


def is_known(version: GoVersion | None, arch: Architecture) -> bool:
    """Return whether the rules are known to hold for programs of a release."""
    known = version is not None and _RELEASES[0] <= version.release <= _RELEASES[1]
    return known and arch is AMD64


_NEVER_RETURN = re.compile(r"runtime\.(?:panic(?!Check)\w*|go[pP]anic\w*|throw|fatal)\Z")

#: How a function compares its stack with the limit of the goroutine's.
_STACK_LIMIT = re.compile(r"r\w+, qword ptr \[r14 \+ 0x10\]\Z")

_STORES_NOTHING = re.compile(
    r"(?:cmp|test|bt|v?u?comis|push|prefetch|v?ptest|nop|lea|i?mul|i?div|j|call)"
)
#: Instructions that register allocation may add, with the position of what they are for.
_MAY_BE_ADDED = re.compile(r"nop|v?mov|xor|lea")
_CONSUMES_FLAGS = re.compile(r"cmov|set|sbb|adc|rcl|rcr")
_LEAVES_FLAGS = re.compile(r"v?mov|lea|nop|not\Z|j")
#: Instructions that write no register but their first operand.
_LEAVES_OTHERS = re.compile(r"(?:mov|movzx|movsx|movsxd|lea|cmp|nop)\Z")
_WIDE = frozenset(
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r15"]
)
#: A constant that a register gets without its sign: 32 bits that are negative as such.
_UNSIGNED_CONSTANT = re.compile(r"(?:e\w\w|r\d+d), 0x[89a-f][0-9a-f]{7}\Z")
_ON_STACK = re.compile(r"\b[re][sb]p\b")
_INDEXED = re.compile(r"\[\w+ \+ r\w+")
_BASE = re.compile(r"\[(r\w+)")
_CLOSURE = re.compile(r"\.func\d+")
#: Writes that have the position of what they check, in each release.
_HAS_RESULT = re.compile(r"xchg|xadd")
#: Conditions of signed numbers: no comparison that the compiler makes of two has such a one.
_SIGNED = frozenset({"jl", "jle", "jg", "jge", "js", "jns"})


class Pin(Enum):
    """Why an instruction is where its call is."""

    ACCESS = "it stores, calls, or is atomic"
    BRANCH = "it is a conditional jump"


class Proof(NamedTuple):
    """The site of an inlined call, and why it is not proven to be executed as often as the call.

    If it has both, the site is executed at most as often.
    """

    site: Site | None
    unproven: Unproven | None


class ProofPlaces(NamedTuple):
    """The instructions of a proof, the best one first."""

    offsets: Sequence[int]
    unproven: Unproven | None = None


class _Call:
    """One inlined call in a function's code."""

    def __init__(self, code: Code, index: int) -> None:
        self._code = code
        self.own = code.own.get(index, frozenset())
        self.pins = {at: pin for at in self.own if (pin := code.pin(at)) is not None}
        self.mark = code.tree.marks[index]

    def prove(self, release: tuple[int, ...]) -> ProofPlaces:
        """Return the instructions that are executed as often as the call.

        There are none, or they are executed at most as often, if a reason is given.
        """
        found = self._prove(release >= _SPECULATES)
        keeps = _KEEPS_POSITION[0] <= release <= _KEEPS_POSITION[1]
        return self._after_checks(found, keeps) if found.offsets else found

    def _prove(self, speculates: bool) -> ProofPlaces:
        code, graph = self._code, self._code.graph
        if code.is_mark(self.mark):
            block = graph.blocks[graph.block_of[self.mark]]
            if speculates and self._may_be_speculated(block):
                return ProofPlaces((), Unproven.SPECULATED)
            return self._after_arguments(block)
        blocks = {graph.block_of[at] for at in self.pins}
        if not blocks:
            return ProofPlaces((), Unproven.UNPINNED)
        head = graph.head(blocks)
        if head is None or not graph.is_reducible:
            return ProofPlaces((), Unproven.NO_HEAD)
        if head == 0:
            return ProofPlaces((), Unproven.ENTRY_BLOCK)
        if graph.is_loop_head(head):
            return ProofPlaces((), Unproven.LOOP_HEAD)
        kept = {graph.block_of[at] for at in self.own if not code.may_be_added(at)}
        if graph.head(kept | {head}) != head:
            return ProofPlaces((), Unproven.HOISTED)
        if speculates and self._may_be_speculated(graph.blocks[head]):
            return ProofPlaces((), Unproven.SPECULATED)
        within = list(self._within(graph.blocks[head]))
        if not self._is_entered(graph.blocks[head]) and not self._begins_as_often(head):
            return ProofPlaces(within if self._is_once(head) else (), Unproven.BRANCH)
        return self._before_faults(graph.blocks[head], within)

    def _before_faults(self, block: Block, places: Sequence[int]) -> ProofPlaces:
        """Return those places that are reached even if an access of the call faults.

        The compiler reads in another order than the source does, as far as nothing is written: a
        panic of the call's own, which a caller recovers, may come before the mark. Then the access
        is the place, if nothing between the two can fault that is not the call's.
        """
        for each in block.instructions:
            at = each[0]
            if not may_fault(each) or (at not in self.own and not _is_nil_check(each)):
                continue
            found = [place for place in places if place <= at]
            if found:
                return ProofPlaces(found)
            if at not in self.own:
                return ProofPlaces(places, Unproven.FAULTS)
            between = [one for one in block.instructions if at < one[0] < places[0]]
            strange = (one for one in between if may_fault(one) and one[0] not in self.own)
            return ProofPlaces(places, Unproven.FAULTS) if any(strange) else ProofPlaces((at,))
        return ProofPlaces(places)

    def _after_arguments(self, block: Block) -> ProofPlaces:
        """Return the mark, or what comes after it and after what its caller reads for the call.

        Nothing orders the mark and reads. So a nil pointer of an argument may panic after the mark.
        All arguments are read before the call's first write. If one of the caller's comes first,
        or none, the caller may have read that after the call.
        """
        found = self._before_faults(block, [self.mark])
        if found.unproven is not None:
            return found
        rest = [each for each in block.instructions if each[0] >= found.offsets[0]]
        ends = (n for n, one in enumerate(rest) if self._code.pin(one[0]) is Pin.ACCESS)
        end = next(ends, len(rest))
        reads = [
            number
            for number, one in enumerate(rest[:end])
            if one[0] not in self.own and may_fault(one) and not _has_index(one)
        ]
        if not reads:
            return found
        after = [one[0] for one in rest[reads[-1] + 1 : end + 1]]
        is_exact = end < len(rest) and rest[end][0] in self.own
        is_exact &= not any(may_fault(one) and one[0] in self.own for one in rest[: reads[-1]])
        after.sort(key=self._code.is_emulated, reverse=True)
        return ProofPlaces(after, None if is_exact else Unproven.FAULTS)

    def _after_checks(self, places: ProofPlaces, keeps_position: bool) -> ProofPlaces:
        """Return those places that a nil pointer of an argument keeps from being reached.

        The compiler has the next write check such a pointer, if it uses that: the call's first one.
        The write gets the position of the check, unless it ``keeps_position``.
        """
        code, graph = self._code, self._code.graph
        block = graph.blocks[graph.block_of[places.offsets[0]]]
        is_mark = code.is_mark(self.mark)
        for number, one in enumerate(block.instructions):
            at = one[0]
            is_first = at > self.mark if is_mark else at in self.own
            if not is_first or code.pin(at) is not Pin.ACCESS:
                continue
            keeps_position &= _HAS_RESULT.search(one[2]) is None
            is_of_check = (at in self.own) is keeps_position and _may_check(one)
            if not is_of_check or _is_checked(block.instructions[:number], one):
                return places
            after = self._up_to_call(block.instructions[number + 1 :])
            return ProofPlaces(after, places.unproven or Unproven.FAULTS)
        return places

    def _is_entered(self, block: Block) -> bool:
        """Return whether the call begins within a block, after something of its caller's.

        Otherwise the jump to the block may be the call's own: ``branchelim`` and ``fuse`` give such
        a jump the position of a statement before the call.
        """
        for each in block.instructions:
            if each[0] in self.pins:
                return False
            if self._code.pin(each[0]) is Pin.ACCESS:
                return True
        return False

    def _is_once(self, head: int) -> bool:
        """Return whether a head is executed at most once for a call: no loop of the call has it.

        The jump of such a loop may have another position. But what its caller stores is not in it.
        """
        loop = self._code.graph.loop_around(head)
        blocks = self._code.graph.blocks
        inside = (each[0] for start in loop for each in blocks[start].instructions)
        return not loop or any(
            at not in self.own and self._code.pin(at) is Pin.ACCESS for at in inside
        )

    def _begins_as_often(self, head: int) -> bool:
        """Return whether the call begins in its head, or in a block that is executed as often.

        The code of a call is all executed before what follows the call. So if something of its
        caller's comes between a dominator and the head, then the call begins after it. And it does
        not matter in which of two blocks a call begins that are executed equally often.
        """
        code, graph = self._code, self._code.graph
        block = head
        while block != 0:
            above = graph.nearest_dominator(block)
            if above == 0 and code.begins_with_stack_check:
                return True
            between = graph.between(above, block)
            if any(self._is_of_the_caller(one) for one in between):
                return True
            if not graph.is_as_often(above, block):
                return False
            if any(code.checks_nil(one) for one in (above, *between)):
                return False  # the check may be the call's
            if self._is_of_the_caller(above):
                return True
            block = above
        return not graph.is_loop_head(0)

    def _is_of_the_caller(self, block: int) -> bool:
        """Return whether a block has an access of the caller's; it has none of the call's.

        A write barrier of several stores has the position of the first one, jump and all.
        """
        starts = (each[0] for each in self._code.graph.blocks[block].instructions)
        return any(at not in self.own and self._code.pin(at) is Pin.ACCESS for at in starts)

    def _may_be_speculated(self, block: Block) -> bool:
        """Return whether a block may be executed where the call is not.

        ``branchelim`` joins a block with the one before only if all of the call is in it, which
        then accesses no memory. ``fuseComparisons`` asks that of the call's first block alone.
        """
        accesses = self._accesses
        if any(each[0] in accesses for each in block.instructions):
            return False
        code = self._code
        if code.may_compare_for_two(block):
            return True
        return not accesses and code.chooses_below(block.start)

    @cached_property
    def _accesses(self) -> set[int]:
        """The call's instructions that access memory: one that reads has the position of a read."""
        return {
            at
            for at in self.own
            if self.pins.get(at) is Pin.ACCESS or _loads(self._code.instruction(at))
        }

    def _within(self, block: Block) -> Iterator[int]:
        """Yield instructions of a block that are executed if the call has begun, the best first.

        A call before it may never come back, and so may one within it.
        """
        instructions = block.instructions
        first = next(n for n, each in enumerate(instructions) if each[0] in self.pins)
        after = self._up_to_call(instructions[first:])
        yield from (at for at in after if self._code.is_emulated(at))
        yield instructions[first][0]

    def _up_to_call(self, instructions: Sequence[Instruction]) -> list[int]:
        """Return instructions up to the first call, those first that the kernel emulates."""
        calls = (number for number, each in enumerate(instructions) if each[2] == "call")
        end = next(calls, len(instructions)) + 1
        return sorted(
            (one[0] for one in instructions[:end]), key=self._code.is_emulated, reverse=True
        )


class Code:
    """A function's code with what is inlined in it."""

    def __init__(
        self,
        code: bytes,
        entry: int,
        graph: Graph,
        tree: InlineTree,
        never_returns: NeverReturns,
    ) -> None:
        self._bytes, self.entry = code, entry
        self.graph = graph
        self.tree = tree
        self._never_returns = never_returns
        self._instructions = {
            each[0]: each for block in graph.blocks.values() for each in block.instructions
        }
        self._choices = [
            start
            for start in dict.fromkeys(graph.block_of.values())
            if any(_CONSUMES_FLAGS.match(each[2]) for each in graph.blocks[start].instructions)
        ]

    @cached_property
    def own(self) -> Mapping[int, Collection[int]]:
        """Return the instructions of each call, with those of the calls inlined in it."""
        found: dict[int, set[int]] = {}
        reached = sorted(self.graph.block_of)
        start = 0
        for end, index in zip(self.tree.ends, self.tree.indices, strict=True):
            after = bisect_left(reached, end, start)
            if index >= 0 and after > start:
                for one in self.tree.around(index):
                    found.setdefault(one, set()).update(reached[start:after])
            start = after
        return found

    def is_mark(self, at: int) -> bool:
        """Return whether a mark is an instruction of its own: a no-operation of one byte."""
        return at in self.graph.block_of and self._bytes[at] == 0x90

    def is_emulated(self, at: int) -> bool:
        return EMULATED.match(self._bytes, at) is not None

    def pin(self, at: int) -> Pin | None:
        """Return why an instruction stays in the block that the source has it in."""
        each = self._instructions[at]
        _, _, mnemonic, operands = each
        if mnemonic == "call":
            target = target_of(operands)
            ends = target is not None and self._never_returns(self.entry + target)
            return None if ends else Pin.ACCESS
        if mnemonic[0] == "j":
            return None if mnemonic == "jmp" else Pin.BRANCH
        return Pin.ACCESS if _stores(mnemonic, operands) else None

    def may_be_added(self, at: int) -> bool:
        """Return whether register allocation may have added an instruction."""
        _, _, mnemonic, operands = self._instructions[at]
        if not _MAY_BE_ADDED.match(mnemonic):
            return False
        target, _, source = operands.partition(", ")
        if mnemonic == "xor":
            return target == source
        if mnemonic == "lea":
            return "rip" in source or _ON_STACK.search(source) is not None
        return "[" not in operands or _ON_STACK.search(operands.partition("[")[2]) is not None

    @cached_property
    def begins_with_stack_check(self) -> bool:
        """Return whether the first block is only there to have the stack grow."""
        instructions = self.graph.blocks[0].instructions
        compare = instructions[-2:][0]
        return instructions[-1][2] == "jbe" and bool(_STACK_LIMIT.match(compare[3]))

    def checks_nil(self, block: int) -> bool:
        return any(_is_nil_check(each) for each in self.graph.blocks[block].instructions)

    def instruction(self, at: int) -> Instruction:
        return self._instructions[at]

    def may_compare_for_two(self, block: Block) -> bool:
        """Return whether a block's last jump may decide on the caller's condition and the call's.

        Such a comparison is of an integer with a constant, and not signed. A constant is in a
        register only if it has more than 32 bits.
        """
        condition = block.last[2]
        if condition[0] != "j" or condition == "jmp" or condition in _SIGNED:
            return False
        found = _compared(block)
        if found is None:
            return True
        number, (_, _, mnemonic, operands) = found
        one, _, other = operands.partition(", ")
        if mnemonic == "cmp":
            is_constant = other.lstrip("-")[0].isdigit()
            is_wide = "qword" in operands or other in _WIDE or one in _WIDE
            return is_constant or (is_wide and self._has_wide_constant)
        if mnemonic == "test" and one == other and one in _WIDE and condition in ("je", "jne"):
            rest = block.instructions[number + 1 : -1]
            ways = [self.graph.blocks[way].instructions for way in block.successors]
            return not any(_is_address(one, (*rest, *way)) for way in ways)
        return True

    @cached_property
    def _has_wide_constant(self) -> bool:
        return any(
            each[2] == "movabs" or _UNSIGNED_CONSTANT.match(each[3])
            for each in self._instructions.values()
        )

    def chooses_below(self, block: int) -> bool:
        """Return whether a block, or one that it dominates, has what the flags decide on."""
        return any(self.graph.dominates(block, other) for other in self._choices)


def _stores(mnemonic: str, operands: str) -> bool:
    """Return whether an instruction writes memory that is not the frame's."""
    if mnemonic.startswith("lock") or (mnemonic == "xchg" and "[" in operands):
        return True
    target = operands.partition(",")[0]
    if "[" not in target or _STORES_NOTHING.match(mnemonic):
        return False
    return _ON_STACK.search(target) is None


def _loads(each: Instruction) -> bool:
    """Return whether an instruction reads memory that is neither the frame's nor a constant."""
    _, _, mnemonic, operands = each
    if mnemonic.startswith(("lea", "nop", "call", "j")):
        return False
    _, found, place = operands.partition("[")
    return bool(found) and "rip" not in place and _ON_STACK.search(place) is None


def may_fault(each: Instruction) -> bool:
    """Return whether an instruction accesses memory that may not be there, or calls."""
    _, _, mnemonic, operands = each
    if mnemonic == "call":
        return True
    _, found, place = operands.partition("[")
    is_access = bool(found) and not mnemonic.startswith(("lea", "nop"))
    return is_access and "rip" not in place and _ON_STACK.search(place) is None


def _has_index(each: Instruction) -> bool:
    """Return whether an access is of an element: its pointer has been checked before."""
    return _INDEXED.search(each[3]) is not None


def _may_check(each: Instruction) -> bool:
    """Return whether a write may be what checks a pointer for nil that is used before."""
    return each[2] != "call" and may_fault(each) and not _has_index(each)


def _is_checked(before: Sequence[Instruction], access: Instruction) -> bool:
    """Return whether what comes before an access in its block says that its pointer is not nil."""
    found = _BASE.search(access[3])
    register = found[1] if found else ""
    for each in reversed(before):
        _, _, mnemonic, operands = each
        written, _, source = operands.partition(", ")
        if not _LEAVES_OTHERS.match(mnemonic):
            return False
        if mnemonic in ("cmp", "nop") or "[" in written or written in _WIDE - {register}:
            used = _BASE.search(operands)
            if used and used[1] == register and not _has_index(each) and may_fault(each):
                return True
            continue
        if written != register:
            return False
        if mnemonic == "lea":
            return "rip" in source or _ON_STACK.search(source) is not None
        if mnemonic != "mov" or source not in _WIDE:
            return False
        register = source
    return False


def _is_nil_check(each: Instruction) -> bool:
    """Return whether an instruction only faults: its position may be another statement's."""
    return each[2] == "test" and "[" in each[3]


def _compared(block: Block) -> tuple[int, Instruction] | None:
    """Return the instruction whose flags a block's last jump reads, and its number there."""
    for number in reversed(range(len(block.instructions) - 1)):
        each = block.instructions[number]
        if not _LEAVES_FLAGS.match(each[2]):
            return number, each
    return None


def _is_address(register: str, instructions: Iterable[Instruction]) -> bool:
    """Return whether the value of a register is used as an address, so far as is certain."""
    base = re.compile(rf"\[{register}(?: [+-] (?:0x)?[0-9a-f]+)?\]")
    for _, _, mnemonic, operands in instructions:
        if not _LEAVES_OTHERS.match(mnemonic):
            return False
        if base.search(operands) and mnemonic not in ("lea", "nop"):
            return True
        written = operands.partition(",")[0]
        if "[" not in written and written not in _WIDE - {register}:
            return False
    return False


def untraced(table: FunctionTable, calls: Iterable[InlinedCall]) -> list[InlinedCall]:
    """Return the calls that copies of their callers have no record of, once for each copy.

    ``calls`` are all that are inlined of some functions. Each copy of a caller is expected to have
    as many of them at a line as any other copy. If all copies lack a call, nobody knows of it. A
    closure that the caller is given is another one in each copy.
    """
    seen: dict[tuple[str, str, str, int], Counter[int]] = {}
    for call in calls:
        rows = seen.setdefault((call.name, call.caller, call.file, call.line), Counter())
        rows[call.row] += 1
    copies = _copies(table, {caller for _, caller, _, _ in seen})
    found = []
    for (name, caller, file, line), rows in seen.items():
        if _CLOSURE.search(name) and not name.startswith(f"{caller}."):
            continue
        expected = copies[caller]
        times = max(-(-count // max(expected[row], 1)) for row, count in rows.items())
        for row, count in expected.items():
            lacking = count * times - rows[row]
            found += [InlinedCall(name, caller, file, line, row)] * lacking
    return found


def _copies(table: FunctionTable, names: Collection[str]) -> dict[str, Counter[int]]:
    """Return how often functions are in the code of which rows: their own, and inlined."""
    copies = {name: Counter[int]() for name in names}
    for name, rows in copies.items():
        own = table.rows_named(name)
        rows.update(row for row in own if len(own) == 1 or not table.is_wrapper(row))
    for copy in table.inlined_calls(names):
        copies[copy.name][copy.row] += 1
    return copies


class InlinedSites:
    """The places of the inlined calls of one file."""

    def __init__(self, table: FunctionTable) -> None:
        self._table = table
        self._taken: set[int] = set()
        self._given: dict[tuple[int, int], Proof] = {}
        self._image = table.image
        version = table.go_version
        self._release = _RELEASES[1] if version is None else version.release
        self._is_known = is_known(version, table.image.arch)
        self._names: dict[int, bool] = {}

    def take(self, addresses: Iterable[int]) -> None:
        """Leave out addresses that have other sites, as those that have been given."""
        self._taken.update(addresses)

    def reserve(self, address: int) -> bool:
        """Return whether an address has no other site; it has one from now on."""
        is_free = address not in self._taken
        self._taken.add(address)
        return is_free

    def of(self, calls: Iterable[InlinedCall]) -> list[Proof]:
        """Return as ``places`` does of calls, those of a function one after the other."""
        found: list[Proof] = []
        for row, group in itertools.groupby(calls, key=lambda call: call.row):
            found += self.places(row, [call.index for call in group])
        return found

    def places(self, row: int, indices: Iterable[int]) -> list[Proof]:
        """Return the site of each call in a function, by its record."""
        wanted = list(indices)
        if not self._is_known:
            return [Proof(None, Unproven.RELEASE)] * len(wanted)
        if new := [index for index in wanted if (row, index) not in self._given]:
            function = self._table.function(row)
            code = self.code_of(function)
            for index in new:
                place = self._place(function, code, index) if code else None
                self._given[row, index] = place or Proof(None, Unproven.JUMP_TABLE)
        return [self._given[row, index] for index in wanted]

    def _place(self, function: FuncInfo, code: Code, index: int) -> Proof:
        if index not in code.tree.marks:
            return Proof(None, Unproven.UNPINNED)
        return self.chosen(function, code, _Call(code, index).prove(self._release))

    def chosen(self, function: FuncInfo, code: Code, places: ProofPlaces) -> Proof:
        """Return the site at the first free instruction of a proof that may have a probe."""
        offsets, unproven = places
        if not offsets:
            return Proof(None, unproven)
        free = [at for at in offsets if function.entry + at not in self._taken]
        if not free:
            return Proof(None, Unproven.TAKEN)
        if is_kept_out(self._image, function.entry + free[0], function.entry + free[0] + 1):
            return Proof(None, Unproven.FIPS)
        at = next((at for at in free if self._is_allowed(function, code, at)), None)
        if at is None:
            return Proof(None, Unproven.REFUSED)
        address = function.entry + at
        form = SiteForm.EMULATED if code.is_emulated(at) else SiteForm.FIRST
        self._taken.add(address)
        lowered = self._table.stack_delta(function.row, address) or 0
        return Proof(Site(address, SiteKind.ENTRY, form, lowered), unproven)

    def _is_allowed(self, function: FuncInfo, code: Code, at: int) -> bool:
        """Return whether an instruction may have a probe: one that the kernel emulates always."""
        address = function.entry + at
        longest = min(15, function.end - address)
        return code.is_emulated(at) or not refusal(bytes(self._image.read(address, longest)))

    def code_of(self, function: FuncInfo) -> Code | None:
        """Return a function's code, None if its jumps cannot be followed."""
        tree = self._table.inline_tree(function.row) or InlineTree([], [], {})
        if function.end - function.entry > MAX_SIZE:
            return None
        code = bytes(self._image.read(function.entry, function.end - function.entry))
        graph = read_graph(code, function.entry, self._word, self._never_returns)
        if graph is None:
            return None
        return Code(code, function.entry, graph, tree, self._never_returns)

    def _never_returns(self, entry: int) -> bool:
        if entry not in self._names:
            found = self._table.find(entry)
            self._names[entry] = found is not None and bool(_NEVER_RETURN.match(found.name))
        return self._names[entry]

    def _word(self, address: int) -> int | None:
        try:
            return int.from_bytes(self._image.read_relocated(address, 8), "little")
        except ElfError:
            return None
