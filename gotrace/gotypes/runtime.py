# SPDX-License-Identifier: Apache-2.0
"""Know the runtime's places of facts about goroutines, threads and waiting ones.

They are ``runtime.g``, ``runtime.m``, for each goroutine that waits for a channel or a lock
``runtime.sudog``, and for each channel ``runtime.hchan``.

Offsets come from the binary's own DWARF when it has some, else from one table by Go release.
Sources of the table: the types g, m, gobuf and sudog in
src/runtime/runtime2.go and hchan in src/runtime/chan.go of each release, laid out for a 64-bit
machine; the rows for 1.15, 1.19 and 1.21 to 1.27 were also read from DWARF of binaries built with
these releases. A ``-race`` build has the same offsets.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gotrace.architecture import Architecture
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.scan import find_all
from gotrace.errors import GotraceError
from gotrace.gotypes.releases import LABEL_LISTS, NEWEST, Release
from gotrace.kept import kept_folder
from gotrace.records import dataclass, replace

if TYPE_CHECKING:
    from gotrace.elf.buildinfo import GoVersion
    from gotrace.elf.dwarf.reader import DwarfReader
    from gotrace.elf.image import ElfImage


#: The beginning of what names a kept file; changes with how offsets are read.
_FORMAT = b"gotrace layout 2\n"
_DIGEST = 20
_MAX_FILES, _MAX_BYTES = 512, 4 << 20


class RuntimeLayoutError(GotraceError):
    """A binary for which the offsets in the runtime's structs cannot be known."""


class LayoutSource(enum.Enum):
    """Where a layout comes from."""

    DWARF = "dwarf"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class RuntimeLayout:
    """Byte offsets in the runtime's structs, and the ways to find the running g.

    ``g_goid`` and the pcs are 8 bytes wide, ``g_atomicstatus`` 4, ``g_waitreason`` 1.
    ``g_parent_goid`` is None before Go 1.21, which did not keep it. ``g_sched_pc`` and
    ``g_sched_bp`` are saved with ``g_sched_sp``; where a goroutine is in a system call,
    ``g_syscallsp`` and ``g_syscallpc`` hold instead. ``g_tracking_seq`` is a byte that grows each
    time the goroutine stops running, None before Go 1.17. ``g_waiting`` is the first sudog.
    ``g_labels`` leads to pprof labels: to a map if ``labels_are_map``, else to a slice.

    ``sudog_elem`` and ``sudog_c`` are those of the word that holds the address, which since Go 1.26
    is the second of two (maybeTraceablePtr.vu); ``sudog_g`` and, of m, ``g0`` are at 0 throughout.
    ``m_procid`` is the thread's number in the process's own pid namespace. ``hchan_timer`` leads to
    the timer that feeds a channel, None before Go 1.23, whose channels do not know it.

    ``g_in_register``: functions of the register ABI (ABIInternal) hold g in the architecture's g
    register (R14 on amd64). Assembly functions and older releases do not, but on arm64, where all
    code does. ``tls_offset``: bytes from the thread pointer (FS base) to the thread's g pointer on
    amd64, negative; None where only the dynamic loader knows it (shared libraries), and on arm64.
    ``assumed``: the release is outside of the table and the nearest row was taken.
    """

    g_stack_hi: int
    g_m: int
    g_sched_sp: int
    g_sched_pc: int
    g_sched_bp: int
    g_syscallsp: int
    g_syscallpc: int
    g_atomicstatus: int
    g_goid: int
    g_waitsince: int
    g_waitreason: int
    g_tracking_seq: int | None
    g_lockedm: int
    g_parent_goid: int | None
    g_gopc: int
    g_startpc: int
    g_waiting: int
    g_labels: int
    m_procid: int
    m_curg: int
    sudog_elem: int
    sudog_waitlink: int
    sudog_c: int
    hchan_timer: int | None
    hchan_elemtype: int
    hchan_recvq: int
    hchan_sendq: int
    g_in_register: bool
    labels_are_map: bool = False
    tls_offset: int | None = None
    source: LayoutSource = LayoutSource.TABLE
    assumed: bool = False


