# SPDX-License-Identifier: Apache-2.0
"""Name what a kernel lacks: trials that this one refuses stand in for those of an old one."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from gotrace.kernel import missing_features, program
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import AttachError, Point, ProbeGroup, attach
from gotrace.kernel.compiler import LoadError, _reason
from gotrace.kernel.instructions import encode
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.program import BpfProgram, LackingError
from gotrace.settings import HistogramSettings, LatencySettings, TaskSettings, TrialSettings

pytestmark = pytest.mark.live

GROUP = ProbeGroup("fetch", "/proc/self/exe", "a program", [Point(0, 0, 0)], 0, 0)
#: A number that no helper has, and an atomic operation that no kernel has.
NO_HELPER = missing_features._helper(99999, "nothing", "99.9").trial
NO_ATOMIC = encode((0xB7, 1, 0, 1), (0x7B, 0x1A, -8, 0), (0xDB, 0x1A, -8, 0x13), (0x95, 0, 0, 0))


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each program refused."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(program, "load_linked", refuse)


def without(name: str, monkeypatch: pytest.MonkeyPatch, trial: bytes) -> None:
    """Make this kernel one that does not know a feature."""
    assert name in [feature.name for feature in missing_features._FEATURES]
    changed = [
        dataclasses.replace(feature, trial=trial) if feature.name == name else feature
        for feature in missing_features._FEATURES
    ]
    monkeypatch.setattr(missing_features, "_FEATURES", changed)


def test_this_kernel_knows_what_is_asked_for() -> None:
    assert all(missing_features._is_known(feature.trial) for feature in missing_features._FEATURES)
    assert not missing_features._is_known(NO_HELPER)
    assert not missing_features._is_known(NO_ATOMIC)


def test_what_a_program_uses_is_found_in_its_code() -> None:
    settings = LatencySettings(
        tasks=TaskSettings(task_fsbase=8, tls_g=0),
        stacks=8,
        outer_calls=8,
        times=HistogramSettings.of(1, 1, 1),
    )
    # One that is kept may have been compiled with fewer rights: see package_program.
    compiled = BpfProgram(settings, fresh=True)
    try:
        code = list(missing_features._decode(compiled.code("on_return")))
    finally:
        compiled.close()
    used = {each.name for each in missing_features._FEATURES if any(map(each.is_used, code))}
    assert used == {
        "loops",
        "reads of user memory (bpf_probe_read_user)",
        "reads of kernel memory (bpf_probe_read_kernel)",
        "atomic operations that return a value",
    }


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("method", [None, *AttachMethod])
def test_tool_that_no_such_kernel_can_run_is_said_to_need_another(
    method: AttachMethod | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("atomic operations that return a value", monkeypatch, NO_ATOMIC)
    with pytest.raises(LackingError) as raised:
        attach(TrialSettings(fetch=1), [GROUP], method)
    assert str(raised.value) == (
        "bpf/doctor.c needs Linux 5.12 or newer: this kernel's BPF does not know atomic operations"
        " that return a value"
    )


@pytest.mark.usefixtures("refused")
def test_feature_that_a_program_does_not_use_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    without("ids in a pid namespace (bpf_get_ns_current_pid_tgid)", monkeypatch, NO_HELPER)
    with pytest.raises(LoadError, match="Failed to load") as raised:
        attach(TrialSettings(fetch=1), [GROUP], AttachMethod.ADDRESS)
    assert not isinstance(raised.value, LackingError)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("method", "why"),
    [
        (AttachMethod.MULTI, "multi: this kernel has no uprobe-multi links (Linux 6.6)"),
        (AttachMethod.COOKIE, "perf-cookie: this kernel has no cookies (Linux 5.15)"),
    ],
)
def test_rung_without_cookies(
    method: AttachMethod, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_features, "_ATTACH_COOKIE", 99999)
    with pytest.raises(AttachError) as raised:
        attach(TrialSettings(fetch=1), [GROUP], method)
    assert str(raised.value) == f"cannot attach to a program: {why}"


@pytest.mark.parametrize(
    ("log", "known"),
    [
        ("BPF_STX uses reserved fields\n", False),  # Linux 5.10.223, of cmpxchg
        ("BPF_ATOMIC uses invalid atomic opcode f1\n", False),
        ("invalid func unknown#174\n", False),
        ("R1 type=ctx expected=fp\n", True),
        (None, True),
    ],
)
def test_words_of_kernels_for_what_they_do_not_know(
    log: str | None, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "verifier_log", lambda code: log)
    assert missing_features.has_attach_cookies() is known


def test_trial_that_is_not_permitted_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(command: int, attributes: bytes) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel, "_bpf", forbid)
    assert missing_features.has_attach_cookies()
    assert missing_features.missing_feature(NO_HELPER + NO_ATOMIC) is None


def test_verifiers_reason_is_the_line_before_its_count() -> None:
    log = (
        "637: (07) r1 += 32\n638: (db) lock *(u64 *)(r1 +32) += r2\n"
        "misaligned access off (0x0; 0xffffffffffffffff)+0+32 size 8\n"
        "processed 1789 insns (limit 1000000) max_states_per_insn 4 total_states 51\n\n"
    )
    assert _reason(log) == (
        "the kernel's verifier refuses it: misaligned access off (0x0; 0xffffffffffffffff)+0+32"
        " size 8"
    )
    assert _reason("x.c:3: error: expected ';'\nx.c:9: error: more\n").endswith("expected ';'")
    assert _reason("") == ""
