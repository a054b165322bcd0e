# SPDX-License-Identifier: Apache-2.0
"""Hold the registers that BPF programs read to the record of each architecture."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gotrace.architecture import ARCHITECTURES, ARM64, Architecture
from gotrace.kernel.compiler import bpf_directory, compile_program
from gotrace.kernel.instructions import INSTRUCTION
from gotrace.settings import CountSettings

EACH = pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.name)

PROGRAM = """\
#include <stdio.h>
typedef unsigned long long u64;
#define read_word(address) (address)
#define show(what) printf("%s %llu\\n", #what, (u64)(what))
#include "{include}/uapi/linux/ptrace.h"
{registers}
int main(void)
{{
    struct pt_regs regs, *ctx = &regs;
    /* Each register has its own offset in the structure as its value. */
    for (unsigned long at = 0; at < sizeof(regs); at += 8)
        *(unsigned long *)((char *)&regs + at) = at;
{body}
    return 0;
}}
"""


def shown(arch: Architecture, tmp_path: Path, body: str) -> dict[str, int]:
    """Return what a C program shows that has the registers of an architecture."""
    text = (bpf_directory() / "registers.h").read_text()
    source = PROGRAM.format(
        include=bpf_directory() / "include",
        registers="\n".join(line for line in text.splitlines() if not line.startswith("#include")),
        body=body,
    )
    program = tmp_path / "program"
    define = f"-DARCHITECTURE_{arch.name.upper()}"
    command = ["cc", "-w", define, "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    rows = (line.rpartition(" ") for line in said.splitlines())
    return {name: int(value) for name, _, value in rows}


@EACH
def test_registers_are_those_of_the_record(arch: Architecture, tmp_path: Path) -> None:
    registers = {
        "registers_pc(ctx)": arch.instruction_pointer,
        "registers_sp(ctx)": arch.stack_pointer,
        "registers_frame(ctx)": arch.frame_pointer,
        "registers_g(ctx)": arch.g_register,
        "registers_closure(ctx)": arch.closure_register,
        "registers_c_third(ctx)": arch.c_parameters[2],
        "registers_return_pc(ctx, registers_sp(ctx))": arch.link_register or arch.stack_pointer,
        **{f"GO_REGISTER(ctx, {n})": name for n, name in enumerate(arch.int_registers)},
    }
    numbers = {
        "sizeof(regs)": arch.pt_regs_size,
        "CALL_PUSHES": arch.pushed,
        "GO_INT_REGISTERS": len(arch.int_registers),
        "GO_FLOAT_REGISTERS": len(arch.float_registers),
    }
    body = "\n".join(f"show({what});" for what in (*registers, *numbers))
    wanted = {what: arch.pt_regs[register] for what, register in registers.items()}
    assert shown(arch, tmp_path, body) == wanted | numbers


#: Which flags have the stack check's branch taken: CF or ZF; C clear or Z set.
TAKEN = {
    "amd64": {0: False, 1: True, 0x40: True, 0x41: True, 0x80: False},
    "arm64": {0: True, 1 << 29: False, 1 << 30: True, 3 << 29: True, 1 << 31: True},
}
FLAGS = {"amd64": "flags", "arm64": "pstate"}


@EACH
def test_flags_of_a_taken_branch(arch: Architecture, tmp_path: Path) -> None:
    body = "".join(
        f'regs.{FLAGS[arch.name]} = {flags}UL;printf("{flags} %d\\n", !!registers_grows(ctx));\n'
        for flags in TAKEN[arch.name]
    )
    wanted = {str(flags): int(taken) for flags, taken in TAKEN[arch.name].items()}
    assert shown(arch, tmp_path, body) == wanted


@pytest.mark.live
def test_programs_compile_for_another_architecture() -> None:
    """What the kernel gives a program at b.ls is looked at: PSTATE, which amd64 has nothing at."""
    code = compile_program(CountSettings(counters=1), ARM64).functions["on_entry"]
    read = {at for operation, _, at, _ in INSTRUCTION.iter_unpack(code) if operation == 0x79}
    assert ARM64.pt_regs["pstate"] in read
