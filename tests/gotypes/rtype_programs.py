# SPDX-License-Identifier: Apache-2.0
"""Give the fixture of the type descriptors' tests, what it prints, and walks through types."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gotrace.elf.buildinfo import recorded_version
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.types import (
    ArrayType,
    ChanType,
    GoType,
    MapType,
    PointerType,
    SliceType,
    StructType,
)
from tests.elf.binaries import MODES
from tests.toolchains import FIXTURES, Toolchain, build

#: How the linker spells the package in deep/box.v2, which calls itself box.
BOX = "fixture/deep/box%2ev2"


class Program:
    """A built fixture, its descriptors and the facts that it prints of itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.image = ElfImage.open(path)
        self.version = recorded_version(self.image)
        found = Rtypes.open(self.image, self.version, load_functions(self.image).module)
        assert found is not None
        self.descriptors = found

    @functools.cached_property
    def facts(self) -> dict[str, list[tuple[int, list[str]]]]:
        """Return (address, words) by the name of the fact; addresses as in the file."""
        text = subprocess.run([self.path], capture_output=True, text=True, check=True).stdout
        facts: dict[str, list[tuple[int, list[str]]]] = {}
        self.bias = 0
        for line in text.splitlines():
            what, address, *words = line.split("\t")
            facts.setdefault(what, []).append((int(address, 16) - self.bias, words))
            if what == "main":
                functions = load_functions(self.image)
                (row,) = functions.rows_named("main.main")
                self.bias = int(address, 16) - functions.function(row).entry
        return facts

    def linked(self, word: str) -> int:
        """Return the link-time address of an address that the program printed."""
        return int(word, 16) - self.bias

    def named(self, name: str) -> GoType:
        address = self.descriptors.basic(name)
        assert address is not None, name
        return self.descriptors.type_at(address)


@functools.cache
def _program(toolchain: Toolchain, mode: str) -> Program:
    return Program(build(FIXTURES / "descriptors_kinds", toolchain, flags=MODES[mode]))


def program(toolchain: Toolchain, mode: str = "default") -> Program:
    """Return the fixture as a toolchain builds it in one of MODES, the same one each time."""
    return _program(toolchain, mode)


def parts(described: GoType) -> Iterator[GoType]:
    """Yield the types that a type is made of."""
    if isinstance(described, PointerType | SliceType | ArrayType | ChanType | MapType):
        yield described.elem
    if isinstance(described, MapType):
        yield described.key
    if isinstance(described, StructType):
        yield from (field.type for field in described.fields)


def header_fields(described: GoType | None, path: str = "") -> Iterator[tuple[object, ...]]:
    """Yield the fields of a map's or channel's header and of its tables and slots."""
    for _ in range(2):
        if isinstance(described, PointerType):
            described = described.elem
    if not isinstance(described, StructType):
        return
    for field in described.fields:
        # Some releases of one layout have a flag more; DWARF has padding and the runtime's links.
        if field.name in ("tombstonePossible", "pad", "extra", "overflow", "elemtype", "timer"):
            continue
        yield path, described.name, described.size, field.name, field.offset, field.type.size
        if "<" in field.type.name or "map.group" in field.type.name:
            yield from header_fields(field.type, f"{path}.{field.name}")
