# SPDX-License-Identifier: Apache-2.0
"""The Debian package: what is in it, and that it works, and is gone again, on a Debian."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gotrace.profiles.html import VIEWER
from gotrace.settings import CountSettings
from tests.packages.roots import FULL, in_copy, needs_all, root
from tests.packages.wheels import make_wheel
from tests.test_packaging import SEVEN_CALLS
from tests.toolchains import build, newest
from tests.tools.harness import CLONE

SETUP = configparser.ConfigParser()
SETUP.read(CLONE / "setup.cfg")
COMMANDS = re.findall(r"^(\w+) = ", SETUP["options.entry_points"]["console_scripts"], re.MULTILINE)
#: Where Debian's package of a Python distribution has another name, or is not of Python.
DEBIAN_NAMES = {"PyYAML": "python3-yaml", "bcc": "python3-bpfcc"}


def fields(package: Path) -> dict[str, str]:
    said = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True)
    return dict(re.findall(r"^([\w-]+): (.*)$", said.stdout, re.MULTILINE))


def debian(requirement: str) -> str:
    name = re.split(r"[<>=~]", requirement)[0]
    return DEBIAN_NAMES.get(name, f"python3-{name.lower()}")


def listed(text: str) -> list[str]:
    return [line for line in text.strip().split("\n") if line and line[0] != "#"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    place = tmp_path_factory.mktemp("deb")
    wheel = make_wheel(place, settings=[CountSettings(counters=1)] if not FULL else None)
    command: list[str | Path] = [sys.executable, CLONE / "tools" / "deb.py", wheel, place]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.slow
def test_contents_and_dependencies(package: Path) -> None:
    listing = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=5) for line in listing.splitlines()]
    modes = {row[5].removeprefix("."): row[0] for row in rows}
    assert {row[1] for row in rows} == {"root/root"}
    assert all(mode in ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--") for mode in modes.values())
    assert COMMANDS
    for name in COMMANDS:
        assert modes[f"/usr/bin/{name}"] == "-rwxr-xr-x"
        assert f"/usr/share/man/man8/{name}.8.gz" in modes
        for place in (
            f"bash-completion/completions/{name}",
            f"fish/vendor_completions.d/{name}.fish",
        ):
            assert f"/usr/share/{place}" in modes
    assert "/usr/share/zsh/vendor-completions/_gotrace" in modes
    modules = "/usr/lib/python3/dist-packages/gotrace"
    viewer = {f"{modules}/profiles/viewer/{path.name}" for path in VIEWER.iterdir()}
    assert len(viewer) == 4 and viewer <= modes.keys()
    for source, place in (("gotrace", modules), ("bpf", f"{modules}/_bpf")):
        for path in (CLONE / source).rglob("*.[pch]*"):
            if path.suffix in (".py", ".c", ".h"):
                assert f"{place}/{path.relative_to(CLONE / source)}" in modes
    assert not any("__pycache__" in name or name.startswith("/usr/local") for name in modes)
    found = fields(package)
    depends = re.sub(r" \([^)]*\)", "", found["Depends"]).split(", ")
    required = listed(SETUP["options"]["install_requires"])
    assert set(depends) == {"python3", *map(debian, required)}
    fleet = {debian(each) for each in listed(SETUP["options.extras_require"]["fleet"])}
    recommended = set(found["Recommends"].split(", "))
    assert {name for name in fleet - recommended if "opentelemetry" not in name} == set()
    assert recommended <= fleet | {"python3-argcomplete", "python3-bpfcc"}
    assert f"{modules}/_compiled/manifest.json" in modes


@pytest.mark.slow
def test_two_packages_are_equal(package: Path, tmp_path: Path) -> None:
    (wheel,) = package.parent.glob("*.whl")
    before = os.umask(0o077)
    try:
        command: list[str | Path] = [sys.executable, CLONE / "tools" / "deb.py", wheel, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


#: What is left of files, but for what dpkg, Python's caches and logs have changed.
_FILES = "find / -xdev -path /var -prune -o -path /root -prune -o -path /tmp -prune -o -print"
_USE = f"""
set -e
{_FILES} | sort >/tmp/before
dpkg -i /shared/*.deb >/tmp/log 2>&1 || {{ cat /tmp/log; exit 1; }}
test -e /usr/lib/python3/dist-packages/gotrace/__pycache__
gotrace --version
gofunccount -c /shared/seven main.work
gotraced --check /shared/gotraced.yaml
test -e /usr/lib/systemd/system/gotraced.service
dpkg -r gotrace >/tmp/log 2>&1 || {{ cat /tmp/log; exit 1; }}
{_FILES} | sort >/tmp/after
diff /tmp/before /tmp/after
echo as it was
"""


@needs_all
@pytest.mark.live
@pytest.mark.apart
def test_installed_and_removed(package: Path, tmp_path: Path) -> None:
    found = fields(package)
    names = re.sub(r" \([^)]*\)", "", f"{found['Depends']}, {found['Recommends']}").split(", ")
    place = root(*names)
    source = tmp_path / "seven.go"
    source.write_text(SEVEN_CALLS)
    shutil.copy(build(source, newest()), tmp_path / "seven")
    shutil.copy(package, tmp_path)
    config = tmp_path / "gotraced.yaml"
    config.write_text(
        "listen: 127.0.0.1:9435\ntargets: [{name: seven, exe: /shared/seven}]\n"
        "metrics:\n  - {name: works, type: counter, probe: main.work}\n"
    )
    config.chmod(0o644)
    done = in_copy(place, tmp_path, "sh", "-c", _USE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^main\.work +7 +100\.0%$", done.stdout, re.MULTILINE)
    assert "metric works in seven: main.work\n" in done.stdout
    assert done.stdout.endswith("\nas it was\n")
