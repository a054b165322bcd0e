# SPDX-License-Identifier: Apache-2.0
"""Compare wait reasons found in binaries with the source of the runtime in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.elf.image import ElfImage
from gotrace.gotypes import wait_reasons
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.wait_reasons import WaitFor, find_wait_reasons, meaning_of
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, every_toolchain, newest

RUNTIME = FIXTURES / "abi_runtime"
CGO = FIXTURES / "abi_runtime_cgo"


def reasons_in_source(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the texts of src/runtime/runtime2.go; constants and texts have one order there."""
    goroot = toolchain.go.resolve().parents[1]
    source = (goroot / "src/runtime/runtime2.go").read_text()
    constants = re.findall(r"^\twaitReason\w+(?= +(?:waitReason = iota)? *//)", source, re.M)
    texts = dict(re.findall(r"^\t(waitReason\w+): +\"(.*)\",$", source, re.M))
    assert len(constants) == len(texts) > 20
    return tuple(texts[name.strip()] for name in constants)


@every_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie"])
def test_reasons_are_those_of_the_runtimes_source(toolchain: Toolchain, mode: str) -> None:
    expected = reasons_in_source(toolchain)
    with Binary(ElfImage.open(build(RUNTIME, toolchain, flags=BUILD_MODES[mode]))) as binary:
        found = binary.wait_reasons
    assert found is not None
    assert found[: len(expected)] == expected


@every_toolchain
def test_each_reason_is_known(toolchain: Toolchain) -> None:
    """Each has a word that the release's own traces have, or is its own word."""
    reasons = reasons_in_source(toolchain)[1:]
    assert [one for one in reasons if meaning_of(one).wait_for is WaitFor.UNKNOWN] == []
    goroot = toolchain.go.resolve().parents[1]
    source = goroot / "src/runtime/traceruntime.go"
    if source.exists():  # since Go 1.22
        words = set(re.findall(r"^\ttraceBlock\w+: +\"(.*)\",$", source.read_text(), re.M))
        words.add("")
        unknown = {meaning_of(one).in_traces for one in reasons} - words - set(reasons)
        assert unknown <= {"synctest"} and len(words) > 12


@every_toolchain
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("-ldflags=-s -w",), id="dynamic"),
        pytest.param(("-buildmode=pie", "-ldflags=-s -w"), id="pie"),
        pytest.param(("-buildmode=c-shared",), id="library"),
    ],
)
def test_reasons_of_externally_linked_programs(
    toolchain: Toolchain, flags: tuple[str, ...]
) -> None:
    """GNU ld leaves the words of the array zero: only relocations say where the texts are."""
    expected = reasons_in_source(toolchain)
    path = build(CGO, toolchain, flags=flags, env={"CGO_ENABLED": "1"})
    with ElfImage.open(path) as image:
        found = find_wait_reasons(image)
    assert found is not None
    assert found[: len(expected)] == expected


def damaged(tmp_path: Path, old: bytes, new: bytes) -> Path:
    data = build(RUNTIME, newest(), flags=BUILD_MODES["stripped"]).read_bytes()
    assert old in data
    path = tmp_path / "damaged"
    path.write_bytes(data.replace(old, new))
    return path


def test_other_texts_are_not_taken(tmp_path: Path) -> None:
    with ElfImage.open(damaged(tmp_path, b"GC assist marking", b"GC assist barking")) as image:
        assert find_wait_reasons(image) is None


def test_two_arrays_are_one_too_many(tmp_path: Path) -> None:
    path = build(RUNTIME, newest(), flags=BUILD_MODES["stripped"])
    with ElfImage.open(path) as image:
        (address,) = set(wait_reasons._arrays(image))
        array = image.read(address, 48)
        offset = image.offset_of(address)
        segment = next(found for found in image.segments if found.flags & 2 and found.type == 1)
        content = bytearray(image.data)
    at = segment.offset + (0 if abs(offset - segment.offset) > 48 else 96)
    content[at : at + 48] = array
    double = tmp_path / "double"
    double.write_bytes(content)
    with ElfImage.open(double) as image:
        assert find_wait_reasons(image) is None


def test_text_that_is_everywhere_costs_a_bounded_search(tmp_path: Path) -> None:
    path = build(RUNTIME, newest(), flags=BUILD_MODES["stripped"])
    with ElfImage.open(path) as image:
        segment = next(found for found in image.segments if found.flags & 2 and found.type == 1)
        content = bytearray(image.data)
    text = b"GC assist marking"
    count = segment.file_size // len(text)
    assert count > 10 * wait_reasons._MAX_PLACES
    content[segment.offset : segment.offset + count * len(text)] = text * count
    hostile = tmp_path / "hostile"
    hostile.write_bytes(content)
    with ElfImage.open(hostile) as image:
        assert len(wait_reasons._text_addresses(image, text)) == wait_reasons._MAX_PLACES
        assert find_wait_reasons(image) is None
