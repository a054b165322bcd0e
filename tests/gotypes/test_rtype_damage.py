# SPDX-License-Identifier: Apache-2.0
"""Check that damaged type descriptors give an error that says so, or a result, and nothing else."""

from __future__ import annotations

import functools
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.types import ChanType, Kind, MapType
from tests.gotypes.rtype_programs import BOX, Program, header_fields, parts, program
from tests.toolchains import newest


def patched(found: Program, copy: Path, changes: dict[int, bytes]) -> Rtypes:
    """Return the descriptors of a copy in which bytes at addresses were changed."""
    shutil.copyfile(found.path, copy)
    with copy.open("r+b") as file:
        for address, content in changes.items():
            file.seek(found.image.offset_of(address))
            file.write(content)
    descriptors = Binary(ElfImage.open(copy)).rtypes
    assert descriptors is not None
    return descriptors


@pytest.mark.parametrize(
    ("name", "offset"),
    [("main.matrix", 48), ("[1]*int", 48), ("*main.store", 48), (f"[]*{BOX}.Code", 48)],
)
def test_type_of_itself(tmp_path: Path, name: str, offset: int) -> None:
    found = program(newest())
    address = found.descriptors.basic(name)
    assert address is not None
    damaged = patched(found, tmp_path / "copy", {address + offset: struct.pack("<Q", address)})
    with pytest.raises(RtypeError, match=f"{address:#x} contains itself"):
        damaged.type_at(address)


def test_struct_of_itself(tmp_path: Path) -> None:
    found = program(newest())
    address = found.descriptors.basic("main.store")
    assert address is not None
    (fields,) = struct.unpack("<Q", found.image.read(address + 56, 8))
    damaged = patched(found, tmp_path / "copy", {fields + 8: struct.pack("<Q", address)})
    with pytest.raises(RtypeError, match="contains itself"):
        damaged.type_at(address)


@pytest.mark.parametrize(
    ("name", "offset", "content", "why"),
    [
        ("main.store", 64, struct.pack("<Q", 1 << 60), "has more parts than"),  # number of fields
        ("main.store", 56, struct.pack("<Q", 1 << 60), "are not in the file"),  # their address
        ("main.store", 23, b"\x1f", "has kind 31, size 152 and alignment 8"),
        ("main.store", 0, struct.pack("<Q", 8), "has text outside of itself"),  # size
        ("main.store", 40, struct.pack("<I", 1 << 31), "is said to be a name but is elsewhere"),
        ("main.number", 0, struct.pack("<Q", 16), "gives main.number 16 bytes"),
        ("main.matrix", 64, struct.pack("<Q", 1 << 40), "gives main.matrix 24 bytes"),  # length
        ("main.queue", 56, struct.pack("<Q", 9), "has the channel direction 9"),
        ("main.queue", 0, struct.pack("<Q", 16), "gives main.queue 16 bytes"),
    ],
)
def test_damage_is_reported(
    tmp_path: Path, name: str, offset: int, content: bytes, why: str
) -> None:
    found = program(newest())
    address = found.descriptors.basic(name)
    assert address is not None
    damaged = patched(found, tmp_path / "copy", {address + offset: content})
    with pytest.raises(RtypeError, match=rf"{tmp_path}.*: .*{why}"):
        damaged.type_at(address)


def test_addresses_of_nothing() -> None:
    found = program(newest())
    address = found.descriptors.basic(Kind.INT)
    assert address is not None
    for wrong in (0, -8, 1 << 63, found.image.segments[0].address, address + 4):
        assert wrong not in found.descriptors
        for method in (found.descriptors.type_at, found.descriptors.name):
            with pytest.raises(RtypeError, match="is outside of the program's type information"):
                method(wrong)


def exercise(descriptors: Rtypes, addresses: list[int]) -> int:
    """Ask for all that there is, put up with errors that are told in words, and count them."""

    def everything_of(address: int) -> None:
        described = descriptors.type_at(address)
        list(parts(described))
        if isinstance(described, MapType | ChanType):
            list(header_fields(described.header))

    attempts: list[Callable[[], object]] = [
        lambda: list(descriptors.all_types()),
        lambda: list(descriptors.itabs()),
        lambda: list(descriptors.all_methods()),
        *(functools.partial(everything_of, address) for address in addresses),
        *(
            functools.partial(descriptors.basic, name)
            for name in ("int", "main.store", "io.Reader")
        ),
    ]
    failed = 0
    for attempt in attempts:
        try:
            attempt()
        except GotraceError:
            failed += 1
    return failed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "pie"])
@pytest.mark.parametrize("seed", range(20))
def test_mutated_descriptors(tmp_path: Path, mode: str, seed: int) -> None:
    found = program(newest(), mode)
    chance = random.Random(seed)
    copy = tmp_path / "copy"
    shutil.copyfile(found.path, copy)
    start = found.image.offset_of(found.descriptors.types_start)
    addresses = list(found.descriptors.all_types())
    with copy.open("r+b") as file:
        for address in chance.sample(addresses, 60):
            file.seek(start + address - found.descriptors.types_start + chance.randrange(96))
            other = struct.pack("<Q", chance.choice(addresses))
            file.write(chance.choice((b"\0", b"\xff", b"\x7f\xff\xff", chance.randbytes(1), other)))
    descriptors = Binary(ElfImage.open(copy)).rtypes
    assert descriptors is None or exercise(descriptors, addresses) > 0
