# SPDX-License-Identifier: Apache-2.0
"""Read core files of arm64 programs, made by hand: nothing for arm64 runs here.

The stack is laid out as Go's disassembler says that the functions do it: where they call, and by
how much they lower SP.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from gotrace.elf.image import PF_W, PT_LOAD, ElfImage
from gotrace.elf.symtab import symbol_value
from gotrace.errors import GotraceError
from gotrace.goroutines.core import CoreGoroutines
from gotrace.goroutines.model import State
from gotrace.goroutines.program import allgs_of
from gotrace.gotypes.binary import Binary
from tests.goroutines.test_parked import PARKED
from tests.sites.listing import Listed, go_objdump_arm64
from tests.toolchains import FOR_ARM64, Toolchain, build, each_of, newest, require, toolchains

_HEAP, _STACK, _G = 0x4000000000, 0x4000010000, 0x4000001000
_STACK_SIZE = 0x4000
#: The first is the innermost: each is called by the next one.
CHAIN = ("runtime.gopark", "runtime.chanrecv", "runtime.chanrecv1")
each_toolchain = each_of([each for each in toolchains() if each.minor in ("1.15", "1.19", "1.27")])


def frame_size(listed: Listed) -> int:
    """Return by how much a function lowers SP."""
    for _, _, text in listed.instructions:
        if match := re.match(r"MOVD\.W R30, -(\d+)\(RSP\)|SUB \$(\d+), RSP, (?:R20|RSP)", text):
            return int(match[1] or match[2])
    raise AssertionError(listed.name)


def return_after(listed: Listed, called: str) -> int | None:
    for address, _, text in listed.instructions:
        if text == f"CALL {called}(SB)":
            return address + 4
    return None


def listed_functions(program: Path, toolchain: Toolchain) -> dict[str, Listed]:
    return {listed.name: listed for listed in go_objdump_arm64(program, toolchain)}


def write_core(path: Path, machine: int, segments: dict[int, bytes]) -> None:
    """Write a core file of memory at addresses, without notes."""
    offset = 64 + 56 * len(segments)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\2\1\1".ljust(16, b"\0"),
        *(4, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0),
    )
    for address, content in segments.items():
        size = len(content)
        header += struct.pack("<IIQQQQQQ", 1, 6, offset, address, 0, size, size, 4096)
        offset += size
    path.write_bytes(header + b"".join(segments.values()))


def put(memory: bytearray, at: int, *words: int) -> None:
    struct.pack_into(f"<{len(words)}Q", memory, at, *words)


@each_toolchain
def test_stack_of_an_arm64_core_file(toolchain: Toolchain, tmp_path: Path) -> None:
    program = build(PARKED, toolchain, env=FOR_ARM64)
    functions = listed_functions(program, toolchain)
    waiter, called_at = next(
        (listed, at)
        for listed in functions.values()
        if listed.name.startswith("main.") and (at := return_after(listed, CHAIN[-1]))
    )
    mcall = next(n for n in ("runtime.mcall", "runtime.mcall.abi0") if n in functions)
    names = [*CHAIN, waiter.name]
    returns = [
        return_after(functions[name], called)
        for name, called in zip(CHAIN, (mcall, *CHAIN), strict=False)
    ]
    goexit = next(functions[n] for n in ("runtime.goexit", "runtime.goexit.abi0") if n in functions)
    pcs = [*returns, called_at, goexit.entry + 4]
    stack = bytearray(_STACK_SIZE)
    sp = at = _STACK_SIZE - 0x1000
    for name, back in zip(names, pcs[1:], strict=True):
        assert back is not None, name
        put(stack, at, back)  # its caller goes on there
        at += frame_size(functions[name])
    with Binary(ElfImage.open(program)) as binary:
        layout, allgs = binary.runtime, allgs_of(binary)
        heap = bytearray(0x2000)
        g = bytearray(0x400)
        put(g, 0, _STACK, _STACK + _STACK_SIZE)
        assert pcs[0] is not None
        put(g, layout.g_sched_sp, _STACK + sp, pcs[0])
        put(g, layout.g_goid, 7)
        struct.pack_into("<I", g, layout.g_atomicstatus, 4)  # _Gwaiting
        put(g, layout.g_gopc, called_at)
        put(g, layout.g_startpc, waiter.entry)
        put(heap, 0, _G)
        heap[_G - _HEAP : _G - _HEAP + len(g)] = g
        segments = {_HEAP: bytes(heap), _STACK: bytes(stack)}
        for segment in binary.image.segments:
            if segment.type == PT_LOAD and segment.flags & PF_W:
                data = bytearray(binary.image.read(segment.address, segment.file_size))
                data += bytes(segment.memory_size - segment.file_size)
                if segment.address <= allgs < segment.address + len(data):
                    put(data, allgs - segment.address, _HEAP, 1, 1)
                segments[segment.address] = bytes(data)
    core = tmp_path / "core"
    write_core(core, 183, dict(sorted(segments.items())))
    with CoreGoroutines(str(core), str(program)) as goroutines:
        dump = goroutines.take()
        (found,) = dump.goroutines
        frames = [frame.function for frame in dump.program.frames(found.stack)]
        assert goroutines.arguments().of(found) is not None
    assert (found.goid, found.state) == (7, State.WAITING)
    assert list(found.stack) == pcs
    assert [name for name in frames if name in {*names, "runtime.goexit"}] == [
        *names,
        "runtime.goexit",
    ]


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_list_of_goroutines_is_found_in_stripped_arm64_programs(minor: str) -> None:
    whole = build(PARKED, require(minor), env=FOR_ARM64)
    stripped = build(PARKED, require(minor), flags=("-ldflags=-s -w",), env=FOR_ARM64)
    with Binary(ElfImage.open(whole)) as known, Binary(ElfImage.open(stripped)) as binary:
        assert symbol_value(binary.image, "runtime.allgs") is None
        expected = symbol_value(known.image, "runtime.allgs")
        # Both have the same data, apart from where the linker begins it.
        modules = known.functions.module, binary.functions.module
        assert modules[0] is not None and modules[1] is not None
        shift = modules[0].address - modules[1].address
        assert allgs_of(binary) == (expected or 0) - shift


def test_core_files_of_another_architecture_are_refused(tmp_path: Path) -> None:
    core = tmp_path / "core"
    write_core(core, 183, {_HEAP: bytes(4096)})
    with pytest.raises(GotraceError, match="is not a core file of"):
        CoreGoroutines(str(core), str(build(PARKED, newest())))
    write_core(core, 243, {_HEAP: bytes(4096)})
    with pytest.raises(GotraceError, match="of another processor than amd64 or arm64"):
        CoreGoroutines(str(core), str(build(PARKED, newest())))
