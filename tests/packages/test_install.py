# SPDX-License-Identifier: Apache-2.0
"""From a command to the first result where there is no LLVM: make test-install prints the table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gotrace
from gotrace.architecture import HOST
from tests.packages.roots import in_copy, needs_all, root
from tests.test_packaging import SEVEN_CALLS
from tests.toolchains import build, newest
from tests.tools.harness import CLONE

pytestmark = [needs_all, pytest.mark.live, pytest.mark.apart]

#: Each loads a program of its own, and none of a cache.
RUNS = (
    ("gofunccount", r"^main\.work +7 +100\.0%$"),
    ("gofunclatency", r"\|"),
    ("gotrace", r"main\.work\(n=6\) = 36"),
)


WHEEL = f"gotrace-*_{os.uname().machine}.whl"
BUNDLE = f"gotrace-{HOST.name if HOST else ''}.tar.gz"
DEBIAN = f"gotrace_*_{HOST.name if HOST else ''}.deb"


def made(pattern: str) -> Path:
    """Return what make wheel, bundle or deb has made last for this machine."""
    found = sorted((CLONE / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
    assert found, f"there is no dist/{pattern}: make test-install"
    return found[-1]


def megabytes(*paths: Path) -> float:
    files = (each for path in paths for each in path.rglob("*"))
    return sum(each.lstat().st_size for each in files if not each.is_dir()) / 1e6


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("seven") / "seven.go"
    source.write_text(SEVEN_CALLS)
    return build(source, newest())


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    print("\n| from | fetched or copied | installed | to install | to the first result |")
    print("|---|---:|---:|---:|---:|", *rows, sep="\n")


def trace(command: list[str | Path], program: Path, home: Path) -> float:
    """Run each tool, with nothing kept and no compiler; return how long the first took."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    took = []
    for name, shown in RUNS:
        words = [*command[:-1], Path(command[-1]) / name, "-c", program, "main.work"]
        start = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        took.append(time.monotonic() - start)
        assert done.returncode == 0, done.stderr
        assert re.search(shown, done.stdout, re.MULTILINE), done.stdout
    assert not list(home.rglob("*/bpf/*")), "BCC has compiled something"
    return took[0]


def test_wheel_in_a_plain_environment(program: Path, tmp_path: Path, table: list[str]) -> None:
    environment, wheel = tmp_path / "venv", made(WHEEL)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    start = time.monotonic()
    subprocess.run(["/usr/bin/python3", "-m", "venv", environment], check=True)
    before = megabytes(environment)
    pip: list[str | Path] = [environment / "bin" / "pip", "install", "--quiet", wheel]
    subprocess.run(pip, check=True)
    installing = time.monotonic() - start
    binding: list[str | Path] = [environment / "bin" / "python", "-c", "import bcc"]
    assert subprocess.run(binding, stderr=subprocess.DEVNULL).returncode != 0
    installed = megabytes(environment) - before
    first = trace([environment / "bin"], program, home)
    table.append(
        f"| the wheel, pip in a plain environment | {wheel.stat().st_size / 1e6:.1f} MB and its"
        f" dependencies | {installed:.1f} MB | {installing:.1f} s | {first:.1f} s |"
    )


def test_bundle_with_the_hosts_python(program: Path, tmp_path: Path, table: list[str]) -> None:
    bundle, home = made(BUNDLE), tmp_path / "home"
    home.mkdir(mode=0o700)
    start = time.monotonic()
    subprocess.run(["tar", "xf", bundle, "-C", tmp_path], check=True)
    unpacking = time.monotonic() - start
    installed = megabytes(tmp_path / "gotrace")
    # Without site, Python does not see the distribution's packages, among them BCC's binding.
    python: list[str | Path] = ["/usr/bin/python3", "-I", "-S"]
    first = trace([*python, tmp_path / "gotrace" / "bin"], program, home)
    # As krew installs it: files alone, and a link by another name.
    with tarfile.open(bundle) as archive:
        assert all(each.isfile() and ".." not in each.name for each in archive)
    plugin = tmp_path / "kubectl-gotrace"
    plugin.symlink_to("gotrace/bin/gofleet")
    said = subprocess.run([plugin, "--version"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, f"gofleet {gotrace.__version__}\n"), said.stderr
    table.append(
        f"| the bundle, unpacked | {bundle.stat().st_size / 1e6:.1f} MB | {installed:.1f} MB |"
        f" {unpacking:.1f} s | {first:.1f} s |"
    )


#: $1 installs, the rest runs; what took how long is on the last line, in ns.
_TIMED = """\
set -e
a=$(date +%s%N)
eval "$1"
b=$(date +%s%N)
"$2" -c /shared/seven main.work
c=$(date +%s%N)
! python3 -c 'import bcc' 2>/dev/null
! find /root /tmp -path '*/bpf/*' | grep .
echo $((b - a)) $((c - b))
"""


@pytest.mark.parametrize(("suite", "release"), [("bookworm", 12), ("trixie", 13)])
@pytest.mark.parametrize("kind", ["bundle", "deb"])
def test_on_debian(
    kind: str, suite: str, release: int, program: Path, tmp_path: Path, table: list[str]
) -> None:
    """Install on a Debian that has Python and its libraries, and neither pip nor LLVM."""
    libraries = ("python3-capstone", "python3-pyelftools", "python3-tabulate")
    place = root("python3", *libraries, suite=suite)
    shutil.copy(program, tmp_path / "seven")
    if kind == "bundle":
        package = made(BUNDLE)
        steps = (f"tar xf /shared/{package.name} -C /opt", "/opt/gotrace/bin/gofunccount")
    else:
        package = made(DEBIAN)
        steps = (f"dpkg -i /shared/{package.name} >/dev/null 2>&1", "gofunccount")
    shutil.copy(package, tmp_path)
    done = in_copy(place, tmp_path, "sh", "-c", _TIMED, "sh", *steps)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^main\.work +7 +100\.0%$", done.stdout, re.MULTILINE)
    installing, first = (int(ns) / 1e9 for ns in done.stdout.splitlines()[-1].split())
    table.append(
        f"| Debian {release}, {kind} | {package.stat().st_size / 1e6:.1f} MB | |"
        f" {installing:.1f} s | {first:.1f} s |"
    )
