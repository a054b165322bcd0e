# SPDX-License-Identifier: Apache-2.0
"""Try out what the running kernel can do, where versions and return codes do not say."""

from __future__ import annotations

import os
import threading
from functools import cache

from gotrace.architecture import HOST
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.instructions import EXIT, encode
from gotrace.kernel.own_function import own_code, own_function

__all__ = [
    "has_multi_links",
    "multi_filters_by_process",
    "steps_can_be_skipped",
    "why_steps_are_taken",
]


@cache
def has_multi_links() -> bool:
    """Return whether there are uprobe-multi links (Linux 6.6), which take no CAP_SYS_ADMIN."""
    opened: list[int] = []
    try:
        opened.append(kernel.create_array_map(value_size=8))
        opened.append(kernel.load_counting_program(opened[0]))
        with own_function(own_code().emulated) as function:
            opened.append(kernel.link_uprobe_multi(opened[1], function.path, [0], [0], 0))
        return True
    except OSError:
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


@cache
def multi_filters_by_process() -> bool:
    """Return whether a uprobe-multi link with a pid sees all threads of that process.

    Linux 6.6 to 6.9 compare with one thread only (fixed by kernel commit 46ba0e49b642) and lose
    the other threads' hits without a word. Tried on a function of this process that another of
    its threads calls. False also where there are no such links.
    """
    opened: list[int] = []
    try:
        counter = kernel.create_array_map(value_size=8)
        opened.append(counter)
        opened.append(kernel.load_counting_program(counter))
        with own_function(own_code().emulated) as function:
            link = kernel.link_uprobe_multi(opened[-1], function.path, [0], [0], os.getpid())
            opened.append(link)
            caller = threading.Thread(target=function.call)
            caller.start()
            caller.join()
        return kernel.map_lookup(counter, bytes(4), 8) == (1).to_bytes(8, "little")
    except (OSError, RuntimeError):  # or no thread can be started
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


_STEPPED_CODE = b"\x31\xc0\x83\xc0\x01\xc3"  # xor %eax,%eax; add $1,%eax; ret
_STEPPED_AT, _STEPPED_LENGTH = 2, 3  # the add

# Of struct pt_regs in arch/x86/include/uapi/asm/ptrace.h.
_IP, _SP = 128, 152


def _moving_program() -> bytes:
    """Return a program that moves a thread past the add, and rewrites SP as at a RET."""
    return encode(
        (0x79, 0x12, _SP, 0),  # r2 = ctx->sp
        (0x7B, 0x21, _SP, 0),  # ctx->sp = r2
        (0x79, 0x12, _IP, 0),  # r2 = ctx->ip
        (0x07, 0x02, 0, _STEPPED_LENGTH),  # r2 += length
        (0x7B, 0x21, _IP, 0),  # ctx->ip = r2
        (0xB7, 0x00, 0, 0),  # r0 = 0
        (EXIT, 0x00, 0, 0),
    )


@cache
def steps_can_be_skipped() -> bool:
    """Return whether a program can take the place of the instruction that its probe is at.

    It does what the instruction would do and moves the thread past it; the kernel then steps
    nothing, which is most of the price of a probe at a RET. Linux 6.18 lets the programs of uprobes
    write registers (kernel commit 7384893d970e) and leaves out the step where the instruction
    pointer has changed (4363264111e1); builds of it differ. Tried on an addition in a function of
    this process, which is done where the program is refused or what it writes has no effect.
    """
    if HOST is None or not HOST.steps_rets:
        return False
    opened: list[int] = []
    try:
        opened.append(kernel.load_program(_moving_program(), b"GPL", attach_type=0))
        with own_function(_STEPPED_CODE) as function:
            opened.append(kernel.open_uprobe(function.path, _STEPPED_AT))
            kernel.set_perf_event_program(opened[-1], opened[0])
            return function.result() == 0
    except OSError:
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def why_steps_are_taken() -> str:
    """Return what the kernel lacks where ``steps_can_be_skipped`` is false."""
    try:
        log = kernel.verifier_log(_moving_program())
    except OSError:
        return "the kernel permits no BPF programs: run as root, or with CAP_BPF and CAP_PERFMON"
    if log is not None:
        return (
            "this kernel does not let the programs of uprobes write registers (Linux 6.18 and newer"
            " do, but not every build)"
        )
    return "this kernel steps an instruction though a program has taken its place"
