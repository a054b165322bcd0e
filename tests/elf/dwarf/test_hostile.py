# SPDX-License-Identifier: Apache-2.0
"""Feed damaged debugging information: a result or a DwarfError, nothing else, and an end."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_dwarf import DwarfTypes
from tests.toolchains import FIXTURES, build, require

NAMES = ("info", "abbrev", "ranges", "rnglists", "addr", "loc", "loclists", "str")


@functools.cache
def whole(minor: str) -> dict[str, bytes]:
    """Return the sections of a small program."""
    path = build(FIXTURES / "dwarf_signatures", require(minor))
    contents = {}
    with ElfImage.open(path) as image:
        for name in NAMES:
            section = image.debug_section(name)
            contents[name] = bytes(image.section_bytes(section)) if section else b""
    return contents


def reader_of(contents: Mapping[str, bytes]) -> DwarfReader:
    return DwarfReader(lambda name: contents.get(name, b""))


def explore(contents: Mapping[str, bytes]) -> None:
    """Ask for everything that a tracer asks for, of some functions of every unit."""
    with contextlib.suppress(DwarfError):
        reader = reader_of(contents)
        types = DwarfTypes(reader)
        for name in ("runtime.g", "main.Store"):
            with contextlib.suppress(DwarfError):
                reader.struct_members(name)
                types.named(name)
        functions = reader.functions()
        for _ in range(150):
            with contextlib.suppress(DwarfError):
                function = next(functions, None)
                if function is None:
                    return
                types.signature(function)
                for variable in function.variables:
                    reader.entry_pieces(function, variable)


@pytest.mark.slow
@pytest.mark.parametrize("minor", ["1.24", "1.27"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_changed_bytes(minor: str, data: st.DataObject) -> None:
    contents = dict(whole(minor))
    name = data.draw(st.sampled_from([name for name in NAMES if contents[name]]))
    changed = bytearray(contents[name])
    # The first bytes hold the units that are looked at first.
    places = st.integers(0, min(len(changed), 40_000) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=20)):
        changed[place] = data.draw(st.integers(0, 255))
    contents[name] = bytes(changed)
    explore(contents)


@pytest.mark.parametrize("minor", ["1.24", "1.27"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_cut_sections(minor: str, data: st.DataObject) -> None:
    contents = dict(whole(minor))
    name = data.draw(st.sampled_from([name for name in NAMES if contents[name]]))
    contents[name] = contents[name][: data.draw(st.integers(0, len(contents[name])))]
    explore(contents)


@settings(deadline=None)
@given(info=st.binary(max_size=200), abbrev=st.binary(max_size=100))
def test_noise(info: bytes, abbrev: bytes) -> None:
    explore({"info": info, "abbrev": abbrev})


def unit(version: int, abbreviations: bytes, entries: bytes) -> dict[str, bytes]:
    """Make .debug_info of one DWARF 4 unit with 8-byte addresses."""
    body = version.to_bytes(2, "little") + bytes(4) + b"\x08" + entries
    info = len(body).to_bytes(4, "little") + body
    return {"info": info, "abbrev": abbreviations}


# Code 1: a unit with children. Code 2: a struct with a name, children; 3: a member of a type by
# unit-relative reference; 4: a typedef by such a reference.
ABBREVIATIONS = bytes.fromhex(
    "01 11 01 0000  02 13 01 0308 0000  03 0d 00 4913 0000  04 16 00 0308 4913 0000  00"
)


def test_struct_that_contains_itself_is_refused() -> None:
    # The struct is at 12; its one member at 15 refers to it.
    entries = b"\x01" + b"\x02S\0" + b"\x03\x0c\0\0\0" + b"\0" + b"\0"
    reader = reader_of(unit(4, ABBREVIATIONS, entries))
    with pytest.raises(DwarfError, match="contains itself"):
        DwarfTypes(reader).at(12)


def test_typedefs_in_a_circle_are_refused() -> None:
    entries = b"\x01" + b"\x04T\0\x0c\0\0\0" + b"\0"
    reader = reader_of(unit(4, ABBREVIATIONS, entries))
    with pytest.raises(DwarfError, match="typedefs at 0xc go in a circle"):
        DwarfTypes(reader).at(12)


def test_references_outside_of_all_units_are_refused() -> None:
    entries = b"\x01" + b"\x04T\0\xff\0\0\0" + b"\0"
    reader = reader_of(unit(4, ABBREVIATIONS, entries))
    with pytest.raises(DwarfError, match="no unit holds the entry at 0xff"):
        DwarfTypes(reader).at(12)


def test_an_index_outside_of_the_addresses_is_refused() -> None:
    """The unit's one function begins at address 3 of a list of two."""
    abbreviations = bytes.fromhex("01 11 01 7317 0000  02 2e 00 111b 1206 0000  00")
    body = bytes.fromhex("0500 01 08 00000000  01 08000000  02 03 10000000  00")
    contents = {"info": len(body).to_bytes(4, "little") + body, "abbrev": abbreviations}
    contents["addr"] = bytes.fromhex("14000000 0500 08 00") + bytes(16)
    with pytest.raises(DwarfError, match=r"address index 3 is outside of \.debug_addr"):
        list(reader_of(contents).functions())


def test_an_array_of_nothing_is_refused() -> None:
    abbreviations = bytes.fromhex("01 11 01 0000  02 01 00 0308 0000  00")
    reader = reader_of(unit(4, abbreviations, b"\x01" + b"\x02A\0" + b"\0"))
    with pytest.raises(DwarfError, match="array at 0xc has no element type"):
        DwarfTypes(reader).at(12)


