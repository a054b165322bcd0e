# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/why.h to what a C compiler makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.kernel.compiler import bpf_directory
from gotrace.session.events import CallFlag
from gotrace.session.why import parts as why
from gotrace.session.why.parts import (
    MAX_REPORT_SIZE,
    PARTS,
    CallParts,
    Longest,
    Part,
    PartClass,
    PartSums,
    call_parts,
    report_end,
)
from tests.bpf.c import CLayout

NAMES = tuple(f"part {number}" for number in range(PARTS))


@pytest.fixture
def c(tmp_path: Path) -> CLayout:
    return CLayout("latency.c", tmp_path)


def test_parts_and_their_classes(c: CLayout) -> None:
    assert c.constants("WHY_PARTS", "WHY_REASONS") == [PARTS, 16]
    assert c.constants(*(f"WHY_{part.name}" for part in Part)) == [part.value for part in Part]
    classes = [None, *PartClass]
    names = [f"CLASS_{found.name if found else 'NONE'}" for found in classes]
    assert c.constants(*names, "WHY_CLASSES") == [*range(len(classes)), len(classes)]


def test_report(c: CLayout) -> None:
    row, values = c.fields("why_report", "changes", "longest_ns", "waker")
    sizes = ("sizeof(struct why_report)", "WHY_REPORT_SIZE", "WHY_CELL_MASK")
    assert c.constants(*sizes) == [len(row), MAX_REPORT_SIZE, PARTS - 1]
    (shift,) = c.constants("WHY_CELL_BITS")
    head = bytearray(row)
    numbers = {"part": 3, "is_woken": 1, "cells": 2, "frames": 2, "waker_frames": 1, "is_whole": 0}
    places = {name: c.constants(f"offsetof(struct why_report, {name})")[0] for name in numbers}
    for name, value in numbers.items():
        head[places[name]] = value
    changes, ns, waker = values
    longest = Longest(NAMES[3], ns, waker, (13,), (11, 12))
    data = packed(head, 7 << shift | 5, 9 << shift | 6, 11, 12, 13)
    assert report_end(data, 0) == len(data)
    parts = {NAMES[6]: 9, NAMES[5]: 7}
    assert call_parts(data, NAMES) == CallParts(parts, changes, longest)
    head[places["is_whole"]] = 1
    head[places["cells"]] = 0
    before = [10 * number for number in range(PARTS)]
    now = list(before)
    now[5] += 7
    now[6] += 9
    data = packed(head, *now, *before, 11, 12, 13)
    assert report_end(data, 0) == len(data)
    assert call_parts(data, NAMES) == CallParts(parts, changes, longest)


def packed(head: bytearray, *words: int) -> bytes:
    return bytes(head) + b"".join(word.to_bytes(8, "little") for word in words)


def test_sums(c: CLayout) -> None:
    row, values = c.fields("why_sums", "ns[0]", "ns[5]", "calls[0]", f"calls[{PARTS - 1}]")
    assert len(row) == why.SUMS_SIZE
    parts = PartSums.from_row(row, NAMES).parts
    found = [parts[NAMES[0]].ns, parts[NAMES[5]].ns, parts[NAMES[0]].calls, parts[NAMES[-1]].calls]
    assert values == found


def test_small_structs(c: CLayout) -> None:
    sizes = ("why_site", "why_table", "why_band", "why_key")
    assert c.constants(*(f"sizeof(struct {name})" for name in sizes)) == [16, 256 + PARTS, 8, 16]


def test_flags() -> None:
    text = (bpf_directory() / "payload.h").read_text()
    defined = dict(re.findall(r"^#define EVENT_(WHY\w*) +(\d+)", text, re.M))
    assert defined == {"WHY": str(CallFlag.WHY.value)}
