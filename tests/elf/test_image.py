# SPDX-License-Identifier: Apache-2.0
"""Compare the ELF image with readelf and objcopy, and try files that are something else."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import struct
from pathlib import Path

import pytest

from gotrace.architecture import AMD64
from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage, string_at
from gotrace.elf.symtab import symbol_value
from tests.elf.binaries import MODES, small
from tests.elf.truth import run, sections
from tests.toolchains import Toolchain, each_toolchain, newest, require

each_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def binary() -> Path:
    return small(newest())


def patched(binary: Path, copy: Path, offset: int, content: bytes) -> Path:
    shutil.copyfile(binary, copy)
    with copy.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    return copy


@each_mode
def test_sections_are_those_of_readelf(mode: str) -> None:
    path = small(newest(), mode)
    expected = sections(path)
    with ElfImage.open(path) as image:
        assert {
            section.name: (section.address, section.offset, section.size)
            for section in image.sections
            if section.name
        } == expected


@each_toolchain
@each_mode
def test_kind_and_offsets_are_those_of_readelf(toolchain: Toolchain, mode: str) -> None:
    path = small(toolchain, mode)
    headers = run(["readelf", "-lW", path])
    loads = re.findall(r"^\s+LOAD\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)", headers, re.MULTILINE)
    with ElfImage.open(path) as image:
        assert image.arch is AMD64
        assert image.is_pie == ("file type is DYN" in headers) == ("pie" in mode)
        assert not image.is_shared_library
        for offset, address in loads:
            assert image.offset_of(int(address, 16)) == int(offset, 16)


def test_shared_libraries_are_no_programs() -> None:
    # glibc can be run, too: it has an interpreter.
    names = re.findall(r"=> (/\S+)", run(["ldd", shutil.which("bash") or "/bin/bash"]))
    assert names
    for name in names:
        with ElfImage.open(name) as image:
            assert image.is_shared_library and not image.is_pie


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_compressed_sections_are_what_objcopy_makes_of_them(minor: str, tmp_path: Path) -> None:
    path = small(require(minor))
    plain = tmp_path / "plain"
    run(["objcopy", "--decompress-debug-sections", path, plain])
    with ElfImage.open(path) as image, ElfImage.open(plain) as plain_image:
        debug = [s for s in image.sections if s.name.startswith((".debug_", ".zdebug_"))]
        smaller = 0
        for section in debug:
            expected = plain_image.section(section.name.replace(".zdebug_", ".debug_"))
            assert expected is not None
            smaller += section.size < expected.size
            with plain.open("rb") as file:
                file.seek(expected.offset)
                assert bytes(image.section_bytes(section)) == file.read(expected.size)
        assert smaller


def test_sections_that_do_not_decompress_are_refused(tmp_path: Path) -> None:
    path = small(require("1.27"))
    with ElfImage.open(path) as image:
        section = image.section(".debug_info")
        assert section is not None
    for place, content, why in (
        (8, b"\xff" * 8, "claims 18446744073709551615 bytes when decompressed: too many"),
        (8, bytes(8), "decompresses to another size than it says"),
        (24, b"\0" * 40, "does not decompress: Error -3"),
        (0, b"\2", "is compressed with"),
    ):
        copy = patched(path, tmp_path / "copy", section.offset + place, content)
        with ElfImage.open(copy) as image:
            damaged = image.section(".debug_info")
            assert damaged is not None
            with pytest.raises(ElfError, match=rf"\.debug_info {why}"):
                image.section_bytes(damaged)


def test_read_stays_inside_of_the_file(binary: Path) -> None:
    content = binary.read_bytes()
    with ElfImage.open(binary) as image:
        text = image.section(".text")
        assert text is not None
        assert image.read(text.address, 64) == content[text.offset : text.offset + 64]
        assert image.offset_of(text.address + 5) == text.offset + 5
        assert image.address_of(text.offset + 5) == text.address + 5
        assert image.executable(text.address, text.size)
        assert not image.executable(text.address, 1 << 40)
        data = image.section(".data")
        bss = image.section(".bss")
        assert data is not None and bss is not None
        assert not image.executable(data.address)
        for address, size in ((bss.address + 64, 8), (0, 1), (1 << 63, 8)):
            with pytest.raises(ElfError, match=f"{size} bytes at {address:#x} are not in the file"):
                image.read(address, size)
        with pytest.raises(ElfError, match=r"a size of -1 bytes at 0x.*: damaged"):
            image.read(text.address, -1)
        with pytest.raises(ElfError, match=r"file offset 0x.* is not mapped to memory"):
            image.address_of(len(content))
    with pytest.raises(ElfError, match="string at file offset 0x1 is not terminated"):
        string_at(b"abc", 1, 3)


def test_read_only_memory_is_what_no_process_changes(binary: Path) -> None:
    with ElfImage.open(binary) as image:
        loads = [segment for segment in image.segments if segment.type == 1]
        assert {segment.flags & 2 for segment in loads} == {0, 2}
        for segment in loads:
            start, end = segment.address, segment.address + segment.file_size
            content = image.data[segment.offset : segment.offset + segment.file_size]
            found = image.read_only(start, segment.file_size)
            assert found == (None if segment.flags & 2 else content)
            assert image.read_only(end - 1, 2) is None
        assert image.read_only(0, 1) is None
        assert image.read_only((1 << 64) - 1, 4) is None


def test_descriptor_outlives_the_path(binary: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copyfile(binary, copy)
    status = copy.stat()
    with ElfImage.open(copy, display="the program") as image:
        copy.unlink()
        copy.write_bytes(b"something else")
        assert Path(f"/proc/self/fd/{image.fileno()}").read_bytes() == binary.read_bytes()
        identity = image.identity
        assert (identity.device, identity.inode) == (status.st_dev, status.st_ino)
        assert (identity.size, identity.mtime_ns) == (status.st_size, status.st_mtime_ns)
        descriptor = image.fileno()
        image.close()
        with pytest.raises(OSError):
            os.fstat(descriptor)


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0, b"\x7fELG", "not an ELF file, so not a Go program"),
        (4, b"\1", "32-bit"),
        (5, b"\2", "big-endian"),
        (
            16,
            struct.pack("<H", 1),
            r"an object file \(not linked\), not an executable or a shared library",
        ),
        (16, struct.pack("<H", 4), "core dump"),
        (18, struct.pack("<H", 3), "386"),
        (18, struct.pack("<H", 243), "a program for RISC-V: only programs for amd64"),
        (18, struct.pack("<H", 243), "RISC-V"),
        (18, struct.pack("<H", 999), "machine 999"),
        (32, struct.pack("<Q", 1 << 62), "program headers do not fit: the file is damaged"),
        (54, struct.pack("<H", 55), "program headers of 55 bytes: the file is damaged"),
        (56, struct.pack("<H", 0), "nothing to load"),
        (56, struct.pack("<H", 0xFFFF), "damaged"),
    ],
)
def test_other_files_are_refused_by_name(
    binary: Path, tmp_path: Path, offset: int, content: bytes, message: str
) -> None:
    copy = patched(binary, tmp_path / "copy", offset, content)
    with pytest.raises(ElfError, match=message) as caught:
        ElfImage.open(copy, display="PROGRAM")
    assert str(caught.value).startswith("PROGRAM: ")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "short").write_bytes(b"\x7fELF\2\1")
    (tmp_path / "half").write_bytes(binary.read_bytes()[: binary.stat().st_size // 2])
    for name, message in (
        ("missing", ": cannot open: No such file"),
        ("", "a directory"),
        ("empty", "is empty"),
        ("fifo", "not a regular file"),
        ("short", "the file is truncated: no whole ELF header"),
        ("half", "the file is truncated: a segment needs bytes up to"),
        ("nul\0", "null"),
    ):
        with pytest.raises(ElfError, match=message):
            ElfImage.open(tmp_path / name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(ElfError, match="cannot open"):
            ElfImage.open(tmp_path / "socket")


def test_what_the_kernel_does_not_map_is_refused(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As files of some file systems in user space."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr("gotrace.elf.image.mmap.mmap", refuse)
    with pytest.raises(ElfError, match=r"small.*: cannot map: No such device"):
        ElfImage.open(binary, display="small")


def test_unusable_section_headers_count_as_absent(binary: Path, tmp_path: Path) -> None:
    # The kernel does not read them: such a program runs.
    for offset, content in ((40, b"\xff" * 8), (58, b"\1\0"), (62, b"\xff\xfe")):
        with ElfImage.open(patched(binary, tmp_path / "copy", offset, content)) as image:
            assert image.sections == ()


@pytest.mark.parametrize("minor", ["1.15", "1.19"])
@pytest.mark.parametrize("mode", ["default", "stripped"])
def test_occurrences_are_where_the_linker_put_the_bytes(minor: str, mode: str) -> None:
    words = struct.pack("<256Q", *range(256))  # the runtime's staticuint64s, a variable there
    with ElfImage.open(small(require(minor))) as image:
        named = symbol_value(image, "runtime.staticuint64s")
    with ElfImage.open(small(require(minor), mode)) as image:
        (found,) = image.occurrences(words)
        assert image.read(found, len(words)) == words
        assert image.occurrences(words + b"no such thing") == []
    assert mode == "stripped" or found == named
