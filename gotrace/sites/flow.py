# SPDX-License-Identifier: Apache-2.0
"""Where the value of a register, or of a word of the frame, comes from, by a function's code.

Only instructions whose effect is known are passed: what is not listed here writes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from gotrace.architecture import AMD64
from gotrace.sites.decode import Instruction
from gotrace.sites.graph import Graph

#: A register by its name of 64 bits, or memory by its offset from SP at the function's entry.
Place = str | int

#: The origin of what a function is entered with.
ENTRY = -1

_READS = re.compile(r"(?:cmp|test|bt|v?u?comis[sd]|j\w+|nop|push|prefetch\w*|v?ptest|ud2|ret)\Z")
_CALL = re.compile(r"call|syscall")
_WRITES_FIRST = re.compile(
    r"(?:mov|movabs|movzx|movsxd?|lea|add|sub|and|or|xor|not|neg|shl|shr|sar|rol|ror|inc|dec|adc"
    r"|sbb|set\w+|cmov\w+|bs[fr]|popcnt|[lt]zcnt|bswap|shld|shrd|andn|sarx|shlx|shrx|rorx|imul"
    r"|movbe|bt[src]|v?mov[dqua]\w*|v?movs[sd]|v?(?:add|sub|mul|div|sqrt|min|max|round)[ps][sd]"
    r"|v?cvt\w+|v?p?(?:xor|and|andn|or)(?:p[sd])?|v?unpck\w+|v?fn?m(?:add|sub)\w+)\Z"
)
_MOVE = re.compile(r"(?:mov|movq|movzx|v?mov[ua]p[sd]|v?movs[sd])\Z")
_ON_FRAME = re.compile(r"(?:(\w+) ptr )?\[rsp(?: ([+-]) (0x[0-9a-f]+|[0-9]+))?\]\Z")
_BY_SP = re.compile(r"\[[^\]]*\brsp\b")
_POINTER = re.compile(r"\[(?!rsp\b|rip\b)")
_MOVES_TO = re.compile(r"v?mov|lea|set|v?cvt|popcnt|[lt]zcnt|bs[fr]")
_NAME = re.compile(r"\b[a-z]\w+\b")
_SIZES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32}

_LEGACY = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")
#: Registers by all of their names, with the bytes that each name means.
_REGISTERS = {
    **{f"r{name}": (f"r{name}", 8) for name in _LEGACY},
    **{f"e{name}": (f"r{name}", 4) for name in _LEGACY},
    **{name: (f"r{name}", 2) for name in _LEGACY},
    **{f"{name[0]}l": (f"r{name}", 1) for name in _LEGACY[:4]},
    **{f"{name[0]}h": (f"r{name}", 0) for name in _LEGACY[:4]},
    **{f"{name}l": (f"r{name}", 1) for name in _LEGACY[4:]},
    **{
        f"r{n}{part}": (f"r{n}", size)
        for n in range(8, 16)
        for part, size in zip(("", "d", "w", "b"), (8, 4, 2, 1), strict=True)
    },
    **{f"{kind}mm{n}": (f"xmm{n}", 16) for n in range(16) for kind in "xyz"},
}


class _Effect(NamedTuple):
    """The effect of an instruction on a place: it is written, and maybe with another's value."""

    source: Place | None = None


class PlaceWrite(NamedTuple):
    """An instruction that writes a place on the way of a value."""

    at: int
    place: Place


class ValueOrigin(NamedTuple):
    """Where a value comes from: the instruction that makes it, or ENTRY, by the offset.

    It is in ``place`` then: a call makes several. If ``merges``, it is the start of a block at
    which one of several values is there.
    """

    at: int
    place: Place
    merges: bool = False


