# SPDX-License-Identifier: Apache-2.0
"""Fetch Debian packages of any suite without touching the machine's own apt or dpkg.

Sources, lists, cache and the list of what is installed are in a directory of their own; packages
are downloaded by apt, which checks their signatures, and unpacked, never installed. Needs no root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """Report something that cannot be fetched or unpacked, in one line."""


@dataclass(frozen=True, slots=True)
class PrivateApt:
    """apt with one suite of the machine's Debian mirror, and state in a directory of its own.

    ``architecture`` is Debian's name of one; the machine's own where it is empty.
    """

    suite: str
    place: Path
    architecture: str = ""

    def update(self) -> None:
        """Fetch the suite's list of packages. Raises FetchError."""
        for private in ("state/lists/partial", "cache/archives/partial", "parts"):
            (self.place / private).mkdir(parents=True, exist_ok=True)
        (self.place / "status").touch()
        (self.place / "parts" / "suite.list").write_text(source_line(self.suite))
        self._run("apt-get", "-q", "update")

    def records(self, prefix: str) -> list[Mapping[str, str]]:
        """Return the fields of the suite's packages whose names begin so. Raises FetchError."""
        said = self._run("apt-cache", "dumpavail").split("\n\n")
        chosen = (part for part in said if part.startswith(f"Package: {prefix}"))
        return parse_records("\n\n".join(chosen))

    def download(self, names: Sequence[str], directory: Path) -> list[Path]:
        """Download packages into a directory and return their files. Raises FetchError."""
        self._run("apt-get", "-q", "download", *names, cwd=directory)
        return sorted(directory.glob("*.deb"))

    def source(self, name: str, directory: Path) -> list[Path]:
        """Download the files of a source package into a directory and return them."""
        line = source_line(self.suite)
        (self.place / "parts" / "source.list").write_text(line.replace("deb ", "deb-src ", 1))
        self._run("apt-get", "-q", "update")
        before = set(directory.iterdir())
        self._run(
            "apt-get", "-q", "source", "--download-only", "--only-source", name, cwd=directory
        )
        return sorted(set(directory.iterdir()) - before)

    def resolve(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the versions of packages and of all that they depend on, by name."""
        said = self._run("apt-get", "-q", "--simulate", *_INSTALL, *names)
        return dict(re.findall(r"^Inst (\S+) \((\S+) ", said, re.M))

    def download_with_dependencies(self, names: Sequence[str]) -> list[Path]:
        """Download packages and all that they depend on; return the files, kept in the cache.

        What was downloaded before, even in part, is not fetched again. Raises FetchError.
        """
        self._run("apt-get", "-q", "-y", "--download-only", *_INSTALL, *names)
        return sorted((self.place / "cache" / "archives").glob("*.deb"))

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": self.place / "parts",
            "Dir::State": self.place / "state",
            "Dir::State::status": self.place / "status",
            "Dir::Cache": self.place / "cache",
            # A machine's own settings may remove downloaded packages at once, as containers' do.
            "Binary::apt-get::APT::Keep-Downloaded-Packages": "true",
            "DPkg::Post-Invoke::": "",
            "APT::Update::Post-Invoke::": "",
            "Acquire::Languages": "none",
            "Debug::NoLocking": "true",
            # An old suite's index is no longer renewed; its signature is checked all the same.
            "Acquire::Check-Valid-Until": "false",
            # The private directories are not readable by apt's own user.
            "APT::Sandbox::User": "root",
        }
        if self.architecture:
            options |= {
                "APT::Architecture": self.architecture,
                "APT::Architectures": self.architecture,
            }
        settings = [f"-o{name}={value}" for name, value in options.items()]
        return _output(program, *settings, *arguments, cwd=cwd)


_INSTALL = ("--no-install-recommends", "install")


def unpack(package: Path, tree: Path) -> None:
    """Unpack a package's files into a tree; its scripts are not run. Raises FetchError."""
    _output("dpkg-deb", "--extract", str(package), str(tree))


def fetch_program(package: str, suite: str, unpacked: Path) -> None:
    """Unpack a package that needs no other one into a directory. Raises FetchError."""
    with tempfile.TemporaryDirectory(prefix=f"{package}.", dir=unpacked.parent) as directory:
        place = Path(directory)
        apt = PrivateApt(suite, place)
        apt.update()
        for found in apt.download([package], place):
            unpack(found, place / "root")
        shutil.rmtree(unpacked, ignore_errors=True)
        (place / "root").rename(unpacked)


def fetched_program(command: str, unpacked: Path) -> Path | None:
    """Return the path of a command, the unpacked one first; None where there is none."""
    path = unpacked / "usr" / "bin" / command
    if path.exists():
        return path
    found = shutil.which(command)
    return None if found is None else Path(found)


def parse_records(text: str) -> list[Mapping[str, str]]:
    """Return the fields of each paragraph of deb-control(5) text, first lines of values only.

    >>> parse_records("Package: a\\nDepends: b, c\\n\\nPackage: b\\nDescription: x\\n more\\n")
    [{'Package': 'a', 'Depends': 'b, c'}, {'Package': 'b', 'Description': 'x'}]
    """
    paragraphs = (part for part in re.split(r"\n\s*\n", text) if part.strip())
    return [dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", part, re.M)) for part in paragraphs]


def _output(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    except OSError as error:
        raise FetchError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise FetchError(f"{command[0]}: {words[-1]}")
    return done.stdout


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
        for fields in parse_records(path.read_text()):
            whole = any(re.fullmatch("[a-z]+", name) for name in fields.get("Suites", "").split())
            components = fields.get("Components", "").split()
            if "deb" in fields.get("Types", "").split() and whole and "main" in components:
                key = fields.get("Signed-By", "")
                options = f"[signed-by={key}] " if key.startswith("/") else ""
                yield fields["URIs"].split()[0], options
