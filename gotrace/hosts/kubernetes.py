# SPDX-License-Identifier: Apache-2.0
"""Pods of a cluster, which commands look at from a pod on their node.

All is asked by the user's own ``kubectl``, with the rights that it has. A pod on each node has the
tools and sees the node's processes. ``kubectl exec`` runs the commands in it, one for each pod that
is looked at. It is deleted with the last of them. If it is not, it ends by itself (``inside``), and
Kubernetes ends it after its time at the latest.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gotrace.errors import UsageError
from gotrace.hosts.names import PodSelection
from gotrace.hosts.remote import GRACE, STOPPED, HostError, remote_script
from gotrace.records import dataclass, field

_Object = dict[str, Any]

_LABEL = "app.kubernetes.io/name"
_NAME = "gofleet"
#: Why a container waits that does not start by waiting.
_HOPELESS = {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"}
_HOPELESS |= {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_PATIENCE = 120  # seconds, for a pod to start
_ASKED = 60  # seconds, for an answer of kubectl
_LOOKS = 1.0  # seconds between two
#: The annotation by which kubectl chooses a container, too.
_DEFAULT = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, slots=True)
class Place:
    """A container that is looked at; ``container`` is its number, or "" if it does not run."""

    node: str
    namespace: str
    pod: str
    container: str


@dataclass(slots=True)
class _Node:
    """The pod on a node: how many have yet to be done with it, and why it cannot be used."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    left: int = 0
    pod: str = ""
    problem: str = ""


