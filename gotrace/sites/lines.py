# SPDX-License-Identifier: Apache-2.0
"""Find the instructions that are executed exactly as often as a line of the source, or say why not.

A line is executed as often as the first statement that begins on it. Its code may be in several
functions: where it was compiled, and where its function is inlined. In each of them the head
counts: the block that dominates all of the line's calls, stores, conditional jumps, and returns.

The compiler leaves out a jump if a way to it decides it, and leads that way past it. A jump whose
block has no value of its own has no position of its own. So a line's jumps count only if no way
leads past them: the head dominates wherever they lead to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from gotrace.architecture import AMD64
from gotrace.elf.functions import FuncInfo, FunctionTable
from gotrace.elf.pclntab.functab import SourceLine
from gotrace.elf.pclntab.inline import InlinedFunction
from gotrace.gotypes.symbols import elide_type_arguments
from gotrace.sites.decode import Instruction
from gotrace.sites.graph import Block, target_of
from gotrace.sites.inlined import Code, InlinedSites, Pin, ProofPlaces, Unproven, may_fault
from gotrace.sites.sites import Site, function_sites


class Unplaced(Enum):
    """The reason why a line's executions cannot be counted, or not all of them.

    MOVED: the compiler has moved some of the line's code, or has merged it with another line's.
    BRANCH: some executions may leave the line out, since it is known before how it decides.
    SWITCH: it may be a case: the compiler chooses the order in which it compares constants.
    FUSED: the compiler may compare for it and for the part of the condition before at once.
    BARRIER: what is left of the line is executed only while garbage is collected.
    CLOSURE: a function literal on the line has its statements there, too.
    FUNCTIONS: several functions have code of the line.
    LEFT_OUT: a copy of the function has no code of the line.
    VANISHED: of a copy of the function the compiler may leave nothing.
    """

    MOVED = "moved"
    BRANCH = "branch"
    SWITCH = "switch"
    FUSED = "fused"
    BARRIER = "write_barrier"
    CLOSURE = "closure"
    FUNCTIONS = "several_functions"
    LEFT_OUT = "left_out"
    VANISHED = "vanished"


_TEXTS: Mapping[str, str] = {
    Unplaced.MOVED.value: "the compiler has moved some of its code",
    Unplaced.BRANCH.value: "jumps may lead past it that are known beforehand",
    Unplaced.FUSED.value: "its comparison may be one with that of the line before",
    Unplaced.SWITCH.value: "it may be a case, and the compiler orders comparisons",
    Unplaced.BARRIER.value: "it is executed only while garbage is collected",
    Unplaced.CLOSURE.value: "a function literal begins on it",
    Unplaced.FUNCTIONS.value: "several functions have code of it",
    Unplaced.LEFT_OUT.value: "this copy has none of its code",
    Unplaced.VANISHED.value: "where its function is inlined, nothing may be left",
    Unproven.UNPINNED.value: "no instruction is left that is certainly the line's",
    Unproven.LOOP_HEAD.value: "a loop begins with it",
    Unproven.ENTRY_BLOCK.value: "it begins where the function does",
    Unproven.JUMP_TABLE.value: "the function's jumps cannot be followed",
    Unproven.TAKEN.value: "another line or function is counted there",
    Unproven.RELEASE.value: "that is known of programs of Go 1.19 to 1.27 for amd64 alone",
}


def reason_text(reason: str) -> str:
    """Return a reason as messages have it."""
    return _TEXTS[reason] if reason in _TEXTS else Unproven(reason).text


#: The releases in which the rules were held against programs that count themselves.
_RELEASES = ((1, 19), (1, 27))
#: How code asks whether garbage is being collected.
_BARRIER = re.compile(r"dword ptr \[rip [+-] \w+\], 0\Z")
_DECIDES = re.compile(r"cmp|test|bt\Z|j|v?u?comis")
#: A write by a pointer.
_TO_POINTER = re.compile(r"(?:\w+ ptr )?\[(r\w+)")
_ON_STACK = re.compile(r"\b[re][sb]p\b")
#: Wrapped statements: ``go`` and ``defer`` of calls with arguments.
_WRAPPER = re.compile(r"\.(?:go|defer)wrap\d+\Z")
#: A function literal.
_LITERAL = re.compile(r"\.func\d|-range\d")
#: More calls than a function has that the compiler inlines, but for a profile: each costs 57 of 80.
_MANY_CALLS = 2
#: The part of a register's name that its halves have.
_REGISTER = re.compile(r"\b(?:[re]?([abcd])[xl]|[re]?([sd]i)l?|(r\d+)[dwb]?)\b")
_BYTE = re.compile(r"\b(?:[abcd]l|[sd]il|r\d+b)\b|byte ptr")
#: What has the stack grow.
_GROWS = "runtime.morestack"
#: Bytes: no function of so many is inlined.
_LARGE = 1 << 10
#: Reads that have the position at which the source reads. If another instruction than a comparison
#: with a constant reads for itself, the read has its position. Constants and the frame are read
#: where they are used. A variable's position is that of its operator: a Boolean is read on the line
#: before, if that ends in ``&&``.
_READS = re.compile(
    r"mov\w* \w+, (?:[^b]\w+ ptr )?\[(?!rsp|rip)r"
    r"|mov\w* \w+, byte ptr \[(?!rsp|rip)r\w+ "
    r"|cmp (?:[^b]\w+ ptr \[.*|byte ptr \[(?!rsp|rip)r\w+ .*)\], -?[0-9]\w*\Z"
)


class LinePlace(NamedTuple):
    """A function that has code of a line, or in which such a one is inlined, and its site there.

    ``unproven`` is the reason why it has none, or does not see all. ``function`` is the function
    that the line is in, ``into`` the one whose code it is, ``row`` that one's row, and ``record``
    the number of the frame in its tree.
    """

    function: str
    into: str
    row: int
    site: Site | None
    unproven: str | None
    record: int = -1


class _Group(NamedTuple):
    """The code of a line in one frame of a function's code, from line ``first`` to ``last``."""

    frames: _Frames
    record: int
    frame: InlinedFunction
    own: Collection[int]
    first: int
    last: int

    @property
    def function(self) -> FuncInfo:
        return self.frames.function

    @property
    def begins(self) -> int | str:
        """Return the line of ``func``, or its name in programs of Go 1.19, which do not say it."""
        return self.frame.start_line or elide_type_arguments(self.frame.name)

    def begins_on(self, line: int) -> bool:
        """Return whether the function begins on a line; in Go 1.19 whether a literal may."""
        may_begin = line == self.first and _LITERAL.search(self.frame.name) is not None
        return self.frame.start_line == line or (not self.frame.start_line and may_begin)

    def place(self, site: Site | None, unproven: str | None) -> LinePlace:
        into = self.function
        return LinePlace(self.frame.name, into.name, into.row, site, unproven, self.record)


