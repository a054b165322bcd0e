# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet of deploy/kubernetes, and gofleet: pods are traced, and left as they were."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.cluster.node import Node, image
from tests.fleet.test_gotraced import Samples, parsed
from tests.kustomize import kustomize
from tests.live import skip_or_fail
from tests.packages.test_image import Builder, make_image
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Process, code_of, tool_command

pytestmark = [
    pytest.mark.skipif(os.environ.get("GOTRACE_CLUSTER") != "1", reason="make test-cluster"),
    pytest.mark.live,
    pytest.mark.apart,
]

Json = dict[str, Any]

_PATIENCE = 300.0  # seconds
_PROGRAM = "/usr/local/bin/shop"
_CONFIG = """\
listen: 0.0.0.0:9435
health: 0.0.0.0:9436
targets:
  - {name: shop, exe: /usr/local/bin/shop}
  - {name: web, kubernetes: {namespace: shop, pod: 'web-*', container: server}}
metrics:
  - {name: orders, type: counter, probe: main.order, targets: [shop]}
  - {name: web_orders, type: counter, probe: main.order, targets: [web], pods: true,
     labels: {even: $ret}}
budget: 100%
"""
_MORE = "  - {name: order_seconds, type: histogram, probe: main.order, targets: [shop]}\nbudget:"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="gotrace-cluster-", dir="/var/tmp") as directory:
        place = Path(directory)
        images = place / "images"
        images.mkdir()
        program = build(FIXTURES / "live_pod", newest(), env={"CGO_ENABLED": "0"})
        image(images / "shop.tar", "localhost/shop:1", {_PROGRAM: program}, _PROGRAM)
        image(images / "pause.tar", "localhost/pause:1", {"/pause": program}, "/pause", "wait")
        with tempfile.TemporaryDirectory(prefix="gotrace-image-", dir="/var/tmp") as storage:
            builder = Builder(Path(storage))
            made = make_image(builder, tmp_path_factory)
            builder.save(made, images / "gotraced.tar", "localhost/gotraced:1")
        with Node(place) as found:
            yield found


def deployment(name: str, replicas: int) -> list[Json]:
    labels = {"app": name}
    pod = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [_CONTAINER],
    }
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": spec,
        },
    ]


def daemon_set(place: Path, config: str) -> list[Json]:
    """Return the resources of deploy/kubernetes with a configuration and the image of the node."""
    program = kustomize()
    if program is None:
        skip_or_fail("no kustomize: make setup-test")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(CLONE / "deploy" / "kubernetes", place)
    (place / "gotraced.yaml").write_text(config)
    file = place / "kustomization.yaml"
    text = file.read_text().replace("example.com/gotraced", "localhost/gotraced")
    file.write_text(text.replace("newTag: 0.1.0", "newTag: '1'"))
    done = subprocess.run([program, "build", place], capture_output=True, text=True, check=True)
    found: list[Json] = list(yaml.safe_load_all(done.stdout))
    for one in found:
        if one["kind"] == "DaemonSet":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            del container["securityContext"]["appArmorProfile"]  # of 1.30; no AppArmor is here
    return found


def scraped(node: Node, address: str) -> Samples:
    found: Samples = {}
    for name, rows in parsed(plain(node.get(f"{address}:9435/metrics"))).items():
        found[name] = rows
    return found


def until(node: Node, address: str, holds: Callable[[Samples], bool]) -> Samples:
    """Scrape until something holds."""
    end = time.monotonic() + _PATIENCE
    while True:
        found = scraped(node, address)
        if holds(found):
            return found
        assert time.monotonic() < end, (found, node.logs())
        time.sleep(0.5)


def attached(samples: Samples) -> dict[str, float]:
    return {dict(at)["probe"]: value for at, value in samples["gotraced_probe_attached"].items()}


def by_pod(samples: Samples) -> dict[tuple[str, str], float]:
    found = {}
    for at, value in samples.get("web_orders_total", {}).items():
        labels = dict(at)
        assert (labels["namespace"], labels["container"]) == ("shop", "server")
        found[labels["pod"], labels["even"]] = value
    return found


def counted(
    node: Node, address: str, pods: Sequence[Json], calls: int
) -> dict[tuple[str, str], float]:
    """Have each pod make so many calls, once theirs are counted, and return what that adds."""
    names = {pod["metadata"]["name"] for pod in pods}

    def are_seen() -> bool:
        for pod in pods:
            order(node, pod, 2)  # the first calls of a pod may be missing
        return names <= {name for name, _ in by_pod(scraped(node, address))}

    wait_until(are_seen)
    before = scraped(node, address)
    for pod in pods:
        order(node, pod, calls)
    after = scraped(node, address)
    assert after["orders_total"][()] - before["orders_total"][()] == calls * len(pods)
    old, new = by_pod(before), by_pod(after)
    return {key: value - old[key] for key, value in new.items() if value != old[key]}


