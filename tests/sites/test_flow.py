# SPDX-License-Identifier: Apache-2.0
"""Where values come from, by a function's code; the code is beside each test as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.sites import parameters
from gotrace.sites.flow import ENTRY, ValueFlow, ValueOrigin
from gotrace.sites.graph import read_graph
from gotrace.sites.inlined import InlinedSites
from gotrace.sites.parameters import InlinedParameters
from gotrace.sites.sites import InlinedAt, InlinedPlace
from tests.random_programs import ROUNDS, Program
from tests.toolchains import build, newest


def origin(code: str, at: int, place: str | int, size: int = 8) -> ValueOrigin | None:
    graph = read_graph(bytes.fromhex(code), 0x1000, lambda _: None, lambda _: False)
    assert graph is not None
    found = ValueFlow(graph, lambda _: 0x20, False).origin(at, place, size)
    return found and found[0]


def test_a_value_is_followed_through_registers_and_the_frame() -> None:
    # 0: mov rcx,rax; 3: mov [rsp+8],rcx; 8: xor ecx,ecx; a: mov rdx,[rsp+8]; f: ret
    code = "4889c1 48894c2408 31c9 488b542408 c3"
    assert origin(code, 0xF, "rdx") == (ENTRY, "rax", False)
    assert origin(code, 0xF, 8 - 0x20) == (ENTRY, "rax", False)
    assert origin(code, 0xF, "rcx") == (8, "rcx", False)


def test_a_part_of_a_register_is_another_value_unless_all_of_the_value_is_copied() -> None:
    # 0: mov ecx,eax; 2: ret
    assert origin("89c1 c3", 2, "rcx") == (0, "rcx", False)
    assert origin("89c1 c3", 2, "rcx", 4) == (ENTRY, "rax", False)


def test_a_word_of_the_frame_that_is_written_in_part_is_new() -> None:
    # 0: mov [rsp+8],rax; 5: mov byte ptr [rsp+9],1; a: ret
    assert origin("4889442408 c644240901 c3", 0xA, 8 - 0x20) == (5, 8 - 0x20, False)


def test_a_call_makes_each_register_anew_and_leaves_the_frame_alone() -> None:
    # 0: mov [rsp+8],rax; 5: call 0x100f; a: ret
    code = "4889442408 e805000000 c3"
    assert origin(code, 0xA, "rax") == (5, "rax", False)
    assert origin(code, 0xA, "rbx") == (5, "rbx", False)
    assert origin(code, 0xA, 8 - 0x20) == (ENTRY, "rax", False)


def test_values_that_meet_are_another_one_and_what_passes_is_not() -> None:
    # 0: test al,al; 2: je 7; 4: mov rbx,rcx; 7: ret
    code = "84c0 7403 4889cb c3"
    assert origin(code, 7, "rbx") == (7, "rbx", True)
    assert origin(code, 7, "rcx") == (ENTRY, "rcx", False)


def test_a_loop_begins_with_a_new_value_of_what_it_changes() -> None:
    # 0: xor ecx,ecx; 2: inc rcx; 5: cmp rcx,rax; 8: jl 2; a: ret
    code = "31c9 48ffc1 4839c1 7cf8 c3"
    assert origin(code, 2, "rcx") == (2, "rcx", True)
    assert origin(code, 0xA, "rcx") == (2, "rcx", False)
    assert origin(code, 0xA, "rax") == (ENTRY, "rax", False)


@pytest.mark.parametrize("code", ["0fa2 c3", "f3a4 c3", "4887c1 c3", "48894cc408 c3"])
def test_what_is_not_known_is_not_passed(code: str) -> None:
    """cpuid; rep movsb; xchg rcx,rax; a store to the frame by an index."""
    end = len(bytes.fromhex(code)) - 1
    assert origin(code, end, 8 - 0x20 if "c408" in code else "rcx") is None


def test_a_name_that_was_left_to_another_value_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go 1.27 gives a constant the place of the length of another function's slice."""
    (tmp_path / "main.go").write_text(Program(3).source(ROUNDS))
    with Binary(ElfImage.open(build(tmp_path, newest(), name="random"))) as binary:
        table = binary.functions
        (call,) = (
            call
            for call in table.inlined_calls(["main.f10"])
            if (call.caller, table.function(call.row).name) == ("main.f17", "main.g15")
        )
        (proof,) = InlinedSites(table).of([call])
        at = InlinedAt(call.caller, call.file, call.line)
        place = InlinedPlace(at, proof.site, None, call.row, call.index)

        def given() -> list[bool]:
            found = InlinedParameters(binary).of("main.f10", place)
            assert found is not None
            assert [value.name for value in found.parameters] == ["b0", "n1", "v2"]
            return [value.pieces is not None for value in found.parameters]

        assert given() == [False, False, False]
        monkeypatch.setattr(parameters._Function, "_is_certain", lambda *_: True)
        assert given() == [False, False, False]
        monkeypatch.setattr(ValueFlow, "reads", lambda *_: True)
        assert given() == [False, False, True], "without the rules"
