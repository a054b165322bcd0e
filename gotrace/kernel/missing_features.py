# SPDX-License-Identifier: Apache-2.0
"""Find the feature that a refused BPF program needs and the running kernel lacks, by trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.instructions import CALL, EXIT, INSTRUCTION, LD_IMM64, encode
from gotrace.records import dataclass

_ATOMIC = 0xDB
_FETCH = 0x01  # in an atomic instruction's constant; 0 is the plain addition, which is old
_JUMP, _JUMP32 = 5, 6
_ATTACH_COOKIE = 174


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One instruction, as far as it says what a program asks of the kernel."""

    code: int
    source: int
    offset: int
    constant: int


@dataclass(frozen=True, slots=True)
class _Feature:
    """One thing that not all kernels can do.

    ``release`` is the kernel that brought it. ``is_used`` looks at an instruction; ``trial`` is the
    least program that shows it.
    """

    name: str
    release: str
    is_used: Callable[[_Instruction], bool]
    trial: bytes


def _helper(number: int, name: str, release: str) -> _Feature:
    trial = encode((CALL, 0, 0, number), (EXIT, 0, 0, 0))
    return _Feature(name, release, lambda each: _calls(each, number), trial)


def _calls(each: _Instruction, helper: int) -> bool:
    return each.code == CALL and each.source == 0 and each.constant == helper


#: Releases: the commits that added them. Helpers by their numbers in the UAPI's linux/bpf.h.
_FEATURES = (
    _Feature(
        "loops",
        "5.3",
        lambda each: each.code & 7 in (_JUMP, _JUMP32) and each.code != CALL and each.offset < 0,
        # r0 = 0; do r0 += 1; while (r0 < 4)
        encode((0xB7, 0, 0, 0), (0x07, 0, 0, 1), (0xA5, 0, -2, 4), (EXIT, 0, 0, 0)),
    ),
    _helper(112, "reads of user memory (bpf_probe_read_user)", "5.5"),
    _helper(113, "reads of kernel memory (bpf_probe_read_kernel)", "5.5"),
    _helper(117, "signals to a thread (bpf_send_signal_thread)", "5.5"),
    _helper(120, "ids in a pid namespace (bpf_get_ns_current_pid_tgid)", "5.7"),
    _Feature(
        "atomic operations that return a value",
        "5.12",
        lambda each: each.code == _ATOMIC and bool(each.constant & _FETCH),
        # r0 = 0; r1 = 1; *(u64 *)(r10 - 8) = r0; cmpxchg(r10 - 8, r0, r1)
        encode(
            *((0xB7, 0, 0, 0), (0xB7, 1, 0, 1), (0x7B, 0x0A, -8, 0)),
            *((_ATOMIC, 0x1A, -8, 0xF1), (EXIT, 0, 0, 0)),
        ),
    ),
    _helper(175, "reads of a task's registers (bpf_task_pt_regs)", "5.15"),
)


def missing_feature(code: bytes) -> tuple[str, str] | None:
    """Return the feature that a program uses and the kernel lacks, and the release that brought it.

    ``code`` are the program's instructions. Of several things that are lacking it is the newest.
    Attach cookies are left out: that is for those to ask who choose how to attach.
    """
    instructions = list(_decode(code))
    for feature in reversed(_FEATURES):
        if any(map(feature.is_used, instructions)) and not _is_known(feature.trial):
            return feature.name, feature.release
    return None


def has_attach_cookies() -> bool:
    """Return whether a program can ask which of its attachments it runs for (Linux 5.15)."""
    return _is_known(_helper(_ATTACH_COOKIE, "", "").trial)


def _is_known(trial: bytes) -> bool:
    """Return whether the verifier knows a program's feature, be it content with it or not.

    A helper that is called without its arguments is refused too, but for these. The messages about
    those that are not known: check_helper_call, check_atomic (before 5.12 check_xadd, and before
    that resolve_pseudo_ldimm64, which is what Linux 5.10 says) and push_insn in
    kernel/bpf/verifier.c.
    """
    try:
        log = kernel.verifier_log(trial)
    except OSError:  # not even a trial is permitted: who loads the program will say so
        return True
    if log is None:
        return True
    return not any(words in log for words in _UNKNOWN)


_UNKNOWN = (
    *("unknown func", "invalid func", "cannot use helper", "back-edge"),
    *("BPF_STX uses reserved fields", "BPF_XADD uses reserved fields", "BPF_ATOMIC uses invalid"),
)


def _decode(code: bytes) -> Iterator[_Instruction]:
    words = INSTRUCTION.iter_unpack(code)
    for operation, registers, offset, constant in words:
        yield _Instruction(operation, registers >> 4, offset, constant)
        if operation == LD_IMM64:
            next(words)
