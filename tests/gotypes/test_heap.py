# SPDX-License-Identifier: Apache-2.0
"""Hold the table of the heap's variables to what each compiler wrote into a program's DWARF."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.heap import dwarf_span_layout, heap_table, heap_variables, span_layout
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest


@each_toolchain
def test_the_table_says_what_dwarf_does(toolchain: Toolchain) -> None:
    with Binary(ElfImage.open(str(build(FIXTURES / "live_top", toolchain)))) as binary:
        assert binary.go_version is not None
        release = binary.go_version.release
        if release < (1, 19):
            with pytest.raises(GotraceError, match=f"not known of Go 1.{release[1]}"):
                heap_variables(binary)
            assert span_layout(binary) is None
            return
        assert heap_variables(binary).layout == heap_table(release)
        assert binary.dwarf is not None
        assert span_layout(binary) == dwarf_span_layout(binary.dwarf) is not None


def test_without_dwarf_the_table_is_taken() -> None:
    toolchain = newest()
    whole = build(FIXTURES / "live_top", toolchain)
    bare = build(FIXTURES / "live_top", toolchain, flags=("-ldflags=-w",))
    with Binary(ElfImage.open(str(whole))) as one, Binary(ElfImage.open(str(bare))) as other:
        assert other.dwarf is None
        assert heap_variables(one).layout == heap_variables(other).layout


def test_without_symbols_there_are_no_figures() -> None:
    stripped = build(FIXTURES / "live_top", newest(), flags=("-ldflags=-s -w",))
    no_symbols = pytest.raises(GotraceError, match="the program has no symbols")
    with Binary(ElfImage.open(str(stripped))) as binary, no_symbols:
        heap_variables(binary)


def test_releases_that_were_not_read_are_not_in_the_table() -> None:
    assert heap_table((1, 20)) is None
    assert heap_table((1, 18)) is None
    assert heap_table((1, 99)) is None


def test_a_release_that_the_table_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gotrace.gotypes.heap.symbol_value", lambda *_: 1)
    version = SimpleNamespace(release=(1, 99))
    newer: Any = SimpleNamespace(go_version=version, image=None, dwarf=None)
    with pytest.raises(GotraceError, match=r"not known of Go 1\.99 without DWARF"):
        heap_variables(newer)
