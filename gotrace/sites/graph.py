# SPDX-License-Identifier: Apache-2.0
"""The control-flow graph of one function: blocks, edges, dominators, loops.

An edge that does not exist does no harm, since it only takes dominators away: a jump table is read
as far as its words lead into the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from functools import cached_property

from gotrace.records import dataclass
from gotrace.sites.decode import PADDING, Instruction, instructions

#: Reads the address at an address, None if there is none.
ReadWord = Callable[[int], "int | None"]
#: Whether the function that begins at an address never returns, such as those that panic.
NeverReturns = Callable[[int], bool]

_TARGET = re.compile(r"0x[0-9a-f]+\Z|[0-9]+\Z")
#: lea disp(%rip),reg as capstone prints its operands.
_TABLE = re.compile(r"(\w+), \[rip ([+-]) (0x[0-9a-f]+|[0-9]+)\]\Z")
#: A jump through a table of pointers, and the register that has the table's address.
_BY_TABLE = re.compile(r"qword ptr \[(\w+) \+ \w+\*8\]\Z")
_MAX_TABLE = 1 << 12


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that are executed together, but for calls that do not come back, and faults.

    ``successors`` are the offsets of the blocks that may be next.
    """

    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.instructions[0][0]

    @property
    def last(self) -> Instruction:
        return self.instructions[-1]