class _Line:
    """The code of a line in one frame."""

    def __init__(self, frames: _Frames, index: int, at: SourceLine, own: Collection[int]) -> None:
        self._code, self._frames = frames.code, frames
        self._index, self._at = index, at
        self.own = own
        self._pins = {one: pin for one in own if (pin := frames.pin(one)) is not None}

    def prove(self) -> tuple[ProofPlaces, str | None]:
        """Return the instructions that are executed as often as the line, or why there are none."""
        graph = self._code.graph
        blocks = {graph.block_of[one] for one in self._pins}
        if not blocks:
            return self._refused(Unproven.UNPINNED)
        head = graph.head(blocks)
        if head is None or not graph.is_reducible:
            return self._refused(Unproven.NO_HEAD)
        if graph.is_loop_head(head):
            return self._refused(Unproven.LOOP_HEAD if head else Unproven.ENTRY_BLOCK)
        if self._is_of_barrier(head):
            return self._refused(Unplaced.BARRIER)
        kept = {graph.block_of[one] for one in self.own if not self._code.may_be_added(one)}
        if graph.head(kept | {head}) != head or self._comes_after_later(head):
            return self._refused(Unplaced.MOVED)
        if not self._leads_all(head) or self._may_have_been_known(head):
            return self._refused(Unplaced.BRANCH)
        if self._may_be_a_case():
            return self._refused(Unplaced.SWITCH)
        if self._may_be_fused(head):
            return self._refused(Unplaced.FUSED)
        return ProofPlaces(list(self._within(graph.blocks[head]))), None

    @staticmethod
    def _refused(why: Unproven | Unplaced) -> tuple[ProofPlaces, str | None]:
        return ProofPlaces(()), why.value

    def _ways(self) -> Iterator[int]:
        """Yield the blocks that the line's conditional jumps lead to, but for panics."""
        graph = self._code.graph
        for one, pin in self._pins.items():
            block = graph.block_of[one]
            if pin is Pin.BRANCH and not self._frames.asks_for_barrier(block):
                yield from (way for way in graph.blocks[block].successors if not self._panics(way))

    def _leads_all(self, head: int) -> bool:
        """Return whether no way leads past a head to where the line's conditional jumps lead to.

        A way from a jump to code may have a block of its own, for copies. If the line only compares
        what is known before, ways may lead further: past blocks that do the same.
        """
        graph = self._code.graph
        blocks = graph.blocks
        within = [each for each in blocks[head].instructions if each[0] in self.own]
        is_decided = all(map(self._frames.only_decides, within))
        if is_decided and len(blocks[head].instructions) == 1:
            return False  # the comparison is another line's
        todo, seen = list(self._ways()), set[int]()
        while todo:
            if (block := todo.pop()) in seen:
                continue
            seen.add(block)
            if not graph.dominates(head, block):
                return False
            own = blocks[block].instructions
            is_edge = len(blocks[block].successors) == 1 and all(map(self._frames.only_copies, own))
            if is_edge or (is_decided and all(map(self._frames.only_decides, own))):
                todo += (way for way in blocks[block].successors if not self._panics(way))
        return True

    def _may_have_been_known(self, head: int) -> bool:
        """Return whether a way past a head has a constant in place of what the line computes.

        The line may be ``x := known && f()`` then. Its first jump is left out where ``known`` is a
        constant, and nothing but the call of ``f`` is left.
        """
        graph, frames = self._code.graph, self._frames
        within = {graph.block_of[one] for one in self.own}
        within |= {
            way
            for one in within
            for way in graph.blocks[one].successors
            if all(map(frames.only_copies, graph.blocks[way].instructions))
        }
        for one in within:
            written = {frames.written(each) for each in graph.blocks[one].instructions}
            for way in graph.blocks[one].successors:
                if graph.dominates(head, way):
                    continue
                for other in graph.before(way):
                    if graph.dominates(head, other):
                        continue
                    if any(frames.is_boolean(way, to) for to in written & frames.constants(other)):
                        return True
        return False

    def _may_be_a_case(self) -> bool:
        """Return whether code of another line compares the same with another constant."""
        graph, frames = self._code.graph, self._frames
        if any(pin is not Pin.BRANCH for pin in self._pins.values()):
            return False
        for one in self._pins:
            block = graph.block_of[one]
            value = frames.compared(block)
            around = (*graph.before(block), *graph.blocks[block].successors)
            others = (other for other in around if graph.blocks[other].last[0] not in self.own)
            if value is not None and any(frames.compared(other) == value for other in others):
                return True
        return False

    def _may_be_fused(self, head: int) -> bool:
        """Return whether its comparison may be one with that of the condition's part before.

        ``fuseComparisons`` makes one of ``x >= 1 && x < 5``, at the second line, which is executed
        if the first part does not hold, too. It leaves alone what reads memory.
        """
        block = self._code.graph.blocks[head]
        own = [each for each in block.instructions if each[0] in self.own]
        pins = {self._pins[each[0]] for each in own if each[0] in self._pins}
        if pins != {Pin.BRANCH} or not self._code.may_compare_for_two(block):
            return False
        return not any(_READS.match(f"{each[2]} {each[3]}") for each in own)

    def _panics(self, block: int) -> bool:
        found = self._code.graph.blocks[block]
        return not found.successors and not found.last[2].startswith("ret")

    def _is_of_barrier(self, head: int) -> bool:
        """Return whether a block is executed only if garbage is being collected."""
        graph = self._code.graph
        above = graph.nearest_dominator(head)
        is_asked = head != above and self._frames.asks_for_barrier(above)
        return is_asked and not graph.is_as_often(above, head)

    def _comes_after_later(self, head: int) -> bool:
        """Return whether all ways to a block lead through code of a later line.

        So the compiler has moved what it has of the line beyond that. If a frame has lines of
        several files, by //line, any other file's may be later.
        """
        graph, frames = self._code.graph, self._frames
        while head != 0:
            head = graph.nearest_dominator(head)
            for each in graph.blocks[head].instructions:
                at = frames.place_in(self._index, each[0])
                is_later = at is not None and (at.file != self._at.file or at.line > self._at.line)
                if is_later and frames.pin(each[0]) is not None:
                    return True
        return False

    def _within(self, block: Block) -> Iterator[int]:
        """Yield instructions of a block that are executed if the line is, the best first.

        They come after what of another line may fault, and before anything else may.
        """
        addresses = [each[0] for each in block.instructions]
        first = next(number for number, at in enumerate(addresses) if at in self._pins)
        start = first
        while start and self._may_be_before(block.instructions[start - 1]):
            start -= 1
        after: list[int] = []
        for each in block.instructions[start:]:
            after.append(each[0])
            if may_fault(each):
                break
        found = [at for at in after if not self._code.instruction(at)[2].startswith("rep")]
        found.sort(key=lambda at: (not self._code.is_emulated(at), abs(at - addresses[first])))
        yield from found

    def _may_be_before(self, each: tuple[int, int, str, str]) -> bool:
        return each[0] in self.own or not may_fault(each)


