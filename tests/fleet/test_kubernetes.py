# SPDX-License-Identifier: Apache-2.0
"""The files for Kubernetes are what its API takes, and fit gotraced."""

from __future__ import annotations

import copy
import itertools
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from gotrace.fleet.config import Listen, load_config
from gotrace.fleet.gotraced import _parser
from gotrace.fleet.web import Health, WebServer
from tests.kustomize import kustomize
from tests.tools.harness import CLONE

PLACE = CLONE / "deploy" / "kubernetes"
#: appArmorProfile came with 1.30.
OLDEST = "1.30"

Json = dict[str, Any]


def read(name: str) -> Json:
    found: Json = yaml.safe_load((PLACE / name).read_text())
    return found


KUSTOMIZATION = read("kustomization.yaml")
BASE = read("base/kustomization.yaml")
OPERATOR = "components/prometheus-operator"
OLDER = "components/linux-5.15"
DAEMON_SET = "base/daemonset.yaml"


def container() -> Json:
    (found,) = read(DAEMON_SET)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", BASE["resources"])
def test_resources_fit_the_schemas(name: str, version: str) -> None:
    used = kubernetes_validate.validate(read(f"base/{name}"), version, strict=True)
    assert version.startswith(used)


def test_the_schemas_refuse_what_is_misspelt() -> None:
    wrong = copy.deepcopy(read(DAEMON_SET))
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilites"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="capabilites"):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_every_file_is_used() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    named = {"kustomization.yaml", *generated["files"]}
    for place in ("base", OPERATOR, OLDER):
        listed = read(f"{place}/kustomization.yaml").get("resources", [])
        named |= {f"{place}/{name}" for name in ("kustomization.yaml", *listed)}
    assert {str(path.relative_to(PLACE)) for path in PLACE.rglob("*") if path.is_file()} == named
    text = (PLACE / "kustomization.yaml").read_text()
    assert all(f"#   - {place}\n" in text for place in (OPERATOR, OLDER))
    volumes = read(DAEMON_SET)["spec"]["template"]["spec"]["volumes"]
    assert generated["name"] in [one["configMap"]["name"] for one in volumes if "configMap" in one]
    assert [image["name"] for image in KUSTOMIZATION["images"]] == [container()["image"]]


def test_the_pod_is_what_gotraced_needs() -> None:
    pod = read(DAEMON_SET)["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    rights = container()["securityContext"]
    assert rights["capabilities"] == {
        "drop": ["ALL"],
        "add": ["BPF", "PERFMON", "SYS_PTRACE", "IPC_LOCK"],
    }
    assert "privileged" not in rights and rights["readOnlyRootFilesystem"]
    options = _parser().parse_args(container()["args"])
    mounted = {Path(mount["mountPath"]) for mount in container()["volumeMounts"]}
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert Path(options.config).parent in mounted
    assert Path(options.config).name in generated["files"]
    # The image has compiled BPF programs: nothing of the node's is written to.
    volumes = pod["volumes"]
    assert not any("hostPath" in volume for volume in volumes)


def test_probes_and_port_are_gotraceds(tmp_path: Path) -> None:
    copied = Path(shutil.copy(PLACE / "gotraced.yaml", tmp_path))
    copied.chmod(0o444)  # as the volume has it
    config = load_config(str(copied))
    port, health = container()["ports"]
    assert config.listen == Listen("0.0.0.0", port["containerPort"])
    assert config.web.health == Listen("0.0.0.0", health["containerPort"])
    notes = read(DAEMON_SET)["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(port["containerPort"])
    server = WebServer(
        Listen("127.0.0.1", 0), CollectorRegistry(), Health(time.monotonic, lambda: True)
    )
    try:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container()[name]["httpGet"]
            assert get["port"] == health["name"]
            url = f"http://127.0.0.1:{server.port}{get['path']}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.read() == b"ok\n"
    finally:
        server.close()


def test_scrapers_reach_the_metrics_alone() -> None:
    policy = read("base/networkpolicy.yaml")["spec"]
    (rule,) = policy["ingress"]
    assert [one["port"] for one in rule["ports"]] == [container()["ports"][0]["name"]]
    labels = read(DAEMON_SET)["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels


def built(place: Path) -> list[Json]:
    """Return what kustomize makes of a directory."""
    program = kustomize()
    if program is None:
        pytest.skip("no kustomize: make setup-test")
    done = subprocess.run([program, "build", place], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def edited(place: Path, *components: str, image: str = "") -> Path:
    """Return a copy of the directory with components, as its comments say."""
    copied = place / "kubernetes"
    shutil.copytree(PLACE, copied)
    file = copied / "kustomization.yaml"
    text = file.read_text()
    if components:
        text = text.replace("# components:\n", "components:\n")
    for one in components:
        assert text.count(f"#   - {one}\n") == 1
        text = text.replace(f"#   - {one}\n", f"  - {one}\n")
    file.write_text(text.replace("newTag: 0.1.0", image or "newTag: 0.1.0"))
    return copied


#: Kinds that are not Kubernetes' own.
FOREIGN = {"PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize(
    "components", [(), *itertools.combinations((OPERATOR, OLDER), 1), (OPERATOR, OLDER)]
)
def test_kustomize_puts_them_together(components: tuple[str, ...], tmp_path: Path) -> None:
    found = {one["kind"]: one for one in built(edited(tmp_path, *components))}
    wanted = {"ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy", "ServiceAccount"}
    assert set(found) == wanted | (FOREIGN if OPERATOR in components else set())
    for kind, one in found.items():
        if kind not in FOREIGN:
            kubernetes_validate.validate(one, OLDEST, strict=True)
        assert kind == "Namespace" or one["metadata"]["namespace"] == "gotraced"
    name = found["ConfigMap"]["metadata"]["name"]
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    assert {"name": name, "defaultMode": 0o444} in [one.get("configMap") for one in pod["volumes"]]
    assert found["ConfigMap"]["data"] == {"gotraced.yaml": (PLACE / "gotraced.yaml").read_text()}
    (made,) = pod["containers"]
    assert made["image"] == "example.com/gotraced:0.1.0"
    more = ["SYS_ADMIN"] if OLDER in components else []
    given = container()["securityContext"]["capabilities"]["add"]
    assert made["securityContext"]["capabilities"]["add"] == given + more


def test_an_image_by_its_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'1' * 64}"
    found = {one["kind"]: one for one in built(edited(tmp_path, image=f"digest: {digest}"))}
    (made,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert made["image"] == f"example.com/gotraced@{digest}"


def test_the_operators_resources_are_about_these_pods() -> None:
    labels = read(DAEMON_SET)["spec"]["template"]["metadata"]["labels"]
    monitor = read(f"{OPERATOR}/podmonitor.yaml")["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert labels[monitor["jobLabel"]] == "gotraced"
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == container()["ports"][0]["name"]
    rules = yaml.safe_load((CLONE / "deploy" / "prometheus" / "gotraced.rules.yaml").read_text())
    assert read(f"{OPERATOR}/prometheusrule.yaml")["spec"] == rules
