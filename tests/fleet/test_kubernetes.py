# SPDX-License-Identifier: Apache-2.0
"""The files for Kubernetes are what its API takes, and fit gotraced."""

from __future__ import annotations

import copy
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
from tests.tools.harness import CLONE

PLACE = CLONE / "deploy" / "kubernetes"
#: appArmorProfile came with 1.30.
OLDEST = "1.30"

Json = dict[str, Any]


def read(name: str) -> Json:
    found: Json = yaml.safe_load((PLACE / name).read_text())
    return found


KUSTOMIZATION = read("kustomization.yaml")


def container() -> Json:
    (found,) = read("daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", KUSTOMIZATION["resources"])
def test_resources_fit_the_schemas(name: str, version: str) -> None:
    used = kubernetes_validate.validate(read(name), version, strict=True)
    assert version.startswith(used)


def test_the_schemas_refuse_what_is_misspelt() -> None:
    wrong = copy.deepcopy(read("daemonset.yaml"))
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilites"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="capabilites"):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_every_file_is_used() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    named = {"kustomization.yaml", *KUSTOMIZATION["resources"], *generated["files"]}
    assert {path.name for path in PLACE.iterdir()} == named
    volumes = read("daemonset.yaml")["spec"]["template"]["spec"]["volumes"]
    assert generated["name"] in [one["configMap"]["name"] for one in volumes if "configMap" in one]
    assert [image["name"] for image in KUSTOMIZATION["images"]] == [container()["image"]]


def test_the_pod_is_what_gotraced_needs() -> None:
    pod = read("daemonset.yaml")["spec"]["template"]["spec"]
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
    notes = read("daemonset.yaml")["spec"]["template"]["metadata"]["annotations"]
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
    policy = read("networkpolicy.yaml")["spec"]
    (rule,) = policy["ingress"]
    assert [one["port"] for one in rule["ports"]] == [container()["ports"][0]["name"]]
    labels = read("daemonset.yaml")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels


def test_kustomize_puts_them_together() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", PLACE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert set(found) == {
        "ConfigMap",
        "DaemonSet",
        "Namespace",
        "NetworkPolicy",
        "ServiceAccount",
    }
    for kind, one in found.items():
        kubernetes_validate.validate(one, OLDEST, strict=True)
        assert kind == "Namespace" or one["metadata"]["namespace"] == "gotraced"
    name = found["ConfigMap"]["metadata"]["name"]
    volumes = found["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": name, "defaultMode": 0o444} in [one.get("configMap") for one in volumes]
    assert found["ConfigMap"]["data"] == {"gotraced.yaml": (PLACE / "gotraced.yaml").read_text()}
