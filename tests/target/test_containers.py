# SPDX-License-Identifier: Apache-2.0
"""Containers and pods of processes, by the forms that runtimes and the kubelet give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.target import process
from gotrace.target.containers import (
    _GROUPS,
    Container,
    Containers,
    container_of_cgroups,
    processes_in,
)
from gotrace.target.process import process_numbers

ID, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
UID = "8b7e0f6c-3d1a-4b57-9a0e-5f0c2d1e3a4b"
BY_SYSTEMD = UID.replace("-", "_")
STATIC = UID.replace("-", "")


@pytest.mark.parametrize(
    ("text", "pod"),
    [
        # Version 2: systemd and cgroupfs; containerd, CRI-O, and in kind, a node in a container.
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BY_SYSTEMD}.slice"
         f"/cri-containerd-{ID}.scope", UID),
        (f"0::/kubepods.slice/kubepods-pod{BY_SYSTEMD}.slice/crio-{ID}.scope/container", UID),
        (f"0::/kubepods/besteffort/pod{UID}/{ID}", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{BY_SYSTEMD}.slice"
         f"/cri-containerd-{ID}.scope", UID),
        # As a process in another container sees it.
        (f"0::/../../pod{UID}/{ID}", UID),
        (f"0::/../cri-containerd-{ID}.scope", None),
        # Version 1, all hierarchies; a static pod; containerd where the drivers disagree.
        (f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n0::/", UID),
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}", STATIC),
        (f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{BY_SYSTEMD}"
         f".slice:cri-containerd:{ID}", UID),
        # No Kubernetes.
        (f"0::/system.slice/docker-{ID}.scope", None),
        (f"0::/docker/{ID}", None),
        (f"0::/machine.slice/libpod-{ID}.scope/container", None),
        # A container in a container of a pod: the inner one.
        (f"0::/kubepods/pod{UID}/{OTHER}/docker/{ID}", UID),
    ],
)  # fmt: skip
def test_forms_of_control_groups(text: str, pod: str | None) -> None:
    assert container_of_cgroups(f"{text}\n") == Container(ID, pod)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "4:memory:/process_api/2c26cad0a95f5393fc50d4f19a433831\n0::/\n",
        f"0::/kubepods/pod{UID}\n",
        f"0::/x{ID}\n",
    ],
)
def test_what_is_in_no_container(text: str) -> None:
    assert container_of_cgroups(text) is None


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a directory with what /proc, /var/log and the control groups of a node have."""
    group = tmp_path / "groups" / "kubepods" / f"pod{UID}" / ID
    (group / "inner").mkdir(parents=True)
    (group / "cgroup.events").write_text("populated 1\n")
    (tmp_path / "log" / "pods").mkdir(parents=True)
    (tmp_path / "log" / "containers").mkdir()
    run(tmp_path, 7, f"0::/kubepods/pod{UID}/{ID}/inner\n")
    run(tmp_path, 8, f"0::/kubepods/pod{UID}/{OTHER}\n")
    run(tmp_path, 9, "0::/init.scope\n")
    return tmp_path


def run(node: Path, pid: int, groups: str) -> None:
    (node / "proc" / str(pid)).mkdir(parents=True)
    (node / "proc" / str(pid) / "cgroup").write_text(groups)


def containers(node: Path) -> Containers:
    logs = (str(node / "none"), str(node / "log"))
    return Containers(str(node / "proc"), logs, (str(node / "groups"),))


def test_names_are_those_of_logs(node: Path) -> None:
    found = containers(node)
    bare = Container(ID, UID)
    assert found.of(7) == bare  # its logs are not there yet
    (node / "log" / "pods" / f"shop_web-7d9f_{UID}").mkdir()
    assert found.of(7) == Container(ID, UID, "shop", "web-7d9f")
    link = node / "log" / "containers" / f"web-7d9f_shop_my-server-{ID}.log"
    link.symlink_to("/var/log/pods/none")
    whole = Container(ID, UID, "shop", "web-7d9f", "my-server")
    assert found.of(7) == whole
    assert whole.attributes() == {
        "container.id": ID,
        "k8s.pod.uid": UID,
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-7d9f",
        "k8s.container.name": "my-server",
    }
    link.unlink()
    assert found.of(7) == whole  # as long as it is known
    assert found.of(8) == Container(OTHER, UID, "shop", "web-7d9f")
    assert found.of(9) is found.of(10) is None


def test_the_control_group_is_the_containers_own(node: Path) -> None:
    found = containers(node)
    group = node / "groups" / "kubepods" / f"pod{UID}" / ID
    assert found.group(7) == group.stat().st_ino
    assert found.group(9) is found.group(10) is None


@pytest.mark.parametrize("root", ["", "/proc/1/root"])
@pytest.mark.parametrize("below", ["", "/unified"])
def test_control_groups_are_found_wherever_they_are_mounted(
    node: Path, root: str, below: str
) -> None:
    places = [f"{node}{place}" for place in _GROUPS]
    for place in places:
        (Path(place) / "memory" / "kubepods").mkdir(parents=True, exist_ok=True)  # of version 1
    within = Path(f"{node}{root}/sys/fs/cgroup{below}/kubepods/pod{UID}")
    within.parent.mkdir(parents=True)
    (node / "groups" / "kubepods" / f"pod{UID}").rename(within)
    found = Containers(str(node / "proc"), (), places)
    assert found.group(7) == (within / ID).stat().st_ino


def test_control_groups_that_are_not_visible_are_those_that_a_container_sees(node: Path) -> None:
    found = containers(node)
    assert found.group(8) is None
    seen = node / "proc" / "8" / "root" / "sys" / "fs" / "cgroup"
    seen.mkdir(parents=True)
    assert found.group(8) is None  # a root: the node's, or of version 1
    (seen / "cgroup.events").write_text("populated 1\n")
    assert found.group(8) == seen.stat().st_ino


def test_processes_are_found_by_their_container(node: Path) -> None:
    run(node, 30, f"0::/docker/{ID}\n")
    (node / "proc" / "31").mkdir()  # has ended
    assert processes_in(ID[:6], f"{node}/proc") == {ID: [7, 30]}
    assert processes_in("", f"{node}/proc") == {ID: [7, 30], OTHER: [8]}
    assert processes_in(ID[1:], f"{node}/proc") == {}


def test_a_container_stands_for_its_go_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"abcdef1": [3, 7, 9], "abcdef2": [4]}

    def within(number: str) -> dict[str, list[int]]:
        return {whole: pids for whole, pids in found.items() if whole.startswith(number)}

    monkeypatch.setattr(process, "processes_in", within)
    monkeypatch.setattr(process, "runs_go", lambda path: path in ("/proc/7/exe", "/proc/9/exe"))
    assert process_numbers(["container:abcdef1,1"]) == (7, 9, 1)
    assert process_numbers(["container:abcdef2"]) == (4,)  # perhaps gccgo's
    for word, reason in {
        "abc": "first 6 digits or more",
        "shop": "first 6 digits or more",
        "abcdef": "2 containers have numbers that begin with abcdef",
        "abcdef3": "no process is in a container abcdef3",
    }.items():
        with pytest.raises(UsageError, match=reason):
            process_numbers([f"container:{word}"])
