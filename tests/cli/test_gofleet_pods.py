# SPDX-License-Identifier: Apache-2.0
"""gofleet and pods, with a kubectl of a few lines: what it is asked, and what becomes of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from gotrace.cli.gofleet import main
from gotrace.hosts.inside import beside
from gotrace.hosts.kubernetes import Kubernetes
from gotrace.hosts.names import PodSelection, selections
from gotrace.hosts.remote import HostError
from tests.tools.harness import CLONE, tool_command

Json = dict[str, Any]

#: Answers from files beside it, notes what it is asked, and runs commands here.
_KUBECTL = f"""\
#!{sys.executable} -S
import json, os, sys
place = os.path.dirname(os.path.realpath(sys.argv[0]))
words = sys.argv[1:]
while words[0] in ("--context", "-n"):
    words = words[2:]
with open(f"{{place}}/asked", "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
name = words[-1].partition("/")[2]
if words[0] == "create":
    made = json.load(sys.stdin)
    with open(f"{{place}}/{{made['metadata']['name']}}", "w") as file:
        json.dump(made, file)
elif words[0] == "delete":
    os.remove(f"{{place}}/{{name}}")
elif words[0] == "exec":
    os.environ["PATH"] = place + ":" + os.environ["PATH"]
    os.execvp("sh", words[words.index("--") + 1 :])
elif words[1].startswith("pod/gofleet-") or "pod/gofleet-" in words[-3]:
    with open(f"{{place}}/{{words[-3].partition('/')[2]}}") as file:
        node = json.load(file)["spec"]["nodeName"]
    state = {{"running": {{}}}}
    if node == "bad":
        state = {{"waiting": {{"reason": "ErrImagePull", "message": "no such image"}}}}
    own = {{"name": "gofleet", "state": state}}
    print(json.dumps({{"status": {{"containerStatuses": [own]}}}}))
else:
    found = [word for word in words if "/" in word or word.startswith("--selector")][0]
    with open(f"{{place}}/{{found.replace('/', '.')}}.json") as file:
        print(file.read())
"""
#: Says of each container that it has as many calls as its number begins with.
_TOOL = """\
#!/bin/sh
for word; do
    case $word in container:*) n=$(echo "$word" | cut -c11) ;; esac
