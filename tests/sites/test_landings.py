# SPDX-License-Identifier: Apache-2.0
"""Landings are reached after each return, before anything else is called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import capstone
import pytest

from gotrace.elf.functions import FuncInfo, Origin, load_functions
from gotrace.elf.image import ElfImage
from gotrace.sites.emulation import EMULATED
from gotrace.sites.landings import Callers, _Decoded
from gotrace.sites.records import SiteError
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest

CALLER = FuncInfo("main.f", 0x1000, 0x1100, 0, Origin.PCLNTAB)
_LEAVES = ("j", "call", "ret", "loop", "ud", "int", "hlt", "sys")


class Program:
    """A program whose code is read apart from the code under test."""

    def __init__(self, built: Toolchain | Path) -> None:
        if isinstance(built, Toolchain):
            built = build(FIXTURES / "live_callers", built)
        self.image = ElfImage.open(str(built))
        self.table = load_functions(self.image)
        self.callers = Callers(self.table)

    def named(self, name: str) -> FuncInfo:
        (row,) = self.table.rows_named(name)
        return self.table.function(row)

    def code(self, function: FuncInfo) -> list[tuple[int, int, str, str]]:
        machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        size = function.end - function.entry
        return list(machine.disasm_lite(self.image.read(function.entry, size), function.entry))


@each_toolchain
def test_landings_end_straight_lines(toolchain: Toolchain) -> None:
    program = Program(toolchain)
    with pytest.raises(SiteError, match="0x1 is in no Go function"):
        program.callers.landings(1)
    calls = landed = 0
    for row in range(0, len(program.table), 7):
        function = program.table.function(row)
        code = program.code(function)
        for number, (at, size, mnemonic, _) in enumerate(code[:-1]):
            if mnemonic != "call":
                continue
            calls += 1
            try:
                found = program.callers.landings(at + size)
            except SiteError:
                continue
            landed += 1
            assert len({landing.address for landing in found}) == len(found)
            for landing in found:
                line = [each for each in code[number + 1 :] if each[0] < landing.address]
                assert all(not name.startswith(_LEAVES) for _, _, name, _ in line)
                assert landing.address in {each[0] for each in code[number + 1 :]}
                here = program.image.read(landing.address, 6)
                assert landing.emulated == bool(EMULATED.match(here))
                assert landing.emulated or landing.address == at + size
    assert calls > 500 and landed > 0.9 * calls


@each_toolchain
def test_direct_callers_are_found_through_jumps(toolchain: Toolchain) -> None:
    program = Program(toolchain)
    target = program.named("main.target")
    places = program.callers.search([target.entry], proves=False).run().calls[target.entry]
    names = [function.name for place in places if (function := program.table.find(place))]
    assert sum(name.startswith("main.init") or "glob." in name for name in names) >= 128
    assert {"main.tail", "main.faulting", "main.rare"} <= set(names)
    for place in places:
        assert program.image.read(place - 5, 1) == b"\xe8"


@pytest.mark.parametrize("mode", ["default", "pie"])
@each_toolchain
def test_functions_whose_addresses_are_used_are_not_closed(
    toolchain: Toolchain, mode: str, tmp_path: Path
) -> None:
    """The linker says which functions have a closure's value, F·f, and what else leads to them."""
    source = FIXTURES / "live_callers" / "main.go"
    built = tmp_path / "program"
    flags = [*BUILD_MODES[mode], "-ldflags=-dumpdep"]
    done = subprocess.run(
        [toolchain.go, "build", *flags, "-o", built, source],
        env=toolchain.env(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    edges = [line.split(" -> ", 1) for line in done.stderr.splitlines() if " -> " in line]
    program = Program(built)
    entries = {
        row.name: row.entry for row in map(program.table.function, range(len(program.table)))
    }
    used = {to.removesuffix("·f") for _, to in edges if to.endswith("·f")}
    of_data = re.compile(r"go[.:]itab\.|type[.:](?!\.)")
    used |= {to for by, to in edges if of_data.match(by)}
    search = program.callers.search(entries.values(), proves=True).run()
    closed = {name for name, entry in entries.items() if search.is_closed(entry)}
    assert len(used & entries.keys()) > 200
    assert closed & used == set()
    assert closed.isdisjoint({"main.target", "main.other", "main.(*worker).Do", "main.main"})
    if mode == "pie" and toolchain.minor == "1.15":  # its table of functions is in relocations
        assert closed == set()
        return
    assert closed >= {"main.leaf", "main.indirect", "main.faulting", "main.rare"}
    assert len(closed) > len(entries) / 3
    # Each of them alone is what it is among others.
    for name in ("main.leaf", "main.target"):
        alone = program.callers.search([entries[name]], proves=True).run()
        assert alone.is_closed(entries[name]) == (name in closed)
        assert (
            not program.callers.search([entries[name]], proves=False).run().is_closed(entries[name])
        )


def test_what_is_not_after_a_call_has_no_landing() -> None:
    program = Program(newest())
    target = program.named("main.target")
    (first, *_) = program.code(target)
    for address in (target.entry, target.entry + first[1], target.entry + 1, 0, 1 << 40):
        with pytest.raises(SiteError):
            program.callers.landings(address)


def test_goroutines_return_to_goexit() -> None:
    program = Program(newest())
    (landing,) = program.callers.landings(program.named("runtime.goexit").entry + 1)
    assert landing.emulated and landing.address == landing.return_pc


#: After a call, and offsets from its end: the first landing, emulated or not, shared or not.
LINES = {
    "test %eax,%eax; jne": ("85 c0 75 10", 2, True, False),
    "lea; rep movsq; jne": ("48 8d 3c 24 f3 48 a5 75 10", 0, False, False),
    "add $8,%rsp; ret": ("48 83 c4 08 c3", 0, False, False),
    "nop; a jump back to it": ("90 75 fd", 0, True, True),
    "jmp *(%rax,%rcx,8)": ("85 c0 75 02 ff 24 c8", 2, True, True),
}


@pytest.mark.parametrize("line", LINES)
def test_landings_of_lines(line: str) -> None:
    after, at, emulated, shared = LINES[line]
    code = _Decoded(b"\xe8\0\0\0\0" + bytes.fromhex(after) + b"\x90" * 32, CALLER)
    place, is_emulated, is_shared, _ = next(code.after_call(5))
    assert (place - 5, is_emulated, is_shared) == (at, emulated, shared)


@pytest.mark.parametrize("after", ["4d 8b 36 85 c0 75 10", "c3"])
def test_where_g_is_written_or_a_ret_follows_there_is_no_landing(after: str) -> None:
    code = _Decoded(b"\xe8\0\0\0\0" + bytes.fromhex(after) + b"\x90" * 32, CALLER)
    assert list(code.after_call(5)) == []
