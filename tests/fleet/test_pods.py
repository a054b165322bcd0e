# SPDX-License-Identifier: Apache-2.0
"""Targets that are pods: only their calls count, and spans say where they are from.

The control groups are real ones, named as the kubelet names them, and what the kubelet would log to
is a directory that gotraced sees as /var/log.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gotrace.fleet.config import PodSpec, TargetSpec
from gotrace.fleet.targets import Finder
from gotrace.target.containers import Containers
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.systemd import cgroup2, remove_group
from tests.tools.harness import Fixture

UIDS = ("8b7e0f6c-3d1a-4b57-9a0e-5f0c2d1e3a4b", "11111111-2222-3333-4444-555555555555")
IDS = ("0123456789abcdef" * 4, "fedcba9876543210" * 4)
PODS = ("web-7d9f", "web-test")
NAMESPACES = ("shop", "staging")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return what the kubelet keeps of two pods."""
    place = tmp_path / "log"
    (place / "containers").mkdir(parents=True)
    for namespace, pod, uid, number in zip(NAMESPACES, PODS, UIDS, IDS, strict=True):
        (place / "pods" / f"{namespace}_{pod}_{uid}" / "server").mkdir(parents=True)
        link = place / "containers" / f"{pod}_{namespace}_server-{number}.log"
        link.symlink_to(f"/var/log/pods/{namespace}_{pod}_{uid}/server/0.log")
    return place


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Make the control groups of a container in each of the pods."""
    mounted = cgroup2()
    if mounted is None:
        pytest.skip("no cgroup2 is mounted here")
    place = Path(tempfile.mkdtemp(prefix="kubepods-test.", dir=mounted))
    found = [place / f"pod{uid}" / number for uid, number in zip(UIDS, IDS, strict=True)]
    for group in found:
        group.mkdir(parents=True)
    yield found
    remove_group(place)


def test_pods_are_found_by_patterns(logs: Path, tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("1")
    for pid, (uid, number) in enumerate(zip(UIDS, IDS, strict=True), 7):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "exe").symlink_to(program)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text(f"0::/pod{uid}/{number}\n")
    group = tmp_path / "groups" / f"pod{UIDS[0]}" / IDS[0]
    group.mkdir(parents=True)
    (group / "cgroup.events").touch()
    containers = Containers(str(tmp_path / "proc"), [str(logs)], [str(tmp_path / "groups")])
    targets = [
        TargetSpec("shop", kubernetes=PodSpec(namespace="shop")),
        TargetSpec("web", str(program), kubernetes=PodSpec(pod="web-[0-9]*", container="server")),
        TargetSpec("other", str(tmp_path / "other"), kubernetes=PodSpec(namespace="shop")),
        TargetSpec("none", kubernetes=PodSpec(namespace="shop", container="sidecar")),
        TargetSpec("test", kubernetes=PodSpec(namespace="staging")),
    ]
    finder = Finder(targets, str(tmp_path / "proc"), containers)
    found = {key.target: program for key, program in finder.look().items()}
    assert set(found) == {"shop", "web"}
    for one in found.values():
        assert (one.processes, one.cgroup) == ((7,), group.stat().st_ino)
        assert one.shown == f"shop/web-7d9f/server: {program}"
    (problem,) = finder.problems.values()  # of the pod whose group is not there
    assert problem.startswith(f"container {IDS[1][:12]}: its control group is not visible")


@pytest.mark.parametrize("owner", [0, 65534])
def test_a_group_of_a_users_is_no_pod(owner: int, logs: Path, tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("1")
    path = f"own/pod{UIDS[0]}/{IDS[0]}"
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "exe").symlink_to(program)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"0::/{path}\n")
    (tmp_path / "groups" / path).mkdir(parents=True)
    (tmp_path / "groups" / path / "cgroup.events").touch()
    try:
        os.chown(tmp_path / "groups" / "own", owner, owner)
    except PermissionError:
        pytest.skip("only root can give directories away")
    containers = Containers(str(tmp_path / "proc"), [str(logs)], [str(tmp_path / "groups")])
    targets = [TargetSpec("shop", kubernetes=PodSpec(namespace="shop"))]
    finder = Finder(targets, str(tmp_path / "proc"), containers)
    assert len(finder.look()) == (owner == 0)
    assert bool(finder.problems) == (owner != 0)


@pytest.mark.live
@pytest.mark.apart
def test_only_calls_of_the_pods_count(
    server: Path, logs: Path, groups: list[Path], tmp_path: Path
) -> None:
    received = Received()
    config = tmp_path / "gotraced.yaml"
    see_logs = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /var/log && exec "$@"', logs)
    enter = ("sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"')
    with (
        over_http(received) as endpoint,
        Fixture([*enter, groups[0], server]) as ours,
        Fixture([*enter, groups[1], server]) as other,
        Fixture([server]) as bare,
    ):
        config.write_text(
            "listen: 127.0.0.1:0\nbudget: 100%\n"
            "targets: [{name: web, kubernetes: {namespace: shop, pod: 'web-*'}}]\n"
            "metrics:\n  - {name: handles, type: counter, probe: main.handle}\n"
            "  - {name: shards, type: counter, probe: main.handle, pods: true,\n"
            "     labels: {n: shard}}\n"
            "spans:\n  - {probe: main.handle, attributes: {key: key}, rate: 1000/s}\n"
            f"otlp: {{endpoint: '{endpoint}', interval: 1s}}\n"
        )
        config.chmod(0o600)
        with Daemon(config, probes=3, within=see_logs) as daemon:
            calls = ours.work("1 60 5")["Calls"]
            other.work("1 70 5")
            bare.work("1 80 5")
            assert daemon.samples()["handles_total"] == {(): calls} == {(): 60}
            of_pod = {"namespace": "shop", "pod": "web-7d9f", "container": "server"}
            shards = daemon.samples()["shards_total"]
            assert sum(shards.values()) == 60
            for at in shards:
                assert dict(at).items() >= of_pod.items()
            received.wait_for_spans(60)
            with received.more:
                assert received.more.wait_for(lambda: received.resources, 60)
            daemon.end()
        for each in (ours, other, bare):
            each.finish()
    assert len(received.spans) == 60
    for resource, span in received.spans:
        assert attributes(span.attributes)["process.pid"] == ours.ready
        assert resource["service.name"] == "web"
        assert {key: value for key, value in resource.items() if key.startswith("k8s.")} == {
            "k8s.namespace.name": "shop",
            "k8s.pod.name": "web-7d9f",
            "k8s.pod.uid": UIDS[0],
            "k8s.container.name": "server",
        }
        assert resource["container.id"] == IDS[0]
    (of_metrics,) = received.resources
    assert of_metrics["k8s.namespace.name"] == "shop"
    assert "k8s.pod.name" not in of_metrics  # it is a pattern: a metric is of all of them
