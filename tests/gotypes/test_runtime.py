# SPDX-License-Identifier: Apache-2.0
"""Compare the table of runtime offsets with the DWARF of binaries built with each release."""

from __future__ import annotations

import dataclasses
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from gotrace.architecture import AMD64, ARM64
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.releases import NEWEST
from gotrace.gotypes.runtime import (
    LayoutSource,
    RuntimeLayout,
    RuntimeLayoutError,
    runtime_layout,
    table_layout,
    tls_offset,
)
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    FOR_ARM64,
    WHEEL_VERSIONS,
    Toolchain,
    build,
    each_architecture,
    each_toolchain,
    every_toolchain,
    newest,
)

RUNTIME = FIXTURES / "abi_runtime"
CGO = FIXTURES / "abi_runtime_cgo"


def release(toolchain: Toolchain) -> GoVersion:
    version = GoVersion.parse(f"go{toolchain.version}")
    assert version is not None
    return version


def dwarf_members(path: Path, *structs: str) -> list[dict[str, int]]:
    """Return the field offsets of structs as pyelftools reads them, which is slow: in one walk."""
    found: dict[str, dict[str, int]] = {}
    with path.open("rb") as file:
        dwarf = ELFFile(file).get_dwarf_info()
        for die in (die for unit in dwarf.iter_CUs() for die in unit.iter_DIEs()):
            if die.tag != "DW_TAG_structure_type":
                continue
            name = die.attributes["DW_AT_name"].value.decode()
            if name in structs and name not in found:
                found[name] = {
                    child.attributes["DW_AT_name"].value.decode(): child.attributes[
                        "DW_AT_data_member_location"
                    ].value
                    for child in die.iter_children()
                }
                if len(found) == len(structs):
                    return [found[name] for name in structs]
    raise AssertionError(f"{path} has only {[*found]} of {structs}")


