# SPDX-License-Identifier: Apache-2.0
"""Put functions that a program calls after it, and have the kernel run them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.linked import Linked, LinkedFunction, linked, load_linked
from tests.bpf.c import CLayout

EXIT = (0x95, 0, 0, 0)
#: Calls of functions 0 and 1 with an argument of 16 and of 8 bytes.
FIRST, SECOND = (0x85, 0, 0, 0x4000_0010), (0x85, 0, 0, 0x4010_0008)


def code(*instructions: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("=BBhi", *each) for each in instructions)


def test_program_that_calls_nothing_stays_as_it_is() -> None:
    alone = code((0x85, 0, 0, 5), EXIT)
    assert linked("main", {"main": alone, "other": b""}) == Linked(
        alone, (LinkedFunction("main", 0, 0),)
    )


def test_each_function_is_there_once_and_is_called_where_it_is() -> None:
    # What loads 64 bits has two slots: the second one is data, whatever it looks like.
    wide = [(0x18, 1, 0, 1), FIRST]
    functions = {
        "main": code(*wide, FIRST, SECOND, FIRST, EXIT),
        "run_operation": code(SECOND, EXIT),
        "add_to_goroutine": code((0xB7, 0, 0, 7), EXIT),
    }
    found = linked("main", functions)
    assert found.parts == (
        LinkedFunction("main", 0, 0),
        LinkedFunction("run_operation", 6, 16),
        LinkedFunction("add_to_goroutine", 8, 8),
    )
    # The distance is from the instruction after the call.
    calls = [(0x85, 0x10, 0, distance) for distance in (6 - 3, 8 - 4, 6 - 5)]
    inner = (0x85, 0x10, 0, 8 - 7)
    assert found.code == code(*wide, *calls, EXIT, inner, EXIT, (0xB7, 0, 0, 7), EXIT)


def test_function_that_was_not_compiled_is_missing() -> None:
    with pytest.raises(LookupError):
        linked("main", {"main": code(FIRST, EXIT)})


def test_numbers_are_those_of_c(tmp_path: Path) -> None:
    names = ["RUN_OPERATION", "ADD_TO_GOROUTINE", "ADD_TO_PARTS"]
    found = CLayout("latency.c", tmp_path).constants(*names)
    functions = {"main": b"", **{name.lower(): code(EXIT) for name in names}}
    for name, number in zip(names, found, strict=True):
        functions["main"] = code((0x85, 0, 0, 0x4000_0000 + (number << 20) + 8), EXIT)
        assert linked("main", functions).parts[1] == LinkedFunction(name.lower(), 2, 8)


@pytest.mark.live
def test_function_may_use_all_of_its_argument_and_nothing_else() -> None:
    # *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 16) = 0; r1 = r10 - 16; call; r0 = 0; exit
    main = code(
        *((0x7A, 10, -8, 0), (0x7A, 10, -16, 0), (0xBF, 0xA1, 0, 0), (0x07, 1, 0, -16)),
        *(FIRST, (0xB7, 0, 0, 0), EXIT),
    )

    def load(offset: int) -> None:
        # r0 = 1; if r1 == 0 exit; r0 = *(u64 *)(r1 + offset); exit
        called = code((0xB7, 0, 0, 1), (0x15, 1, 1, 0), (0x79, 0x10, offset, 0), EXIT)
        program = linked("main", {"main": main, "run_operation": called})
        os.close(load_linked(program, "GPL", kernel.PROGRAM_KPROBE, 0))

    load(8)
    with pytest.raises(PermissionError):
        load(9)
