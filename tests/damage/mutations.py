# SPDX-License-Identifier: Apache-2.0
"""Damage a program in a way that its seed decides, so that every failure can be repeated."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from gotrace.elf.image import Section
from tests.damage.programs import Region, intact, pack, regions, unpack

_LARGE = (0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Say what is done to a program: bytes put in place of others, or the end cut off.

    With ``packed`` the bytes are those that the compressed section holds.
    """

    program: str
    seed: int
    region: str
    patches: tuple[tuple[int, bytes], ...]
    packed: Section | None = None
    size: int | None = None


def mutation(program: str, seed: int) -> Mutation:
    """Return the mutation of a seed."""
    chance = random.Random(f"{program} {seed}")
    content = intact(program)
    if chance.random() < 0.08:
        size = chance.choice((chance.randrange(2048), chance.randrange(len(content))))
        return Mutation(program, seed, "end of file", (), size=size)
    places = regions(program)
    names = sorted({place.name for place in places})
    name = chance.choice(names)
    region = chance.choice([place for place in places if place.name == name])
    count = chance.choice((1, 1, 1, 2, 4, 16))
    inner = unpack(content, region.packed) if region.packed else content
    patches = tuple(_patch(chance, inner, region) for _ in range(count))
    return Mutation(program, seed, name, patches, region.packed)


def _patch(chance: random.Random, content: bytes, region: Region) -> tuple[int, bytes]:
    at = chance.randrange(region.start, region.end)
    width = chance.choice((1, 2, 4, 8))
    aligned = at - (at - region.start) % width
    old = content[aligned : aligned + width]
    number = int.from_bytes(old, "little")
    match chance.randrange(8):
        case 0 | 1:
            return at, bytes([content[at] ^ 1 << chance.randrange(8)])
        case 2:
            return at, chance.randbytes(1)
        case 3:
            return aligned, bytes(len(old))
        case 4:
            new = chance.choice(_LARGE)
        case 5:  # somewhere near
            new = number + chance.choice((-64, -8, -4, -2, -1, 1, 2, 4, 8, 64, 4096))
        case 6:  # what stands elsewhere, which may well be possible
            other = chance.randrange(region.start, region.end)
            return aligned, content[other : other + len(old)]
        case _:
            new = chance.randrange(1 << 8 * width)
    return aligned, struct.pack("<Q", new % (1 << 64))[: len(old)]


def damaged(change: Mutation) -> bytes:
    """Return the damaged program."""
    content = intact(change.program)
    if change.packed:
        return pack(content, change.packed, _patched(unpack(content, change.packed), change))
    return _patched(content, change)[: change.size]


def _patched(content: bytes, change: Mutation) -> bytes:
    patched = bytearray(content)
    for at, new in change.patches:
        patched[at : at + len(new)] = new
    return bytes(patched)
