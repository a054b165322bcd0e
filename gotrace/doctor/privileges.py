# SPDX-License-Identifier: Apache-2.0
"""Learn this process's rights from /proc, and why the kernel refused it something."""

from __future__ import annotations

from pathlib import Path

from gotrace.kernel.privileges import Capability
from gotrace.records import dataclass
from gotrace.target.process import read_status

_SECCOMP_FILTER = 2  # SECCOMP_MODE_FILTER, include/uapi/linux/seccomp.h
_IDENTITY = ["0", "0", str(2**32 - 1)]  # the initial user namespace's map: user_namespaces(7)


# Capabilities within CAP_SYS_ADMIN since these were split off it: capabilities(7).
_IN_SYS_ADMIN = {Capability.PERFMON, Capability.BPF}


@dataclass(frozen=True, slots=True)
class Privileges:
    """The effective capabilities, as a mask, and other facts that decide over system calls."""

    effective: int
    is_root: bool
    in_user_namespace: bool
    has_seccomp_filter: bool

    def has(self, capability: Capability) -> bool:
        """Return whether a capability, or one that includes it, is effective."""
        if self.effective >> capability & 1:
            return True
        return capability in _IN_SYS_ADMIN and self.has(Capability.SYS_ADMIN)

    def lacks(self, *capabilities: Capability) -> list[str]:
        """Return the names of those that are not effective."""
        return [f"CAP_{each.name}" for each in capabilities if not self.has(each)]

    def advice(self) -> str:
        """Return advice on a system call that the kernel has refused."""
        if self.in_user_namespace:
            return (
                "capabilities of a user namespace do not count: run as root of the host; a"
                " container must not be rootless"
            )
        if self.lacks(Capability.BPF, Capability.PERFMON):
            if self.is_root:
                return (
                    "this root's capabilities have been taken away: start the container with"
                    " --cap-add=BPF --cap-add=PERFMON --cap-add=SYS_PTRACE, or --privileged"
                )
            return "run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"
        if self.has_seccomp_filter:
            return (
                "a seccomp filter is in force, probably the container's: start the container with"
                " --security-opt seccomp=unconfined"
            )
        return "a security module forbids it: see the kernel's log"


def read_privileges(root: Path = Path("/")) -> Privileges:
    """Read this process's own; ``root`` is where ``proc`` is."""
    status = read_status("self", root)
    return Privileges(
        effective=int(status["CapEff"], 16),
        is_root=status["Uid"].split()[1] == "0",
        in_user_namespace=(root / "proc/self/uid_map").read_text().split() != _IDENTITY,
        has_seccomp_filter=int(status.get("Seccomp", "0")) == _SECCOMP_FILTER,
    )