def programs() -> dict[int, bytes]:
    """Return the code of the processes of the pods, by their numbers here."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.readlink(f"/proc/{name}/exe") == _PROGRAM:
                    found[int(name)] = code_of(int(name))
            except OSError:
                continue
    return found


def test_pods_are_traced(node: Node, tmp_path: Path) -> None:
    node.apply([*deployment("web", 2), *deployment("back", 1)[1:]])
    web, (back,) = node.pods("shop", "app=web"), node.pods("shop", "app=back")
    before = programs()
    assert len(before) == 3
    wanted = daemon_set(tmp_path / "deploy", _CONFIG)
    node.apply(wanted)
    (daemon,) = node.pods("gotraced", "app.kubernetes.io/name=gotraced")
    address = daemon["status"]["podIP"]
    until(node, address, lambda found: attached(found) == {"orders": 1, "web_orders": 2})
    assert {pid for pid, code in programs().items() if code != before[pid]} == set(before)

    for pod, calls in zip((*web, back), (7, 10, 100), strict=True):
        assert int(node.get(f"{pod['status']['podIP']}:8080/order?n={calls}")) == calls
    samples = scraped(node, address)
    assert samples["orders_total"] == {(): 117}
    first, second = (pod["metadata"]["name"] for pod in web)
    assert by_pod(samples) == {
        (first, "true"): 4,
        (first, "false"): 3,
        (second, "true"): 5,
        (second, "false"): 5,
    }

    # A pod that comes in another's place is found, and counters go on.
    node.kubectl("-n", "shop", "delete", "pod", first)
    web = node.pods("shop", "app=web")
    (third,) = (pod for pod in web if pod["metadata"]["name"] not in (first, second))
    name = third["metadata"]["name"]
    assert counted(node, address, [third], 6) == {(name, "true"): 3, (name, "false"): 3}
    assert by_pod(scraped(node, address))[second, "true"] == 5

    # Another configuration is another pod of gotraced.
    more = daemon_set(tmp_path / "deploy", _CONFIG.replace("budget:", _MORE))
    node.apply(more)
    node.kubectl("-n", "gotraced", "rollout", "status", "daemonset/gotraced", "--timeout=5m")
    (renewed,) = node.pods("gotraced", "app.kubernetes.io/name=gotraced")
    assert renewed["metadata"]["name"] != daemon["metadata"]["name"]
    address = renewed["status"]["podIP"]
    everything = {"orders": 1, "web_orders": 2, "order_seconds": 1}
    until(node, address, lambda found: attached(found) == everything)
    node.get(f"{back['status']['podIP']}:8080/order?n=3")
    samples = scraped(node, address)
    assert samples["orders_total"] == samples["order_seconds_count"] == {(): 3}

    # A deployment that is rolled out: the pods that come are traced, and those that go are let go.
    node.kubectl("-n", "shop", "rollout", "restart", "deployment/web")
    node.kubectl("-n", "shop", "rollout", "status", "deployment/web", "--timeout=5m")
    web = node.pods("shop", "app=web")
    assert not {pod["metadata"]["name"] for pod in web} & {first, second, name}
    assert counted(node, address, web, 4) == {
        (pod["metadata"]["name"], even): 2 for pod in web for even in ("true", "false")
    }

    # Nothing is left in the programs when it goes.
    node.kubectl("delete", "-f", "-", said=json.dumps({**_LIST, "items": more}))
    assert {*programs().values()} == {*before.values()}


@pytest.fixture
def web(node: Node) -> Iterator[list[Json]]:
    """Run two pods, whose programs have to be as they were in the end."""
    node.apply(deployment("web", 2))
    found = node.pods("shop", "app=web")
    code = programs()
    yield found
    wait_until(lambda: programs() == code)
    wait_until(lambda: not pods_of_gofleet(node))


def pods_of_gofleet(node: Node) -> list[Json]:
    words = ("get", "pods", "-A", "-l", "app.kubernetes.io/name=gofleet", "-o", "json")
    found: list[Json] = json.loads(node.kubectl(*words))["items"]
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.5)


def fleet(node: Node, *words: str) -> Process:
    """Start gofleet; what it says on standard error comes with its results."""
    command = node.within(*tool_command("gofleet", "--image", "localhost/gotraced:1", *words))
    return Process(["sh", "-c", 'exec "$@" 2>&1', "sh", *command], _PATIENCE)


def order(node: Node, pod: Json, calls: int) -> None:
    node.get(f"{pod['status']['podIP']}:8080/order?n={calls}")


def counts(lines: Sequence[str]) -> dict[str, int]:
    rows = (json.loads(line) for line in lines if line.startswith("{"))
    return {row.get("host", ""): row["count"] for row in rows if row["kind"] == "count"}


@pytest.mark.parametrize("place", ["k8s:shop/deploy/web", "k8s:shop/-l app=web"])
def test_gofleet_adds_up_what_pods_do(node: Node, web: list[Json], place: str) -> None:
    question = ["--", "gofunccount", "main.order"]
    with fleet(node, "--on", place, "--json", "--by-host", *question) as asking:
        asking.read_until("gofleet: tracing on 2 pods")
        for pod, calls in zip(web, (3, 40), strict=True):
            order(node, pod, calls)
        asking.signal(signal.SIGINT)
        lines = asking.rest()
        assert asking.wait() == 0
    assert counts(lines) == {
        f"node/{pod['metadata']['name']}": calls for pod, calls in zip(web, (3, 40), strict=True)
    }


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (["gofunclatency", "main.order"], "avg = "),
        (["gooffcpu", "-d", "2"], " of 2 hosts"),
        (["gooncpu", "-d", "2"], " of CPU time of 2 hosts"),
        (["gostacks"], "goroutines of 2 hosts"),
    ],
)
def test_gofleet_asks_other_commands(
    node: Node, web: list[Json], question: list[str], expected: str
) -> None:
    with fleet(node, "--on", "k8s:shop/deploy/web", "--", *question) as asking:
        if question[0] == "gofunclatency":
            asking.read_until("gofleet: tracing on 2 pods")
            for pod in web:
                order(node, pod, 5)
            asking.signal(signal.SIGINT)
        lines = asking.rest()
        assert asking.wait() == 0, lines
    assert any(expected in line for line in lines), lines
    assert question[0] != "gofunclatency" or any("count: 10" in line for line in lines)


def test_the_time_ends_what_gofleet_asks(node: Node, web: list[Json]) -> None:
    place = f"k8s:shop/pod/{web[0]['metadata']['name']}"
    words = ["--on", place, "--ttl", "15", "--json", "--", "gofunccount", "main.order"]
    with fleet(node, *words) as asking:
        asking.read_until("gofleet: tracing on 1 pod")
        order(node, web[0], 9)
        order(node, web[1], 9)
        lines = asking.rest()
        assert asking.wait() == 0, lines
    assert "ended by --ttl, after 15 s" in lines[0]
    assert counts(lines) == {"": 9}


@pytest.mark.parametrize("how", ["killed", "twice"])
def test_nothing_outlives_gofleet(node: Node, web: list[Json], how: str) -> None:
    code = programs()
    question = ["--", "gofunccount", "main.order"]
    with fleet(node, "--on", "k8s:shop/deploy/web", *question) as asking:
        asking.read_until("gofleet: tracing on 2 pods")
        assert sum(now != code[pid] for pid, now in programs().items()) == len(web)
        if how == "killed":
            asking.signal(signal.SIGKILL)
        else:
            asking.signal(signal.SIGINT)
            asking.signal(signal.SIGINT)
            asking.rest()
        wait_until(lambda: programs() == code)
        if how == "killed":  # nobody deletes the pod, so it ends by itself
            wait_until(lambda: [pod["status"]["phase"] for pod in pods_of_gofleet(node)] == _ENDED)
            node.kubectl("delete", "pod", "-l", "app.kubernetes.io/name=gofleet")


def test_a_node_that_does_not_answer_is_named(node: Node, web: list[Json]) -> None:
    labels, spec = {"app": "web"}, {"nodeName": "ghost", "containers": [_CONTAINER]}
    about = {"name": "web-ghost", "namespace": "shop", "labels": labels}
    ghost = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ghost"}}
    node.apply([ghost, {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}])
    words = ("-n", "shop", "get", "pod/web-ghost", "-o", "json")
    pod = json.loads(node.kubectl(*words))
    own = {"name": "server", "image": "", "imageID": "", "ready": True, "restartCount": 0}
    own |= {"containerID": f"containerd://{'a' * 64}", "state": {"running": {"startedAt": None}}}
    pod["status"] = {"phase": "Running", "containerStatuses": [own]}
    status = "/api/v1/namespaces/shop/pods/web-ghost/status"
    node.kubectl("replace", "--raw", status, "-f", "-", said=json.dumps(pod))
    question = ["--", "gofunccount", "-d", "1", "main.order"]
    with fleet(node, "--on", "k8s:shop/-l app=web", *question) as asking:
        lines = asking.rest()
        assert asking.wait() == 1
    (said,) = (line for line in lines if line.startswith("gofleet: ghost/web-ghost: "))
    assert "its pod has not started within 120 s" in said
    assert any(line.startswith("2 hosts: node/web-") for line in lines)
    for one in ("-n shop pod/web-ghost", "node/ghost"):
        node.kubectl("delete", "--grace-period=0", "--force", *one.split())


_LIST: Json = {"apiVersion": "v1", "kind": "List"}
_CONTAINER = {"name": "server", "image": "localhost/shop:1", "imagePullPolicy": "Never"}
_ENDED = ["Succeeded"]
