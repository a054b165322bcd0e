# SPDX-License-Identifier: Apache-2.0
"""Build large programs with full DWARF from the Go sources that Debian packages."""

from __future__ import annotations

import fcntl
import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.debian import FetchError, unpack
from tests.live import skip_or_fail
from tests.real.fetch import Source, apt
from tests.toolchains import BuildError, Toolchain, cache_dir, require

__all__ = ["SOURCES", "SourceProgram", "built", "compiler"]


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A program, the package with its sources, and what to build: a package or a file."""

    name: str
    package: str
    main: str


SOURCES = (
    SourceProgram("etcd", "golang-etcd-server-dev", "go.etcd.io/etcd"),
    SourceProgram(
        "gin",
        "golang-github-mcuadros-go-gin-prometheus-dev",
        str(Path(__file__).parent / "gin" / "main.go"),
    ),
    SourceProgram(
        "esbuild", "golang-github-evanw-esbuild-dev", "github.com/evanw/esbuild/cmd/esbuild"
    ),
)


def compiler() -> Toolchain:
    """Return the toolchain of the release that has these packages."""
    return require("1.19")


@functools.cache
def built(name: str) -> Path:
    """Return the path of a program, fetched and built when it is not there; or skip the test."""
    wanted = next(one for one in SOURCES if one.name == name)
    place = cache_dir() / "real" / f"source-{name}"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = place / "root"
        if not tree.exists():
            try:
                _fetch(wanted, place, tree)
            except (FetchError, OSError) as error:
                skip_or_fail(f"the sources of {name} cannot be fetched: {error}")
        return _build(wanted, place / name, tree)


def _fetch(wanted: SourceProgram, place: Path, tree: Path) -> None:
    """Unpack the package and all Go sources that it depends on, as apt resolves that."""
    source = apt(Source.BOOKWORM)
    packages = [name for name in source.resolve([wanted.package]) if _SOURCES.fullmatch(name)]
    with tempfile.TemporaryDirectory(prefix="fetch.", dir=place) as directory:
        unpacked = Path(directory) / "root"
        for package in source.download(packages, Path(directory)):
            unpack(package, unpacked)
        unpacked.rename(tree)


_SOURCES = re.compile("golang-.+-dev")


def _build(wanted: SourceProgram, path: Path, tree: Path) -> Path:
    """Build in GOPATH mode, as Debian does; Go's own cache tells what is up to date."""
    env = {
        **compiler().env(),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": str(tree / "usr" / "share" / "gocode"),
    }
    unfinished = path.with_name(f"{path.name}.unfinished")
    command = [str(compiler().go), "build", "-o", str(unfinished), wanted.main]
    done = subprocess.run(command, env=env, cwd=path.parent, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    if path.exists() and path.read_bytes() == unfinished.read_bytes():
        unfinished.unlink()
    else:
        shutil.move(unfinished, path)
    return path