class Graph:
    """The blocks of a function that can be reached from its entry; offsets are from there."""

    def __init__(self, blocks: dict[int, Block]) -> None:
        self.blocks = blocks
        self._order = self._reverse_postorder()
        self._number = {start: number for number, start in enumerate(self._order)}
        self._before: dict[int, list[int]] = {start: [] for start in self._order}
        for start in self._order:
            for successor in blocks[start].successors:
                self._before[successor].append(start)
        self._nearest = self._dominators()
        self._span = self._spans(self._nearest)

    @cached_property
    def block_of(self) -> dict[int, int]:
        """Return the block of each instruction, by offset; without those never reached."""
        return {each[0]: start for start in self._order for each in self.blocks[start].instructions}

    def dominates(self, one: int, other: int) -> bool:
        """Return whether each way to a block leads through another, or is the same."""
        first, last = self._span[one]
        return first <= self._span[other][0] and self._span[other][1] <= last

    def head(self, blocks: Iterable[int]) -> int | None:
        """Return the one of some blocks that dominates the others, None for none."""
        found = sorted(blocks, key=self._number.__getitem__)
        if not found or not all(self.dominates(found[0], other) for other in found):
            return None
        return found[0]

    def nearest_dominator(self, block: int) -> int:
        """Return the last block that each way to a block leads through; the entry's is itself."""
        return self._nearest[block]

    def before(self, block: int) -> Sequence[int]:
        """Return the blocks from which a block may be reached."""
        return self._before[block]

    def between(self, above: int, block: int) -> set[int]:
        """Return the blocks on the ways to a block from one that dominates it, without both."""
        found: set[int] = set()
        stack = list(self._before[block])
        while stack:
            start = stack.pop()
            if start not in found and start not in (above, block) and self.dominates(above, start):
                found.add(start)
                stack += self._before[start]
        return found

    def is_as_often(self, above: int, block: int) -> bool:
        """Return whether a block is executed exactly as often as its nearest dominator.

        No way leads back to the dominator, or out of the function, but through the block.
        """
        if self.is_loop_head(block):
            return False
        seen = {block}
        stack = list(self.blocks[above].successors)
        while stack:
            start = stack.pop()
            if start in seen:
                continue
            if start == above or not self.blocks[start].successors or self.is_loop_head(start):
                return False
            seen.add(start)
            stack += self.blocks[start].successors
        return True

    def is_loop_head(self, block: int) -> bool:
        """Return whether a block is where a loop begins again."""
        return any(self.dominates(block, before) for before in self._before[block])

    def loop_around(self, block: int) -> Set[int]:
        """Return the blocks of the innermost loop that has a block, none if no loop has it.

        The graph is reducible.
        """
        around: Set[int] = frozenset()
        for head in self._order:  # an inner loop's head comes after that of the outer one
            if self.dominates(head, block):
                loop = self._loop(head)
                around = loop if block in loop else around
        return around

    def _loop(self, head: int) -> Set[int]:
        """Return the blocks of the loop that begins with a block, none if none does."""
        waiting = [one for one in self._before[head] if self.dominates(head, one)]
        found = {head} if waiting else set[int]()
        while waiting:
            if (block := waiting.pop()) not in found:
                found.add(block)
                waiting += self._before[block]
        return found

    @cached_property
    def is_reducible(self) -> bool:
        """Return whether each loop has one block through which it is entered."""
        return all(
            self._number[start] > self._number[before] or self.dominates(start, before)
            for start in self._order
            for before in self._before[start]
        )

    def _reverse_postorder(self) -> list[int]:
        order: list[int] = []
        seen = {0}
        stack: list[tuple[int, Iterator[int]]] = [(0, iter(self.blocks[0].successors))]
        while stack:
            start, following = stack[-1]
            for successor in following:
                if successor not in seen:
                    seen.add(successor)
                    stack.append((successor, iter(self.blocks[successor].successors)))
                    break
            else:
                order.append(start)
                stack.pop()
        return order[::-1]

    def _dominators(self) -> dict[int, int]:
        """Return the nearest dominator of each block (Cooper, Harvey and Kennedy, 2001)."""
        number, nearest = self._number, {0: 0}
        changed = True
        while changed:
            changed = False
            for start in self._order[1:]:
                known = [before for before in self._before[start] if before in nearest]
                new = known[0]
                for other in known[1:]:
                    while new != other:
                        while number[new] > number[other]:
                            new = nearest[new]
                        while number[other] > number[new]:
                            other = nearest[other]
                if nearest.get(start) != new:
                    nearest[start], changed = new, True
        return nearest

    def _spans(self, nearest: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return of each block the numbers that a walk of the dominator tree gives its subtree."""
        below: dict[int, list[int]] = {start: [] for start in self._order}
        for start in self._order[1:]:
            below[nearest[start]].append(start)
        numbers = {start: number for number, start in enumerate(self._walk(below))}
        spans: dict[int, tuple[int, int]] = {}
        for start in sorted(self._order, key=numbers.__getitem__, reverse=True):
            last = max((spans[one][1] for one in below[start]), default=numbers[start])
            spans[start] = numbers[start], last
        return spans

    @staticmethod
    def _walk(below: dict[int, list[int]]) -> Iterator[int]:
        stack = [0]
        while stack:
            start = stack.pop()
            yield start
            stack += below[start]


def read_graph(
    code: bytes, entry: int, read: ReadWord, never_returns: NeverReturns
) -> Graph | None:
    """Return the graph of an amd64 function, None if it has a jump that cannot be followed."""
    found = list(instructions(code))
    starts = {each[0] for each in found}
    if not found or not PADDING.match(code, found[-1][0] + found[-1][1]):
        return None  # what does not decode may lead anywhere
    ways: dict[int, tuple[int, ...]] = {}
    tables: dict[str, int] = {}
    leaders = {0}
    for at, size, mnemonic, operands in found:
        after = at + size
        way = _ways(mnemonic, operands, after, entry, never_returns)
        if way is None:
            indirect = _BY_TABLE.match(operands)
            table = tables.get(indirect[1]) if indirect else None
            way = () if table is None else tuple(_targets(table, entry, starts, read))
            if not way:
                return None
        if way != (after,):
            ways[at] = tuple(target for target in way if target in starts)
            leaders.update((after, *ways[at]))
            if any(0 <= target < len(code) and target not in starts for target in way):
                return None  # into the middle of an instruction, or into what does not decode
        elif (loaded := _TABLE.match(operands)) and mnemonic == "lea":
            offset = int(loaded[3], 0)
            tables[loaded[1]] = entry + after + (offset if loaded[2] == "+" else -offset)
        else:
            tables.pop(operands.partition(",")[0], None)
    return Graph(_blocks(found, ways, leaders))


def _ways(
    mnemonic: str, operands: str, after: int, entry: int, never_returns: NeverReturns
) -> tuple[int, ...] | None:
    """Return the offsets of the instructions that may be next, None if that is not known."""
    if mnemonic[0] == "j" or mnemonic.startswith("loop"):
        target = target_of(operands)
        if target is None:
            return None
        return (target,) if mnemonic == "jmp" else (after, target)
    if mnemonic == "call":
        target = target_of(operands)
        return () if target is not None and never_returns(entry + target) else (after,)
    return () if mnemonic.startswith(("ret", "ud2", "int3", "hlt")) else (after,)


def _targets(table: int, entry: int, starts: Container[int], read: ReadWord) -> Iterator[int]:
    for at in range(table, table + 8 * _MAX_TABLE, 8):
        word = read(at)
        if word is None or word - entry not in starts:
            return
        yield word - entry


def _blocks(
    found: Iterable[Instruction], ways: dict[int, tuple[int, ...]], leaders: Container[int]
) -> dict[int, Block]:
    runs: list[list[Instruction]] = []
    for each in found:
        if each[0] in leaders:
            runs.append([])
        runs[-1].append(each)
    blocks = {}
    for run, following in zip(runs, [*runs[1:], []], strict=True):
        falls = (following[0][0],) if following else ()
        successors = ways.get(run[-1][0], falls)
        blocks[run[0][0]] = Block(tuple(run), tuple(dict.fromkeys(successors)))
    return blocks


def target_of(operands: str) -> int | None:
    """Return where a direct jump or call leads to, None of others."""
    if not _TARGET.match(operands):
        return None
    target = int(operands, 0)
    return target - (1 << 64) if target >> 63 else target
