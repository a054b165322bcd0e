# SPDX-License-Identifier: Apache-2.0
"""Find where a call's return can be seen in its caller: the landing of its return address.

The code after a call is a straight line up to the next change of control flow, which is nearly
always an instruction that the kernel emulates. A probe there is hit once for each return, and costs
a twentieth of one at a RET, which is single-stepped. All
this is about amd64: `Architecture.steps_rets` says where it is of use.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping

from gotrace.elf import ElfError
from gotrace.elf.functions import FuncInfo, FunctionTable, Origin
from gotrace.records import dataclass
from gotrace.sites.decode import instructions
from gotrace.sites.emulation import EMULATED, refusal
from gotrace.sites.hashed import HASHED, is_kept_out
from gotrace.sites.machine import machine_code
from gotrace.sites.records import SiteError

#: Where a goroutine's first function returns to: src/runtime/asm_amd64.s, goexit+PCQuantum.
_GOEXIT, _PC_QUANTUM = "runtime.goexit", 1
#: Larger callers are not decoded.
_MAX_SIZE = 1 << 20
_MAX_DISTANCE = 0x3FF  # as a cookie has room for
_LINE = 64  # bytes that are decoded at once

_IMMEDIATE = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)\Z")
#: An instruction after which the line does not go on.
_LEAVES = re.compile(r"j|call|ret|loop|ud|hlt|int|iret|sys|bnd")
_JUMP = re.compile(r"(?:bnd )?j|loop")
#: An instruction that moves SP, or may.
_MOVES_SP = re.compile(r"(?:add|sub|lea|mov|and|xchg)\w* rsp\b|(?:pop|leave|enter)")
#: One that leaves memory alone, and all registers that results are in.
_KEEPS_RESULTS = re.compile(
    r"(?:cmp|test|nop|push|u?comis[sd])\b"
    r"|(?:movs?[sz]?x?d?|movabs|lea|add|sub|and|or|xor|inc|dec|neg|not|sh[lr]|sar|set\w+|cmov\w+)"
    r" (?:r?e?(?:bp|dx)|dl|dx|r1[2-5][dwb]?)\b"
)
#: One that changes the register in which the ABI keeps g.
_WRITES_G = re.compile(r"(?!cmp|test|push)\S+ r14d?\b")


@dataclass(frozen=True, slots=True)
class Landing:
    """A place that is reached after each return to an address, before anything else is called.

    ``address`` is a link-time address, as ``return_pc`` is. ``emulated``: the kernel emulates its
    instruction; else that is single-stepped, like a RET. ``shared``: other ways lead there, too.
    ``intact``: results are there as at the return, in registers and in memory.
    """

    return_pc: int
    address: int
    emulated: bool
    shared: bool
    intact: bool
    caller: FuncInfo


class Callers:
    """The code of a program around its call instructions."""

    def __init__(self, table: FunctionTable) -> None:
        self._table = table
        self._decoded: dict[int, _Decoded] = {}
        self.machine = machine_code(table.image.arch)

    def landings(self, return_pc: int) -> list[Landing]:
        """Return the landings of a return address, the best first; all serve.

        Raises SiteError where there is no such: it is not after a call, or g cannot be found there.
        """
        caller = self._table.find(return_pc)
        if caller is None or caller.origin is Origin.SYMTAB:
            raise SiteError(f"{return_pc:#x} is in no Go function")
        if is_kept_out(self._table.image, caller.entry, caller.end):
            raise SiteError(f"{caller.name}: cannot be probed: {HASHED}")
        code = self._of(caller)
        caller = code.function  # one for all of its landings
        at = return_pc - caller.entry
        if caller.name == _GOEXIT and at == _PC_QUANTUM:
            return [Landing(return_pc, return_pc, True, False, True, caller)]
        found = list(code.after_call(at))
        if not found:
            raise SiteError(f"{return_pc:#x} in {caller.name} has no landing")
        return [
            Landing(return_pc, caller.entry + place, emulated, shared, intact, caller)
            for place, emulated, shared, intact in found
        ]

    def is_after_call(self, return_pc: int) -> bool:
        """Return whether an address is behind a call. Raises SiteError if that is not known."""
        caller = self._table.find(return_pc)
        if caller is None or caller.origin is Origin.SYMTAB:
            return False
        if self.machine.is_aligned:
            before = return_pc - self.machine.call_size
            return self.machine.is_call(bytes(self._table.image.read(before, 4)), 0)
        return self._of(caller).is_after_call(return_pc - caller.entry)

    def _of(self, function: FuncInfo) -> _Decoded:
        decoded = self._decoded.get(function.entry)
        if decoded is None:
            size = function.end - function.entry
            if size > _MAX_SIZE:
                raise SiteError(f"{function.name}: too large to be decoded ({size} bytes)")
            try:
                code = bytes(self._table.image.read(function.entry, size))
            except ElfError as error:
                raise SiteError(f"{function.name}: {error}") from error
            decoded = self._decoded[function.entry] = _Decoded(code, function)
        return decoded

    def search(self, entries: Collection[int], *, proves: bool) -> CallerSearch:
        """Return a search for references to functions, by their entries; it is not begun.

        If it ``proves`` which of them are closed, it takes some three times as long.
        """
        return CallerSearch(self, self._table, entries, proves)


#: A conditional jump, and an address that is put in a register.
_OTHERS = re.compile(
    rb"(?:\x0f[\x80-\x8f]|[\x48-\x4f]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(?=(....))", re.DOTALL
)
_OFFSET_SIZE = 4
_MAX_BEFORE = 3  # bytes of an instruction, before an offset
#: Functions that lead to one another by jumps.
_MAX_JUMPS = 4
_POINTER, _WORD = 8, 4
#: Words that are searched one by one.
_MANY = 100
_CHUNK = 1 << 18


class CallerSearch:
    """A search of a program's code and data for references to some functions.

    It is done in small pieces, because a large program takes a second.
    """

    def __init__(
        self, callers: Callers, table: FunctionTable, entries: Collection[int], proves: bool
    ) -> None:
        """Prepare a search for functions by their entries; use ``Callers.search`` instead."""
        self._callers, self._table, self._entries = callers, table, frozenset(entries)
        #: The return addresses of direct calls, by the functions' entries. If a function jumps to
        #: another one, calls of the first are calls of the other as well.
        self.calls: dict[int, list[int]] = {entry: [] for entry in entries}
        #: Entries of functions of which a caller could not be decoded.
        self.undecided: set[int] = set()
        #: Entries of functions that something else than a direct call may lead to.
        self._open: set[int] = set()
        self._proves = proves and table.module is not None

    def run(self) -> CallerSearch:
        """Do all of it, and return it. Raises ElfError."""
        deque(self.steps(), maxlen=0)
        return self

    def is_closed(self, entry: int) -> bool:
        """Return whether a function is only called directly, by calls that were found.

        That is so if its address is neither in the data, nor in the code but for these calls. It is
        not if the search was not to prove it.
        """
        return self._proves and entry not in self._open and entry not in self.undecided

    def steps(self) -> Iterator[None]:
        """Search, and yield after each piece, of some milliseconds. Raises ElfError."""
        yield from self._follow_branches()
        if self._proves and (module := self._table.module) is not None:
            yield from self._find_uses()
            yield from self._find_words(module.text)

    def _follow_branches(self) -> Iterator[None]:
        wanted = {entry: {entry} for entry in self._entries}  # by where a branch leads to
        seen: set[int] = set()
        machine = self._callers.machine
        for _ in range(_MAX_JUMPS):
            todo = wanted.keys() - seen
            if not todo:
                break
            seen |= todo
            found: list[tuple[int, bool, int]] = []
            for place, code in self._code():
                found += (
                    (place + at, is_call, target)
                    for at, is_call, target in machine.may_branch(code, place)
                    if target in todo and at < _CHUNK
                )
                yield
            for at, is_call, target in found:
                if is_call:
                    self._add_call(at + machine.call_size, wanted[target])
                    yield
                    continue
                jumper = self._table.find(at)
                if jumper is not None and not jumper.entry <= target < jumper.end:
                    self._open |= wanted[target]
                    wanted.setdefault(jumper.entry, set()).update(wanted[target])

    def _add_call(self, return_pc: int, entries: Collection[int]) -> None:
        """Add a direct call if its bytes are one: they may be within an instruction."""
        try:
            if not self._callers.is_after_call(return_pc):
                return
        except SiteError:
            self.undecided.update(entries)
            return
        for entry in entries:
            self.calls[entry].append(return_pc)

    def _find_uses(self) -> Iterator[None]:
        """Find where code has the address of a function relative to its own."""
        for place, code in self._code():
            found = (target for _, target in _leading(_OTHERS, place, code))
            self._open |= self._entries.intersection(found)
            yield

    def _find_words(self, text: int) -> Iterator[None]:
        """Find where data has the address of a function, or its distance from the code's start.

        Addresses are the addends of relocations, too, and within code they are in instructions, at
        any place. The table of functions calls none of them.
        """
        image = self._table.image
        pointers = {entry.to_bytes(_POINTER, "little"): entry for entry in self._entries}
        short = {entry.to_bytes(_POINTER, "little")[:_WORD]: entry for entry in self._entries}
        distances = {(entry - text).to_bytes(_WORD, "little"): entry for entry in self._entries}
        for begin, end in self._table.data_ranges():
            is_code = any(low <= begin < high for low, high in image.code_ranges)
            begin = -(-begin // _POINTER) * _POINTER
            for place in range(begin, end, _CHUNK):
                data = bytes(image.read(place, min(_CHUNK + _POINTER, end - place)))
                self._open.update(entry for _, entry in _occurring(pointers, data, _POINTER))
                if is_code:
                    self._open.update(entry for _, entry in _occurring(short, data, 1))
                self._open.update(
                    entry
                    for at, entry in _occurring(distances, data, _WORD)
                    if self._is_in_method(data, at, text)
                )
                yield

    def _is_in_method(self, data: bytes, at: int, text: int) -> bool:
        """Return whether a distance from the code's start may be in the data of a method.

        There a method has two functions one after the other, which can be the same: one for calls
        by interfaces, and one for others (src/internal/abi/type.go, ``Method``). Their distances
        are small numbers, which offsets of names and types are as well.
        """
        for near in (at - _WORD, at + _WORD):
            address = text + int.from_bytes(data[max(near, 0) : near + _WORD], "little")
            function = self._table.find(address)
            if function is not None and function.entry == address:
                return True
        return False

    def _code(self) -> Iterator[tuple[int, bytes]]:
        """Yield all code: where a piece is, and its bytes, with as many as an instruction needs."""
        image = self._table.image
        for start, end in image.code_ranges:
            for place in range(start, end, _CHUNK):
                size = min(_CHUNK + _MAX_BEFORE + _OFFSET_SIZE, end - place)
                yield place, bytes(image.read(place, size))


def _occurring(words: Mapping[bytes, int], data: bytes, align: int) -> Iterator[tuple[int, int]]:
    """Yield where words of one size are in data, aligned, and their meaning."""
    if len(words) > _MANY:  # all of the data is looked at once, whatever the number of words
        size = len(next(iter(words)))
        for first in range(0, size, align):
            found = range(first, len(data) - size + 1, size)
            yield from (
                (at, words[word]) for at in found if (word := data[at : at + size]) in words
            )
        return
    for word, meant in words.items():
        at = data.find(word)
        while at >= 0:
            if at % align == 0:
                yield at, meant
            at = data.find(word, at + 1)


def _leading(pattern: re.Pattern[bytes], place: int, code: bytes) -> Iterator[tuple[int, int]]:
    """Yield where bytes match that may be an instruction, and where its offset leads to."""
    for match in pattern.finditer(code):
        offset = int.from_bytes(match[1], "little", signed=True)
        yield match.start(), place + match.end() + _OFFSET_SIZE + offset


class _Decoded:
    """The surroundings of calls in a function's code, by offset from its entry.

    Its instructions are not kept: a search may go through thousands of functions.
    """

    def __init__(self, code: bytes, function: FuncInfo) -> None:
        self.function = function
        self._code = code
        self._after: set[int] = set()
        targets: set[int] = set()
        self._has_tables = False  # jumps by them: anything may be a target of these
        for at, size, mnemonic, operands in instructions(code):
            if "call" in mnemonic:
                self._after.add(at + size)
            elif _JUMP.match(mnemonic):
                if _IMMEDIATE.match(operands):
                    targets.add(int(operands, 0))
                elif mnemonic == "jmp":
                    self._has_tables = True
        self._targets = array("I", sorted(at for at in targets if at < len(code)))

    def is_after_call(self, at: int) -> bool:
        """Return whether an offset is that of the instruction after a call."""
        return at in self._after

    def _is_target(self, at: int) -> bool:
        place = bisect_left(self._targets, at)
        return place < len(self._targets) and self._targets[place] == at

    def after_call(self, at: int) -> Iterator[tuple[int, bool, bool, bool]]:
        """Yield landings of a return to an offset: place, emulated, shared, intact."""
        if not self.is_after_call(at):
            return
        is_shared, is_intact = self._has_tables, True
        place = None
        first = ""
        for offset, _, mnemonic, operands in instructions(self._code, at, _LINE):
            first = first or mnemonic
            text = f"{mnemonic} {operands}"
            if _WRITES_G.match(text):
                return
            if mnemonic.startswith("rep"):  # it may take as long as the call
                break
            is_shared = is_shared or self._is_target(offset)
            if place is None and EMULATED.match(self._code, offset):
                place = offset, True, is_shared, is_intact
            if _LEAVES.match(mnemonic) or _MOVES_SP.match(text):
                break
            is_intact = is_intact and _KEEPS_RESULTS.match(text) is not None
        if place is not None and place[0] - at <= _MAX_DISTANCE:
            yield place
        if place is not None and place[0] == at:
            return
        if first and not first.startswith("ret") and refusal(self._code[at:]) is None:
            yield at, False, self._has_tables or self._is_target(at), True
