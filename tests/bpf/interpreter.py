# SPDX-License-Identifier: Apache-2.0
"""Run capture plans in the kernel, over a function of this very process."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from gotrace.capture.ops import Op
from gotrace.kernel.attach import Point, ProbeGroup, attach
from gotrace.kernel.cookie import cookie
from gotrace.kernel.own_function import OwnFunction, own_function
from gotrace.kernel.program import BpfProgram
from gotrace.session.events import CallRecord, parse_call
from gotrace.settings import TraceSettings
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind
from gotrace.target.process import Process
from gotrace.target.target import Target
from tests.capture.reference import Memory

PAYLOAD = 1024
STEPS = 192
CONSTANTS = 4
_OPS = 1024
_TYPES = 64
#: Number of the file that the function belongs to.
FILE = 3

#: Registers by the numbers of REG ops, as x86 encodes them; the context register is the last.
_REGISTERS = {
    0: 0,
    1: 3,
    2: 1,
    3: 7,
    4: 6,
    5: 8,
    6: 9,
    7: 10,
    8: 11,  # rax rbx rcx rdi rsi r8 to r11
    0x20: 2,  # rdx
}


def _load(base: int, register: int, offset: int) -> bytes:
    """Encode ``mov offset(base),register`` for a base from R8 to R15, R12 aside."""
    rex = 0x49 | (register >= 8) << 2
    return bytes([rex, 0x8B, 0x40 | (register & 7) << 3 | base & 7, offset])


def _code() -> tuple[bytes, int, int]:
    """Return machine code and where its inner function begins and returns.

    The outer function takes the address of 22 words: the registers and the stack pointer with
    which the inner one is called, the address of the registers with which that returns.
    """
    r13, r14, rsp = 13, 14, 4
    push = bytes.fromhex("53 55 4154 4155 4156 4157")  # rbx, rbp, r12 to r15
    pop = bytes.fromhex("415f 415e 415d 415c 5d 5b")
    load = [_load(r14, register, 8 * row) for row, register in enumerate(_REGISTERS.values())]
    head = [
        push,
        bytes.fromhex("4989e7"),  # mov %rsp,%r15
        bytes.fromhex("4989fe"),  # mov %rdi,%r14
        _load(r14, r13, 8 * len(_REGISTERS) + 8),
        _load(r14, rsp, 8 * len(_REGISTERS)),
        *load,
    ]
    tail = bytes.fromhex("4c89fc") + pop + b"\xc3"  # mov %r15,%rsp; ...; ret
    call = b"\xe8" + struct.pack("<i", len(tail))
    outer = b"".join(head) + call + tail
    change = [_load(r13, register, 8 * row) for row, register in enumerate(_REGISTERS.values())]
    inner = b"\x90" + b"".join(change)  # nop
    return outer + inner + b"\xc3", len(outer), len(outer) + len(inner)


class ArenaMemory(Memory):
    """An arena's bytes; ``strayed``: what was asked for is elsewhere in this process."""

    strayed = False

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes of the arena."""
        found = super().read(address, size)
        if found is None and not Arena.ADDRESS <= address < Arena.ADDRESS + Arena.SIZE:
            self.strayed = self.strayed or _is_mapped(address)
        return found


def _is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


class Arena:
    """Memory with holes: pages that are not there.

    It is far from everything else in the process, so that pointers made by chance lead nowhere.
    """

    ADDRESS = 0x2BCD_EF01_2000
    _MAP_FIXED_NOREPLACE = 0x100000  # linux/mman.h

    PAGES = 12
    SIZE = PAGES * mmap.PAGESIZE
    HOLES = (4, 9)
    STACK = 10 * mmap.PAGESIZE  # grows down from the last two pages, into what is there

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        self.end = self.ADDRESS + self.SIZE
        words = (self.ADDRESS, self.SIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | self._MAP_FIXED_NOREPLACE
        self.start: int = libc.mmap(ctypes.c_void_p(words[0]), words[1], words[2], flags, -1, 0)
        assert self.start == self.ADDRESS
        for page in self.HOLES:
            address = ctypes.c_void_p(self.start + page * mmap.PAGESIZE)
            assert libc.munmap(address, ctypes.c_size_t(mmap.PAGESIZE)) == 0

    @property
    def areas(self) -> list[tuple[int, int]]:
        """Return the parts that can be read, as (offset, size)."""
        edges = [-1, *self.HOLES, self.PAGES]
        size = mmap.PAGESIZE
        return [
            ((low + 1) * size, (high - low - 1) * size)
            for low, high in itertools.pairwise(edges)
            if high - low > 1
        ]

    def write(self, offset: int, data: bytes) -> None:
        ctypes.memmove(self.start + offset, data, len(data))

    def memory(self) -> ArenaMemory:
        """Return what is there now."""
        return ArenaMemory(
            {self.start + at: ctypes.string_at(self.start + at, size) for at, size in self.areas}
        )


class Interpreter:
    """Own the probes and the maps; a context manager."""

    def __init__(self) -> None:
        self._code, self._entry, self._return = _code()
        self._types: set[int] = set()

    def __enter__(self) -> Interpreter:
        self._own = own_function(self._code)
        self._function: OwnFunction = self._own.__enter__()
        target = Target(process=Process(os.getpid()))
        sites = {
            "on_return": Site(self._return, SiteKind.RET, SiteForm.RET, 0),
            "on_entry": Site(self._entry, SiteKind.ENTRY, SiteForm.FIRST, 0),
        }
        groups = [
            ProbeGroup(
                program,
                self._function.path,
                "interpreter",
                [Point(site.address, site.address, cookie(0, site))],
                self._function.address,
                target.pid,
            )
            for program, site in sites.items()
        ]
        settings = TraceSettings(
            site=target.settings(),
            functions=1,
            saved=8,
            stacks=8,
            outer_calls=8,
            ops=_OPS,
            types=_TYPES,
            constants=CONSTANTS,
            payload=PAYLOAD,
            interfaces=True,
            predicates=True,
            returns=True,
            steps=STEPS,
        )
        self._attached = attach(settings, groups, prepare=self._prepare)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attached.close()
        self._own.__exit__(kind, error, trace)

    def _prepare(self, program: BpfProgram) -> None:
        self._rings = program.open_events("events", 64)

    def install(
        self,
        entry: Sequence[Op],
        result: Sequence[Op] | None,
        subplans: Mapping[int, Sequence[Op]],
        constants: Sequence[bytes],
        reserved: int = 0,
    ) -> None:
        """Put plans into the maps; ``result`` None: report calls at their entry.

        ``reserved``: how many bytes of the payload the entry leaves alone.
        """
        program = self._attached.program
        ops, types = program.map("ops"), program.map("types")
        at = 0
        starts = []
        for plan in (entry, result or (), *subplans.values()):
            starts.append(at)
            for op in plan:
                ops.update(at.to_bytes(4, "little"), op.pack())
                at += 1
        assert at <= _OPS
        for key in self._types:
            types.delete(key.to_bytes(8, "little"))
        self._types = set()
        for word, start in zip(subplans, starts[2:], strict=True):
            # In the place of the same type other files have another, which ends at once.
            for file, first in ((FILE, start), (FILE - 1, at - 1), (FILE + 1, at - 1)):
                if word >> 48 == 0:
                    key = file << 48 | word
                    types.update(key.to_bytes(8, "little"), first.to_bytes(4, "little"))
                    self._types.add(key)
        flags = FILE << 8 | (result is None)
        # As in a program that is where it was linked to be.
        words = (starts[0], starts[1], flags, reserved, 0, 0, 0)
        site = struct.pack("=QIIIIhhI", self._function.address + self._entry, *words)
        program.map("plans").update(bytes(4), site)
        for number, text in enumerate(constants):
            row = struct.pack("<Q64s64s", len(text), text, b"\xff" * len(text))
            program.map("constants").update(number.to_bytes(4, "little"), row)

    def call(
        self, at_entry: Mapping[int, int], at_return: Mapping[int, int], stack_pointer: int
    ) -> CallRecord | None:
        """Call the function and return what was reported of it, None when nothing was.

        Registers are given by their numbers in REG ops. ``stack_pointer`` is that of the entry,
        where the return address stands.
        """
        change = (ctypes.c_uint64 * len(_REGISTERS))(*(at_return[n] for n in _REGISTERS))
        words = [*(at_entry[number] for number in _REGISTERS), stack_pointer + 8]
        table = (ctypes.c_uint64 * (len(words) + 1))(*words, ctypes.addressof(change))
        outer = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._function.address)
        records: list[bytes] = []
        outer(ctypes.addressof(table))
        self._rings.take(time.monotonic() + 10, 1 << 20, lambda cpu, new: records.extend(new))
        assert len(records) <= 1
        return parse_call(records[0]) if records else None
