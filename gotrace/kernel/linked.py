# SPDX-License-Identifier: Apache-2.0
"""Functions that BPF programs call, put after the program that calls them.

The verifier follows inlined code once for each way that leads there: the body of a loop for each
turn. It follows a "global" function, as the kernel calls these, once: by itself, with any argument.
For that it must know the function's type: Linux 5.12, commit e5069b9c23b3 ("bpf: Support pointers
in global func args"). The programs concerned need 5.12 in any case (``bpf/atomic.h``). BCC compiles
no calls between functions, so the caller is compiled with a mark in place of the call: ``CALLED``
of ``bpf/common.h``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.instructions import CALL, INSTRUCTION, LD_IMM64
from gotrace.records import dataclass

#: Functions that programs call; enum called of bpf/common.h.
_CALLED = (
    *("run_operation", "add_to_goroutine", "add_to_parts", "find_span", "find_contexts"),
    "find_label",
)
_MARK, _NUMBER_SHIFT = 0x4000_0000, 20
_CALL_FUNCTION = 1
_RETURN_0 = (0xB7, 0, 0, 0)  # r0 = 0, in the place of a call


@dataclass(frozen=True, slots=True)
class LinkedFunction:
    """One function of a linked program.

    ``at`` is its first instruction's number. ``argument`` is the size of what it is given the
    address of, 0 for the program itself.
    """

    name: str
    at: int
    argument: int


@dataclass(frozen=True, slots=True)
class Linked:
    """A program's instructions, those of the functions that it calls included."""

    code: bytes
    parts: tuple[LinkedFunction, ...]


def linked(
    name: str,
    functions: Mapping[str, bytes],
    larger: Mapping[int, int] | None = None,
    uncalled: Collection[str] = (),
) -> Linked:
    """Return function ``name`` and all that it calls, each once.

    ``functions`` are those of its source. ``larger`` has the sizes of maps' values by those that
    the compiler knows: an argument of such a size is a map's value. No call of an ``uncalled`` one
    can be reached, and the verifier need not follow it. Raises LookupError where a function is
    missing.
    """
    parts = [LinkedFunction(name, 0, 0)]
    code = bytearray(functions[name])
    for at, mark in _calls(code):
        number, argument = mark >> _NUMBER_SHIFT, mark & (1 << _NUMBER_SHIFT) - 1
        called = _CALLED[number]
        if called in uncalled:
            INSTRUCTION.pack_into(code, at, *_RETURN_0)
            continue
        start = next((part.at for part in parts if part.name == called), None)
        if start is None:
            start = len(code) // INSTRUCTION.size
            parts.append(LinkedFunction(called, start, (larger or {}).get(argument, argument)))
            code += functions[called]
        distance = start - (at // INSTRUCTION.size + 1)
        INSTRUCTION.pack_into(code, at, CALL, _CALL_FUNCTION << 4, 0, distance)
    return Linked(bytes(code), tuple(parts))


def _calls(code: bytearray) -> Iterator[tuple[int, int]]:
    """Yield offset and mark, without what all have in common, of each call of a function.

    ``code`` may grow meanwhile.
    """
    at = 0
    while at < len(code):
        operation, registers, _, constant = INSTRUCTION.unpack_from(code, at)
        if operation == CALL and not registers >> 4 and constant & _MARK:
            yield at, constant - _MARK
        at += INSTRUCTION.size * (2 if operation == LD_IMM64 else 1)


def load_linked(
    program: Linked, license_text: str, kind: int, attach_type: int, log: bytearray | None = None
) -> int:
    """Load a program and return its descriptor; parameters as for ``load_program``.

    Raises OSError.
    """
    name = program.parts[0].name
    arguments = (program.code, license_text.encode(), kind, attach_type, name, log)
    if len(program.parts) == 1:
        return kernel.load_program(*arguments)
    types, of_parts = _types(program.parts)
    described = kernel.load_types(types)
    try:
        return kernel.load_program(*arguments, types=described, functions=of_parts)
    finally:
        os.close(described)


# Layout: Documentation/bpf/btf.rst of the kernel.
_INT, _POINTER, _STRUCT, _FUNCTION, _PROTOTYPE = 1, 2, 4, 12, 13
_GLOBAL = 1
_SIGNED_32_BITS = 1 << 24 | 32


def _types(parts: tuple[LinkedFunction, ...]) -> tuple[bytes, bytes]:
    """Return the BTF of functions that return an int, and the table of their places."""
    strings, types = bytearray(b"\0"), bytearray()
    where = b""
    count = 0

    def text(word: str) -> int:
        strings.extend(word.encode() + b"\0")
        return len(strings) - len(word) - 1

    def add(name: int, kind: int, size_or_type: int, *more: int, members: int = 0) -> int:
        nonlocal count
        types.extend(struct.pack("=III", name, kind << 24 | members, size_or_type))
        types.extend(struct.pack(f"={len(more)}I", *more))
        count += 1
        return count

    result = add(text("int"), _INT, 4, _SIGNED_32_BITS)
    for part in parts:
        if part.argument:
            pointer = add(0, _POINTER, add(text("argument"), _STRUCT, part.argument))
            prototype = add(0, _PROTOTYPE, result, text("argument"), pointer, members=1)
            function = add(text(part.name), _FUNCTION, prototype, members=_GLOBAL)
        else:
            function = add(text(part.name), _FUNCTION, add(0, _PROTOTYPE, result))
        where += struct.pack("=II", part.at, function)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + bytes(types) + bytes(strings), where
