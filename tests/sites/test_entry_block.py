# SPDX-License-Identifier: Apache-2.0
"""Walking the entry block of functions without a stack check."""

from __future__ import annotations

import pytest

from gotrace.sites.prologue import first_emulated, may_branch_to_start

# code, offset of the first emulated instruction, bytes by which SP is lowered there
WALKS = {
    "push rbp": ("55 48 89 e5", 0, 0),
    "push with REX": ("41 57 41 56", 0, 0),
    "jmp": ("e9 10 20 00 00", 0, 0),
    "endbr64; push": ("f3 0f 1e fa 53", 4, 0),
    # 48 85 c0 74 10                test %rax,%rax; je
    "test; jcc": ("48 85 c0 74 10", 3, 0),
    # 48 83 f8 07 0f 85 ...         cmp $0x7,%rax; jne
    "cmp; jcc near": ("48 83 f8 07 0f 85 00 01 00 00", 4, 0),
    # 66 83 f9 10 77 02             cmp $0x10,%cx; ja
    "16-bit cmp": ("66 83 f9 10 77 02", 4, 0),
    # 83 3d 10 00 00 00 00 74 10    cmpl $0x0,0x10(%rip); je
    "cmp of a variable; jcc": ("83 3d 10 00 00 00 00 74 10", 7, 0),
    # 48 3b 0d 10 00 00 00 74 10    cmp 0x10(%rip),%rcx; je
    "cmp with a variable; jcc": ("48 3b 0d 10 00 00 00 74 10", 7, 0),
    # 48 83 ec 10                   sub $0x10,%rsp
    # 48 89 44 24 08                mov %rax,0x8(%rsp): in the function's own frame
    # 48 39 d8 7e 05                cmp %rbx,%rax; jle
    "store; cmp; jcc": ("48 83 ec 10 48 89 44 24 08 48 39 d8 7e 05", 12, 0x10),
    # 48 83 ec 18                   sub $0x18,%rsp
    # 48 89 6c 24 10                mov %rbp,0x10(%rsp)
    # 48 8d 6c 24 10                lea 0x10(%rsp),%rbp
    # e8 00 00 00 00                call
    "frame of Go 1.19; call": (
        "48 83 ec 18 48 89 6c 24 10 48 8d 6c 24 10 e8 00 00 00 00",
        *(14, 0x18),
    ),
    # 48 81 ec 00 04 00 00 74 00    sub $0x400,%rsp; je
    "large frame": ("48 81 ec 00 04 00 00 74 00", 7, 0x400),
    # 48 83 c4 80 90                add $-0x80,%rsp; nop
    "frame of 128": ("48 83 c4 80 90", 4, 128),
    # 48 83 ec 20                   sub $0x20,%rsp
    # 44 0f 11 7c 24 10 90          movups %xmm15,0x10(%rsp); nop
    "zero the frame": ("48 83 ec 20 44 0f 11 7c 24 10 90", 10, 0x20),
    # 4d 8b 66 20 4d 85 e4 75 30    mov 0x20(%r14),%r12; test %r12,%r12; jne
    "wrapper": ("4d 8b 66 20 4d 85 e4 75 30", 7, 0),
}


@pytest.mark.parametrize(("code", "offset", "lowered"), WALKS.values(), ids=WALKS)
def test_walk_to_the_first_emulated_instruction(code: str, offset: int, lowered: int) -> None:
    assert first_emulated(bytes.fromhex(code) + b"\xc3") == (offset, lowered)


@pytest.mark.parametrize(
    "store",
    [
        "48 89 44 24 08",  # mov %rax,0x8(%rsp): where %rax is spilled, or an argument
        "44 0f 11 7c 24 10",  # movups %xmm15,0x10(%rsp)
        "48 83 ec 10 48 89 44 24 18",  # sub $0x10,%rsp; mov %rax,0x18(%rsp)
        "c6 44 24 08 00",  # movb $0,0x8(%rsp)
        "48 c7 84 24 08 00 00 00 01 00 00 00",  # movq $1,0x8(%rsp), its offset in 32 bits
    ],
)
def test_no_store_to_the_callers_frame_before_arguments_on_the_stack(store: str) -> None:
    before = bytes.fromhex(store)
    code = before + bytes.fromhex("74 10 c3")
    assert first_emulated(code) is None
    found = first_emulated(code, stack=False)
    assert found is not None and found[0] == len(before)
    assert first_emulated(code, values=False) == found


@pytest.mark.parametrize(
    "code",
    [
        "48 8b 00 74 10",  # mov (%rax),%rax: may fault, and writes an argument
        "84 00 74 10",  # test %al,(%rax): may fault
        "48 83 38 00 74 10",  # cmpq $0,(%rax): may fault
        "31 c0 74 10",  # xor %eax,%eax: writes an argument
        "48 8b 4c 24 08 74 10",  # mov 0x8(%rsp),%rcx: writes an argument
        "4c 8b 35 00 00 00 00 74 10",  # mov (%rip),%r14: writes g
        "0f 28 c1 74 10",  # movaps %xmm1,%xmm0: writes an argument
        "41 89 44 24 08 74 10",  # mov %eax,0x8(%r12): not the stack
        "48 89 44 04 08 74 10",  # mov %rax,0x8(%rsp,%rax,1): anywhere
        "48 83 e4 f0 74 10",  # and $-16,%rsp: SP moves by an unknown amount
        "48 f7 f1 74 10",  # div %rcx: may fault
        "c3",
        "48",
        "",
    ],
)
def test_walk_ends_where_something_may_be_lost(code: str) -> None:
    assert first_emulated(bytes.fromhex(code)) is None