# stack.hi, g.m and g.sched have been at 8, 48 and 56 throughout, gobuf.pc at 8.
# 1.17 put the scheduling latency fields before gopc; 1.21 took the tracer's fields out and put
# parentGoid in; 1.23 added g.syscallbp and hchan.timer; 1.25 removed gobuf.ret, which g and m both
# contain; 1.26 made two words of sudog.elem.
_Row = dict[str, int | None]
_COMMON: _Row = {"g_stack_hi": 8, "g_m": 48, "g_sched_sp": 56, "g_sched_pc": 64}
_SUDOG_1_15: _Row = {"sudog_elem": 24, "sudog_waitlink": 64, "sudog_c": 80}
_SUDOG_1_26: _Row = {"sudog_elem": 32, "sudog_waitlink": 72, "sudog_c": 96}


def _syscall(sp: int, g_sched_bp: int) -> _Row:
    return {"g_sched_bp": g_sched_bp, "g_syscallsp": sp, "g_syscallpc": sp + 8}


def _status(at: int, tracking: int | None, lockedm: int) -> _Row:
    """Return the fields that follow one another from atomicstatus on."""
    return {
        "g_atomicstatus": at,
        "g_goid": at + 8,
        "g_waitsince": at + 24,
        "g_waitreason": at + 32,
        "g_tracking_seq": tracking,
        "g_lockedm": lockedm,
    }


def _origin(parent: int | None, gopc: int) -> _Row:
    """Return the fields that follow one another from parentGoid or gopc on."""
    origin = {"g_gopc": gopc, "g_startpc": gopc + 16, "g_waiting": gopc + 32}
    origin["g_labels"] = gopc + 64
    return {"g_parent_goid": parent, **origin}


def _channel(timer: int | None, elemtype: int) -> _Row:
    """Return the fields of hchan, of which a waitq has 16 bytes."""
    queues = {"hchan_recvq": elemtype + 24, "hchan_sendq": elemtype + 40}
    return {"hchan_timer": timer, "hchan_elemtype": elemtype, **queues}


_M_1_15: _Row = {"m_procid": 72, "m_curg": 192}
_M_1_25: _Row = {"m_procid": 64, "m_curg": 184}

_STRUCTS_1_15 = _syscall(112, 104) | _M_1_15 | _SUDOG_1_15 | _channel(None, 32)
_STRUCTS_1_23 = _STRUCTS_1_15 | _channel(32, 40)
_STRUCTS_1_25 = _syscall(104, 96) | _M_1_25 | _channel(32, 40)

#: First release -> the row that holds from it on, newest first.
_TABLE: dict[Release, _Row] = {
    (1, 26): _STRUCTS_1_25 | _SUDOG_1_26 | _status(144, 191, 208) | _origin(280, 288),
    (1, 25): _STRUCTS_1_25 | _SUDOG_1_15 | _status(144, 191, 208) | _origin(272, 280),
    (1, 23): _STRUCTS_1_23 | _status(152, 199, 216) | _origin(280, 288),
    (1, 22): _STRUCTS_1_15 | _status(144, 191, 208) | _origin(272, 280),
    (1, 21): _STRUCTS_1_15 | _status(144, 188, 208) | _origin(272, 280),
    (1, 17): _STRUCTS_1_15 | _status(144, 189, 232) | _origin(None, 296),
    (1, 15): _STRUCTS_1_15 | _status(144, None, 216) | _origin(None, 280),
}


def table_layout(release: Release, arch: Architecture) -> RuntimeLayout:
    """Return the layout of a Go release on a 64-bit architecture, without ``tls_offset``.

    A release newer (older) than all that are known gets the newest (oldest) row with ``assumed``
    set.
    """
    known = min(max(release, min(_TABLE)), NEWEST)
    row = next(row for since, row in _TABLE.items() if since <= known)
    fields: dict[str, Any] = {**_COMMON, **row}
    return RuntimeLayout(
        **fields,
        g_in_register=_is_g_in_register(known, arch),
        labels_are_map=known < LABEL_LISTS,
        assumed=known != release,
    )


def _is_g_in_register(release: Release, arch: Architecture) -> bool:
    return arch.keeps_g or release >= arch.register_abi


