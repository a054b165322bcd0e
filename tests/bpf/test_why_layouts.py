# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/why.h to what a C compiler makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.kernel.compiler import bpf_directory
from gotrace.session.events import CallFlag
from gotrace.session.why import parts as why
from gotrace.session.why.parts import PARTS, SEEN_SIZE, Part, PartClass, PartSums, seen_parts
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


def test_seen(c: CLayout) -> None:
    fields = ("changes", "parts[0]", f"parts[{PARTS - 1}]", "longest.ns", "longest.waker")
    row, values = c.fields("why_seen", *fields, "longest.stack[0]", "longest.waker_stack[15]")
    assert len(row) == SEEN_SIZE
    at = SEEN_SIZE - 2 * 16 * 8 - 16  # of part and is_woken
    row = row[:at] + (3).to_bytes(4, "little") + (1).to_bytes(4, "little") + row[at + 8 :]
    seen = seen_parts(row, 0, NAMES)
    assert seen.longest is not None
    assert values == [
        seen.changes,
        seen.times[0],
        seen.times[-1],
        seen.longest.ns,
        seen.longest.waker,
        seen.longest.stack[0],
        seen.longest.waker_stack[-1],
    ]
    assert seen.longest.part == NAMES[3]


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
    defined = dict(re.findall(r"^#define EVENT_(WHY\w*) (\d+)", text, re.M))
    assert defined == {"WHY": str(CallFlag.WHY.value), "WHY_WITHIN": str(CallFlag.WHY_WITHIN.value)}
