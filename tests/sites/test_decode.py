# SPDX-License-Identifier: Apache-2.0
"""Decoding a function's control flow."""

from __future__ import annotations

import itertools
import random
import re

import capstone
import pytest

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.sites import decode, lengths
from gotrace.sites.decode import control_flow, exits, float_written, step_over
from gotrace.sites.records import Branch, Exits
from tests.toolchains import FIXTURES, Toolchain, build, gccgo_build, newest, toolchains


def flow(code: str, repeat: int = 1) -> tuple[tuple[int, ...], int, int | None]:
    found = control_flow(bytes.fromhex(code) * repeat)
    return found.returns, found.tail_jumps, found.undecodable


@pytest.mark.parametrize(
    ("code", "returns"),
    [
        ("c3", (0,)),
        ("90 f3 c3", (1,)),  # repz ret
        ("f2 c3", (0,)),  # bnd ret
        ("c2 10 00", (0,)),  # ret $16
        ("b8 c3 c3 c3 c3 c3", (5,)),  # mov $0xc3c3c3c3,%eax; ret
        ("31 c0 c3 48 ff c0 c3", (2, 6)),
        ("48 cf", ()),  # iretq
        ("0f 05 0f 0b", ()),  # syscall; ud2
    ],
)
def test_near_returns(code: str, returns: tuple[int, ...]) -> None:
    assert flow(code) == (returns, 0, None)


@pytest.mark.parametrize("padding", ["cc cc cc", "00", "00 00 00", "66 90", "0f 1f 40 00", "90 cc"])
def test_padding_is_no_error(padding: str) -> None:
    assert flow("c3" + padding) == ((0,), 0, None)


def test_undecodable_bytes_are_reported_where_they_are() -> None:
    assert flow("31 c0 06 c3") == ((), 0, 2)  # xor %eax,%eax; push %es, invalid in 64-bit mode
    assert flow("c3 48 8b") == ((0,), 0, 1)  # ret; a mov that is cut off


def test_direct_jumps_have_targets() -> None:
    # 74 02 je 4; eb fc jmp 0; e9 .. jmp past the end; e8 .. call before the start
    found = control_flow(bytes.fromhex("74 02 eb fc e9 00 01 00 00 e8 00 ff ff ff c3"))
    assert found.branches == (Branch(0, 4), Branch(2, 0), Branch(4, 0x109))
    assert found.calls == (Branch(9, 14 - 0x100),)
    assert found.tail_jumps == 1


@pytest.mark.parametrize(
    ("code", "tail_jumps"),
    [
        ("e9 00 ff ff ff", 1),  # jmp to before the function
        ("0f 84 00 01 00 00 c3", 1),  # je to behind it
        ("ff e0", 1),  # jmp *%rax
        ("ff 22", 1),  # jmp *(%rdx): through a closure
        ("ff 24 c8 c3", 0),  # jmp *(%rax,%rcx,8): Go's switch
        ("48 01 d0 ff e0 c3", 0),  # add %rdx,%rax; jmp *%rax: C's switch
        ("48 01 d0 ff e1", 1),  # add %rdx,%rax; jmp *%rcx
    ],
)
def test_jumps_out_of_the_function_are_counted(code: str, tail_jumps: int) -> None:
    assert flow(code)[1] == tail_jumps


def test_long_functions_are_decoded_piece_by_piece() -> None:
    # 7 bytes do not divide a piece: instructions are cut by its end.
    returns, _, undecodable = flow("48 b8 c3 c3 c3 c3 c3 c3 c3 c3 c3", repeat=20_000)
    assert undecodable is None
    assert returns == tuple(range(10, 11 * 20_000, 11))


@pytest.mark.parametrize("code", ["", "06", "0f", "66 66 66"])
def test_nothing_is_known_of_what_cannot_be_decoded(code: str) -> None:
    assert step_over(bytes.fromhex(code), True) is None
    assert float_written(bytes.fromhex(code)) is None


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("f2 0f 59 c1", 0),  # mulsd xmm0, xmm1
        ("f3 0f 59 d1", 2),  # mulss xmm2, xmm1
        ("c5 f5 58 d8", 3),  # vaddpd ymm3, ymm1, ymm0
        ("66 0f 2e c1", None),  # ucomisd xmm0, xmm1
        ("f2 0f 11 44 24 08", None),  # movsd [rsp+8], xmm0
        ("48 8d 04 0b", None),  # lea rax, [rbx+rcx]
    ],
)
def test_the_float_register_that_is_written(code: str, written: int | None) -> None:
    assert float_written(bytes.fromhex(code)) == written
    assert step_over(bytes.fromhex(code), True) == (len(bytes.fromhex(code)), 0)


