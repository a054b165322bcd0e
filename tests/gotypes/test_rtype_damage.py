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
from tests.toolchains import newest, require


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


def address_of(found: Program, wanted: Kind | str) -> int:
    address = found.descriptors.basic(wanted)
    assert address is not None
    return address


@pytest.mark.parametrize(
    ("name", "offset"),
    [("main.matrix", 48), ("[1]*int", 48), ("*main.store", 48), (f"[]*{BOX}.Code", 48)],
)
def test_type_of_itself(tmp_path: Path, name: str, offset: int) -> None:
    found = program(newest())
    address = address_of(found, name)
    damaged = patched(found, tmp_path / "copy", {address + offset: struct.pack("<Q", address)})
    with pytest.raises(RtypeError, match=f"{address:#x} contains itself"):
        damaged.type_at(address)


def test_struct_of_itself(tmp_path: Path) -> None:
    found = program(newest())
    address = address_of(found, "main.store")
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
    address = address_of(found, name)
    damaged = patched(found, tmp_path / "copy", {address + offset: content})
    with pytest.raises(RtypeError, match=rf"{tmp_path}.*: .*{why}"):
        damaged.type_at(address)


#: A type's address, and bytes to write over what it refers to, by their addresses.
Damage = tuple[int, dict[int, bytes]]


def no_map(found: Program) -> Damage:
    """Say that a map's slots are in an int."""
    address = address_of(found, "main.tree")
    return address, {address + 64: struct.pack("<Q", address_of(found, Kind.INT))}


def no_function(found: Program) -> Damage:
    """Say that an interface's method is of type int."""
    types = found.descriptors
    address = next(at for at in types.all_types() if ".secret(" in types.type_at(at).name)
    while types.type_at(address).kind is Kind.POINTER:
        (address,) = struct.unpack("<Q", found.image.read(address + 48, 8))
    (methods,) = struct.unpack("<Q", found.image.read(address + 56, 8))
    number = address_of(found, Kind.INT) - types.types_start
    return address, {methods + 4: struct.pack("<I", number)}


def many_fields(found: Program) -> Damage:
    """Make a struct of 70 fields with names of 64 KB, which are over 4 MB."""
    address = address_of(found, "main.store")
    (fields,) = struct.unpack("<Q", found.image.read(address + 56, 8))
    (label,) = struct.unpack("<Q", found.image.read(fields, 8))
    row = struct.pack("<QQQ", label, address_of(found, Kind.INT), 0)
    count = struct.pack("<QQ", 70, 70)
    return address, {address + 64: count, fields: row * 70, label + 1: b"\xff\xff\x03"}


def long_name(found: Program, size: bytes = b"\xff\xff\x03") -> Damage:
    """Make a name of 64 KB, which are more where they are escaped."""
    address = address_of(found, "main.wrapped")
    (name,) = struct.unpack("<I", found.image.read(address + 40, 4))
    return address, {found.descriptors.types_start + name + 1: size}


def longer_name(found: Program) -> Damage:
    return long_name(found, b"\xff\xff\x7f")


@pytest.mark.parametrize(
    ("release", "damage", "why"),
    [
        ("1.24", no_map, "is a map's without slots"),
        ("1.27", no_function, "has a method that is not a function"),
        ("1.27", many_fields, "has too many fields"),
        ("1.27", long_name, "has a name without end"),
        ("1.27", longer_name, "is said to be a name but is not"),
    ],
)
def test_damage_of_what_a_type_refers_to(
    tmp_path: Path, release: str, damage: Callable[[Program], Damage], why: str
) -> None:
    found = program(require(release))
    address, changes = damage(found)
    with pytest.raises(RtypeError, match=rf"{tmp_path}.*: .*{why}"):
        patched(found, tmp_path / "copy", changes).type_at(address)


def test_itabs_that_are_too_far_apart(tmp_path: Path) -> None:
    found = program(require("1.26"))
    section = found.image.section(".itablink")
    assert section is not None
    damaged = patched(found, tmp_path / "copy", {section.address: struct.pack("<Q", 1 << 40)})
    with pytest.raises(RtypeError, match=r"the list of itabs is damaged"):
        list(damaged.itabs())


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