class _Frames:
    """The positions of a function's instructions, in each frame that they are in."""

    def __init__(self, code: Code, table: FunctionTable, row: int) -> None:
        self.code, self.function = code, table.function(row)
        tree = code.tree
        reached = code.graph.block_of
        offsets = sorted(reached.keys() | tree.marks.values())
        self._positions = dict(zip(offsets, table.source_lines(row, offsets), strict=True))
        self._marks = frozenset(at for at in tree.marks.values() if code.is_mark(at))
        self._outer: dict[int, dict[int, SourceLine | None]] = {}

    def pin(self, at: int) -> Pin | None:
        """Return why an instruction stays in its block; that it returns or is a mark counts too."""
        if at in self._marks or self.code.instruction(at)[2].startswith("ret"):
            return Pin.ACCESS
        pin = self.code.pin(at)
        return None if pin is Pin.ACCESS and self._clears_stack(at) else pin

    def _clears_stack(self, at: int) -> bool:
        """Return whether an instruction writes to the frame by a pointer, to clear it."""
        _, _, mnemonic, operands = self.code.instruction(at)
        found = _TO_POINTER.match(operands)
        if mnemonic == "call" or found is None:
            return False
        register = found[1] + ", "
        for each in reversed(self.code.graph.blocks[self.code.graph.block_of[at]].instructions):
            if (
                each[0] < at
                and each[3].startswith(register)
                and "[" not in each[3][: len(register)]
            ):
                return each[2] == "lea" and _ON_STACK.search(each[3]) is not None
        return False

    @staticmethod
    def written(each: Instruction) -> str:
        """Return the register, or the place in the frame, that an instruction writes."""
        if each[2] == "call":
            return "a"
        target = each[3].partition(", ")[0]
        return _REGISTER.sub(r"\1\2\3", target.rpartition("[")[2])

    def constants(self, block: int) -> set[str]:
        """Return the registers, and places, to which a block writes a constant."""
        found: set[str] = set()
        for each in self.code.graph.blocks[block].instructions:
            target, _, source = each[3].partition(", ")
            is_zero = each[2] == "xor" and target == source
            if is_zero or (each[2].startswith("mov") and source[:1].isdigit()):
                found.add(self.written(each))
            else:
                found.discard(self.written(each))
        return found

    def is_boolean(self, block: int, register: str) -> bool:
        """Return whether a block reads one byte of a register, or of a place, before all of it."""
        for _, _, mnemonic, operands in self.code.graph.blocks[block].instructions:
            if mnemonic == "call":
                return False
            target, _, source = operands.partition(", ")
            for part in (source, target):
                if register in _REGISTER.sub(r"\1\2\3", part):
                    is_read = part is source or mnemonic in ("test", "cmp")
                    return is_read and (_BYTE.search(part) is not None)
        return False

    def compared(self, block: int) -> str | None:
        """Return the operand that a block compares with a constant to decide, None without one."""
        *_, before, last = (None, *self.code.graph.blocks[block].instructions)
        if before is None or last is None or last[2][0] != "j" or last[2] == "jmp":
            return None
        value, _, other = before[3].partition(", ")
        is_constant = other.lstrip("-")[:1].isdigit()
        if not (before[2] == "cmp" and is_constant) and not (
            before[2] == "test" and value == other
        ):
            return None
        return _REGISTER.sub(r"\1\2\3", value)

    def only_copies(self, each: Instruction) -> bool:
        """Return whether an instruction is a copy for others, or jumps on."""
        return each[2] == "jmp" or (self.code.may_be_added(each[0]) and each[0] not in self._marks)

    def only_decides(self, each: Instruction) -> bool:
        """Return whether an instruction compares registers, or jumps, or is a copy for others."""
        if self.only_copies(each):
            return True
        return _DECIDES.match(each[2]) is not None and (
            "[" not in each[3] or _ON_STACK.search(each[3]) is not None
        )

    def asks_for_barrier(self, block: int) -> bool:
        """Return whether a block ends by asking whether garbage is being collected."""
        *_, before, last = (None, *self.code.graph.blocks[block].instructions)
        if before is None or last is None or last[2] not in ("jne", "je"):
            return False
        return before[2] == "cmp" and _BARRIER.match(before[3]) is not None

    def _around(self, index: int) -> dict[int, SourceLine | None]:
        """Return where in each frame around an inlined call it is called, outwards."""
        if index not in self._outer:
            found: dict[int, SourceLine | None] = {}
            self._outer[index] = found  # a damaged tree may lead back to it
            if (mark := self.code.tree.marks.get(index)) is not None:
                outer = self.code.tree.index_at(mark)
                found[outer] = self._positions.get(mark)
                found |= self._around(outer)
        return self._outer[index]

    def place_in(self, frame: int, at: int) -> SourceLine | None:
        """Return the line at which a frame is at an instruction, None for none."""
        index = self.code.tree.index_at(at)
        return self._positions[at] if index == frame else self._around(index).get(frame)

    @cached_property
    def _by_index(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for at in self.code.graph.block_of:
            found.setdefault(self.code.tree.index_at(at), []).append(at)
        return found

    def groups(self, file: str) -> dict[tuple[int, int], set[int]]:
        """Return the instructions of each line of a file, by the frame and the line."""
        found: dict[tuple[int, int], set[int]] = {}
        for index, offsets in self._by_index.items():
            around = [
                (frame, place.line)
                for frame, place in self._around(index).items()
                if place is not None and place.file == file
            ]
            for key in around:
                found.setdefault(key, set()).update(offsets)
            for at in offsets:
                place = self._positions[at]
                if place is not None and place.file == file:
                    found.setdefault((index, place.line), set()).add(at)
        return found


class FileLines:
    """The lines of one source file of a program."""

    def __init__(self, table: FunctionTable, file: str) -> None:
        self._table, self.file = table, file
        self._read_code = InlinedSites(table).code_of
        version = table.go_version
        released = version is not None and _RELEASES[0] <= version.release <= _RELEASES[1]
        self._is_known = released and table.image.arch is AMD64
        self._groups: dict[int, list[_Group]] = {}
        self._unread: dict[int, set[int]] = {}
        self._leaves: dict[str, bool] = {}
        for row in table.rows_of_file(file):
            self._read(row)

    def _read(self, row: int) -> None:
        function = self._table.function(row)
        code = self._read_code(function) if self._is_known else None
        if code is None:
            step = self._table.image.arch.quantum
            offsets = range(0, function.end - function.entry, step)
            for place in self._table.source_lines(row, offsets):
                if place is not None and place.file == self.file:
                    self._unread.setdefault(place.line, set()).add(row)
            return
        names, frames = self._table.frames_of(row), _Frames(code, self._table, row)
        found = frames.groups(self.file)
        lines: dict[int, list[int]] = {}
        for index, line in found:
            lines.setdefault(index, []).append(line)
        for (index, line), own in found.items():
            if index in names and not _WRAPPER.search(names[index].name):
                ends = min(lines[index]), max(lines[index])
                group = _Group(frames, index, names[index], own, *ends)
                self._groups.setdefault(line, []).append(group)

    @property
    def lines(self) -> list[int]:
        """Return the lines that have code."""
        return sorted(self._groups.keys() | self._unread.keys())

    def places(self, line: int, proofs: InlinedSites) -> list[LinePlace]:
        """Return where a line has code, and the site of each place.

        ``proofs`` know which addresses other sites have.
        """
        why = Unproven.JUMP_TABLE if self._is_known else Unproven.RELEASE
        found = []
        for row in sorted(self._unread.get(line, ())):
            name = self._table.function(row).name
            found.append(LinePlace(name, name, row, None, why.value))
        groups = self._groups.get(line, [])
        begun = [group for group in groups if group.begins_on(line)]
        within = [group for group in groups if not group.begins_on(line)]
        is_literal = any(_LITERAL.search(group.frame.name) for group in begun)
        if begun and not within and not is_literal:
            return found + self._function(begun, proofs)
        refused = None
        if not within or any(group.last <= line for group in begun):
            refused = Unplaced.CLOSURE
        elif len({group.begins for group in within}) > 1:
            refused = Unplaced.FUNCTIONS
        if refused is not None:
            return found + [group.place(None, refused.value) for group in groups]
        proven = [self._proven(group, line, proofs) for group in within]
        return found + self._complete(proven, within)

    def _proven(self, group: _Group, line: int, proofs: InlinedSites) -> LinePlace:
        at = SourceLine(self.file, line)
        places, why = _Line(group.frames, group.record, at, group.own).prove()
        site, unproven = proofs.chosen(group.function, group.frames.code, places)
        return group.place(site, why or (None if unproven is None else unproven.value))

    def _function(self, groups: Sequence[_Group], proofs: InlinedSites) -> list[LinePlace]:
        """Return the entries of the function that begins on a line, and its inlined calls."""
        names = {group.frame.name for group in groups}
        if len({elide_type_arguments(name) for name in names}) > 1:
            return [group.place(None, Unplaced.FUNCTIONS.value) for group in groups]
        found: list[LinePlace] = []
        for name in sorted(names):
            for row in self._table.rows_named(name):
                found.append(self._entry(row, proofs))
            calls = list(self._table.inlined_calls([name]))
            for call, (site, why) in zip(calls, proofs.of(calls), strict=True):
                into = self._table.function(call.row).name
                reason = None if why is None else why.value
                found.append(LinePlace(name, into, call.row, site, reason, call.index))
        return self._unless_vanished(found, names)

    def _entry(self, row: int, proofs: InlinedSites) -> LinePlace:
        """Return the entry of a function, unless it is taken."""
        function = self._table.function(row)
        entry = function_sites(self._table.image, function, returns=False, values=False).entry
        if entry is None or not proofs.reserve(entry.address):
            why = Unproven.REFUSED if entry is None else Unproven.TAKEN
            return LinePlace(function.name, function.name, row, None, why.value)
        return LinePlace(function.name, function.name, row, entry, None)

    def _complete(self, found: list[LinePlace], groups: Sequence[_Group]) -> list[LinePlace]:
        """Return places with those where a copy of the function has no code of the line."""
        names = {group.frame.name for group in groups}
        known = {(group.function.row, group.record) for group in groups}
        for call in self._table.inlined_calls(names):
            if (call.row, call.index) not in known:
                into = self._table.function(call.row).name
                found.append(LinePlace(call.name, into, call.row, None, Unplaced.LEFT_OUT.value))
        return self._unless_vanished(found, names)

    def _unless_vanished(self, found: list[LinePlace], names: Iterable[str]) -> list[LinePlace]:
        """Return places, the first of them unproven if copies of a function may have vanished."""
        if all(map(self._leaves_code, names)):
            return found
        why = Unplaced.VANISHED.value
        for number, place in enumerate(found):
            if place.unproven is None:
                found[number] = place._replace(unproven=why)
                break
        return found

    def _leaves_code(self, name: str) -> bool:
        """Return whether a function leaves code wherever it is inlined, if it is at all.

        It does if each way through it leads through a call, or a store.
        """
        if name not in self._leaves:
            rows = self._table.rows_named(name)
            self._leaves[name] = bool(rows) and all(map(self._row_leaves_code, rows))
        return self._leaves[name]

    def _row_leaves_code(self, row: int) -> bool:
        function = self._table.function(row)
        if function.end - function.entry > _LARGE:
            return True
        code = self._read_code(function)
        if code is None:
            return True
        graph = code.graph
        ends = [
            start
            for start in dict.fromkeys(graph.block_of.values())
            if graph.blocks[start].last[2].startswith("ret")
        ]
        calls = 0
        for at, start in graph.block_of.items():
            if code.pin(at) is not Pin.ACCESS or (callee := self._callee(code, at)) == _GROWS:
                continue
            if all(graph.dominates(start, end) for end in ends):
                return True
            calls += callee is not None and not callee.startswith("runtime.")
        is_inlined = next(iter(self._table.inlined_calls([function.name])), None) is not None
        return calls >= _MANY_CALLS and not is_inlined

    def _callee(self, code: Code, at: int) -> str | None:
        """Return the function that an instruction calls, "" if that is not known, else None."""
        _, _, mnemonic, operands = code.instruction(at)
        if mnemonic != "call":
            return None
        target = target_of(operands)
        found = None if target is None else self._table.find(code.entry + target)
        name = "" if found is None else found.name
        return _GROWS if name.startswith(_GROWS) else name