def test_error_in_a_later_piece_is_reported() -> None:
    assert control_flow(b"\x90" * 100_000 + b"\x06\xc3").undecodable == 100_000


def exits_by_disassembler(code: bytes) -> Exits:
    found = control_flow(code)
    leave = (branch.target for branch in found.branches if not 0 <= branch.target < len(code))
    return Exits(found.returns, tuple(leave), found.tail_jumps, found.undecodable)


@pytest.mark.slow
@pytest.mark.parametrize(
    "toolchain",
    [
        pytest.param(found, id=f"go{found.minor}")
        for found in dict.fromkeys((*toolchains()[:1], newest()))
    ],
)
def test_common_instructions_are_read_as_the_disassembler_reads_them(toolchain: Toolchain) -> None:
    program = build(FIXTURES / "sites_http", toolchain, env={"CGO_ENABLED": "0"})
    with ElfImage.open(program) as image:
        table = load_functions(image)
        functions = [table.function(row) for row in range(len(table))]
        known = 0
        for function in functions:
            code = image.read(function.entry, function.end - function.entry)
            found = decode._common_exits(code)
            if found is not None:
                known += 1
                assert found == exits_by_disassembler(code), function.name
        assert known > 0.95 * len(functions) > 4_000


def test_what_another_compiler_makes_is_read_alike() -> None:
    with ElfImage.open(gccgo_build(FIXTURES / "sites_gccgo", ("-O2", "-static-libgo"))) as image:
        table = load_functions(image)
        known = 0
        for row in range(0, len(table), 7):
            function = table.function(row)
            code = image.read(function.entry, function.end - function.entry)
            found = decode._common_exits(code)
            assert found is None or found == exits_by_disassembler(code), function.name
            known += found is not None
        assert known > 500


def test_bytes_at_random_are_read_as_the_disassembler_reads_them() -> None:
    one = re.compile("|".join(lengths._instructions()).encode(), re.DOTALL)
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    chance = random.Random(20)
    prefixes = ["", "0f", "48", "66", "66 0f", "f2 0f", "f3 48 0f", "f0", "64", "41 ff", "4f 0f"]
    known = 0
    for number in range(200_000):
        prefix = bytes.fromhex(prefixes[number % len(prefixes)])
        code = prefix + chance.randbytes(18)
        match = one.match(code)
        if match is None:
            continue
        known += 1
        _, size, mnemonic, _ = next(disassembler.disasm_lite(code, 0, 1))
        assert size == match.end(), code.hex(" ")
        leads_elsewhere = mnemonic.startswith(("j", "loop", "ret", "iret"))
        assert not leads_elsewhere or re.match(rb"[\x40-\x4f]?\xff", code), code.hex(" ")
    assert known > 50_000


def test_short_jumps_near_both_ends_of_a_function() -> None:
    distances = (0, 1, 2, 30, 31, 32, 33, 125, 126, 127, 128, 129, 130)
    for before, displacement, after in itertools.product(distances, range(256), distances):
        code = b"\x90" * before + bytes((0x75, displacement)) + b"\x90" * after
        target = before + 2 + (displacement ^ 0x80) - 0x80
        targets = () if 0 <= target < len(code) else (target,)
        assert decode._common_exits(code) == Exits((), targets, len(targets), None)


def test_exits_are_the_same_before_and_after_the_expression_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = bytes.fromhex("48 89 c3 74 10 e9 00 01 00 00 c3 ff e0 cc cc")
    for decoded in (0, 1 << 30):
        monkeypatch.setattr(decode, "_disassembled", decoded)
        found = exits(code)
        assert (found.returns, found.targets, found.tail_jumps) == ((10,), (21, 266), 3)