def linked_tls_offset(path: Path) -> int:
    """Return where the linker put runtime.tlsg: its value in a block that ends at FS base."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        (tls,) = (segment for segment in elf.iter_segments() if segment["p_type"] == "PT_TLS")
        symbols = elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        symbol = (symbols.get_symbol_by_name("runtime.tlsg") or [])[0]
        alignment = tls["p_align"]
        size = (tls["p_memsz"] + alignment - 1) // alignment * alignment
        return int(symbol["st_value"] - size)


@each_architecture
@every_toolchain
def test_table_agrees_with_the_compilers_dwarf(
    toolchain: Toolchain, env: Mapping[str, str]
) -> None:
    path = build(RUNTIME, toolchain, env=env)
    layout = table_layout(release(toolchain).release, ARM64 if env else AMD64)
    names = (f"runtime.{name}" for name in ("g", "m", "stack", "gobuf", "sudog", "hchan"))
    g, m, stack, gobuf, sudog, hchan = dwarf_members(path, *names)
    # maybeTraceablePtr, since Go 1.26: a pointer for the collector, then the address as a number
    address = 8 if layout.sudog_c == 96 else 0
    assert {
        "g_stack_hi": g["stack"] + stack["hi"],
        "g_m": g["m"],
        "g_sched_sp": g["sched"] + gobuf["sp"],
        "g_sched_pc": g["sched"] + gobuf["pc"],
        "g_sched_bp": g["sched"] + gobuf["bp"],
        "g_syscallsp": g["syscallsp"],
        "g_syscallpc": g["syscallpc"],
        "g_atomicstatus": g["atomicstatus"],
        "g_goid": g["goid"],
        "g_waitsince": g["waitsince"],
        "g_waitreason": g["waitreason"],
        "g_tracking_seq": g.get("trackingSeq"),
        "g_lockedm": g["lockedm"],
        "g_parent_goid": g.get("parentGoid"),
        "g_gopc": g["gopc"],
        "g_startpc": g["startpc"],
        "g_waiting": g["waiting"],
        "g_labels": g["labels"],
        "m_procid": m["procid"],
        "m_curg": m["curg"],
        "sudog_elem": sudog["elem"] + address,
        "sudog_waitlink": sudog["waitlink"],
        "sudog_c": sudog["c"] + address,
        "hchan_timer": hchan.get("timer"),
        "hchan_elemtype": hchan["elemtype"],
        "hchan_recvq": hchan["recvq"],
        "hchan_sendq": hchan["sendq"],
    }.items() <= dataclasses.asdict(layout).items()
    assert (address > 0) == (sudog["acquiretime"] - sudog["elem"] == 16)
    assert (m["g0"], sudog["g"], sudog["prev"]) == (0, 0, 16)
    assert (hchan["qcount"], hchan["dataqsiz"]) == (0, 8)
    assert not layout.assumed


@every_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie"])
def test_layout_of_a_binary(toolchain: Toolchain, mode: str) -> None:
    path = build(RUNTIME, toolchain, flags=BUILD_MODES[mode])
    version = release(toolchain)
    with Binary(ElfImage.open(path)) as binary:
        layout = binary.runtime
    source = LayoutSource.TABLE if mode == "stripped" else LayoutSource.DWARF
    table = table_layout(version.release, AMD64)
    assert layout == dataclasses.replace(table, source=source, tls_offset=-8)
    assert layout.g_in_register == (version >= GoVersion(1, 17))


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped"])
def test_layout_of_an_arm64_binary(toolchain: Toolchain, mode: str) -> None:
    path = build(RUNTIME, toolchain, flags=BUILD_MODES[mode], env=FOR_ARM64)
    with Binary(ElfImage.open(path)) as binary:
        layout = binary.runtime
    source = LayoutSource.TABLE if mode == "stripped" else LayoutSource.DWARF
    table = table_layout(release(toolchain).release, ARM64)
    assert layout == dataclasses.replace(table, source=source)
    assert layout.g_in_register and layout.tls_offset is None


@every_toolchain
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="dynamic"),
        pytest.param(("-buildmode=pie",), id="pie"),
        pytest.param(("-ldflags=-linkmode=external -extldflags=-static",), id="static"),
    ],
)
def test_tls_offset_of_externally_linked_programs(
    toolchain: Toolchain, flags: tuple[str, ...]
) -> None:
    path = build(CGO, toolchain, flags=flags, env={"CGO_ENABLED": "1"})
    expected = linked_tls_offset(path)
    assert expected <= -8 - 20 * 8
    with ElfImage.open(path) as image:
        assert tls_offset(image) == expected


def test_tls_offset_does_not_need_symbols() -> None:
    plain = build(CGO, newest(), env={"CGO_ENABLED": "1"})
    stripped = build(CGO, newest(), flags=("-ldflags=-s -w",), env={"CGO_ENABLED": "1"})
    with ElfImage.open(stripped) as image:
        assert tls_offset(image) == linked_tls_offset(plain)


def test_tls_offset_of_a_shared_library_is_not_fixed() -> None:
    path = build(CGO, newest(), flags=("-buildmode=c-shared",), env={"CGO_ENABLED": "1"})
    with ElfImage.open(path) as image:
        assert tls_offset(image) is None


def test_the_newest_release_known_is_the_newest_tested() -> None:
    newest_tested = GoVersion.parse(f"go{WHEEL_VERSIONS[-1]}")
    assert newest_tested is not None and newest_tested.release == NEWEST


@pytest.mark.parametrize("asked, assumed", [((1, 40), True), ((1, 2), True), ((1, 20), False)])
def test_releases_outside_of_the_table_are_marked(asked: tuple[int, int], assumed: bool) -> None:
    layout = table_layout(asked, AMD64)
    assert layout.assumed == assumed
    if asked > NEWEST:
        newest_row = table_layout(NEWEST, AMD64)
        assert layout == dataclasses.replace(newest_row, assumed=True)


def test_stripped_binary_of_unknown_release_is_refused() -> None:
    path = build(RUNTIME, newest(), flags=BUILD_MODES["stripped"])
    with (
        ElfImage.open(path, "prog") as image,
        pytest.raises(RuntimeLayoutError, match=r"prog: .*neither DWARF nor a Go version"),
    ):
        runtime_layout(image, None, lambda: None)


def test_layout_is_kept_for_files_with_the_same_debugging_information(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "gotrace" / "layouts"
    path = build(RUNTIME, newest())
    opened = []

    def layout(path: Path) -> RuntimeLayout:
        def dwarf() -> DwarfReader | None:
            opened.append(path)
            return binary.dwarf

        with Binary(ElfImage.open(path)) as binary:
            return runtime_layout(binary.image, binary.go_version, dwarf)

    read = layout(path)
    assert read.source is LayoutSource.DWARF
    copied = Path(shutil.copy(path, tmp_path / "copied"))
    assert layout(copied) == read and opened == [path]
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    content = kept.read_bytes()
    for damage in (b"", content[:-1], content.replace(b'"g_m": 48', b'"g_m": 56')):
        kept.write_bytes(damage)
        assert layout(path) == read
        assert kept.read_bytes() == content
    assert len(opened) == 4
    with ElfImage.open(path) as image:
        section = image.section(".debug_info")
        assert section is not None
    data = bytearray(path.read_bytes())
    data[section.offset + section.size - 1] ^= 1  # of the sum: it does not decompress
    copied.write_bytes(data)  # with the same build ID
    assert layout(copied).source is LayoutSource.TABLE
    assert len(list(folder.iterdir())) == 1


def test_damaged_dwarf_falls_back_to_the_table(tmp_path: Path) -> None:
    toolchain = newest()
    path = build(RUNTIME, toolchain)
    with ElfImage.open(path) as image:
        section = image.section(".debug_info")
        assert section is not None
        data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, section.offset + 24, 0xDEAD)  # the compressed stream's start
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    with Binary(ElfImage.open(damaged)) as binary:
        layout = binary.runtime
        assert binary.dwarf_problem is not None
    assert layout.source is LayoutSource.TABLE
    assert not layout.assumed