def test_an_entry_that_ends_in_the_next_unit_is_refused() -> None:
    first = unit(4, ABBREVIATIONS, b"\x01" + b"\x02S")
    second = unit(4, ABBREVIATIONS, b"\x01\0")
    reader = reader_of({**first, "info": first["info"] + second["info"]})
    with pytest.raises(DwarfError, match="entry at 0xc reaches beyond its unit"):
        reader.die(12)


@pytest.mark.parametrize(
    ("attribute", "entry", "reason"),
    [
        ("0308", "05", "without an abbreviation 5"),
        ("037f", "03 00", "attribute form .* is not understood"),
        ("0308", "03 54", "string without an end in the entry at 0xf"),
        ("380a", "03 01 00 00", "field at 0xf has an offset that is not a number"),
    ],
)
def test_damage_of_a_field_is_named(attribute: str, entry: str, reason: str) -> None:
    codes = bytes.fromhex(f"01 11 01 0000  02 13 01 0308 0000  03 0d 00 {attribute} 0000  00")
    entries = bytes.fromhex(f"01  02 5300  {entry}")
    reader = reader_of(unit(4, codes, entries))
    with pytest.raises(DwarfError, match=reason):
        reader.struct_members("S")


def bounded(reader: DwarfReader, offset: int) -> str:
    """Return why an entry is refused, which takes a bounded time."""
    before = time.process_time()
    with pytest.raises(DwarfError) as caught:
        reader.die(offset)
    assert time.process_time() - before < 10
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("08", id="string"),
        pytest.param("0f", id="udata"),
        pytest.param("0d", id="sdata"),
        pytest.param("09", id="block"),
        pytest.param("16", id="indirect"),
        pytest.param("7f", id="unknown"),
    ],
)
def test_an_endless_attribute_is_refused_in_time(form: str) -> None:
    """Ten million bytes that continue a number, or are the length of something."""
    abbreviations = bytes.fromhex(f"01 11 01 0000  02 13 01 03{form} 0000  00")
    entries = b"\x01\x02" + b"\xff" * 10_000_000
    said = bounded(reader_of(unit(4, abbreviations, entries)), 12)
    assert (form == "08") == ("string without an end at 0xd" in said)


def test_endless_abbreviations_are_refused_in_time() -> None:
    abbreviations = b"\x01\x11\x01" + b"\x03\x08" * 5_000_000
    assert "endless" in bounded(reader_of(unit(4, abbreviations, b"\x01")), 11)


def test_what_is_refused_costs_the_next_question_nothing() -> None:
    endless = bytes.fromhex("01 11 01 0000  02 13 01 030f 0000  00")
    first = unit(4, endless, b"\x01\x02" + b"\xff" * 100_000)["info"]
    second = bytearray(unit(4, ABBREVIATIONS, b"\x01\x02S\0\0\0")["info"])
    second[6:10] = len(endless).to_bytes(4, "little")
    reader = reader_of({"info": first + second, "abbrev": endless + ABBREVIATIONS})
    assert "endless" in bounded(reader, 12)
    assert reader.find_type("S") == len(first) + 12
    assert "endless" in bounded(reader, 12)
    assert reader.name(reader.die(len(first) + 12)) == "S"


@pytest.mark.parametrize("section", ["ranges", "loc"])
def test_endless_lists_are_refused_in_time(section: str) -> None:
    # A unit with ranges, or low_pc and high_pc, and a function with a parameter and a list.
    abbreviations = bytes.fromhex(
        "01 11 01 5517 0000  04 11 01 1101 1206 000002 2e 01 1101 0000  03 05 00 0217 0000  00"
    )
    top = b"\x01" + bytes(4) if section == "ranges" else b"\x04" + bytes(8) + b"\xff" * 4
    function = b"\x02" + (16).to_bytes(8, "little") + b"\x03" + bytes(4) + bytes(2)
    contents = unit(4, abbreviations, top + function)
    contents[section] = b"\x01\x00\x00\x00\x00\x00\x00\x00" * 3_000_000
    reader = reader_of(contents)
    before = time.process_time()
    if section == "ranges":
        assert reader.function(16) is None  # the unit hides its own functions
    else:
        found = reader.function(16)
        assert found is not None
        with pytest.raises(DwarfError):
            reader.entry_pieces(found, found.parameters[0])
    assert time.process_time() - before < 10


@pytest.mark.parametrize("version", [1, 6, 255])
def test_unknown_versions_are_refused(version: int) -> None:
    with pytest.raises(DwarfError, match=f"DWARF version {version}"):
        reader_of(unit(version, ABBREVIATIONS, b"\x01\0"))


def test_a_unit_of_unknown_form_hides_its_own_functions_only() -> None:
    contents = dict(whole("1.27"))
    with ElfImage.open(build(FIXTURES / "dwarf_signatures", require("1.27"))) as image:
        reader = DwarfReader.open(image)
        assert reader is not None
        before = {function.low_pc for function in reader.functions()}
    # The unit's own entry, behind the first header of 12 bytes, gets a code that does not exist.
    contents["info"] = contents["info"][:12] + b"\x7f" + contents["info"][13:]
    damaged = reader_of(contents)
    found = {address for address in before if damaged.function(address) is not None}
    assert len(before) / 2 < len(found) < len(before)