def runtime_layout(
    image: ElfImage, go_version: GoVersion | None, dwarf: Callable[[], DwarfReader | None]
) -> RuntimeLayout:
    """Return the runtime layout of a Go binary: from its DWARF, else from the table.

    ``dwarf`` returns the reader. It is not called if a file with the same debugging information
    was read before.

    Raise RuntimeLayoutError when the binary has neither usable DWARF for ``runtime.g`` nor a known
    Go version.
    """
    release = None if go_version is None else go_version.release
    offsets = _kept_offsets(image, dwarf)
    if offsets is not None:
        layout = replace(
            table_layout(NEWEST, image.arch),
            **offsets,
            g_in_register=_is_g_in_register(release or NEWEST, image.arch),
            labels_are_map=(release or NEWEST) < LABEL_LISTS,
            source=LayoutSource.DWARF,
        )
    elif release is not None:
        layout = table_layout(release, image.arch)
    else:
        raise RuntimeLayoutError(
            f"{image.display}: cannot find where goroutines keep their id: the binary has neither "
            "DWARF nor a Go version; trace a build with build info"
        )
    return replace(layout, tls_offset=tls_offset(image))


_FIELDS = {
    "runtime.g": {
        "g_m": "m",
        "g_sched_sp": "sched",  # gobuf's first field
        "g_syscallsp": "syscallsp",
        "g_syscallpc": "syscallpc",
        "g_atomicstatus": "atomicstatus",
        "g_goid": "goid",
        "g_waitsince": "waitsince",
        "g_waitreason": "waitreason",
        "g_lockedm": "lockedm",
        "g_gopc": "gopc",
        "g_startpc": "startpc",
        "g_waiting": "waiting",
        "g_labels": "labels",
    },
    "runtime.m": {"m_curg": "curg", "m_procid": "procid"},
    "runtime.gobuf": {"g_sched_pc": "pc", "g_sched_bp": "bp"},  # sched is added
    "runtime.sudog": {"sudog_elem": "elem", "sudog_c": "c", "sudog_waitlink": "waitlink"},
    "runtime.hchan": {
        "hchan_elemtype": "elemtype",
        "hchan_recvq": "recvq",
        "hchan_sendq": "sendq",
    },
}


def _kept_offsets(
    image: ElfImage, dwarf: Callable[[], DwarfReader | None]
) -> dict[str, Any] | None:
    """Return the result of ``_dwarf_offsets``, kept from one run to the next.

    It is kept by all that it depends on. A build ID is only what a file says of itself.
    """
    sections = [one for one in image.sections if one.name.startswith((".debug_", ".zdebug_"))]
    if not sections:
        return None
    key = hashlib.blake2b(_FORMAT, digest_size=20)
    for one in sections:
        content = memoryview(image.data)[one.offset : one.offset + one.size]
        key.update(f"{one.name} {one.flags} {len(content)}\n".encode())
        key.update(content)
    with kept_folder("layouts", _MAX_FILES, _MAX_BYTES) as folder:
        kept = b"" if folder is None else folder.read(key.hexdigest()) or b""
        digest, text = kept[:_DIGEST], kept[_DIGEST:]
        if kept and digest == hashlib.blake2b(text, digest_size=_DIGEST).digest():
            found: dict[str, Any] = json.loads(text)
            return found
        reader = dwarf()
        offsets = None if reader is None else _dwarf_offsets(reader)
        if folder is not None and offsets is not None:
            text = json.dumps(offsets).encode()
            digest = hashlib.blake2b(text, digest_size=_DIGEST).digest()
            folder.write(key.hexdigest(), digest + text)
    return offsets


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
                offsets["g_tracking_seq"] = members.get("trackingSeq")
                offsets["g_stack_hi"] = members["stack"] + 8
            elif struct_name == "runtime.sudog" and "acquiretime" in members:
                pointer = members["acquiretime"] - members["elem"] - 8  # 8 for maybeTraceablePtr
                offsets["sudog_elem"] += pointer
                offsets["sudog_c"] += pointer
            elif struct_name == "runtime.hchan":
                offsets["hchan_timer"] = members.get("timer")
    except DwarfError:
        # DWARF that cannot be read is no worse here than DWARF that is absent.
        return None
    offsets["g_sched_pc"] += offsets["g_sched_sp"]
    offsets["g_sched_bp"] += offsets["g_sched_sp"]
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
    """Return the offset of the g pointer from the thread pointer, None if it is not fixed.

    Only C code needs it where Go's own always keeps g in its register: it is not looked for there.

    It is read from the instruction of the runtime that tests it, which says what the linker
    chose whatever the symbol table still holds. It equals the value of ``runtime.tlsg`` minus
    the TLS segment's size rounded up to its alignment (ELF TLS variant II), which is -8 in
    binaries linked by Go's own linker.
    """
    found = set() if image.arch.keeps_g else set(_tls_candidates(image))
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
