# SPDX-License-Identifier: Apache-2.0
"""Judge what is found on machines that this one is not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gotrace.doctor import machine
from gotrace.doctor import trials as doctor_trials
from gotrace.doctor.finding import CheckState, Finding
from gotrace.doctor.privileges import Privileges, read_privileges
from gotrace.doctor.trials import run_trials, rung_findings
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.privileges import Capability

ALL = (1 << 41) - 1  # CAP_CHECKPOINT_RESTORE, 40, is the last
#: What Docker leaves to root in a container: its documentation's list of default capabilities.
DOCKER = 0x00000000A80425FB


def proc(root: Path, effective: int, *, uid: int = 0, uid_map: str = "", seccomp: int = 0) -> Path:
    """Make the files of /proc/self that privileges are read from."""
    directory = root / "proc" / "self"
    directory.mkdir(parents=True)
    status = (
        f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapPrm:\t{ALL:016x}\n"
        f"CapEff:\t{effective:016x}\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}\n"
    )
    (directory / "status").write_text(status)
    (directory / "uid_map").write_text(uid_map or "         0          0 4294967295\n")
    return root


def bits(*capabilities: Capability) -> int:
    return sum(1 << capability for capability in capabilities)


def test_root_has_all(tmp_path: Path) -> None:
    own = read_privileges(proc(tmp_path, ALL))
    assert own == Privileges(ALL, True, False, False)
    assert machine.privileges(own).state is CheckState.OK


def test_own_process_is_read_as_the_kernel_tells_it() -> None:
    own = read_privileges()
    assert own.is_root == (os.geteuid() == 0)
    assert f"CapEff:\t{own.effective:016x}" in Path("/proc/self/status").read_text()


def test_sys_admin_includes_what_was_split_off_it(tmp_path: Path) -> None:
    own = read_privileges(proc(tmp_path, bits(Capability.SYS_ADMIN)))
    assert own.lacks(Capability.BPF, Capability.PERFMON, Capability.SYS_PTRACE) == [
        "CAP_SYS_PTRACE"
    ]


def test_container_root_is_told_to_add_capabilities(tmp_path: Path) -> None:
    found = machine.privileges(read_privileges(proc(tmp_path, DOCKER, seccomp=2)))
    assert found.state is CheckState.FAIL
    assert found.found == "no CAP_BPF, CAP_PERFMON"
    assert "--cap-add=BPF --cap-add=PERFMON" in (found.advice or "")


def test_user_without_rights_is_told_to_become_root(tmp_path: Path) -> None:
    found = machine.privileges(read_privileges(proc(tmp_path, 0, uid=1000)))
    assert found.state is CheckState.FAIL
    assert found.advice == "run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"


def test_all_capabilities_of_a_user_namespace_are_worth_nothing(tmp_path: Path) -> None:
    own = read_privileges(proc(tmp_path, ALL, uid_map="0 1000 1\n"))
    found = machine.privileges(own)
    assert found.state is CheckState.FAIL
    assert "rootless" in (found.advice or "")


def test_what_follows_from_a_missing_capability() -> None:
    least = bits(Capability.BPF, Capability.PERFMON)
    found = machine.privileges(Privileges(least, False, False, False))
    assert (found.state, found.found) == (CheckState.WARN, "no CAP_SYS_PTRACE")
    assert "-p cannot name processes of others" in (found.advice or "")


def test_refusal_in_spite_of_all_capabilities_is_the_seccomp_filters(tmp_path: Path) -> None:
    own = read_privileges(proc(tmp_path, ALL, seccomp=2))
    assert "seccomp=unconfined" in own.advice()
    assert "seccomp" not in Privileges(ALL, True, False, False).advice()


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        ("[none] integrity confidentiality\n", CheckState.OK, "none"),
        ("none [integrity] confidentiality\n", CheckState.OK, "integrity"),
        ("none integrity [confidentiality]\n", CheckState.FAIL, "confidentiality"),
        (None, CheckState.OK, "not in force, as far as can be seen"),
    ],
)
def test_lockdown(tmp_path: Path, text: str | None, state: CheckState, found: str) -> None:
    if text is not None:
        path = tmp_path / "sys/kernel/security/lockdown"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    result = machine.lockdown(tmp_path)
    assert (result.state, result.found) == (state, found)


@pytest.mark.parametrize(
    ("scope", "effective", "state"),
    [
        (None, 0, CheckState.OK),
        ("0", 0, CheckState.OK),
        ("1", 0, CheckState.WARN),
        ("2", bits(Capability.SYS_PTRACE), CheckState.OK),
        ("3", ALL, CheckState.WARN),
    ],
)
def test_ptrace_scope(tmp_path: Path, scope: str | None, effective: int, state: CheckState) -> None:
    if scope is not None:
        path = tmp_path / "proc/sys/kernel/yama/ptrace_scope"
        path.parent.mkdir(parents=True)
        path.write_text(f"{scope}\n")
    own = Privileges(effective, False, False, False)
    assert machine.ptrace_scope(own, tmp_path).state is state


def test_mounts(tmp_path: Path) -> None:
    assert machine.mounts(tmp_path).found == "/proc is not mounted"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "self").symlink_to("1")
    assert machine.mounts(tmp_path).found == "/proc is another pid namespace's"
    (tmp_path / "proc" / "self").unlink()
    (tmp_path / "proc" / "self").symlink_to(str(os.getpid()))
    missing = machine.mounts(tmp_path)
    assert (missing.state, missing.found) == (CheckState.FAIL, "/sys is not mounted")
    possible = tmp_path / "sys/devices/system/cpu/possible"
    possible.parent.mkdir(parents=True)
    possible.write_text("0-3\n")
    assert machine.mounts(tmp_path).state is CheckState.OK


def states(findings: Sequence[Finding]) -> list[CheckState]:
    return [finding.state for finding in findings]


def test_lower_rungs_that_are_missing_do_not_matter() -> None:
    problems = {
        AttachMethod.MULTI: None,
        AttachMethod.COOKIE: "no permission",
        AttachMethod.ADDRESS: None,
    }
    found = rung_findings(problems, True)
    assert states(found) == [CheckState.OK, CheckState.WARN, CheckState.OK]
    assert found[0].found == "works, and is used"
    assert found[1].advice == "multi is used instead"


def test_best_rung_that_is_left_is_named() -> None:
    problems = {
        AttachMethod.MULTI: "Invalid argument",
        AttachMethod.COOKIE: "Invalid argument",
        AttachMethod.ADDRESS: None,
    }
    found = rung_findings(problems, False)
    assert states(found) == [CheckState.WARN, CheckState.WARN, CheckState.OK]
    assert {finding.advice for finding in found[:2]} == {"perf-ip is used instead"}


def test_no_rung_is_a_failure() -> None:
    found = rung_findings(dict.fromkeys(AttachMethod, "no"), False)
    assert states(found) == [CheckState.FAIL] * 3
    assert "Linux 4.17" in (found[2].advice or "")


def test_links_that_cannot_filter_by_process_fall_back() -> None:
    found = rung_findings(dict.fromkeys(AttachMethod), False)
    assert states(found) == [CheckState.WARN, CheckState.OK, CheckState.OK]
    assert states(rung_findings(dict.fromkeys(AttachMethod), True)) == [CheckState.OK] * 3


def test_compiler_that_ends_its_process_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = Finding("after", CheckState.OK, "still here")

    def end() -> Sequence[Finding]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    trials = [doctor_trials._Trial("program", end), doctor_trials._Trial("after", lambda: [fine])]
    monkeypatch.setattr(doctor_trials, "_TRIALS", trials)
    died, after = run_trials()
    assert (died.check, died.state) == ("program", CheckState.FAIL)
    assert "SIGKILL" in died.found
    assert after == fine


def test_a_missing_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.elf_library().state is CheckState.OK
    monkeypatch.setitem(sys.modules, "elftools", None)
    found = machine.elf_library()
    assert found.state is CheckState.FAIL
    assert found.found.startswith("cannot be imported: ")
    assert "pip install 'pyelftools>=0.29'" in (found.advice or "")


def test_tabulate_is_looked_for() -> None:
    found = machine.table_library()
    assert (found.check, found.state) == ("tabulate", CheckState.OK)


def test_a_library_of_unknown_version_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tabulate.__version__", "unknown")
    assert machine.table_library().state is CheckState.OK


def test_an_old_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elftools.__version__", "0.28")
    found = machine.elf_library()
    assert (found.state, found.found.split(",")[0]) == (CheckState.FAIL, "0.28")