# What may come first where no arguments are read, and where the emulated instruction is then.
COMPUTING = {
    "xor %eax,%eax": "31 c0",
    "mov %rax,%rcx": "48 89 c1",
    "mov %rax,%r12": "49 89 c4",
    "mov %r14,%rax": "4c 89 f0",
    "mov %rsp,%rcx": "48 89 e1",
    "mov 0x8(%rsp),%rcx": "48 8b 4c 24 08",
    "mov 0x10(%rip),%rcx": "48 8b 0d 10 00 00 00",
    "movzbl %al,%ecx": "0f b6 c8",
    "lea (%rax,%rbx,8),%rcx": "48 8d 0c d8",
    "lea 0x8(%rax),%r13": "4c 8d 68 08",
    "add $0x10,%rdi": "48 83 c7 10",
    "shl $3,%rbx": "48 c1 e3 03",
    "sar %cl,%rbx": "48 d3 fb",
    "neg %rax": "48 f7 d8",
    "inc %r15": "49 ff c7",
    "mov $0x7,%ecx": "b9 07 00 00 00",
    "movabs $N,%rcx": "48 b9 01 02 03 04 05 06 07 08",
    "mov $0x7,%r13d": "41 bd 07 00 00 00",
    "movl $0x7,%rcx": "48 c7 c1 07 00 00 00",
    "imul %rbx,%rax": "48 0f af c3",
    "cmovl %rbx,%rax": "48 0f 4c c3",
    "movaps %xmm1,%xmm0": "0f 28 c1",
    "xorps, ucomisd": "0f 57 c9 66 0f 2e c1",
    "movq %rax,%xmm0": "66 48 0f 6e c0",
}


@pytest.mark.parametrize("code", COMPUTING.values(), ids=COMPUTING)
def test_walk_where_no_arguments_are_read(code: str) -> None:
    before = bytes.fromhex(code)
    assert first_emulated(before + b"\x74\x10\xc3") is None
    assert first_emulated(before + b"\x74\x10\xc3", values=False) == (len(before), 0)


@pytest.mark.parametrize(
    "code",
    [
        "48 8b 00",  # mov (%rax),%rax: may fault
        "48 8b 4d 08",  # mov 0x8(%rbp),%rcx: RBP may be anything
        "84 00",  # test %al,(%rax): may fault
        "4a 8b 4c 24 08",  # mov 0x8(%rsp,%r12,1),%rcx: anywhere
        "49 8b 4c 24 08",  # mov 0x8(%r12),%rcx: may fault
        "48 89 0d 10 00 00 00",  # mov %rcx,0x10(%rip): writes, which may be to read-only data
        "49 89 c6",  # mov %rax,%r14: g
        "4c 8b 35 00 00 00 00",  # mov (%rip),%r14
        "4c 8d 34 d8",  # lea (%rax,%rbx,8),%r14
        "4d 31 f6",  # xor %r14,%r14
        "41 be 07 00 00 00",  # mov $0x7,%r14d
        "49 ff c6",  # inc %r14
        "48 89 c4",  # mov %rax,%rsp
        "48 83 e4 f0",  # and $-16,%rsp
        "48 8d 64 24 10",  # lea 0x10(%rsp),%rsp
        "bc 07 00 00 00",  # mov $0x7,%esp
        "5d",  # pop %rbp
        "48 f7 f1",  # div %rcx: may fault
        "48 99 48 f7 f9",  # cqo; idiv %rcx
        "49 90",  # xchg %rax,%r8
        "48 87 d8",  # xchg %rbx,%rax
        "64 48 8b 04 25 00 00 00 00",  # mov %fs:0,%rax
        "0f 0b",  # ud2
        "f3 48 ab",  # rep stos
        "f0 0f c1 08",  # lock xadd %ecx,(%rax)
        "62 f1 7c 48 28 c1",  # EVEX
        "c5 f8 28 c1",  # VEX
    ],
)
def test_such_a_walk_ends_where_a_call_may_be_lost(code: str) -> None:
    assert first_emulated(bytes.fromhex(code) + b"\x74\x10\xc3", values=False) is None


def test_walk_is_bounded() -> None:
    assert first_emulated(b"\x0f\x1f\x00" * 100_000 + b"\x90") is None


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("48 ff c8 75 fb c3", 0),  # dec %rax; jne 0
        ("90 48 ff c8 eb fb c3", 1),  # nop; dec %rax; jmp 1
        ("48 ff c8 e2 fb", 0),  # dec %rax; loop 0
        ("48 ff c8 0f 85 f7 ff ff ff c3", 0),  # dec %rax; jne 0, near
    ],
)
def test_branches_to_the_start_are_seen(code: str, last: int) -> None:
    assert may_branch_to_start(bytes.fromhex(code), last)


def test_far_branch_to_the_start_is_seen() -> None:
    code = b"\x90" * 70_000 + b"\xe9" + (-70_005).to_bytes(4, "little", signed=True)
    assert may_branch_to_start(code, 0)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("90 48 ff c8 75 fb c3", 0),  # nop; dec %rax; jne 1: behind the site
        ("48 ff c8 75 05 c3", 0),  # forwards
        ("75 fc c3", 0),  # before the function
        ("e9 00 ff ff ff", 0),  # far before the function
    ],
)
def test_other_branches_are_not(code: str, last: int) -> None:
    assert not may_branch_to_start(bytes.fromhex(code), last)
