# SPDX-License-Identifier: Apache-2.0
"""Compare type descriptors read from files with what the running fixture and DWARF say of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.types import (
    ArrayType,
    ChanDirection,
    ChanType,
    InterfaceType,
    Kind,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from tests.elf.binaries import MODES
from tests.elf.dwarf.truth import go_types
from tests.gotypes.rtype_programs import BOX, Program, header_fields, parts, program
from tests.toolchains import FIXTURES, build, each_toolchain, every_toolchain, newest, require
from tests.toolchains import Toolchain as Go

BASIC_KINDS = [*list(Kind)[1:17], Kind.STRING, Kind.UNSAFE_POINTER]

each_mode = pytest.mark.parametrize("mode", [*MODES])


def full(text: str) -> str:
    """Return the linker's name for what reflect's String() says of a type without fields."""
    return re.sub(r"\b(?<!/)fs\.", "io/fs.", re.sub(r"\b(?<!/)box\.", f"{BOX}.", text))


@each_toolchain
@each_mode
def test_kinds_sizes_and_names(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    types = found.facts["type"]
    assert len(types) > 100
    for address, (kind, size, align, path, name, text) in types:
        described = found.descriptors.type_at(address)
        assert (described.kind.value, described.size, described.align) == (
            int(kind),
            int(size),
            int(align),
        )
        assert described.name == found.descriptors.name(address)
        if path:
            assert (
                described.name == f"{path.replace('.v2', '%2ev2')}.{name.replace('.v2', '%2ev2')}"
            )
        elif "struct {" not in text and "secret" not in text:
            assert described.name == full(text)


@each_toolchain
@each_mode
def test_parts(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    type_at = found.descriptors.type_at
    for address, (elem,) in found.facts["elem"]:
        described = type_at(address)
        assert isinstance(described, ArrayType | SliceType | PointerType | MapType | ChanType)
        assert described.elem is type_at(found.linked(elem))
    for address, (key,) in found.facts["key"]:
        described = type_at(address)
        assert isinstance(described, MapType)
        assert described.key is type_at(found.linked(key))
    for address, (length,) in found.facts["length"]:
        described = type_at(address)
        assert isinstance(described, ArrayType)
        assert described.length == int(length)
    directions = dict(zip("123", ("<-chan", "chan<-", "chan"), strict=True))  # reflect.ChanDir
    for address, (direction,) in found.facts["direction"]:
        described = type_at(address)
        assert isinstance(described, ChanType)
        assert described.direction is ChanDirection(directions[direction])
    for address, (methods,) in found.facts["methods"]:
        described = type_at(address)
        assert isinstance(described, InterfaceType)
        assert described.is_empty == (methods == "0")


@each_toolchain
@each_mode
def test_fields(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    fields: dict[int, list[tuple[str, int, str, bool]]] = {}
    for address, (name, offset, target, embedded) in found.facts["field"]:
        fields.setdefault(address, []).append((name, int(offset), target, embedded == "true"))
    assert len(fields) > 12
    for address, expected in fields.items():
        described = found.descriptors.type_at(address)
        assert isinstance(described, StructType)
        assert [
            (field.name, field.offset, id(field.type), field.embedded) for field in described.fields
        ] == [
            (name, offset, id(found.descriptors.type_at(found.linked(target))), embedded)
            for name, offset, target, embedded in expected
        ]


@each_toolchain
@each_mode
def test_values_in_the_data_word(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    expected = {address: words == ["true"] for address, words in found.facts["direct"]}
    assert {True, False} == set(expected.values())
    assert {address: found.descriptors.is_direct(address) for address in expected} == expected


@each_toolchain
@each_mode
def test_itabs(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    everything = {itab.address: itab for itab in found.descriptors.itabs()}
    for address, (interface, target) in found.facts["itab"]:
        by_address = {itab.address: itab for itab in found.descriptors.itabs(interface)}
        itab = by_address[address]
        assert itab.interface_name == interface
        assert found.descriptors.type_at(itab.interface).kind is Kind.INTERFACE
        assert itab.type == found.linked(target)
        assert itab.type_name == found.descriptors.type_at(itab.type).name
        assert everything[address] == itab
        assert found.descriptors.type_of_itab(address) == itab.type
        assert found.descriptors.type_of_itab(address + 8) is None
        assert found.descriptors.type_of_itab(itab.type) is None
    assert list(found.descriptors.itabs("main.nothing")) == []


@each_toolchain
def test_error_types(toolchain: Go) -> None:
    found = program(toolchain, "stripped")
    names = {itab.type_name for itab in found.descriptors.itabs("error")}
    paths = {"*main.store", f"*{BOX}.Item", f"{BOX}.Code", "*errors.errorString"}
    paths.add("*os.PathError" if toolchain.minor == "1.15" else "*io/fs.PathError")
    assert paths <= names


@each_toolchain
@each_mode
def test_found_by_name(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    for kind in BASIC_KINDS:
        address = found.descriptors.basic(kind)
        assert address is not None
        assert found.descriptors.type_at(address) == basic_type(kind)
        assert found.descriptors.basic(basic_type(kind).name) == address
    printed = {found.descriptors.name(address): address for address, _ in found.facts["type"]}
    for name in (
        "error",
        "main.store",
        "*main.store",
        f"{BOX}.Item",
        f"[]{BOX}.Item",
        f"[]*{BOX}.Code",
        "*errors.errorString",
        "[1]*int",
        "main.tree",
        "interface {}",
    ):
        assert found.descriptors.basic(name) == printed[name]
    for name in ("main.absent", "absent", "", "box.Item", "*main", "main."):
        assert found.descriptors.basic(name) is None
    item = found.descriptors.type_at(printed[f"{BOX}.Item"])
    for name in ("fixture/deep/box.v2.Item", f"{BOX}.Item", "box.Item"):
        assert found.descriptors.named(name) == [item]
    for name in (
        "main.absent",
        "absent",
        "",
        "other/box.Item",
        "main.",
        ".",
        "[",
        "/",
    ):
        assert found.descriptors.named(name) == []


@each_toolchain
@each_mode
def test_all_types_are_reached_once(toolchain: Go, mode: str) -> None:
    found = program(toolchain, mode)
    reached = list(found.descriptors.all_types())
    assert len(reached) == len(set(reached))
    assert {address for address, _ in found.facts["type"]} <= set(reached)
    for address in reached:
        assert address in found.descriptors
        found.descriptors.type_at(address)


def test_types_that_contain_themselves() -> None:
    found = program(newest())
    tree, queue = found.named("main.tree"), found.named("main.queue")
    assert isinstance(tree, MapType)
    assert isinstance(queue, ChanType)
    assert tree.elem is tree
    assert isinstance(queue.elem, PointerType)
    assert queue.elem.elem is queue
    store = found.named("main.store")
    assert isinstance(store, StructType)
    successor = store.field("Next")
    assert successor is not None
    assert isinstance(successor.type, PointerType)
    assert successor.type.elem is store


def plain(text: object) -> str:
    """Return a type's description without what only one of the two sources has.

    Rtypes lack the number of types declared in functions; names of a map's buckets and groups have
    no paths; DWARF does not know that align64 has an alignment.
    """
    text = re.sub(r"·\d+", "", repr(text))
    text = re.sub(
        r"name='(\**)map\.(bucket|group|hdr|iter)\[.*?', kind", r"name='\1\2', kind", text
    )
    return re.sub(r"(align64', kind=[^,]*, size=0, align)=\d", r"\1", text)


def compare_with_dwarf(found: Program) -> tuple[int, int]:
    """Return how many types, and maps among them, DWARF describes as their descriptors do."""
    reader = DwarfReader.open(found.image)
    assert reader is not None
    dwarf = DwarfTypes(reader)
    offsets: dict[int, int] = {}
    for known in go_types(Path(found.image.path)):
        offsets.setdefault(known.descriptor, known.offset)
    count = maps = 0
    for address in found.descriptors.all_types():
        # The offset from runtime.types, or for a few types of the runtime the address.
        offset = offsets.get(address - found.descriptors.types_start) or offsets.get(address)
        if offset is None:
            continue
        expected = dwarf.at(offset)
        described = found.descriptors.type_at(address)
        assert plain(described) == plain(expected)
        assert list(map(plain, parts(described))) == list(map(plain, parts(expected)))
        count += 1
        if isinstance(described, MapType) and isinstance(expected, MapType):
            maps += 1
            header = list(header_fields(described.header))
            assert header == list(header_fields(expected.header))
            assert len(header) > 10
        if isinstance(described, ChanType) and isinstance(expected, ChanType):
            ours, theirs = described.header, expected.header
            assert isinstance(ours, StructType)
            assert isinstance(theirs, StructType)
            assert ours.name == theirs.name
            for field in ours.fields:
                assert field == theirs.field(field.name)
            assert ours.field("closed") is not None
    return count, maps


@every_toolchain
def test_dwarf_says_the_same(toolchain: Go) -> None:
    count, maps = compare_with_dwarf(program(toolchain))
    assert count > 300
    assert maps >= 3


@pytest.mark.parametrize(
    ("minor", "experiment"),
    [("1.24", "noswissmap"), ("1.25", "noswissmap"), ("1.27", "mapsplitgroup")],
)
def test_other_maps(minor: str, experiment: str) -> None:
    path = build(FIXTURES / "descriptors_kinds", require(minor), env={"GOEXPERIMENT": experiment})
    found = Program(path)
    _, maps = compare_with_dwarf(found)
    assert maps >= 3
    tree = found.named("main.tree")  # its methods and package come behind the map's own part
    assert isinstance(tree, MapType)
    assert isinstance(tree.header, StructType)
    assert tree.header.name.startswith("hash<" if experiment == "noswissmap" else "map<")


def test_none_without_descriptors() -> None:
    found = program(newest())
    module = load_functions(found.image).module
    assert Rtypes.open(found.image, None, module) is None
    assert Rtypes.open(found.image, GoVersion.parse("go1.14"), module) is None
    shell = shutil.which("sh")
    assert shell is not None
    with ElfImage.open(shell) as image:
        assert Rtypes.open(image, GoVersion.parse("go1.27"), None) is None
