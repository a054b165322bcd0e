# SPDX-License-Identifier: Apache-2.0
"""Learn from a node which container and which pod of Kubernetes a process is in.

A process's control group says the container's number and the pod's, whatever the runtime and the
version of control groups. Names are in those of files that the kubelet keeps for logs:
``/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log``, and
``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log``, a link to it for each container
(``pkg/kubelet/kuberuntime``: helpers.go and legacy.go of Kubernetes). They are there while the pod
is, for any runtime, and nothing has to be asked: neither a runtime's socket, which would give a
right to start containers, nor the API server. Labels of pods are not on the node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from gotrace.records import dataclass
from gotrace.target.shortage import suppress_missing

#: A container's number where a path ends: of Docker, containerd, CRI-O and Podman, by cgroupfs
#: (``.../ID``) and by systemd (``.../cri-containerd-ID.scope``); with containerd's name of the
#: configuration before a colon where runtime and driver disagree.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?$")
#: A pod's number, with - or, by systemd, _ between its parts; of static pods without any.
_POD = re.compile(
    r"/(?:[^/]*-)?pod"
    r"([0-9a-f]{8}([-_]?)[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?:\.slice)?(?:[/:]|$)"
)
#: Where the kubelet keeps logs: of this file system, and of the node where this is a container's.
_LOGS = ("/var/log", "/proc/1/root/var/log")
#: Where control groups of version 2 are mounted: alone, or beside others of version 1, here or on
#: the node. If this process is in a container, its own mount has only the container's groups.
_GROUPS = tuple(
    f"{root}/sys/fs/cgroup{below}" for below in ("", "/unified") for root in ("", "/proc/1/root")
)
_LINK = re.compile(r"(.+)_([^_]+)_(.+)-([0-9a-f]{64})\.log")
_MAX_NAMES = 100_000


@dataclass(frozen=True, slots=True)
class Container:
    """A container as its node knows it. Unknown fields are None; without a pod also its others."""

    id: str
    pod_uid: str | None = None
    namespace: str | None = None
    pod: str | None = None
    name: str | None = None

    def attributes(self) -> dict[str, str]:
        """Return the attributes of a resource, by OpenTelemetry's names."""
        found = {
            "container.id": self.id,
            "k8s.pod.uid": self.pod_uid,
            "k8s.namespace.name": self.namespace,
            "k8s.pod.name": self.pod,
            "k8s.container.name": self.name,
        }
        return {key: value for key, value in found.items() if value is not None}


def container_of_cgroups(text: str) -> Container | None:
    """Return the container, without names, that /proc/PID/cgroup speaks of; None without one.

    >>> container_of_cgroups("0::/system.slice/cron.service\\n")
    >>> container_of_cgroups("0::/kubepods/pod" + "-".join(["1" * 8, *["1" * 4] * 3, "1" * 12])
    ...     + "/" + "a" * 64 + "\\n").pod_uid
    '11111111-1111-1111-1111-111111111111'
    """
    for line in text.split("\n"):
        path = line.split(":", 2)[-1]
        # A group below a container's own, as of systemd in one, is in it, too.
        parts = path.split("/")
        for at in range(len(parts), 0, -1):
            if number := _CONTAINER.search(parts[at - 1]):
                pod = _POD.search("/".join(parts[:at]))
                return Container(number[1], pod and _hyphenated(pod[1]))
    return None


def processes_in(number: str, proc: str = "/proc") -> dict[str, list[int]]:
    """Return the processes, ascending, of each container whose number begins so."""
    found: dict[str, list[int]] = {}
    for pid in sorted(int(entry) for entry in os.listdir(proc) if entry.isdecimal()):
        container = container_of_cgroups(_cgroups(proc, pid))
        if container is not None and container.id.startswith(number):
            found.setdefault(container.id, []).append(pid)
    return found


def _cgroups(proc: str, pid: int) -> str:
    with suppress_missing(), open(f"{proc}/{pid}/cgroup", errors="surrogateescape") as file:
        return file.read()
    return ""


def _hyphenated(uid: str) -> str:
    """Return a pod's number as the kubelet writes it in names: static pods' have no hyphens."""
    return uid.replace("_", "-")


class Containers:
    """The containers of this node, looked up by process; names are read again where one is new."""

    def __init__(
        self,
        proc: str = "/proc",
        logs: Sequence[str] = _LOGS,
        groups: Sequence[str] = _GROUPS,
    ) -> None:
        """Paths are other ones in tests."""
        self._proc = proc
        self._logs = logs
        self._groups = groups
        self._known: dict[str, Container] = {}

    def of(self, pid: int) -> Container | None:
        """Return the container that a process is in, None where it is in none, or has ended."""
        found = container_of_cgroups(_cgroups(self._proc, pid))
        if found is None:
            return None
        known = self._known.get(found.id)
        if known is None or known.name is None:
            if len(self._known) >= _MAX_NAMES:
                self._known.clear()
            known = self._known[found.id] = self._named(found)
        return known

    def is_of_root(self, pid: int) -> bool:
        """Return whether root has made the control group of a process's container.

        A user may make groups within its own, and call them as the kubelet calls those of pods.
        """
        for row in _cgroups(self._proc, pid).split("\n"):
            path = row.split(":", 2)[-1]
            if container_of_cgroups(f"0::{path}") is None:
                continue
            while not _CONTAINER.search(path.rpartition("/")[2]):
                path = path.rpartition("/")[0]
            if "/user.slice/" in path:
                return False
            above = path.rpartition("/")[0]
            while above and "/../" not in path:
                for place in self._groups:
                    with suppress(OSError):
                        if os.stat(f"{place}{above}").st_uid != 0:
                            return False
                        break
                above = above.rpartition("/")[0]
        return True

    def group(self, pid: int) -> int | None:
        """Return the number of the control group, of version 2, of a process's container.

        It is found below what is mounted here, or, where this process is in a container itself and
        sees its own groups only, as what the process has mounted. None where it is neither.
        """
        path = next(
            (row[3:] for row in _cgroups(self._proc, pid).split("\n") if row.startswith("0::")), ""
        )
        if container_of_cgroups(f"0::{path}") is None:
            return None
        while not _CONTAINER.search(path.rpartition("/")[2]):
            path = path.rpartition("/")[0]  # of what is below the container's own group
        places = [f"{place}{path}" for place in self._groups if "/../" not in path]
        for place in [*places, f"{self._proc}/{pid}/root/sys/fs/cgroup"]:
            with suppress(OSError):
                # No root of a hierarchy has this file.
                os.stat(f"{place}/cgroup.events")
                return os.stat(place).st_ino
        return None

    def _named(self, container: Container) -> Container:
        """Return a container with its names, as far as there are any."""
        if container.pod_uid is None:
            return container
        for name in self._listed("containers"):
            if name.endswith(f"-{container.id}.log") and (link := _LINK.fullmatch(name)):
                pod, namespace, own, number = link.groups()
                return Container(number, container.pod_uid, namespace, pod, own)
        for name in self._listed("pods"):
            parts = name.split("_")
            if len(parts) == 3 and parts[2] == container.pod_uid:
                return Container(container.id, container.pod_uid, parts[0], parts[1])
        return container

    def _listed(self, directory: str) -> list[str]:
        for place in self._logs:
            with suppress_missing():
                return os.listdir(f"{place}/{directory}")
        return []