@dataclass(slots=True)
class Kubernetes:
    """How pods are looked at; ``find`` comes first, and once.

    ``command`` are the words of ``kubectl``, ``image`` has the tools, and ``seconds`` is how long a
    command may run. ``namespace`` is for the pods on the nodes: without, it is kubectl's own.
    """

    command: Sequence[str]
    image: str
    seconds: int
    namespace: str | None = None
    #: CAP_SYS_ADMIN, which the kernel demands for uprobes before Linux 6.6.
    is_sys_admin: bool = False
    _places: dict[str, Place] = field(default_factory=dict)
    _nodes: dict[str, _Node] = field(default_factory=dict)

    bundles = ()
    brings = "--image has to be an image with the tools"

    def find(self, wanted: Iterable[PodSelection], container: str | None = None) -> list[str]:
        """Return names for the pods of selections: NODE/POD.

        ``container`` is the name of the container to look at. Raises UsageError, HostError.
        """
        found: dict[Place, None] = {}
        for selection in wanted:
            pods = [pod for pod in self._pods(selection) if not _has_ended(pod)]
            if not pods:
                raise HostError(f"{selection.place}: no pod runs")
            found |= dict.fromkeys(_place(pod, container) for pod in pods)
        several = len({place.namespace for place in found}) > 1
        for each in found:
            parts = (each.node, *((each.namespace,) if several else ()), each.pod)
            self._places["/".join(parts)] = each
        for node, left in Counter(place.node for place in found).items():
            self._nodes[node] = _Node(left=left)
        # Pods of a node are asked together, so that its own pod need not wait for the last.
        return sorted(self._places, key=lambda name: self._places[name].node)

    def _pods(self, wanted: PodSelection) -> list[_Object]:
        within = ["-n", wanted.namespace] if wanted.namespace else []
        labels = wanted.labels
        if wanted.object is not None:
            found = self._json("get", *within, wanted.object)
            if found["kind"] == "Pod":
                return [found]
            labels = _labels(found)
            if labels is None:
                raise UsageError(f"--on {wanted.place!r}: {found['kind']} has no pods of its own")
            within = ["-n", found["metadata"]["namespace"]]
        pods: list[_Object] = self._json("get", "pods", *within, f"--selector={labels}")["items"]
        return pods

    def words(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command line that looks at a pod by ``words``, which have ``--json``."""
        place = self._places[host]
        at = words.index("--json")
        own = [*words[:at], "-p", f"container:{place.container}", *words[at:]]
        script = remote_script(own, self.seconds)
        run = ["exec", "-i", self._nodes[place.node].pod, "-c", _NAME, "--", "sh", "-c", script]
        return [*self.command, *self._within(), *run]

    @contextmanager
    def ready(self, host: str, is_over: threading.Event) -> Iterator[None]:
        """Keep a pod on the node of a pod until the last of them has been looked at."""
        place = self._places[host]
        node = self._nodes[place.node]
        try:
            if not place.container:
                raise HostError("its container does not run")
            with node.lock:
                if not node.pod and not node.problem:
                    try:
                        self._start(node, place.node, is_over)
                    except HostError as error:
                        node.problem = str(error)
            if node.problem:
                raise HostError(node.problem)
            yield
        finally:
            with node.lock:
                node.left -= 1
                if not node.left:
                    self._delete(node)

    def close(self) -> None:
        """Delete the pods that nobody has been done with."""
        for node in self._nodes.values():
            with node.lock:
                self._delete(node)

    def _start(self, node: _Node, name: str, is_over: threading.Event) -> None:
        """Make a pod on a node and wait until it runs. Raises HostError."""
        pod = f"{_NAME}-{secrets.token_hex(5)}"
        made = json.dumps(self._manifest(pod, name))
        node.pod = pod  # from now on it has to be deleted, whatever kubectl says
        # Of what a cluster of another age does not know it takes no notice.
        self._ask("create", "--validate=false", *self._within(), "-f", "-", said=made)
        end = time.monotonic() + _PATIENCE
        while not is_over.is_set():
            found = self._json("get", *self._within(), f"pod/{pod}")["status"]
            state = _status(found, _NAME).get("state", {})
            if "running" in state:
                return
            waits: _Object = state.get("waiting") or state.get("terminated") or {}
            why = ": ".join(filter(None, (waits.get("reason"), waits.get("message"))))
            if found.get("phase") in ("Failed", "Succeeded"):
                raise HostError(f"its pod has failed: {_why(found) or why or 'it ended'}")
            if waits.get("reason") in _HOPELESS:
                raise HostError(f"its pod cannot start: {why}")
            if time.monotonic() > end:
                why = why or _why(found) or "no kubelet has taken it"
                raise HostError(f"its pod has not started within {_PATIENCE} s: {why}")
            is_over.wait(_LOOKS)
        raise HostError(STOPPED)

    def _delete(self, node: _Node) -> None:
        """Delete a pod. If that fails, it ends after its time."""
        if node.pod:
            # A pod that has not started has nothing to end, and perhaps no kubelet to do it.
            force = ["--grace-period=0", "--force"] if node.problem else []
            with suppress(HostError):
                words = ["--wait=false", "--ignore-not-found", *force, f"pod/{node.pod}"]
                self._ask("delete", *self._within(), *words)
            node.pod = ""

    def _manifest(self, pod: str, node: str) -> _Object:
        """Return a pod with the rights of deploy/kubernetes/base/daemonset.yaml."""
        own = ["SYS_ADMIN"] if self.is_sys_admin else []
        container = {
            "name": _NAME,
            "image": self.image,
            "command": ["python", "-m", "gotrace.hosts.inside"],
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {
                    "drop": ["ALL"],
                    "add": ["BPF", "PERFMON", "SYS_PTRACE", "IPC_LOCK", *own],
                },
                "seccompProfile": {"type": "RuntimeDefault"},
                "appArmorProfile": {"type": "Unconfined"},
            },
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        # As Kubernetes before 1.30 says that.
        unconfined = f"container.apparmor.security.beta.kubernetes.io/{_NAME}"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod,
                "labels": {_LABEL: _NAME},
                "annotations": {unconfined: "unconfined"},
            },
            "spec": {
                "nodeName": node,
                "hostPID": True,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": self.seconds + _PATIENCE + GRACE,
                "terminationGracePeriodSeconds": 2 * GRACE,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
            },
        }

    def _within(self) -> list[str]:
        return [] if self.namespace is None else ["-n", self.namespace]

    def _json(self, *words: str) -> _Object:
        try:
            found: _Object = json.loads(self._ask(*words, "-o", "json"))
        except ValueError as error:
            raise HostError(f"{self.command[0]} {words[0]} does not answer in JSON") from error
        return found

    def _ask(self, *words: str, said: str | None = None) -> str:
        """Run kubectl and return its output. Raises HostError."""
        try:
            done = subprocess.run(
                [*self.command, *words],
                input=said,
                capture_output=True,
                encoding="utf-8",
                errors="backslashreplace",
                timeout=_ASKED,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise HostError(f"cannot run {self.command[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{self.command[0]} {words[0]} says nothing for {_ASKED} s") from error
        if done.returncode:
            text = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
            raise HostError(f"{self.command[0]} {words[0]}: {text[-1]}")
        return done.stdout


def _why(status: _Object) -> str:
    """Return the reason that a pod's status, or that of a container, gives; "" if there is none."""
    text = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    conditions = (one.get("message") for one in status.get("conditions", ()))
    return text or next(filter(None, conditions), "")


def _has_ended(pod: _Object) -> bool:
    is_on_its_way = "deletionTimestamp" in pod["metadata"] or not pod["spec"].get("nodeName")
    return is_on_its_way or pod["status"].get("phase") in ("Succeeded", "Failed")


def _status(pod: _Object, name: str) -> _Object:
    found: Iterable[_Object] = pod.get("containerStatuses", ())
    return next((one for one in found if one["name"] == name), {})


def _place(pod: _Object, wanted: str | None) -> Place:
    """Return the container of a pod that is wanted: by default the one that kubectl takes, too."""
    about, spec = pod["metadata"], pod["spec"]
    names = [one["name"] for one in spec["containers"]]
    name = wanted or about.get("annotations", {}).get(_DEFAULT, names[0])
    if name not in names:
        raise UsageError(
            f"pod {about['name']} has no container {name!r}: it has {', '.join(names)}"
        )
    status = _status(pod["status"], name)
    number = status.get("containerID", "").rpartition("//")[2]
    is_running = "running" in status.get("state", {})
    return Place(spec["nodeName"], about["namespace"], about["name"], number * is_running)


def _labels(owner: _Object) -> str | None:
    """Return the labels by which an object has its pods, as ``kubectl -l`` takes them."""
    selector = owner.get("spec", {}).get("selector") or {}
    parts = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
    forms = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
    for one in selector.get("matchExpressions", ()):
        parts.append(forms[one["operator"]].format(one["key"], ",".join(one.get("values", ()))))
    return ",".join(parts) or None
