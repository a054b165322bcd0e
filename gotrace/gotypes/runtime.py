# SPDX-License-Identifier: Apache-2.0
"""Know where the runtime keeps what a tracer needs of a goroutine (runtime.g) and a thread (m).

Offsets come from the binary's own DWARF when it has some, else from one table by Go release.
Sources of the table: ``type g struct``, ``type m struct`` and ``type gobuf struct`` in
src/runtime/runtime2.go of each release, laid out for a 64-bit machine; the rows for 1.15, 1.19 and
1.21 to 1.27 were also read from DWARF of binaries built with these releases. A ``-race`` build has
the same offsets.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.scan import find_all
from gotrace.errors import GotraceError
from gotrace.gotypes.releases import NEWEST, REGISTER_ABI, Release

if TYPE_CHECKING:
    from gotrace.elf.buildinfo import GoVersion
    from gotrace.elf.dwarf.reader import DwarfReader
    from gotrace.elf.image import ElfImage

__all__ = [
    "LayoutSource",
    "RuntimeLayout",
    "RuntimeLayoutError",
    "runtime_layout",
    "table_layout",
    "tls_offset",
]


class RuntimeLayoutError(GotraceError):
    """A binary for which the offsets in the runtime's structs cannot be known."""


class LayoutSource(enum.Enum):
    """Where a layout comes from."""

    DWARF = "dwarf"
    TABLE = "table"


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeLayout:
    """Byte offsets in ``runtime.g`` and ``runtime.m``, and the ways to find the running g.

    ``g_goid`` and the pcs are 8 bytes wide, ``g_atomicstatus`` 4, ``g_waitreason`` 1.
    ``g_parent_goid`` is None before Go 1.21, which did not keep it.

    ``g_in_register``: functions of the register ABI (ABIInternal, Go >= 1.17) hold g in the
    architecture's g register (R14 on amd64). Assembly functions and older releases do not.
    ``tls_offset``: bytes from the thread pointer (FS base) to the thread's g pointer, negative
    on amd64; None where only the dynamic loader knows it (shared libraries).
    ``assumed``: the release is outside of the table and the nearest row was taken.
    """

    g_stack_hi: int
    g_m: int
    g_sched_sp: int
    g_atomicstatus: int
    g_goid: int
    g_waitreason: int
    g_parent_goid: int | None
    g_gopc: int
    g_startpc: int
    m_curg: int
    g_in_register: bool
    tls_offset: int | None = None
    source: LayoutSource = LayoutSource.TABLE
    assumed: bool = False


# g: atomicstatus, goid, waitreason, parentGoid, gopc, startpc; m: curg.
# stack.hi, g.m and g.sched.sp have been at 8, 48 and 56 throughout.
# 1.17 put the scheduling latency fields before gopc; 1.21 took the tracer's fields out and put
# parentGoid in; 1.23 added g.syscallbp; 1.25 removed gobuf.ret, which g and m both contain.
_Row = tuple[int, int, int, int | None, int, int, int]
_G_1_15: _Row = (144, 152, 176, None, 280, 296, 192)
_G_1_17: _Row = (144, 152, 176, None, 296, 312, 192)
_G_1_21: _Row = (144, 152, 176, 272, 280, 296, 192)
_G_1_23: _Row = (152, 160, 184, 280, 288, 304, 192)
_G_1_25: _Row = (144, 152, 176, 272, 280, 296, 184)
_G_1_26: _Row = (144, 152, 176, 280, 288, 304, 184)

#: First release -> the row that holds from it on, newest first.
_TABLE: dict[Release, _Row] = {
    (1, 26): _G_1_26,
    (1, 25): _G_1_25,
    (1, 23): _G_1_23,
    (1, 21): _G_1_21,
    (1, 17): _G_1_17,
    (1, 15): _G_1_15,
}


def table_layout(release: Release) -> RuntimeLayout:
    """Return the layout of a Go release on a 64-bit machine, without ``tls_offset``.

    A release newer (older) than all that are known gets the newest (oldest) row with ``assumed``
    set.
    """
    known = min(max(release, min(_TABLE)), NEWEST)
    row = next(row for since, row in _TABLE.items() if since <= known)
    status, goid, waitreason, parent, gopc, startpc, curg = row
    return RuntimeLayout(
        g_stack_hi=8,
        g_m=48,
        g_sched_sp=56,
        g_atomicstatus=status,
        g_goid=goid,
        g_waitreason=waitreason,
        g_parent_goid=parent,
        g_gopc=gopc,
        g_startpc=startpc,
        m_curg=curg,
        g_in_register=known >= REGISTER_ABI,
        assumed=known != release,
    )


