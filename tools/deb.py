#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Make a Debian package of a wheel that has compiled programs: tools/deb.py WHEEL [DIRECTORY]

What Python's own packaging installs is put where Debian's Python looks, so that setup.cfg remains
the only list of what gotrace consists of. Dependencies are Debian's packages, by their names there;
what gotraced sends OTLP with is not in Debian. BCC is recommended only: what the package does not
have compiled takes it.
"""

from __future__ import annotations

import argparse
import calendar
import configparser
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
MODULES = Path("usr/lib/python3/dist-packages")
MAN = Path("usr/share/man/man8")
DOC = Path("usr/share/doc/gotrace")
#: Debian's names of what wheels are for.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Where shells look for completions: in a virtual environment, and here.
COMPLETIONS = {
    "bash-completion/completions": "bash-completion/completions",
    "fish/vendor_completions.d": "fish/vendor_completions.d",
    "zsh/site-functions": "zsh/vendor-completions",
}
UNITS = Path("usr/lib/systemd/system")

CONTROL = """\
Package: gotrace
Version: {version}
Architecture: {arch}
Section: devel
Priority: optional
Maintainer: the gotrace maintainers <root@localhost>
Depends: python3 (>= 3.10), python3-capstone (>= 4.0.2), \
python3-pyelftools (>= 0.29), python3-tabulate (>= 0.8.9)
Recommends: python3-bpfcc, python3-argcomplete, python3-yaml, python3-jsonschema, \
python3-prometheus-client, python3-h11, python3-bcrypt, python3-grpcio, python3-requests
Installed-Size: {size}
Description: {summary}
 Five commands count calls of any function of a running Go program, measure
 latencies by goroutine, show calls with their arguments, results and errors,
 show where all goroutines are, and add up where they wait. The program is
 neither rebuilt nor restarted, and what is traced of it is counted exactly.
 .
 Programs for the kernel are compiled for all usual runs. Others need BCC, which
 python3-bpfcc brings.
 .
 The daemon gotraced makes metrics of Go functions for Prometheus; it needs the
 other recommended packages. Sending by OTLP needs OpenTelemetry's SDK for Python,
 which is not in Debian.
"""
SCRIPT = """\
#!/usr/bin/python3 -S
import _signal

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # also while the interpreter's own is imported

import site
import sys

site.main()
from {module} import {function}

sys.exit({function}())
"""
#: Compiled modules are not in the package: they are of the Python that is installed.
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    py3compile -p gotrace
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop gotraced.service
fi
py3clean -p gotrace
"""
POSTRM = """\
#!/bin/sh
set -e
[ "$1" != remove ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
"""


def main() -> int:
    """Write the package into a directory and print its path."""
    parser = argparse.ArgumentParser(description="Make a Debian package of a wheel.")
    parser.add_argument("wheel", type=Path, help="what make wheel has made")
    parser.add_argument("directory", nargs="?", default="dist", type=Path)
    options = parser.parse_args()
    try:
        print(build(options.wheel, options.directory))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


