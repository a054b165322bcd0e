# SPDX-License-Identifier: Apache-2.0
"""The programs of a Kubernetes, fetched and built once: 180 MB, and four minutes of CPU time."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.debian import FetchError, PrivateApt, unpack
from tests.live import skip_or_fail
from tests.toolchains import Toolchain, cache_dir, toolchain

#: The last suite whose source package has the whole of Kubernetes, and not kubectl alone.
_SUITE = "bookworm"
#: Of that package, without Debian's suffixes.
VERSION = "1.20.2"
#: What that version was built with.
_GO = "1.15"
_PACKAGES = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "kubernetes-client"),
    *("iptables", "conntrack"),
)
_COMMANDS = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_PATIENCE = 3600.0  # seconds
_VERSIONS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
#: Makes pkg/generated/openapi, which the source package leaves out, as its Makefile would:
#: build/root/Makefile.generated_files. $0 is the generator, and this directory is in a GOPATH.
_GENERATE = """\
set -e
folders=$(grep -rlsF '+k8s:openapi-gen=' --include='*.go' pkg staging/src/k8s.io \
    | grep -v -e '_test.go$' -e code-generator -e sample-apiserver \
    | sed -e 's#^staging/src/#vendor/#' -e 's#/[^/]*$##' -e 's#^#k8s.io/kubernetes/#' \
    | LC_ALL=C sort -u | paste -sd,)
"$0" --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi \
    -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r ../violations
"""


def obtained() -> Path:
    """Return a directory with ``root`` (what packages have) and ``bin`` (what was built).

    Skips, or fails with GOTRACE_LIVE=1, where that is not possible.
    """
    place = cache_dir() / f"kubernetes-{VERSION}"
    if place.exists():
        return place
    go = toolchain(_GO)
    if go is None:
        skip_or_fail(f"Kubernetes {VERSION} takes Go {_GO}: make setup-test")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        made = Path(directory)
        try:
            apt = PrivateApt(_SUITE, made / "apt")
            apt.update()
            packages, root = made / "packages", made / "kubernetes" / "root"
            packages.mkdir()
            root.mkdir(parents=True)
            for package in apt.download(_PACKAGES, packages):
                unpack(package, root)
            source = apt.source("kubernetes", packages)
        except FetchError as error:
            skip_or_fail(f"no Kubernetes: {error}")
        (archive,) = (file for file in source if ".orig.tar" in file.name)
        (made / "source").mkdir()
        words = ("tar", "-xf", archive, "-C", made / "source", "--strip-components=1")
        subprocess.run(words, check=True)
        _build(go, made / "source", made)
        (made / "kubernetes").rename(place)
    return place


def _build(go: Toolchain, source: Path, made: Path) -> None:
    path = made / "path" / "src" / "k8s.io"
    path.mkdir(parents=True)
    (path / "kubernetes").symlink_to(source)
    environment = {
        **go.env(),
        "GOPATH": str(made / "path"),
        "GOCACHE": str(made / "cache"),
        "CGO_ENABLED": "0",
    }

    def run(*command: str | Path, **more: str) -> None:
        done = subprocess.run(
            command,
            cwd=path / "kubernetes" if "GO111MODULE" in more else source,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    modules = {"GOFLAGS": "-mod=vendor"}
    generator = made / "openapi-gen"
    name = "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    run(go.go, "build", "-o", generator, name, **modules)
    run(
        "sh",
        "-c",
        _GENERATE,
        generator,
        GO111MODULE="off",
        GOFLAGS="",
        PWD=str(path / "kubernetes"),
    )
    flags = " ".join(f"-X {module}.gitVersion=v{VERSION}" for module in _VERSIONS)
    numbers = zip(("gitMajor", "gitMinor"), VERSION.split("."), strict=False)
    flags += "".join(f" -X {_VERSIONS[0]}.{name}={number}" for name, number in numbers)
    tags = "providerless,dockerless"
    for command in _COMMANDS:
        into = made / "kubernetes" / "bin" / command
        words = ("-tags", tags, "-ldflags", f"-s -w {flags}", "-o", into, f"./cmd/{command}")
        run(go.go, "build", *words, **modules)
    shutil.rmtree(made / "cache", ignore_errors=True)
