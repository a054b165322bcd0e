# SPDX-License-Identifier: Apache-2.0
"""Examine this machine, and a process on it, for the needs of tracing."""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.doctor import machine
from gotrace.doctor.finding import CheckState, Finding
from gotrace.doctor.privileges import read_privileges
from gotrace.doctor.target import examine_target


def examine(pid: int | None = None) -> Iterator[Finding]:
    """Yield the findings of each check, of the process ``pid`` too if it is given.

    First it looks for faults that must be fixed. Only if there are none, programs are loaded and
    attached for real: else all trials would fail for the same reason.
    """
    sound = True
    for finding in _machine():
        sound = sound and finding.state is not CheckState.FAIL
        yield finding
    if sound:
        from gotrace.doctor.trials import run_trials

        for finding in run_trials():
            sound = sound and finding.state is not CheckState.FAIL
            yield finding
    if pid is not None:
        yield from examine_target(pid, attach=sound)


def _machine() -> Iterator[Finding]:
    yield machine.architecture()
    yield machine.kernel_release()
    mounts = machine.mounts()
    yield mounts
    if mounts.state is CheckState.FAIL:
        return
    own = read_privileges()
    privileges = machine.privileges(own)
    yield privileges
    if privileges.state is not CheckState.FAIL:
        yield machine.bpf_call(own)
        yield machine.perf_call(own)
    yield machine.lockdown()
    yield machine.unprivileged_bpf()
    yield machine.ptrace_scope(own)
    yield machine.pid_namespace()
    yield machine.btf()
    yield machine.open_files(own)
    yield machine.memory_limits(own)
    yield machine.python()
    yield machine.bcc_binding()
    yield machine.packaged_compiled()
    yield machine.compiled_programs()
    yield machine.capstone_library()
    yield machine.elf_library()
    yield machine.table_library()