def build(wheel: Path, directory: Path) -> Path:
    """Make the package and return its path. Raises OSError or CalledProcessError."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gotrace-deb-") as temporary:
        place = Path(temporary)
        place.chmod(0o755)
        tree = place / "tree"
        tags = wheel.stem.split("-")
        arch = next((arch for at, arch in ARCHITECTURES.items() if tags[-1].endswith(at)), None)
        if arch is None:
            raise OSError(f"{wheel} is not for an architecture: make wheel")
        version, summary = tags[1], _install(wheel, tree)
        _add_documents(tree)
        _add_unit(tree)
        _settle(tree)
        _add_control(tree, version, arch, summary)
        made = _time(wheel)
        for path in (tree, *tree.rglob("*")):
            os.utime(path, (made, made), follow_symlinks=False)
        file = directory / f"gotrace_{version}_{arch}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(file)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(made)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return file


def _time(wheel: Path) -> int:
    """Return when what is in a wheel was committed: so two packages of it are equal."""
    with zipfile.ZipFile(wheel) as archive:
        return max(calendar.timegm((*entry.date_time, 0, 0, 0)) for entry in archive.infolist())


def _install(wheel: Path, tree: Path) -> str:
    """Put a wheel's files in their places, and return its summary."""
    modules = tree / MODULES
    modules.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(modules)
    if not (modules / "gotrace" / "_compiled").is_dir():
        raise OSError(f"{wheel} has no compiled BPF programs: make wheel")
    (data,) = modules.glob("gotrace-*.data")
    (info,) = modules.glob("gotrace-*.dist-info")
    (tree / MAN).mkdir(parents=True)
    for page in sorted((data / "data" / "share" / "man" / "man8").iterdir()):
        _compress(page.read_bytes(), tree / MAN / f"{page.name}.gz")
    share = data / "data" / "share"
    for place, own in COMPLETIONS.items():
        shutil.copytree(share / place, tree / "usr" / "share" / own)
    shutil.rmtree(data)
    (info / "RECORD").unlink()  # of files that are elsewhere by now; dpkg has its own
    (info / "INSTALLER").write_text("dpkg\n")
    scripts = configparser.ConfigParser()
    scripts.read(info / "entry_points.txt")
    binaries = tree / "usr" / "bin"
    binaries.mkdir(parents=True)
    for name, entry in scripts["console_scripts"].items():
        module, _, function = entry.partition(":")
        (binaries / name).write_text(SCRIPT.format(module=module, function=function))
        (binaries / name).chmod(0o755)
    found = re.search(r"^Summary: (.+)$", (info / "METADATA").read_text(), re.MULTILINE)
    return found[1] if found else "tracing of Go functions"


def _add_documents(tree: Path) -> None:
    (tree / DOC).mkdir(parents=True)
    _compress((CLONE / "CHANGELOG.md").read_bytes(), tree / DOC / "changelog.gz")
    licences = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: gotrace",
        "",
        "Files: *",
        "Copyright: the gotrace maintainers",
        "License: Apache-2.0",
        " See /usr/share/common-licenses/Apache-2.0.",
        "",
        f"Files: {MODULES}/gotrace/_bpf/*",
        "Copyright: the gotrace maintainers",
        "License: Apache-2.0 or GPL-2",
        " See /usr/share/common-licenses/Apache-2.0 and /usr/share/common-licenses/GPL-2.",
        "",
        f"Files: {MODULES}/gotrace/profiles/viewer/*",
        "Copyright: 2018 Jamie Wong",
        "License: Expat",
        f" See /{MODULES}/gotrace/profiles/viewer/LICENSE.",
    ]
    (tree / DOC / "copyright").write_text("\n".join(licences) + "\n")
    for page in sorted((CLONE / "docs").glob("*.md")):
        shutil.copy(page, tree / DOC)


def _add_unit(tree: Path) -> None:
    """Add the unit, which is not enabled: it takes a configuration, which is the user's."""
    text = (CLONE / "deploy" / "systemd" / "gotraced.service").read_text()
    before = "ExecStart=/opt/gotrace/bin/gotraced "
    if before not in text:
        raise OSError("deploy/systemd/gotraced.service does not start /opt/gotrace/bin/gotraced")
    (tree / UNITS).mkdir(parents=True)
    (tree / UNITS / "gotraced.service").write_text(
        text.replace(before, "ExecStart=/usr/bin/gotraced ")
    )


def _settle(tree: Path) -> None:
    """Give all files the rights that Debian's have, whatever those of the clone are."""
    for path in tree.rglob("*"):
        if not path.is_symlink():
            is_open = path.is_dir() or path.parent.name == "bin"
            path.chmod(0o755 if is_open else 0o644)
    tree.chmod(0o755)


def _add_control(tree: Path, version: str, arch: str, summary: str) -> None:
    files = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    sums = "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}"
        f"  {path.relative_to(tree)}\n"
        for path in files
    )
    size = sum(-(-path.stat().st_size // 1024) for path in files)
    place = tree / "DEBIAN"
    place.mkdir()
    place.chmod(0o755)  # whatever the umask is
    control = CONTROL.format(version=version, arch=arch, size=size, summary=summary)
    for name, text in (("control", control), ("md5sums", sums)):
        (place / name).write_text(text)
        (place / name).chmod(0o644)
    for name, text in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)


def _compress(data: bytes, path: Path) -> None:
    path.write_bytes(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