class ValueFlow:
    """The flow of values in one function; ``lowered`` is how far SP is below its entry's."""

    def __init__(
        self, graph: Graph, lowered: Callable[[int], int | None], begins_again: bool
    ) -> None:
        """Take the function's graph.

        ``begins_again``: its first block is also where it begins again if its stack had to grow.
        """
        self._graph = graph
        self._lowered = lowered
        self._begins_again = begins_again

    @cached_property
    def _index(self) -> dict[int, int]:
        blocks = self._graph.blocks.values()
        return {one[0]: n for block in blocks for n, one in enumerate(block.instructions)}

    def origin(
        self, at: int, place: Place, size: int
    ) -> tuple[ValueOrigin, Sequence[PlaceWrite]] | None:
        """Return where the value of some bytes comes from that a place has before an instruction.

        The steps are that one, and those that copy the value. None if that is not known.
        """
        graph, steps = self._graph, list[PlaceWrite]()
        block, end = graph.block_of[at], self._index[at]
        while True:
            found = self._back(block, end, place, size, steps)
            if found is None:
                return None
            if isinstance(found, PlaceWrite):
                return ValueOrigin(found.at, found.place), steps
            (place,) = found
            before = graph.before(block)
            if block == 0 and (self._begins_again or not before):
                return ValueOrigin(ENTRY, place), steps
            if block and len(before) == 1:
                block = before[0]
            else:
                above = graph.nearest_dominator(block)
                ways = graph.between(above, block) | ({block} & graph.loop_around(block))
                if block == 0 or any(self._may_write(one, place, size) for one in ways):
                    return ValueOrigin(block, place, merges=True), steps
                block = above
            end = len(graph.blocks[block].instructions)

    def is_call(self, at: int) -> bool:
        """Return whether an instruction calls a function, whose results are its values."""
        return self._instruction(at)[2] == "call"

    def _instruction(self, at: int) -> Instruction:
        return self._graph.blocks[self._graph.block_of[at]].instructions[self._index[at]]

    def reads(self, at: int, origin: ValueOrigin, size: int) -> bool:
        """Return whether an instruction uses a value for more than to keep it elsewhere."""
        each = self._instruction(at)
        found = (self.origin(at, place, size) for place in self._used(each))
        return any(one is not None and one[0] == origin for one in found)

    def _used(self, each: Instruction) -> Iterator[Place]:
        """Yield what an instruction uses: a call those registers that may have arguments."""
        at, _, mnemonic, operands = each
        if mnemonic == "call":
            yield from (*AMD64.int_registers, *AMD64.float_registers)
        if _MOVE.match(mnemonic) and not _POINTER.search(operands):
            return
        target, _, source = operands.partition(", ")
        is_read = _READS.match(mnemonic) or "[" in target or not _MOVES_TO.match(mnemonic)
        for name in _NAME.findall(operands if is_read else source):
            if name in _REGISTERS and name != "rsp":
                yield _REGISTERS[name][0]
        for operand in (target, source):
            if _ON_FRAME.match(operand):
                with suppress(ValueError):
                    yield self._on_frame(at, operand)[0]

    def _may_write(self, block: int, place: Place, size: int) -> bool:
        try:
            instructions = self._graph.blocks[block].instructions
            return any(self._effect(each, place, size) is not None for each in instructions)
        except ValueError:
            return True

    def _back(
        self, block: int, end: int, place: Place, size: int, steps: list[PlaceWrite]
    ) -> PlaceWrite | tuple[Place] | None:
        """Go back in a block: return the origin, else what has the value at the block's start.

        None if that is not known.
        """
        for each in reversed(self._graph.blocks[block].instructions[:end]):
            try:
                effect = self._effect(each, place, size)
            except ValueError:
                return None
            if effect is None:
                continue
            steps.append(PlaceWrite(each[0], place))
            if effect.source is None:
                return PlaceWrite(each[0], place)
            place = effect.source
        return (place,)

    def _effect(self, each: Instruction, place: Place, size: int) -> _Effect | None:
        """Return how an instruction writes a place, None if it does not. Raises ValueError."""
        at, _, mnemonic, operands = each
        if _READS.match(mnemonic):
            return None
        if _CALL.match(mnemonic):
            return None if isinstance(place, int) else _Effect()
        if not _WRITES_FIRST.match(mnemonic) or (mnemonic == "imul" and "," not in operands):
            raise ValueError(mnemonic)
        target, _, source = operands.partition(", ")
        if target == "rsp":
            return None  # offsets are from SP at the entry
        register, width = _REGISTERS.get(target, ("", 0))
        if register:
            if register != place:
                return None
            is_whole = width >= size and _MOVE.match(mnemonic) is not None
            return _Effect(self._source(at, source, size)) if is_whole else _Effect()
        if not isinstance(place, int) or not _BY_SP.search(target):
            return None
        start, written = self._on_frame(at, target)
        if start >= place + size or start + written <= place:
            return None
        is_whole = start == place and written >= size and _MOVE.match(mnemonic) is not None
        return _Effect(_REGISTERS.get(source, (None, 0))[0] if is_whole else None)

    def _source(self, at: int, operand: str, size: int) -> Place | None:
        """Return the register or the word of the frame that is copied, None for anything else."""
        register, width = _REGISTERS.get(operand, ("", 0))
        if register:
            return register if width >= size else None
        if not _BY_SP.search(operand):
            return None
        start, read = self._on_frame(at, operand)
        return start if read >= size else None

    def _on_frame(self, at: int, operand: str) -> tuple[int, int]:
        """Return where an operand is, from SP at the entry, and its size. Raises ValueError."""
        found = _ON_FRAME.match(operand)
        lowered = self._lowered(at)
        if found is None or lowered is None:
            raise ValueError(operand)
        offset = int(found[3] or "0", 0)
        return (-offset if found[2] == "-" else offset) - lowered, _SIZES.get(found[1] or "", 64)
