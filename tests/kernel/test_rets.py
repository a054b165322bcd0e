# SPDX-License-Identifier: Apache-2.0
"""Decide whether RETs are carried out: what is asked for, what the kernel can, shadow stacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.errors import GotraceError
from gotrace.kernel import features, rets
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import AttachMethod
from gotrace.kernel.rets import EmulateRet, RetEmulation, ret_emulation, with_rets
from gotrace.settings import SiteSettings


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have a kernel that can, on a CPU of which the returned file says what it has."""
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("flags\t\t: fpu vme user_ish shstk\n")
    monkeypatch.setattr(rets, "_CPU", cpu)
    monkeypatch.setattr(rets, "steps_can_be_skipped", lambda: True)
    return cpu


@pytest.mark.parametrize("wanted", [EmulateRet.OFF, EmulateRet.AUTO])
def test_by_default_nothing_is_tried_or_changed(
    wanted: EmulateRet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rets, "steps_can_be_skipped", lambda: pytest.fail("it was tried"))
    settings = SiteSettings(tgid=7)
    assert with_rets(settings, ret_emulation(wanted, None)) == settings


@pytest.mark.parametrize("method", [None, AttachMethod.MULTI, AttachMethod.COOKIE])
def test_where_no_thread_can_have_a_shadow_stack(able: Path, method: AttachMethod | None) -> None:
    found = ret_emulation(EmulateRet.ON, method)
    assert found == RetEmulation(0)
    settings = with_rets(SiteSettings(tgid=7), found)
    assert settings == SiteSettings(tgid=7, emulate_ret=1, task_features=0)


def test_where_threads_can_have_one_each_is_looked_at(
    able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able.write_text("flags\t\t: fpu user_shstk\n")
    asked = []

    def field(*path: tuple[str, str]) -> int | None:
        asked.append(path)
        return 0x9C0

    monkeypatch.setattr(rets, "kernel_field", field)
    assert ret_emulation(EmulateRet.ON, None) == RetEmulation(0x9C0)
    assert asked == [(("task_struct", "thread"), ("thread_struct", "features"))]


@pytest.mark.parametrize("known", [True, False])
def test_where_that_cannot_be_seen_it_is_refused(
    able: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where not even the CPU's features can be read."""
    able.write_text("flags\t\t: user_shstk\n") if known else able.unlink()
    monkeypatch.setattr(rets, "kernel_field", lambda *path: None)
    with pytest.raises(GotraceError, match="shadow stacks, and the kernel's BTF"):
        ret_emulation(EmulateRet.ON, None)


def test_sites_found_by_address_are_refused(able: Path) -> None:
    with pytest.raises(GotraceError, match="--attach perf-ip"):
        ret_emulation(EmulateRet.ON, AttachMethod.ADDRESS)


def test_a_kernel_that_cannot_is_said_to_lack_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(instructions: bytes) -> str | None:
        raise PermissionError

    monkeypatch.setattr(rets, "steps_can_be_skipped", lambda: False)
    for verdict, words in (
        (lambda code: "invalid bpf_context access", "does not let the programs of uprobes write"),
        (lambda code: None, "steps an instruction though"),
        (refuse, "permits no BPF programs: run as root"),
    ):
        monkeypatch.setattr(kernel, "verifier_log", verdict)
        with pytest.raises(GotraceError, match=words) as caught:
            ret_emulation(EmulateRet.ON, None)
        assert str(caught.value).count("\n") == 0


@pytest.mark.live
def test_on_this_kernel() -> None:
    """It is refused exactly where the trial fails."""
    if features.steps_can_be_skipped():
        assert ret_emulation(EmulateRet.ON, None) is not None
    else:
        with pytest.raises(GotraceError, match="RETs cannot be carried out here: this kernel"):
            ret_emulation(EmulateRet.ON, None)
