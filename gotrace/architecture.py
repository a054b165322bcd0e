# SPDX-License-Identifier: Apache-2.0
"""The rules of a processor architecture for programs, Go's conventions, and registers.

A binary chooses its architecture: `gotrace.elf.image.ElfImage.arch`. Machine code itself, which
no table describes, is the business of `gotrace.sites.machine`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from gotrace.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Architecture:
    """Every fact that differs between processor architectures.

    Register names are those of the processor's manual in lower case, as capstone prints them.

    ``machine`` is what uname(2) calls it. ``bpf`` and ``perf_event_open`` are numbers of Linux's
    system calls.

    ``elf_machine`` is ELF's e_machine, and the two relocations are of its dynamic linker: of a base
    and of a symbol's address. ``quantum`` is that of Go's function tables: the bytes that
    instructions are aligned to.

    ``int_registers`` and ``float_registers`` list the registers of ABIInternal in the order in
    which Go assigns arguments and results to them (Go's src/cmd/compile/abi-internal.md), which it
    does since the release ``register_abi``. ``closure_register`` is the closure context,
    ``g_register`` the current goroutine in ABIInternal code; with ``keeps_g`` in all of Go's code.

    ``link_register`` has the return address at a function's entry, None where a call pushes it on
    the stack; ``pushed`` bytes are those: the canonical frame address of DWARF is so far above the
    stack pointer at the entry. The first slot of arguments is 8 bytes above it everywhere: on
    arm64 the callee keeps the link register in the word below.

    ``dwarf_registers`` are names by DWARF's numbers. ``pt_regs`` gives byte offsets in the kernel's
    structure of registers, of ``pt_regs_size`` bytes, which is what a BPF program at a uprobe is
    given. ``perf_sp_pc`` is the mask by which perf_event_open(2) copies the stack pointer and the
    instruction pointer, in this order. ``c_parameters`` and ``c_results`` are where C passes words;
    ``knows_gccgo``: how it passes gccgo's values is known, too.

    ``steps_rets``: the kernel single-steps a RET that is probed, so that returns are cheaper to see
    elsewhere. ``orders_memory``: a processor sees the loads and the stores of another one in their
    order, but for a load before an earlier store. ``was_tried``: programs were traced on hardware,
    and not on emulated machines alone.
    """

    name: str
    machine: str
    bpf: int
    perf_event_open: int
    elf_machine: int
    relative_relocation: int
    symbol_relocation: int
    quantum: int
    pointer_size: int
    register_abi: tuple[int, int]
    int_registers: tuple[str, ...]
    float_registers: tuple[str, ...]
    closure_register: str
    g_register: str
    keeps_g: bool
    stack_pointer: str
    frame_pointer: str
    instruction_pointer: str
    link_register: str | None
    pushed: int
    dwarf_registers: Mapping[int, str] = field(hash=False)
    pt_regs: Mapping[str, int] = field(hash=False)
    pt_regs_size: int
    perf_sp_pc: int
    c_parameters: tuple[str, ...]
    c_results: tuple[str, ...]
    knows_gccgo: bool
    steps_rets: bool
    orders_memory: bool
    was_tried: bool

    def dwarf_number(self, register: str) -> int:
        return next(n for n, name in self.dwarf_registers.items() if name == register)

    def __reduce__(self) -> tuple[object, ...]:
        """Be the same object in a process that gets it: it is compared by identity."""
        return _named, (self.name,)


def _named(name: str) -> Architecture:
    return next(arch for arch in ARCHITECTURES if arch.name == name)


#: The order of the 8-byte slots of struct pt_regs (arch/x86/include/uapi/asm/ptrace.h).
_AMD64_PT_REGS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"),
)
#: System V ABI, AMD64 architecture processor supplement, figure 3.36. 16 is the return address.
_AMD64_DWARF = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *(f"r{number}" for number in range(8, 16)),
    "rip",
    *(f"xmm{number}" for number in range(16)),
)

AMD64 = Architecture(
    name="amd64",
    machine="x86_64",
    bpf=321,  # arch/x86/entry/syscalls/syscall_64.tbl
    perf_event_open=298,
    elf_machine=62,
    relative_relocation=8,  # R_X86_64_RELATIVE
    symbol_relocation=1,  # R_X86_64_64
    quantum=1,
    pointer_size=8,
    register_abi=(1, 17),
    int_registers=("rax", "rbx", "rcx", "rdi", "rsi", "r8", "r9", "r10", "r11"),
    float_registers=tuple(f"xmm{number}" for number in range(15)),
    closure_register="rdx",
    g_register="r14",
    keeps_g=False,
    stack_pointer="rsp",
    frame_pointer="rbp",
    instruction_pointer="rip",
    link_register=None,
    pushed=8,
    dwarf_registers=MappingProxyType(dict(enumerate(_AMD64_DWARF))),
    pt_regs=MappingProxyType({name: slot * 8 for slot, name in enumerate(_AMD64_PT_REGS)}),
    pt_regs_size=len(_AMD64_PT_REGS) * 8,
    perf_sp_pc=1 << 7 | 1 << 8,  # arch/x86/include/uapi/asm/perf_regs.h
    c_parameters=("rdi", "rsi", "rdx", "rcx", "r8", "r9"),  # System V ABI, section 3.2.3
    c_results=("rax", "rdx"),
    knows_gccgo=True,
    steps_rets=True,
    orders_memory=True,
    was_tried=True,
)

_X = tuple(f"x{number}" for number in range(31))
#: The slots of struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h).
_ARM64_PT_REGS = (*_X, "sp", "pc", "pstate")

ARM64 = Architecture(
    name="arm64",
    machine="aarch64",
    bpf=280,  # include/uapi/asm-generic/unistd.h
    perf_event_open=241,
    elf_machine=183,
    relative_relocation=1027,  # R_AARCH64_RELATIVE
    symbol_relocation=257,  # R_AARCH64_ABS64
    quantum=4,
    pointer_size=8,
    register_abi=(1, 18),
    int_registers=_X[:16],
    # Go's F0 to F15; V is what holds them, and 128 bits wide.
    float_registers=tuple(f"v{number}" for number in range(16)),
    closure_register="x26",
    g_register="x28",
    keeps_g=True,  # src/cmd/internal/obj/arm64/a.out.go: REGG is no other register in any code
    stack_pointer="sp",
    frame_pointer="x29",
    instruction_pointer="pc",
    link_register="x30",
    pushed=0,
    # DWARF for the Arm 64-bit Architecture, section 4.1.
    dwarf_registers=MappingProxyType(
        dict(enumerate((*_X, "sp"))) | {64 + number: f"v{number}" for number in range(32)}
    ),
    pt_regs=MappingProxyType({name: slot * 8 for slot, name in enumerate(_ARM64_PT_REGS)}),
    pt_regs_size=len(_ARM64_PT_REGS) * 8,
    perf_sp_pc=1 << 31 | 1 << 32,  # arch/arm64/include/uapi/asm/perf_regs.h
    c_parameters=_X[:8],  # Procedure Call Standard for the Arm 64-bit Architecture, section 6.8
    c_results=_X[:2],
    knows_gccgo=False,
    steps_rets=False,  # arch/arm64/kernel/probes/decode-insn.c
    orders_memory=False,
    was_tried=False,
)

#: All that are known.
ARCHITECTURES = (AMD64, ARM64)

#: This machine's, whose programs can be traced here; None for one that is not known.
HOST = next((arch for arch in ARCHITECTURES if arch.machine == os.uname().machine), None)