def runtime_layout(
    image: ElfImage, go_version: GoVersion | None, dwarf: DwarfReader | None
) -> RuntimeLayout:
    """Return the runtime layout of a Go binary: from its DWARF, else from the table.

    Raise RuntimeLayoutError when the binary has neither usable DWARF for ``runtime.g`` nor a known
    Go version.
    """
    release = None if go_version is None else go_version.release
    offsets = None if dwarf is None else _dwarf_offsets(dwarf)
    if offsets is not None:
        layout = dataclasses.replace(
            table_layout(NEWEST),
            **offsets,
            g_in_register=(release or NEWEST) >= REGISTER_ABI,
            source=LayoutSource.DWARF,
        )
    elif release is not None:
        layout = table_layout(release)
    else:
        raise RuntimeLayoutError(
            f"{image.display}: cannot find where goroutines keep their id: the binary has neither "
            "DWARF nor a Go version; trace a build with build info"
        )
    return dataclasses.replace(layout, tls_offset=tls_offset(image))


_FIELDS = {
    "runtime.g": {
        "g_m": "m",
        "g_sched_sp": "sched",  # gobuf's first field
        "g_atomicstatus": "atomicstatus",
        "g_goid": "goid",
        "g_waitreason": "waitreason",
        "g_gopc": "gopc",
        "g_startpc": "startpc",
    },
    "runtime.m": {"m_curg": "curg"},
}


def _dwarf_offsets(dwarf: DwarfReader) -> dict[str, Any] | None:
    """Return the offset fields of RuntimeLayout from DWARF; None when DWARF cannot give all."""
    offsets: dict[str, Any] = {}
    try:
        for struct_name, wanted in _FIELDS.items():
            members = dwarf.struct_members(struct_name)
            if not members.keys() >= set(wanted.values()):
                return None
            offsets.update((key, members[field]) for key, field in wanted.items())
            if struct_name == "runtime.g":
                offsets["g_parent_goid"] = members.get("parentGoid")
                offsets["g_stack_hi"] = members["stack"] + 8
    except DwarfError:
        # DWARF that cannot be read is no worse here than DWARF that is absent.
        return None
    return offsets


# runtime.rt0_go (src/runtime/asm_amd64.s, all releases) tests thread-local storage with
# `get_tls(BX); MOVQ $0x123, g(BX)`. The linker turns that into one of:
#   movq $0x123, %fs:disp32                  executables at a fixed address
#   movq $imm32, %rbx; movq $0x123, %fs:(%rbx)    position independent executables
# In shared libraries RBX is loaded from the GOT: the offset exists only at run time.
_TLS_FORMS = re.compile(
    rb"\x64\x48\xc7\x04\x25(?P<disp>.{4})\x23\x01\x00\x00"
    rb"|\x48\xc7\xc3(?P<imm>.{4})\x64\x48\xc7\x03\x23\x01\x00\x00",
    re.DOTALL,
)
_TLS_MARKS = (b"\x64\x48\xc7\x04\x25", b"\x64\x48\xc7\x03\x23\x01\x00\x00")
_PF_X = 1
_PT_LOAD = 1


def tls_offset(image: ElfImage) -> int | None:
    """Return the offset of the g pointer from the thread pointer on amd64, None if not fixed.

    It is read from the instruction of the runtime that tests it, which says what the linker
    chose whatever the symbol table still holds. It equals the value of ``runtime.tlsg`` minus
    the TLS segment's size rounded up to its alignment (ELF TLS variant II), which is -8 in
    binaries linked by Go's own linker.
    """
    found = set(_tls_candidates(image))
    return found.pop() if len(found) == 1 else None


def _tls_candidates(image: ElfImage) -> Iterator[int]:
    for segment in image.segments:
        if segment.type != _PT_LOAD or not segment.flags & _PF_X:
            continue
        code = image.read(segment.address, segment.file_size)
        for mark in _TLS_MARKS:
            for at in find_all(code, mark):
                match = _TLS_FORMS.match(code, at) or _TLS_FORMS.match(code, max(at - 7, 0))
                if match:
                    (value,) = struct.unpack("<i", match["disp"] or match["imm"])
                    if value < 0:
                        yield value
