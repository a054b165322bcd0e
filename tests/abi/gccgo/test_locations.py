# SPDX-License-Identifier: Apache-2.0
"""Hold the computed places against the locations in the DWARF of gccgo's optimised programs."""

from __future__ import annotations

import dataclasses

import pytest

from gotrace.abi.gccgo.locations import gccgo_locations
from gotrace.abi.gccgo.types import GccgoTypes
from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.gotypes.symbols import parse_name
from tests.toolchains import FIXTURES, gccgo_build


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_dwarf_contradicts_no_place(level: str) -> None:
    path = gccgo_build(FIXTURES / "trace_gccgo", (level,))
    known = shown = 0
    with ElfImage.open(path) as image:
        reader = DwarfReader.open(image)
        assert reader is not None
        types = GccgoTypes(reader)
        table = load_functions(image)
        functions = [table.function(row) for row in range(len(table.names))]
        symbols = {function.entry: function.name for function in functions}
        for function in reader.functions():
            if not reader.is_gccgo(function):
                continue
            places = gccgo_locations(function, symbols[function.low_pc], reader, types)
            if parse_name(symbols[function.low_pc], gccgo=True).suffix:
                continue
            assert all(value.problem is None for value in places.parameters), function.name
            known += len(places.parameters)
            shown += sum(
                any(
                    piece.kind.value == "register"
                    for piece in reader.entry_pieces(function, v) or ()
                )
                for v in function.parameters
            )
    assert known > 20
    assert shown > 20 or level == "-O0"


def test_copies_that_follow_no_convention_have_no_places() -> None:
    path = gccgo_build(FIXTURES / "trace_gccgo", ("-O2",))
    with ElfImage.open(path) as image:
        reader = DwarfReader.open(image)
        assert reader is not None
        types = GccgoTypes(reader)
        many = next(f for f in reader.functions() if f.name == "main.Many")
        for function, symbol in (
            (many, "main.Many.isra.0"),
            (many, "main.Many.constprop.0"),
            (dataclasses.replace(many, is_nonstandard_call=True), "main.Many"),
        ):
            places = gccgo_locations(function, symbol, reader, types)
            values = (*places.parameters, *places.results)
            assert len(values) == 10
            assert all(value.pieces is None and value.problem for value in values)
        swapped = dataclasses.replace(
            many, variables=(many.variables[1], many.variables[0], *many.variables[2:])
        )
        places = gccgo_locations(swapped, "main.Many", reader, types)
        assert [value.pieces is None for value in places.parameters[:3]] == [True, True, False]
