# SPDX-License-Identifier: Apache-2.0
"""Names of system calls and errors: those that Go's own list has."""

from __future__ import annotations

import re

import pytest

from gotrace.architecture import AMD64, ARM64, Architecture
from gotrace.kernel.syscall_names import errno_name, syscall_name
from tests.toolchains import newest

#: What Go calls otherwise than the kernel does, and no system call of this architecture.
_OTHERWISE = {(ARM64.name, 79): "newfstatat"}
_NO_CALLS = {(ARM64.name, 244)}


@pytest.mark.parametrize("arch", [AMD64, ARM64], ids=lambda arch: str(arch.name))
def test_names_are_those_of_gos_list(arch: Architecture) -> None:
    lists = newest().go.resolve().parents[1] / "src/cmd/vendor/golang.org/x/sys/unix"
    text = (lists / f"zsysnum_linux_{arch.name}.go").read_text()
    known = {int(number): name.lower() for name, number in re.findall(r"SYS_(\w+) += (\d+)", text)}
    assert len(known) > 300
    for number in range(max(known) + 1):
        found = syscall_name(number, arch)
        if number in known and (arch.name, number) not in _NO_CALLS:
            assert found == _OTHERWISE.get((arch.name, number), known[number])
        elif found != f"syscall {number}":
            assert found in ("uretprobe", "uprobe")  # which only the kernel's own code makes
    assert syscall_name(5000, arch) == "syscall 5000"


def test_errors_are_those_of_the_kernel() -> None:
    assert [errno_name(number) for number in (2, 11, 95, 512, 4000)] == [
        *("ENOENT", "EAGAIN", "EOPNOTSUPP", "ERESTARTSYS", "4000")
    ]
