# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/why.h to what a C compiler makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.kernel.compiler import bpf_directory
from gotrace.session.events import CallFlag
from gotrace.session.why.parts import (
    CallParts,
    Longest,
    Part,
    PartClass,
    PartSums,
    call_parts,
    max_report_size,
    report_end,
)
from tests.bpf.c import CLayout


@pytest.fixture(params=[64, 128, 256])
def parts(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def names(parts: int) -> tuple[str, ...]:
    return tuple(f"part {number}" for number in range(parts))


@pytest.fixture
def c(tmp_path: Path, parts: int) -> CLayout:
    return CLayout("latency.c", tmp_path, {"GOTRACE_WHY_PARTS": parts})


def test_parts_and_their_classes(c: CLayout, parts: int) -> None:
    assert c.constants("WHY_PARTS", "WHY_REASONS") == [parts, 16]
    assert c.constants(*(f"WHY_{part.name}" for part in Part)) == [part.value for part in Part]
    classes = [None, *PartClass]
    names = [f"CLASS_{found.name if found else 'NONE'}" for found in classes]
    assert c.constants(*names, "WHY_CLASSES") == [*range(len(classes)), len(classes)]


def test_report(c: CLayout, parts: int, names: tuple[str, ...]) -> None:
    row, values = c.fields("why_report", "changes", "longest_ns", "waker")
    sizes = ("sizeof(struct why_report)", "WHY_REPORT_SIZE", "WHY_CELL_MASK")
    assert c.constants(*sizes) == [len(row), max_report_size(parts), parts - 1]
    (shift,) = c.constants("WHY_CELL_BITS")
    assert 1 << shift == parts
    head = bytearray(row)
    numbers = {"part": 3, "is_woken": 1, "cells": 2, "frames": 2, "waker_frames": 1, "is_whole": 0}
    numbers["cell_bits"] = shift
    places = {name: c.constants(f"offsetof(struct why_report, {name})")[0] for name in numbers}
    for name, value in numbers.items():
        head[places[name]] = value
    changes, ns, waker = values
    longest = Longest(names[3], ns, waker, (13,), (11, 12))
    data = packed(head, 7 << shift | 5, 9 << shift | 6, 11, 12, 13)
    assert report_end(data, 0) == len(data)
    expected = {names[6]: 9, names[5]: 7}
    assert call_parts(data, names) == CallParts(expected, changes, longest)
    head[places["is_whole"]] = 1
    head[places["cells"]] = 0
    before = [10 * number for number in range(parts)]
    now = list(before)
    now[5] += 7
    now[6] += 9
    data = packed(head, *now, *before, 11, 12, 13)
    assert report_end(data, 0) == len(data)
    assert call_parts(data, names) == CallParts(expected, changes, longest)


def packed(head: bytearray, *words: int) -> bytes:
    return bytes(head) + b"".join(word.to_bytes(8, "little") for word in words)


def test_sums(c: CLayout, parts: int, names: tuple[str, ...]) -> None:
    row, values = c.fields("why_sums", "ns[0]", "ns[5]", "calls[0]", f"calls[{parts - 1}]")
    sums = PartSums.from_row(row, names).parts
    found = [sums[names[0]].ns, sums[names[5]].ns, sums[names[0]].calls, sums[names[-1]].calls]
    assert values == found


def test_small_structs(c: CLayout, parts: int) -> None:
    sizes = ("why_site", "why_table", "why_band", "why_key")
    assert c.constants(*(f"sizeof(struct {name})" for name in sizes)) == [16, 256 + parts, 8, 16]


def test_flags() -> None:
    text = (bpf_directory() / "payload.h").read_text()
    defined = dict(re.findall(r"^#define EVENT_(WHY\w*) +(\d+)", text, re.M))
    assert defined == {"WHY": str(CallFlag.WHY.value)}