done
trap 'echo "{\\"kind\\":\\"detached\\",\\"seconds\\":1}"; exit 0' TERM
echo '{"kind":"attached","ts":1.5}'
case $* in *slow*) while :; do sleep 0.05; done ;; esac
echo '{"kind":"count","func":"main.f","count":'$n',"ts":1.5,"interval_s":1.0}'
"""


def pod(name: str, node: str | None, number: int, **more: Any) -> Json:
    state = {"name": "server", "containerID": f"containerd://{str(number) * 64}"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", **more},
        "spec": {"nodeName": node, "containers": [{"name": "server"}, {"name": "proxy"}]},
        "status": {"phase": "Running", "containerStatuses": [{**state, "state": {"running": {}}}]},
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    for name, text in (("kubectl", _KUBECTL), ("gofunccount", _TOOL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    pods = [
        *(pod("web-1", "one", 1), pod("web-2", "one", 2), pod("web-3", "two", 3)),
        *(pod("web-4", "bad", 4), pod("web-5", None, 5)),
        pod("web-6", "one", 6, deletionTimestamp="2026-01-01T00:00:00Z"),
    ]
    expression = {"key": "tier", "operator": "In", "values": ["a", "b"]}
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": [expression]}
    for name, found in {
        "deploy.web": {"kind": "Deployment", "spec": {"selector": selector}},
        "pod.web-1": pods[0],
        "cm.web": {"kind": "ConfigMap"},
        "--selector=app=web,tier in (a,b)": {"items": pods},
        "--selector=app=web": {"items": pods[:3]},
        "--selector=app=none": {"items": []},
    }.items():
        whole = {"metadata": {"namespace": "shop"}, **found}
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    yield tmp_path
    assert not list(tmp_path.glob("gofleet-*"))  # whatever happens, each pod is deleted


def asked(place: Path, *words: str) -> list[list[str]]:
    found = map(json.loads, (place / "asked").read_text().splitlines())
    return [each for each in found if any(word in each for word in words)]


def fleet(place: Path, *words: str) -> list[str]:
    return ["--kubectl", f"{place}/kubectl --context test", "--image", "tools", *words]


def counted(lines: str) -> dict[str, int]:
    rows = [row for row in map(json.loads, lines.splitlines()) if row["kind"] == "count"]
    return {row.get("host", ""): row["count"] for row in rows}


def test_pods_are_looked_at_from_a_pod_on_each_node(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = fleet(place, "--on", "k8s:-l app=web", "--json", "--by-host", "--pods-in", "tools")
    assert main([*words, "--", "gofunccount", "main.f"]) == 0
    said = capsys.readouterr()
    assert counted(said.out) == {"one/web-1": 1, "one/web-2": 2, "two/web-3": 3}
    assert "asking 3 pods" in said.err and "tracing on 3 pods" in said.err
    assert len(asked(place, "create")) == len(asked(place, "delete")) == 2
    for each in asked(place, "create", "delete", "exec"):
        assert each[:2] == ["--context", "test"]
        assert each[each.index("-n") + 1] == "tools"


def test_a_failed_node_is_named_and_the_others_go_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = fleet(place, "--on", "k8s:shop/deploy/web", "--json")
    assert main([*words, "--", "gofunccount", "main.f"]) == 1
    said = capsys.readouterr()
    assert counted(said.out) == {"": 6}
    reason = "its pod cannot start: ErrImagePull: no such image"
    assert f"gofleet: bad/web-4: {reason}\n" in said.err
    assert asked(place, "get")[0][2:5] == ["get", "-n", "shop"]
    assert len(asked(place, "delete")) == 3
    assert len(asked(place, "--force")) == 1  # of the pod that no kubelet may know


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGKILL, None)], ids=["end", "kill"]
)
def test_commands_end_with_gofleet(place: Path, number: signal.Signals, status: int | None) -> None:
    words = fleet(place, "--on", "k8s:pod/web-1", "--", "gofunccount", "slow")
    with subprocess.Popen(
        tool_command("gofleet", *words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stderr is not None
        for line in asking.stderr:
            if "tracing on 1 pod" in line:
                break
        asking.send_signal(number)
        assert asking.wait(30) == status or status is None
        asking.stderr.read()
    script = os.fsencode(f"{place}/gofunccount")
    while left := [pid for pid, words in _command_lines() if script in words.split(b"\0")]:
        for pid in left:
            with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
                assert select.select([process], [], [], 30)[0]
    if status is None:
        for file in place.glob("gofleet-*"):  # its first process ends it: see below
            file.unlink()


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(file.parent.name), file.read_bytes()
        except OSError:
            continue


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--on", "k8s:web"], "pods are given as in k8s:deploy/shop"),
        (["--on", "k8s:deploy/-o"], "pods are given as in"),
        (["--on", "k8s:-l --all"], "pods are given as in"),
        (["--on", "k8s:cm/web"], "ConfigMap has no pods of its own"),
        (["--on", "k8s:-l app=none"], "k8s:-l app=none: no pod runs"),
        (["--on", "k8s:pod/web-1", "--container", "x"], "it has server, proxy"),
        (["--on", "k8s:pod/web-1", "--on", "ssh:a"], "cannot be asked at once"),
        (["--on", "k8s:pod/web-1", "--sudo"], "--sudo is for --on ssh: only"),
        (["--on", "k8s:pod/web-1", "--kubectl", "/none"], "cannot run /none"),
        (["--on", "k8s:pod/web-1", "--kubectl", "false"], "false get: ended with status 1"),
        (["--on", "k8s:pod/web-1", "--kubectl", "true"], "does not answer in JSON"),
    ],
)
def test_mistakes_are_said_in_a_line(
    place: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*fleet(place, *words), "--", "gofunccount", "f"]) in (1, 2)
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--image", "x", "--on", "k8s:pod/a", "--", "gooncpu", "-p", "1"], "-p: the pods say"),
        (["--image", "x", "--on", "k8s:pod/a", "--", "gostacks", "--pid=1"], "--pid=1: the pods"),
        (["--on", "k8s:pod/a", "--", "gooncpu"], "--image IMAGE has to be"),
        (["--image", "x", "--on", "ssh:a", "--", "gooncpu"], "--image is for --on k8s: only"),
    ],
)
def test_options_that_do_not_fit(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "is_over", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, False, "its pod has failed: Evicted"),
        ({}, True, "stopped before it began"),
    ],
)
def test_a_pod_that_does_not_start(status: dict[str, object], is_over: bool, reason: str) -> None:
    class Answered(Kubernetes):
        def _ask(self, *words: str, said: str | None = None) -> str:
            return json.dumps({"status": status})

    over = threading.Event()
    if is_over:
        over.set()
    with pytest.raises(HostError, match=reason):
        Answered(["kubectl"], "tools", 600)._start(cast(Any, SimpleNamespace()), "one", over)


def test_a_cluster_that_says_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gotrace.hosts.kubernetes._ASKED", 0.1)
    silent = place / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    words = fleet(place, "--on", "k8s:pod/web-1", "--kubectl", str(silent))
    assert main([*words, "--", "gofunccount", "f"]) == 1
    assert "silent get says nothing for 0.1 s" in capsys.readouterr().err


def test_a_container_that_does_not_run_is_said(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = fleet(place, "--on", "k8s:pod/web-1", "--container", "proxy")
    assert main([*words, "--", "gofunccount", "f"]) == 1
    assert "gofleet: one/web-1: its container does not run\n" in capsys.readouterr().err


def test_the_pod_has_the_rights_of_the_daemon() -> None:
    text = (CLONE / "deploy" / "kubernetes" / "base" / "daemonset.yaml").read_text()
    wanted = yaml.safe_load(text)["spec"]["template"]["spec"]
    made = Kubernetes(["kubectl"], "tools", 600)._manifest("gofleet-1", "one")["spec"]
    (own,), (daemons,) = made["containers"], wanted["containers"]
    assert own["securityContext"] == daemons["securityContext"]
    for key in ("hostPID", "tolerations", "automountServiceAccountToken", "enableServiceLinks"):
        assert made[key] == wanted[key]
    assert made["activeDeadlineSeconds"] > 600
    more = Kubernetes(["kubectl"], "tools", 600, is_sys_admin=True)._manifest("gofleet-1", "one")
    (own,) = more["spec"]["containers"]
    assert "SYS_ADMIN" in own["securityContext"]["capabilities"]["add"]


def test_the_first_process_knows_the_others_of_its_container(tmp_path: Path) -> None:
    own, others = os.getpid(), {1: "0::/", 2: "0::/pod/a\n", 3: "0::/pod/ab\n"}
    for pid, groups in {own: "0::/pod/a\n", **others}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(groups)
    (tmp_path / "4").mkdir()  # has ended
    assert beside(str(tmp_path)) == [2]


def test_names_have_namespaces_if_there_are_several() -> None:
    class Pods(Kubernetes):
        def _pods(self, wanted: PodSelection) -> list[Json]:
            found = pod("db-0", "one", 1)
            found["metadata"]["namespace"] = wanted.namespace
            return [found]

    def names(*places: str) -> list[str]:
        return Pods(["kubectl"], "tools", 1).find(selections(places))

    assert names("k8s:a/sts/db", "k8s:b/sts/db") == ["one/a/db-0", "one/b/db-0"]
    assert names("k8s:a/sts/db", "k8s:a/-l app=db") == ["one/db-0"]
