# SPDX-License-Identifier: Apache-2.0
"""Find the file that has the debugging information of a stripped program.

Where such files are is as gdb and elfutils look for them ("Debugging Information in Separate
Files" in gdb's manual): by the build ID below /usr/lib/debug/.build-id, and by the name that the
section .gnu_debuglink has, beside the program, in .debug beside it, and below /usr/lib/debug.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage
from gotrace.records import dataclass

_DEBUG = "/usr/lib/debug"
_LINK = ".gnu_debuglink"
_GNU_ID, _GO_ID = ".note.gnu.build-id", ".note.go.buildid"
_NOTE = struct.Struct("<III")
_MAX_LINK = 4096
_SHOWN_ID = 20


@dataclass(frozen=True, slots=True)
class DebugFile:
    """The separate debug file of a program, None if there is none, and why one is not taken."""

    image: ElfImage | None = None
    problem: str | None = None


def find_debug_file(image: ElfImage, roots: Sequence[str]) -> DebugFile:
    """Return the debug file of an image, open: the first that is of its build.

    ``roots`` are where the file systems begin that are searched, "" for this one.
    """
    problem = None
    for path in dict.fromkeys(_candidates(image, roots)):
        if not os.path.isfile(path) or os.path.realpath(path) == os.path.realpath(image.path):
            continue
        try:
            return DebugFile(open_debug_file(image, path))
        except ElfError as error:
            problem = problem or str(error)
    return DebugFile(None, problem)


def open_debug_file(image: ElfImage, path: str) -> ElfImage:
    """Open a file as the debug file of an image. Raise ElfError if it is not."""
    most = image.largest_section
    found = ElfImage.open(path, copied=True, largest_section=most, has_code=False)
    if found.debug_section("info") is None:
        problem: str | None = "it has no debugging information"
    else:
        problem = _why_other(image, found)
    if problem is not None:
        found.close()
        raise ElfError(f"{path} is not the debug file of {image.display}: {problem}")
    return found


def _candidates(image: ElfImage, roots: Sequence[str]) -> Iterator[str]:
    own = _note(image, _GNU_ID)
    name, _ = _link(image)
    folders = dict.fromkeys(os.path.dirname(path) for path in (image.display, image.path))
    for root in roots:
        if own is not None and len(own) > 1:
            text = own.hex()
            yield f"{root}{_DEBUG}/.build-id/{text[:2]}/{text[2:]}.debug"
        for folder in folders if name else ():
            if folder.startswith("/proc/") or not folder.startswith("/"):
                continue
            yield f"{root}{folder}/{name}"
            yield f"{root}{folder}/.debug/{name}"
            yield f"{root}{_DEBUG}{folder}/{name}"


def _why_other(image: ElfImage, debug: ElfImage) -> str | None:
    """Return why a debug file is not of the build of an image, None if it is.

    All build IDs that both have must be equal.
    """
    shared = []
    for section in (_GNU_ID, _GO_ID):
        ours, theirs = _note(image, section), _note(debug, section)
        if ours is not None and theirs is not None:
            if ours != theirs:
                shown = [_shown_id(section, one) for one in (theirs, ours)]
                return f"its build ID is {shown[0]}, not {shown[1]}"
            shared.append(section)
    go_id = _note(image, _GO_ID) or b""
    if shared and (not _is_go(image) or (_GO_ID in shared and _is_of_one_build(go_id))):
        return None
    name, wanted = _link(image)
    if name:
        found = zlib.crc32(debug.data)
        return None if found == wanted else f"its CRC is {found:08x}, not {wanted:08x}"
    if not shared:
        return "nothing says that they are of one build: no build ID is in both"
    if _is_of_one_build(go_id):
        return "nothing says that they are of one build: it has no Go build ID"
    shown_id = f"build ID is {_shown_id(_GO_ID, go_id)!r}" if go_id else "Go build ID is empty"
    cure = "objcopy --add-gnu-debuglink gives the program the CRC of its own"
    return f"its {shown_id}, which other builds have too: {cure}"


def _is_go(image: ElfImage) -> bool:
    """Return whether Go's linker wrote an image, or gave it to another linker."""
    return any(one.name.endswith((".gopclntab", ".go.buildinfo")) for one in image.sections)


def _is_of_one_build(go_id: bytes) -> bool:
    """Return whether a Go build ID is of one build alone: the go command made it, of four hashes.

    Others are by -ldflags=-buildid, and often the same for all programs ("redacted" by Bazel). The
    GNU build ID says no more than Go's: the linker derives it from that (Go 1.24), or takes it from
    -B.
    """
    parts = go_id.split(b"/")
    return len(parts) == 4 and all(parts)


def _shown_id(section: str, build_id: bytes) -> str:
    text = build_id.hex() if section == _GNU_ID else build_id.decode("ascii", "backslashreplace")
    return text if len(text) <= 2 * _SHOWN_ID else f"{text[:_SHOWN_ID]}..."


def _note(image: ElfImage, name: str) -> bytes | None:
    """Return the contents of a section's first note (elf(5), Notes), None without it."""
    section = image.section(name)
    data = b"" if section is None else bytes(image.section_bytes(section))
    if len(data) < _NOTE.size:
        return None
    name_size, size, _ = _NOTE.unpack_from(data)
    start = _NOTE.size + (name_size + 3 & ~3)
    return data[start : start + size] if size and start + size <= len(data) else None


def _link(image: ElfImage) -> tuple[str, int]:
    """Return the name of an image's debug file and its CRC; "" if it names none."""
    section = image.section(_LINK)
    if section is None or not 8 <= section.size <= _MAX_LINK:
        return "", 0
    data = bytes(image.section_bytes(section))
    name = os.fsdecode(data[:-4].split(b"\0", 1)[0])
    if "/" in name or name in ("", ".", ".."):
        return "", 0
    return name, int.from_bytes(data[-4:], "little")
