# SPDX-License-Identifier: Apache-2.0
"""Decide whether programs carry out the RETs that they are at: bpf/ret.h.

That spares the kernel the single step, and it is the one thing by which a mistake here could end
the target; docs/decisions says what speaks for it and against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from gotrace.errors import GotraceError
from gotrace.kernel.attach import AttachMethod
from gotrace.kernel.btf import kernel_field
from gotrace.kernel.features import steps_can_be_skipped, why_steps_are_taken
from gotrace.settings import SiteSettings

__all__ = ["EmulateRet", "RetEmulation", "ret_emulation", "with_rets"]


class EmulateRet(Enum):
    """Whether programs carry out RETs; the values are those of ``--emulate-ret``."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


#: What ``auto`` is: see docs/decisions/005-rets-carried-out.md.
_AUTO = EmulateRet.OFF

_CPU = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class RetEmulation:
    """How RETs are carried out on this machine.

    ``task_features`` is where the kernel's task_struct says whether a thread has a shadow stack, 0
    where none can have one.
    """

    task_features: int


def ret_emulation(wanted: EmulateRet, forced: AttachMethod | None) -> RetEmulation | None:
    """Return how RETs are carried out, None where the kernel steps them.

    ``forced`` is the way to attach, None for the best. Raises GotraceError where it is ``ON`` and
    cannot be done.
    """
    if wanted is EmulateRet.AUTO:
        wanted = _AUTO
    if wanted is EmulateRet.OFF:
        return None
    if forced is AttachMethod.ADDRESS:
        raise GotraceError(
            "RETs cannot be carried out with --attach perf-ip: a program finds its site by the"
            " instruction pointer there, which another tracer may have moved: leave out one of the"
            " two options"
        )
    if not steps_can_be_skipped():
        raise GotraceError(
            f"RETs cannot be carried out here: {why_steps_are_taken()}: leave --emulate-ret=on out"
        )
    if not _has_shadow_stacks():
        return RetEmulation(0)
    offset = kernel_field(("task_struct", "thread"), ("thread_struct", "features"))
    if not offset:
        raise GotraceError(
            "RETs cannot be carried out here: threads can have shadow stacks, and the kernel's BTF,"
            " /sys/kernel/btf/vmlinux, does not say where that is seen: leave --emulate-ret=on out"
        )
    return RetEmulation(offset)


def _has_shadow_stacks() -> bool:
    """Return whether threads can have shadow stacks; so too where that cannot be known.

    Source: X86_FEATURE_USER_SHSTK in arch/x86/include/asm/cpufeatures.h, Linux 6.6.
    """
    try:
        return "user_shstk" in _CPU.read_text(errors="replace").split()
    except OSError:
        return True


def with_rets(settings: SiteSettings, emulation: RetEmulation | None) -> SiteSettings:
    """Return settings with which programs carry out RETs, or leave them to the kernel."""
    if emulation is None:
        return settings
    return replace(settings, emulate_ret=1, task_features=emulation.task_features)
