# SPDX-License-Identifier: Apache-2.0
"""The image, built by Debian's buildah of the wheel, and the tools run in it.

A root of debootstrap's takes the base image's place: nothing is fetched from registries of images.
buildah is unpacked, not installed; its storage is plain directories, and steps run in a chroot, so
that it takes neither a daemon nor rights to make networks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.debian import FetchError, PrivateApt, unpack
from tests.live import skip_or_fail
from tests.packages.roots import SUITE, in_copy, needs_all, root
from tests.packages.wheels import make_wheel
from tests.test_packaging import SEVEN_CALLS
from tests.toolchains import build, cache_dir, newest
from tests.tools.harness import CLONE

#: buildah, its files of configuration, and what it is linked with that is not everywhere.
_PACKAGES = (
    *("buildah", "golang-github-containers-common", "golang-github-containers-image"),
    *("libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1"),
)
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_PATIENCE = 1800.0  # seconds
MAX_BYTES = 120_000_000
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: $0 has libraries that buildah finds, too, in the processes that it becomes.
_WITH_LIBRARIES = """\
set -e
mount --make-rprivate /
libraries=/usr/lib/x86_64-linux-gnu
mount -t overlay overlay -o "lowerdir=$0:$libraries" "$libraries"
exec "$@"
"""


def buildah() -> Path:
    """Return where buildah is unpacked, fetched the first time."""
    place = cache_dir() / "buildah"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=place.parent) as directory:
                apt = PrivateApt("bookworm", Path(directory))
                apt.update()
                for package in apt.download(_PACKAGES, Path(directory)):
                    unpack(package, Path(directory) / "root")
                (Path(directory) / "root").rename(place)
        except FetchError as error:
            skip_or_fail(f"no buildah: {error}")
    return place


class Builder:
    """buildah with storage of its own, in a directory."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._unpacked = buildah()
        self.policy = place / "policy.json"
        self.policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (place / "registries.conf").write_text("unqualified-search-registries = []\n")
        (place / "tmp").mkdir()

    def run(self, command: str, *arguments: str | Path) -> str:
        """Run one of buildah's commands, which must succeed, and return what it prints."""
        words: list[str | Path] = ["unshare", "--mount", "sh", "-c", _WITH_LIBRARIES]
        words += [self._unpacked / _LIBRARIES, self._unpacked / "usr" / "bin" / "buildah"]
        words += ["--storage-driver", "vfs", "--root", self._place / "storage"]
        words += ["--runroot", self._place / "run"]
        words += ["--registries-conf", self._place / "registries.conf", command, *arguments]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            env={**os.environ, "TMPDIR": str(self._place / "tmp"), "BUILDAH_ISOLATION": "chroot"},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout.strip()

    def save(self, image: str, file: Path, name: str) -> None:
        """Write an archive of an image, which it will have this name in."""
        self.run("push", "--signature-policy", self.policy, image, f"docker-archive:{file}:{name}")


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    with tempfile.TemporaryDirectory(prefix="gotrace-image-", dir="/var/tmp") as directory:
        yield Builder(Path(directory))


