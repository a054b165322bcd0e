# SPDX-License-Identifier: Apache-2.0
"""Compile the fixtures of the ELF tests, in all the ways that change a function table's place."""

from __future__ import annotations

import shutil
from pathlib import Path

from gotrace.elf.buildinfo import recorded_version
from gotrace.elf.image import ElfImage
from tests.toolchains import FIXTURES, FOR_ARM64, Toolchain, build

#: How to build one program; values are build() flags.
MODES: dict[str, tuple[str, ...]] = {
    "default": (),
    "stripped": ("-ldflags=-s -w",),
    "pie": ("-buildmode=pie",),
    "stripped-pie": ("-buildmode=pie", "-ldflags=-s -w"),
    "external": ("-ldflags=-linkmode=external",),
    "external-pie": ("-buildmode=pie", "-ldflags=-linkmode=external"),
    "external-stripped-pie": ("-buildmode=pie", "-ldflags=-linkmode=external -s -w"),
}

#: The same for arm64.
ARM64_MODES: dict[str, tuple[str, ...]] = {
    "arm64": (),
    "arm64-stripped": ("-ldflags=-s -w",),
    "arm64-pie": ("-buildmode=pie",),
}


def small(toolchain: Toolchain, mode: str = "default") -> Path:
    """Build the program that has one of each kind of Go function."""
    env = FOR_ARM64 if mode in ARM64_MODES else None
    flags = (MODES | ARM64_MODES)[mode]
    return build(FIXTURES / "elf_small", toolchain, flags=flags, env=env)


def cgo(toolchain: Toolchain, mode: str = "default") -> Path:
    """Build the program that has C functions, too."""
    return build(FIXTURES / "elf_cgo", toolchain, flags=MODES[mode])


def without_build_info(binary: Path, copy: Path, version: bytes | None = None) -> Path:
    """Copy a binary and clear its build information, which ends the ``go`` command's knowledge.

    ``version`` takes the place of the release's text, of the same length, wherever else it is.
    """
    content = binary.read_bytes()
    with ElfImage.open(binary) as image:
        section = image.section(".go.buildinfo")
        version_recorded = recorded_version(image)
    assert section is not None and version_recorded is not None
    known = version_recorded.text.encode()
    end = section.offset + section.size
    content = content[: section.offset] + bytes(section.size) + content[end:]
    if version is not None:
        assert len(version) == len(known)
        content = content.replace(known, version)
    copy.write_bytes(content)
    copy.chmod(0o755)
    return copy


def without_section_headers(binary: Path, copy: Path) -> Path:
    """Copy a binary and make its ELF header say that there are no section headers."""
    shutil.copyfile(binary, copy)
    with copy.open("r+b") as file:
        file.seek(40)  # e_shoff
        file.write(bytes(8))
        file.seek(60)  # e_shnum, e_shstrndx
        file.write(bytes(4))
    return copy
