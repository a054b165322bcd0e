# SPDX-License-Identifier: Apache-2.0
"""Search bytes and decode numbers; the LEB128 examples are those of DWARF 5, figures C.1 to C.4."""

from __future__ import annotations

import mmap

import pytest

from gotrace.elf.scan import find_all, read_uleb


def test_every_place_is_found() -> None:
    assert list(find_all(b"aaxaaa", b"aa")) == [0, 3, 4]
    assert list(find_all(b"aaxaaa", b"aa", 1)) == [3, 4]
    assert list(find_all(b"aaxaaa", b"aa", 0, 5)) == [0, 3]
    assert list(find_all(b"aaxaaa", b"b")) == []
    with mmap.mmap(-1, 4096) as mapped:
        mapped[10:12] = mapped[4094:4096] = b"ab"
        assert list(find_all(mapped, b"ab")) == [10, 4094]


@pytest.mark.parametrize(
    ("content", "unsigned"),
    [
        ("02", 2),
        ("7f", 127),
        ("8001", 128),
        ("8101", 129),
        ("b964", 12857),
        ("ff00", 127),
        ("817f", 16257),
        ("807f", 16256),
        ("ffffffffffffffffff01", (1 << 64) - 1),
    ],
)
def test_numbers(content: str, unsigned: int) -> None:
    data = b"\xff" + bytes.fromhex(content) + b"\x05"
    assert read_uleb(data, 1) == (unsigned, len(data) - 1)


def test_numbers_without_an_end_are_refused() -> None:
    with pytest.raises(IndexError):
        read_uleb(b"\x80\x80", 0)
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_uleb(b"\x80" * 1000, 0)
