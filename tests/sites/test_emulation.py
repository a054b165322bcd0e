# SPDX-License-Identifier: Apache-2.0
"""What the kernel emulates and refuses, by its uprobes.c."""

from __future__ import annotations

import pytest

from gotrace.sites.emulation import EMULATED, refusal

EMULATED_ONES = {
    "push %rbp": "55",
    "push %r15": "41 57",
    "nop": "90",
    "jbe": "76 10",
    "jbe near": "0f 86 00 01 00 00",
    "jmp": "eb 10",
    "jmp near": "e9 00 01 00 00",
    "call": "e8 00 01 00 00",
}
STEPPED_ONES = {
    "push $1": "6a 01",
    "push (%rax)": "ff 30",
    "push with REX.W": "48 55",
    "nopl": "0f 1f 40 00",
    "call *%rax": "ff d0",
    "jmp *%rax": "ff e0",
    "loop": "e2 10",
    "jrcxz": "e3 10",
    "ret": "c3",
    "cmp 0x10(%r14),%rsp": "49 3b 66 10",
}


@pytest.mark.parametrize("code", EMULATED_ONES.values(), ids=EMULATED_ONES)
def test_emulated(code: str) -> None:
    match = EMULATED.match(bytes.fromhex(code) + b"\x90" * 16)
    assert match is not None and match.end() == len(bytes.fromhex(code))
    assert refusal(bytes.fromhex(code)) is None


@pytest.mark.parametrize("code", STEPPED_ONES.values(), ids=STEPPED_ONES)
def test_single_stepped(code: str) -> None:
    assert EMULATED.match(bytes.fromhex(code) + b"\x90" * 16) is None
    assert refusal(bytes.fromhex(code)) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("f0 08 18", "prefix f0"),  # lock or %bl,(%rax)
        ("66 f0 0f c1 08", "prefix f0"),  # lock xadd %cx,(%rax)
        ("3e ff e0", "prefix 3e"),  # notrack jmp *%rax
        ("66 2e 0f 1f 84 00 00 00 00 00", "prefix 2e"),  # cs nopw 0x0(%rax,%rax,1)
        ("66 90", "opcode 90"),  # two-byte nop
        ("66 e8 00 00", "opcode e8"),  # callw
        ("66 48 0f 84 00 00 00 00", "opcode 0f 84"),  # rex.W je
        ("cc", "opcode cc"),  # int3
        ("cd 03", "opcode cd"),  # int $3
        ("f4", "opcode f4"),  # hlt
        ("ec", "opcode ec"),  # in (%dx),%al
        ("8e d0", "opcode 8e d0"),  # mov %eax,%ss
        ("62 f1 fe 48 6f 00", "opcode 62 f1 fe 48 6f"),  # vmovdqu64 (%rax),%zmm0
        ("c5 fe 6f 06", "opcode c5 fe 6f"),  # vmovdqu (%rsi),%ymm0
    ],
)
def test_refused(code: str, reason: str) -> None:
    assert refusal(bytes.fromhex(code)) == f"no support for {reason}"


def test_exchange_with_r8_is_refused_because_the_kernel_would_skip_it() -> None:
    for code in ("49 90", "41 90", "4d 90", "f3 49 90"):
        reason = refusal(bytes.fromhex(code))
        assert reason == f"it would skip {code} (xchg with r8) as a nop"
    assert refusal(bytes.fromhex("48 91")) is None  # xchg %rcx,%rax


@pytest.mark.parametrize(
    "code",
    [
        "48 8b 00",  # mov (%rax),%rax
        "64 48 8b 0c 25 f8 ff ff ff",  # mov %fs:-8,%rcx
        "f3 0f 1e fa",  # endbr64
        "f3 c3",  # repz ret
        "0f 0b",  # ud2
        "0f 05",  # syscall
        "0f ae e8",  # lfence
        "8e d8",  # mov %eax,%ds
        "c5 f8 77",  # vzeroupper
        "c4 e2 79 0a c0",  # vpsignd %xmm0,%xmm0,%xmm0
        "",
    ],
)
def test_allowed(code: str) -> None:
    assert refusal(bytes.fromhex(code)) is None
