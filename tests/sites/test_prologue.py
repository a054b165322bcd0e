# SPDX-License-Identifier: Apache-2.0
"""Every form of stack check, as bytes taken from disassemblies of real binaries."""

from __future__ import annotations

import pytest

from gotrace.sites.prologue import SplitStack, StackCheck, split_stack, stack_check

#: Stands for the rest of a function: room for the way to morestack to lie in.
BODY = bytes(0x200)

# Check without its jbe, which is always 0f 86 with offset 0x100 here unless the name says short.
CHECKS = {
    # 49 3b 66 10              cmp 0x10(%r14),%rsp
    "small": "49 3b 66 10",
    # 49 3b 66 18              cmp 0x18(%r14),%rsp: stackguard1, for the system stack
    "small, system stack": "49 3b 66 18",
    # 4c 8d 64 24 f8           lea -0x8(%rsp),%r12
    # 4d 3b 66 10              cmp 0x10(%r14),%r12
    "large": "4c 8d 64 24 f8 4d 3b 66 10",
    # 4c 8d a4 24 70 ff ff ff  lea -0x90(%rsp),%r12
    # 4d 3b 66 10              cmp 0x10(%r14),%r12
    "larger": "4c 8d a4 24 70 ff ff ff 4d 3b 66 10",
    # 49 89 e4                 mov %rsp,%r12
    # 49 81 ec a0 1f 00 00     sub $0x1fa0,%r12
    # 0f 82 40 01 00 00        jb +0x140
    # 4d 3b 66 10              cmp 0x10(%r14),%r12
    "huge": "49 89 e4 49 81 ec a0 1f 00 00 0f 82 40 01 00 00 4d 3b 66 10",
    # 49 89 e4 49 81 ec ...    the same with a short jb
    "huge, short jb": "49 89 e4 49 81 ec a0 1f 00 00 72 50 4d 3b 66 10",
    # 64 4c 8b 34 25 f8 ff ff ff  mov %fs:0xfffffffffffffff8,%r14: ABI0 in Go >= 1.17
    # 4c 8d a4 24 80 fc ff ff     lea -0x380(%rsp),%r12
    # 4d 3b 66 10                 cmp 0x10(%r14),%r12
    "abi0": "64 4c 8b 34 25 f8 ff ff ff 4c 8d a4 24 80 fc ff ff 4d 3b 66 10",
    # 49 c7 c6 f8 ff ff ff     mov $-8,%r14: the same in a PIE that Go's linker made
    # 64 4d 8b 36              mov %fs:(%r14),%r14
    # 49 3b 66 10              cmp 0x10(%r14),%rsp
    "abi0, PIE": "49 c7 c6 f8 ff ff ff 64 4d 8b 36 49 3b 66 10",
    # 4c 8b 35 10 20 30 00     mov 0x302010(%rip),%r14: and in one that the system's linker made
    # 64 4d 8b 36              mov %fs:(%r14),%r14
    # 49 3b 66 10              cmp 0x10(%r14),%rsp
    "abi0, external PIE": "4c 8b 35 10 20 30 00 64 4d 8b 36 49 3b 66 10",
    # 64 48 8b 0c 25 f8 ff ff ff  mov %fs:0xfffffffffffffff8,%rcx
    # 48 3b 61 10                 cmp 0x10(%rcx),%rsp
    "1.15": "64 48 8b 0c 25 f8 ff ff ff 48 3b 61 10",
    # ...                         mov %fs:0xfffffffffffffff8,%rcx
    # 48 8d 84 24 60 fe ff ff     lea -0x1a0(%rsp),%rax
    # 48 3b 41 10                 cmp 0x10(%rcx),%rax
    "1.15 large": "64 48 8b 0c 25 f8 ff ff ff 48 8d 84 24 60 fe ff ff 48 3b 41 10",
    # ...                         mov %fs:0xfffffffffffffff8,%rcx
    # 48 8d 44 24 e8              lea -0x18(%rsp),%rax
    # 48 3b 41 10                 cmp 0x10(%rcx),%rax
    "1.15 large, short": "64 48 8b 0c 25 f8 ff ff ff 48 8d 44 24 e8 48 3b 41 10",
    # ...                         mov %fs:0xfffffffffffffff8,%rcx
    # 48 8b 71 10                 mov 0x10(%rcx),%rsi
    # 48 81 fe de fa ff ff        cmp $0xfffffffffffffade,%rsi
    # 0f 84 7f 00 00 00           je +0x7f
    # 48 8d 84 24 70 03 00 00     lea 0x370(%rsp),%rax
    # 48 29 f0                    sub %rsi,%rax
    # 48 3d 10 23 00 00           cmp $0x2310,%rax
    "1.15 huge": "64 48 8b 0c 25 f8 ff ff ff 48 8b 71 10 48 81 fe de fa ff ff 0f 84 7f 00 00 00"
    " 48 8d 84 24 70 03 00 00 48 29 f0 48 3d 10 23 00 00",
    # 48 c7 c1 f8 ff ff ff     mov $-8,%rcx
    # 64 48 8b 09              mov %fs:(%rcx),%rcx
    # 48 3b 61 10              cmp 0x10(%rcx),%rsp
    "1.15 PIE": "48 c7 c1 f8 ff ff ff 64 48 8b 09 48 3b 61 10",
    # 48 8b 0d 11 22 33 00     mov 0x332211(%rip),%rcx
    # 64 48 8b 09              mov %fs:(%rcx),%rcx
    # 48 3b 61 10              cmp 0x10(%rcx),%rsp
    "1.15 external PIE": "48 8b 0d 11 22 33 00 64 48 8b 09 48 3b 61 10",
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_stack_check_ends_in_its_jbe(check: str) -> None:
    prefix = bytes.fromhex(check)
    near = prefix + bytes.fromhex("0f 86 00 01 00 00") + BODY
    assert stack_check(near) == StackCheck(branch=len(prefix), end=len(prefix) + 6)
    short = prefix + bytes.fromhex("76 40") + BODY
    assert stack_check(short) == StackCheck(branch=len(prefix), end=len(prefix) + 2)
    endbr64 = bytes.fromhex("f3 0f 1e fa") + short
    assert stack_check(endbr64) == StackCheck(branch=len(prefix) + 4, end=len(prefix) + 6)


@pytest.mark.parametrize(
    "code",
    [
        "49 3b 66 10 77 40",  # cmp 0x10(%r14),%rsp; ja
        "49 3b 66 20 76 40",  # cmp 0x20(%r14),%rsp: no stack guard
        "49 3b 66 10 48 89 e5",  # cmp; mov
        "49 3b 66 10 76 fa",  # jbe back to the entry
        "4d 3b 66 10 76 40",  # cmp 0x10(%r14),%r12 without the lea
        "55 48 89 e5",
        "",
    ],
)
def test_anything_else_is_no_stack_check(code: str) -> None:
    assert stack_check(bytes.fromhex(code) + BODY) is None


def test_way_to_morestack_must_lie_in_the_function() -> None:
    assert stack_check(bytes.fromhex("49 3b 66 10 76 40") + bytes(0x40)) is None


def test_split_stack_with_the_call_of_morestack_out_of_line() -> None:
    # 64 48 3b 24 25 70 00 00 00  cmp %fs:0x70,%rsp
    # 72 63                       jb +0x63
    # 41 54                       push %r12
    code = bytes.fromhex("64 48 3b 24 25 70 00 00 00 72 63 41 54") + BODY
    assert split_stack(code) == SplitStack(branch=9, body=11, slow=11 + 0x63)


def test_split_stack_with_the_call_of_morestack_in_line() -> None:
    # 64 48 3b 24 25 70 00 00 00  cmp %fs:0x70,%rsp
    # 73 12                       jae +0x12
    # 41 ba 08 00 00 00           mov $0x8,%r10d
    # 45 31 db                    xor %r11d,%r11d
    # e8 00 00 00 00              call __morestack
    # c3                          ret
    code = bytes.fromhex(
        "64 48 3b 24 25 70 00 00 00 73 12 41 ba 08 00 00 00 45 31 db e8 00 00 00 00 c3"
    )
    assert split_stack(code + BODY) == SplitStack(branch=9, body=11 + 0x12, slow=11)


def test_split_stack_of_a_large_frame() -> None:
    # 4c 8d 9c 24 48 79 fe ff     lea -0x186b8(%rsp),%r11
    # 64 4c 3b 1c 25 70 00 00 00  cmp %fs:0x70,%r11
    # 0f 82 6a 00 00 00           jb +0x6a
    code = bytes.fromhex(
        "4c 8d 9c 24 48 79 fe ff 64 4c 3b 1c 25 70 00 00 00 0f 82 6a 00 00 00 48 85 ff"
    )
    assert split_stack(code + BODY) == SplitStack(branch=17, body=23, slow=23 + 0x6A)


def test_go_function_has_no_split_stack() -> None:
    assert split_stack(bytes.fromhex("49 3b 66 10 76 40") + BODY) is None
