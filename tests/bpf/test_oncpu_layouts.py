# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/samples.h to what a C compiler makes of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gotrace.goroutines import interrupted
from gotrace.kernel import kept_stacks as frames
from gotrace.session.oncpu import meter, naming
from tests.bpf.c import CLayout


@pytest.fixture(params=["oncpu.c", "allocs.c"])
def c(tmp_path: Path, request: pytest.FixtureRequest) -> CLayout:
    return CLayout(request.param, tmp_path)


def test_structs(c: CLayout) -> None:
    names = ("stack", "kernel", "created_by", "status", "label", "size", "rate", "part")
    row, values = c.fields("sample_row", *names)
    assert values == list(meter._ROW.unpack(row))
    row, values = c.fields("sample_sums", "samples", "bytes")
    assert values == list(struct.unpack("=2Q", row))
    row, values = c.fields("label_content", "length", "words[0]", "words[31]")
    length, text = meter._LABEL.unpack(row)
    words = [int.from_bytes(text[at : at + 8], "little") for at in (0, 31 * 8)]
    assert values == [length, *words]
    last = frames.MAX_FRAMES - 1
    row, values = c.fields("kept_stack", "pcs[0]", f"pcs[{last}]", "outer")
    *pcs, outer = frames._STACK.unpack(row)
    assert values == [pcs[0], pcs[last], outer]


def test_constants(c: CLayout) -> None:
    assert c.constants("MAX_FRAMES") == [frames.MAX_FRAMES]
    marks = ("CALLER_AT_0", "CALLER_AT_8", "CALLER_IN_LINK", "CALLER_IN_LINK_ONLY")
    assert c.constants(*marks) == [getattr(interrupted, name) for name in marks]


def test_parts(tmp_path: Path) -> None:
    """Those of spans that were not empty come after those of a run."""
    assert CLayout("allocs.c", tmp_path).constants("PARTS") == [naming._PARTS]
