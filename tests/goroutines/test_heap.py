# SPDX-License-Identifier: Apache-2.0
"""The heap's profile of memory that is not as it should be. tools/goalloc has the others."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import pytest

from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.goroutines import heap
from gotrace.goroutines.heap import rate_address, read_profile
from gotrace.goroutines.program import module_of
from gotrace.gotypes.binary import Binary
from tests.toolchains import program_of

program = program_of("live_alloc")
_HEAD = struct.Struct("<6Q")


class Damaged:
    """Memory all of whose variables are 1, and whose buckets are as given."""

    def __init__(self, bucket: bytes | None) -> None:
        self._bucket = bucket

    def gather(self, places: Sequence[int]) -> bytearray:
        return bytearray(struct.pack("<Q", 1))

    def scatter(self, places: array[int], into: array[int], parts: array[int]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def read(self, address: int, size: int) -> bytes | None:
        return self._bucket and self._bucket[:size].ljust(size, b"\0")


@pytest.mark.parametrize(
    "bucket",
    [
        None,
        _HEAD.pack(0, 0, 2, 0, 64, 1),  # of another profile
        _HEAD.pack(0, 0, 1, 0, 64, 1 << 40),  # a stack of so many frames
        _HEAD.pack(0, 1, 1, 0, 64, 0),  # a list without an end
    ],
)
def test_damaged_buckets_are_an_error(
    bucket: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gotrace.goroutines.heap._MAX_BUCKETS", 1000)
    said = pytest.raises(GotraceError, match="the heap's profile cannot be read")
    with Binary(ElfImage.open(str(program()))) as binary, said:
        read_profile(module_of(binary, 0), Damaged(bucket))


def test_a_variable_that_is_not_found_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_variables", lambda *_: iter(()))
    with Binary(ElfImage.open(str(program(mode="stripped")))) as binary:
        said = (
            ": cannot find .*: the program has no symbol for it, and runtime.profilealloc"
            " is not as in Go 1.15 to 1.27"
        )
        with pytest.raises(GotraceError, match=said):
            rate_address(binary)
