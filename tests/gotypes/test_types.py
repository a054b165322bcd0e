# SPDX-License-Identifier: Apache-2.0
"""Compare types from DWARF with what the running fixture says of its own types."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest

from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.types import (
    ArrayType,
    ChanDirection,
    ChanType,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from tests.toolchains import BUILD_MODES, FIXTURES, build, each_toolchain, newest
from tests.toolchains import Toolchain as Go

BASIC_KINDS = [kind for kind in Kind if 1 <= kind.value <= 16]


@functools.cache
def reader(path: Path) -> DwarfReader:
    found = DwarfReader.open(ElfImage.open(path))
    assert found is not None
    return found


@functools.cache
def printed(path: Path) -> list[list[str]]:
    """Return the words of each line that the fixture prints."""
    text = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in text.splitlines()]


def parameters(path: Path, name: str) -> list[GoType]:
    for function in reader(path).functions():
        if function.name == name:
            signature = DwarfTypes(reader(path)).signature(function)
            return [parameter.type for parameter in signature.parameters]
    raise AssertionError(f"{path} has no {name}")


def fixture(toolchain: Go, mode: str = "default") -> Path:
    return build(FIXTURES / "dwarf_types", toolchain, flags=BUILD_MODES[mode])


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "unoptimized", "external"])
def test_sizes_and_alignments(toolchain: Go, mode: str) -> None:
    path = fixture(toolchain, mode)
    types = parameters(path, "main.basics") + parameters(path, "main.composites")
    assert [[str(found.size), str(found.align)] for found in types] == printed(path)[:40]


@each_toolchain
def test_basic_kinds_and_names(toolchain: Go) -> None:
    types = parameters(fixture(toolchain), "main.basics")
    assert [found.kind for found in types] == [
        *BASIC_KINDS,
        Kind.STRING,
        Kind.UNSAFE_POINTER,
        Kind.FLOAT64,
        Kind.INT64,
    ]
    assert types[:18] == [basic_type(found.kind) for found in types[:18]]
    assert [found.name for found in types[16:]] == [
        "string",
        "unsafe.Pointer",
        "main.Celsius",
        "time.Duration",
    ]
    assert [found.is_named for found in types] == [False] * 18 + [True] * 2
    assert [found.package for found in types[17:]] == ["", "main", "time"]


@each_toolchain
def test_struct_fields(toolchain: Go) -> None:
    path = fixture(toolchain)
    node = parameters(path, "main.composites")[1]
    assert isinstance(node, StructType)
    assert node.name == "main.Node"
    fields = [[field.name, str(field.offset), str(field.embedded).lower()] for field in node.fields]
    assert fields == printed(path)[40:48]
    small = node.field("small")
    assert small is not None
    assert isinstance(small.type, StructType)
    assert [(field.name, field.offset) for field in small.type.fields] == [
        ("a", 0),
        ("b", 8),
        ("c", 16),
    ]
    assert not small.type.is_named
    assert node.field("nothing") is None


@each_toolchain
def test_composites(toolchain: Go) -> None:
    found = parameters(fixture(toolchain), "main.composites")
    pointer, _, array, slice_, map_, chan, send, receive, visitor, func = found[:10]
    assert isinstance(pointer, PointerType)
    assert pointer.elem.name == "main.Node"
    assert isinstance(array, ArrayType)
    assert (array.elem.name, array.length) == ("main.Point", 3)
    assert isinstance(slice_, SliceType)
    assert slice_.elem is pointer.elem
    assert isinstance(map_, MapType)
    assert (map_.key.name, map_.elem.name) == ("string", "main.Point")
    for channel, direction in zip((chan, send, receive), ChanDirection, strict=True):
        assert isinstance(channel, ChanType)
        assert channel.direction is direction
    assert isinstance(receive, ChanType)
    assert receive.elem.name == "main.Point"
    assert isinstance(visitor, FuncType)
    assert isinstance(func, FuncType)
    assert (visitor.name, func.name) == ("main.Visitor", "func(int)")
    for interface, is_empty in zip(found[10:14], (True, False, False, False), strict=True):
        assert isinstance(interface, InterfaceType)
        assert interface.is_empty == is_empty
    assert [each.name for each in found[10:14]] == [
        "interface {}",
        "main.Shape",
        "error",
        "io.Reader",
    ]


@each_toolchain
def test_headers_of_maps_and_channels(toolchain: Go) -> None:
    found = parameters(fixture(toolchain), "main.composites")
    map_, chan = found[4], found[5]
    assert isinstance(map_, MapType)
    assert isinstance(map_.header, StructType)
    swiss = map_.header.field("dirPtr") is not None
    assert swiss == (tuple(map(int, toolchain.version.split("."))) >= (1, 24))
    # The length is the first word of both kinds of maps.
    assert map_.header.fields[0].name == ("used" if swiss else "count")
    assert isinstance(chan, ChanType)
    assert isinstance(chan.header, StructType)
    assert {field.name for field in chan.header.fields} >= {"qcount", "dataqsiz", "buf", "closed"}


def test_types_that_lead_to_themselves() -> None:
    loop = parameters(fixture(newest()), "main.composites")[14]
    assert isinstance(loop, SliceType)
    assert loop.elem is loop
    assert loop == loop.elem
    assert "Lazy" in repr(loop)


def test_types_by_name() -> None:
    types = DwarfTypes(reader(fixture(newest())))
    named = types.named("main.Point")
    assert isinstance(named, StructType)
    assert types.named("main.Point") is named
    assert types.named("main.Nowhere") is None


def test_lazy_makes_its_value_once() -> None:
    made = iter([1, 2])
    reference = Lazy(lambda: next(made))
    assert (reference.get(), reference.get()) == (1, 1)
    assert next(made) == 2
    assert reference == Lazy.of(7)
    assert hash(reference) == hash(Lazy.of(7))