@pytest.fixture(scope="module")
def image(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_image(builder, tmp_path_factory)


def make_image(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image and return its name."""
    base = builder.run("from", "scratch")
    builder.run("copy", "-q", base, root(), "/")
    name = f"localhost/debian:{SUITE}-slim"
    builder.run("commit", "--signature-policy", builder.policy, "-q", base, name)
    builder.run("rm", base)
    more: list[str | Path] = []
    if _CERTIFICATES.exists():  # a mirror may have one that only this machine knows
        pip = tmp_path_factory.mktemp("pip") / "pip.conf"
        pip.write_text("[global]\ncert = /run/certificates.crt\n")
        more += ["--volume", f"{_CERTIFICATES}:/run/certificates.crt:ro"]
        more += ["--volume", f"{pip}:/etc/pip.conf:ro"]
    context = tmp_path_factory.mktemp("context")
    make_wheel(context / "dist", None)
    shutil.copy(CLONE / ".containerignore", context)
    more += ["-f", CLONE / "deploy" / "Containerfile", "-t", "gotraced", context]
    builder.run("bud", "--pull-never", "--signature-policy", builder.policy, *more)
    return "localhost/gotraced"


@pytest.fixture(scope="module")
def tree(builder: Builder, image: str) -> Path:
    """Return the root file system of a container of the image."""
    container = builder.run("from", "--pull-never", "--signature-policy", builder.policy, image)
    return Path(builder.run("mount", container))


@needs_all
@pytest.mark.live
@pytest.mark.apart
def test_it_starts_gotraced_and_has_no_headers(builder: Builder, image: str, tree: Path) -> None:
    config: dict[str, Any] = json.loads(builder.run("inspect", "--type", "image", image))
    started = config["OCIv1"]["config"]
    assert started["Entrypoint"] == ["gotraced"]
    assert started["Cmd"] == ["--config", "/etc/gotraced/gotraced.yaml"]
    assert not any((tree / "usr" / "src").glob("*"))
    assert not any((tree / "lib" / "modules").glob("*"))
    assert not any((tree / "var" / "lib" / "apt").glob("*"))
    assert not (tree / "opt" / "gotrace" / "bin" / "pip").exists()
    assert not (tree / "dist").exists()
    assert not [*tree.rglob("*LLVM*"), *tree.rglob("*clang*"), *tree.rglob("bcc")]


@needs_all
@pytest.mark.live
@pytest.mark.apart
def test_it_is_small(tree: Path) -> None:
    files = (path.lstat() for path in tree.rglob("*") if not path.is_dir() or path.is_symlink())
    size = sum({file.st_ino: file.st_size for file in files}.values())
    print(f"the image has {size / 1e6:.1f} MB")
    assert size < MAX_BYTES


#: Keeps the capabilities whose numbers are $1 alone, and becomes the rest, by the image's Python.
_WITH_RIGHTS = """\
import ctypes, os, sys
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
kept, system = set(map(int, sys.argv[1].split(","))), ctypes.CDLL(None)
for number in set(range(41)) - kept:
    assert system.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0
assert system.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
#: Numbers of the UAPI's linux/capability.h.
_NUMBERS = {"IPC_LOCK": 14, "SYS_PTRACE": 19, "PERFMON": 38, "BPF": 39}


def granted() -> str:
    """Return the numbers of the pod's capabilities."""
    pod = yaml.safe_load((CLONE / "deploy" / "kubernetes" / "base" / "daemonset.yaml").read_text())
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    names = container["securityContext"]["capabilities"]["add"]
    return ",".join(str(_NUMBERS[name]) for name in names)


@needs_all
@pytest.mark.live
@pytest.mark.apart
def test_the_tools_run_in_it_with_the_pods_rights(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "seven.go"
    source.write_text(SEVEN_CALLS)
    shutil.copy(build(source, newest()), tmp_path / "seven")
    config = tmp_path / "gotraced.yaml"
    config.write_text(
        "targets: [{name: seven, exe: /shared/seven}]\n"
        "metrics:\n  - {name: works, type: counter, probe: main.work}\n"
        "spans: [{probe: main.work}]\n"
        "otlp: {endpoint: 'http://127.0.0.1:9', protocol: grpc}\n"
    )
    config.chmod(0o644)
    rights = ("/usr/bin/python3", "-c", _WITH_RIGHTS, granted())
    folder = Path("/opt/gotrace/bin")
    words: tuple[str | Path, ...]
    words = (*rights, folder / "gofunccount", "-c", "/shared/seven", "main.work")
    counted = in_copy(tree, tmp_path, *words)
    assert re.search(r"^main\.work +7 +100\.0%$", counted.stdout, re.MULTILINE), counted.stderr
    done = in_copy(tree, tmp_path, *rights, folder / "gotrace", "doctor", "--json")
    found = {
        row["check"]: row for row in map(json.loads, done.stdout.splitlines()) if "check" in row
    }
    assert found["bcc"]["state"] == "warn"
    assert "comes with the package" in found["program of gotrace"]["found"]
    words = (*rights, folder / "gotraced", "--check", "/shared/gotraced.yaml")
    checked = in_copy(tree, tmp_path, *words)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "metric works in seven: main.work\n" in checked.stdout
    assert "span main.work in seven: main.work\n" in checked.stdout
