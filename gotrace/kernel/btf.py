# SPDX-License-Identifier: Apache-2.0
"""Find field offsets in the running kernel's own structs from its BTF.

Layout: Documentation/bpf/btf.rst of the kernel (magic 0xeb9f, struct btf_type, struct btf_member).
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

_VMLINUX = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header length, types, strings
_MAGIC = 0xEB9F
_KIND_STRUCT = 4


class _Btf:
    def __init__(self, data: bytes) -> None:
        magic, _, _, header, types, types_size, strings, strings_size = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError(magic)
        self._types = data[header + types : header + types + types_size]
        self._strings = data[header + strings : header + strings + strings_size]

    def field_offset(self, name: str, field: str) -> int:
        """Return a field's offset in bytes. Raises ValueError when there is none of that name."""
        name_at, field_at = self._string(name), self._string(field)
        wanted = struct.pack("<I", name_at)
        at = self._types.find(wanted)
        while at >= 0:
            if at % 4 == 0:
                offset = self._member_offset(at, field_at)
                if offset is not None:
                    return offset
            at = self._types.find(wanted, at + 1)
        raise ValueError(name)

    def _string(self, text: str) -> int:
        at = self._strings.find(b"\0" + text.encode() + b"\0")
        if at < 0:
            raise ValueError(text)
        return at + 1

    def _member_offset(self, at: int, field: int) -> int | None:
        """Return the offset of the member named ``field`` of the struct at ``at``, if it is one."""
        if at + 12 > len(self._types):
            return None
        info = struct.unpack_from("<I", self._types, at + 4)[0]
        members, kind = info & 0xFFFF, info >> 24 & 0x1F
        if kind != _KIND_STRUCT or at + 12 + 12 * members > len(self._types):
            return None
        bits_mask = 0xFFFFFF if info >> 31 else 0xFFFFFFFF  # kind_flag: size in the high byte
        rows = struct.iter_unpack("<III", self._types[at + 12 : at + 12 + 12 * members])
        return next(((bits & bits_mask) // 8 for name, _, bits in rows if name == field), None)


@cache
def _vmlinux() -> _Btf | None:
    try:
        return _Btf(_VMLINUX.read_bytes())
    except (OSError, ValueError, struct.error):
        return None


@cache
def kernel_field(*path: tuple[str, str]) -> int | None:
    """Return the offset of a field, reached through structs within one another, or None.

    ``path`` has each struct and its field: ``("task_struct", "se"), ("sched_entity", "cfs_rq")``.
    """
    btf = _vmlinux()
    if btf is None:
        return None
    try:
        return sum(btf.field_offset(name, field) for name, field in path)
    except (ValueError, struct.error):
        return None


def task_fsbase_offset() -> int | None:
    """Return where task_struct keeps a thread's FS base (x86-64), None if BTF does not say.

    Source: ``thread.fsbase`` in arch/x86/include/asm/processor.h, which arch_prctl(2) and clone(2)
    keep up to date.
    """
    return kernel_field(("task_struct", "thread"), ("thread_struct", "fsbase"))


def task_blocked_offset() -> int | None:
    """Return where task_struct keeps the set of signals that a thread blocks, or None.

    Source: ``blocked`` in include/linux/sched.h, bit N - 1 for signal N in its first word.
    """
    return kernel_field(("task_struct", "blocked"))
