# SPDX-License-Identifier: Apache-2.0
"""What a processor architecture fixes for Go programs and for reading their registers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gotrace.records import dataclass, field

__all__ = [
    "AMD64",
    "Architecture",
]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Every fact that differs between processor architectures.

    Register names are those of the processor's manual in lower case, as capstone prints them.

    ``int_registers`` and ``float_registers`` list the registers of ABIInternal in the order in
    which Go assigns arguments and results to them (Go's src/cmd/compile/abi-internal.md;
    register ABI since Go 1.17 on amd64). ``closure_register`` is the closure context,
    ``g_register`` the current goroutine in ABIInternal code. ``pt_regs`` gives byte offsets in
    the kernel's UAPI ``struct pt_regs``, of ``pt_regs_size`` bytes, which is what a BPF program
    at a uprobe is given. ``capstone_arch`` and ``capstone_mode`` open its disassembler, which
    is imported where it is used.
    """

    name: str
    pointer_size: int
    int_registers: tuple[str, ...]
    float_registers: tuple[str, ...]
    closure_register: str
    g_register: str
    stack_pointer: str
    frame_pointer: str
    instruction_pointer: str
    pt_regs: Mapping[str, int] = field(hash=False)
    pt_regs_size: int
    capstone_arch: int
    capstone_mode: int


#: The order of the 8-byte slots of struct pt_regs (arch/x86/include/uapi/asm/ptrace.h).
_AMD64_PT_REGS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"),
)

AMD64 = Architecture(
    name="amd64",
    pointer_size=8,
    int_registers=("rax", "rbx", "rcx", "rdi", "rsi", "r8", "r9", "r10", "r11"),
    float_registers=tuple(f"xmm{number}" for number in range(15)),
    closure_register="rdx",
    g_register="r14",
    stack_pointer="rsp",
    frame_pointer="rbp",
    instruction_pointer="rip",
    pt_regs=MappingProxyType({name: slot * 8 for slot, name in enumerate(_AMD64_PT_REGS)}),
    pt_regs_size=len(_AMD64_PT_REGS) * 8,
    capstone_arch=3,  # CS_ARCH_X86
    capstone_mode=8,  # CS_MODE_64
)
