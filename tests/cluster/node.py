# SPDX-License-Identifier: Apache-2.0
"""A node of Kubernetes, and what is asked of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.obtained import obtained
from tests.live import skip_or_fail

Json = dict[str, Any]

_SCRIPT = Path(__file__).parent / "node.sh"
_PATIENCE = 300.0  # seconds
_GROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
#: What the kubelet asks for; of version 1, as Kubernetes 1.20 has it.
_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")


def image(file: Path, name: str, files: Mapping[str, Path], *command: str) -> None:
    """Write an archive of an image with these files and nothing else, as docker save does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for path, source in files.items():
            archive.add(source, path.lstrip("/"))
    layers = {"type": "layers", "diff_ids": [f"sha256:{_digest(layer.getvalue())}"]}
    own = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": command}}
    config = json.dumps({**own, "rootfs": layers, "history": [{}]}).encode()
    named = f"{_digest(config)}.json"
    manifest = [{"Config": named, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(file, "w") as archive:
        for path, data in (
            (named, config),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Node:
    """A node, from the start to ``close``; in an empty directory, with these images in it."""

    def __init__(self, place: Path) -> None:
        """Start it, and wait until it takes pods.

        Skips, or fails with GOTRACE_LIVE=1, where that is not possible.
        """
        for controller in _CONTROLLERS:
            if not (_GROUPS / controller / "cgroup.procs").exists():
                skip_or_fail(f"no control groups of version 1 here: {controller}")
        self._made = obtained()
        self._place = place
        self._groups = f"gotrace-{os.getpid()}"
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            *_NAMESPACES,
            "--fork",
            "--mount-proc",
        ]
        words += ["--kill-child", "bash", str(_SCRIPT), str(self._made), str(place), self._groups]
        self._log = (place / "log.node").open("w")
        self._process = subprocess.Popen(words, stdout=self._log, stderr=self._log)
        until = time.monotonic() + _PATIENCE
        while not (place / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise AssertionError(self.logs())
            time.sleep(0.2)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        #: Its first process, as it is numbered here.
        self.pid = int(children.read_text())

    def run(self, *command: str | Path, said: str | None = None) -> str:
        """Run a command in the node's namespaces, which must succeed, and return what it prints."""
        done = self.start(command, said)
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def start(
        self, command: Sequence[str | Path], said: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's namespaces, to whatever end."""
        return subprocess.run(
            self.within(*command), input=said, capture_output=True, text=True, timeout=_PATIENCE
        )

    def within(self, *words: str | Path) -> list[str]:
        """Return the command line that runs words in the node's namespaces, but for processes'."""
        paths = [self._made / "root" / "usr" / "bin", self._made / "bin", os.environ["PATH"]]
        path = f"PATH={':'.join(map(str, paths))}"
        enter = ["nsenter", "--target", str(self.pid), *_NAMESPACES]
        enter.remove("--pid")
        known = f"KUBECONFIG={self._place / 'kubeconfig'}"
        return [*enter, "env", path, known, *map(str, words)]

    def kubectl(self, *words: str | Path, said: str | None = None) -> str:
        """Run kubectl, which must succeed, and return what it prints."""
        return self.run("kubectl", *words, said=said)

    def apply(self, objects: Sequence[Json]) -> None:
        """Have the cluster be so."""
        whole = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-f", "-", said=json.dumps(whole))

    def pods(self, namespace: str, label: str) -> list[Json]:
        """Return the pods of a label that are not on their way out, once all of them are ready."""
        until = time.monotonic() + _PATIENCE
        while True:
            words = ("get", "pods", "-n", namespace, "-l", label, "-o", "json")
            found: list[Json] = json.loads(self.kubectl(*words))["items"]
            found = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
            if found and all(map(_is_ready, found)):
                return found
            assert time.monotonic() < until, f"{self.kubectl('describe', *words[1:5])}{self.logs()}"
            time.sleep(0.5)

    def get(self, address: str) -> str:
        """Return what is at an http address of the node's network."""
        code = (
            "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode(), end='')"
        )
        return self.run("/usr/bin/python3", "-c", code, f"http://{address}")

    def logs(self) -> str:
        """Return the ends of the logs of all of the node's programs."""
        found = [self._place / "log.node", *sorted((self._place / "logs").glob("*"))]
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in found)

    def close(self) -> None:
        """End it, with all pods, and remove what it has made."""
        self._process.kill()  # and so process 1 of its namespace, with all others
        self._process.wait()
        self._log.close()
        until = time.monotonic() + _PATIENCE
        for controller in _GROUPS.iterdir():
            for directory, _, _ in os.walk(controller / self._groups, topdown=False):
                while True:  # its processes may be ending
                    try:
                        os.rmdir(directory)
                    except OSError:
                        assert time.monotonic() < until, f"{directory} is in use"
                        time.sleep(0.1)
                    else:
                        break

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_ready(pod: Json) -> bool:
    found = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found)
