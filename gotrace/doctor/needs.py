# SPDX-License-Identifier: Apache-2.0
"""Declare what each command needs of the kernel, the caller and the program.

README's table and the REQUIREMENTS of the man pages are written from it (``python -m
tests.test_needs``), and checks of this package take the releases from it.
"""

from __future__ import annotations

from enum import Enum

from gotrace.records import dataclass


class Rights(Enum):
    """The capabilities of a caller who is not root, for programs of its own user."""

    #: process_vm_readv(2) asks Yama where the kernel has it.
    NONE = "none; CAP_SYS_PTRACE if /proc/sys/kernel/yama/ptrace_scope is 1 or 2"
    BPF = "CAP_BPF and CAP_PERFMON"
    #: perf_uprobe_event_init in kernel/events/core.c; uprobe-multi links do without.
    UPROBES = "CAP_BPF and CAP_PERFMON; CAP_SYS_ADMIN before Linux 6.6"


class Btf(Enum):
    """The use of the kernel's own types (/sys/kernel/btf/vmlinux)."""

    NONE = "not needed"
    NEEDED = "needed"
    #: Where no register has the goroutine, it is found through task_struct. Floats are read at a
    #: signal that the thread must not have blocked, which is in task_struct too.
    IN_PART = "for assembly functions and Go up to 1.16 on amd64"
    STACKS = "for goroutines' stacks on amd64"  # a system call has no goroutine in a register
    VALUES = "for assembly functions and Go up to 1.16 on amd64, and for floats"


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a command, or of some of its options alone (``part``).

    ``linux`` and ``go`` are the oldest releases, of Go with the architecture if it is one alone.
    ``buffers``: whether event buffers lock memory.
    """

    command: str
    linux: str
    go: str
    rights: Rights
    btf: Btf
    part: str = ""
    buffers: bool = False


#: The releases with uprobe events, process_vm_readv(2), pidfd_open(2), reads of user memory by BPF
#: programs, BPF atomics that return a value, and registers of a task for BPF programs.
UPROBES, READS, PIDFD, USER_READS, ATOMICS = "4.17", "3.2", "5.3", "5.5", "5.12"
REGISTERS = "5.15"

#: In README's order.
NEEDS = (
    Need("gofunccount", UPROBES, "1.2", Rights.UPROBES, Btf.NONE),
    Need("gofunccount", UPROBES, "1.19, amd64", Rights.UPROBES, Btf.NONE, "FILE:LINE"),
    Need("gofunccount", UPROBES, "1.19, amd64", Rights.UPROBES, Btf.NONE, "--inlined"),
    Need("gofunclatency", ATOMICS, "1.2", Rights.UPROBES, Btf.IN_PART),
    Need("gofunclatency", ATOMICS, "1.19", Rights.UPROBES, Btf.NEEDED, "--why"),
    Need("gotrace", ATOMICS, "1.2", Rights.UPROBES, Btf.VALUES, buffers=True),
    Need("gotrace", ATOMICS, "1.19", Rights.UPROBES, Btf.NEEDED, "--why", True),
    Need(
        "gotrace", ATOMICS, "1.19", Rights.UPROBES, Btf.VALUES, "tree, flight, record, assert", True
    ),
    Need("gotrace", PIDFD, "1.15", Rights.NONE, Btf.NONE, "examine"),
    Need("gostacks", READS, "1.15", Rights.NONE, Btf.NONE),
    Need("gostacks", PIDFD, "1.15", Rights.NONE, Btf.NONE, "-i, --watch"),
    Need("gooffcpu", ATOMICS, "1.19", Rights.UPROBES, Btf.NONE),
    Need("gooffcpu", ATOMICS, "1.15", Rights.BPF, Btf.STACKS, "--names"),
    Need("gooncpu", REGISTERS, "1.15", Rights.BPF, Btf.NEEDED),
    Need("gooncpu", REGISTERS, "1.19", Rights.UPROBES, Btf.NEEDED, "--off"),
    Need("goalloc", USER_READS, "1.15", Rights.UPROBES, Btf.NEEDED),
    Need("goalloc", USER_READS, "1.19", Rights.UPROBES, Btf.NEEDED, "--spans"),
    Need("goalloc", PIDFD, "1.15, with MemProfileRate not 0", Rights.NONE, Btf.NONE, "--heap"),
    Need("gotop", PIDFD, "1.15", Rights.NONE, Btf.NONE),
    Need("gotop", ATOMICS, "1.19", Rights.UPROBES, Btf.NONE, "-w"),
    Need("gotop", ATOMICS, "1.15", Rights.UPROBES, Btf.IN_PART, "-f"),
    Need("gotop", ATOMICS, "1.19", Rights.UPROBES, Btf.VALUES, "-r", True),
)


def whole(command: str) -> Need:
    """Return the needs of a command without those of options."""
    return next(need for need in NEEDS if need.command == command and not need.part)


def without(release: str) -> list[str]:
    """Return the commands that an older kernel than ``release`` is enough for."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(".")]

    return [n.command for n in NEEDS if not n.part and numbers(n.linux) < numbers(release)]
