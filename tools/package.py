#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Make a wheel with compiled BPF programs, or of such a wheel a bundle that needs no pip.

    tools/package.py wheel [-o DIRECTORY] [--arch ARCH | --programs FOLDER]
    tools/package.py bundle [-o DIRECTORY] WHEEL

BCC compiles the programs here, for any architecture. This takes root, or the rights that loading
takes. They are kept in root's cache, so that the next wheel takes the time of those that have
changed. Programs are for one architecture, and a wheel has the tags of the oldest C libraries
there, as it has nothing that is linked with one. Two wheels of a commit, and two bundles, are equal
byte for byte if compiler and packages are the same; the manifest of the programs names the
compiler.
With GOTRACE_HOME, the address of a repository, a wheel's metadata have its pages.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
COMPILED = Path("gotrace", "_compiled")
#: What uname(2) calls each architecture, as platform tags do.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
#: The tags of a wheel, without the machine. Indexes refuse plain linux.
TAGS = ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
#: The bundle's dependencies are for this Python and newer, and for each C library since 2014's.
OLDEST_PYTHON = "3.10"
PLATFORMS = ("linux", "manylinux2014")
_ENTRY_POINTS = r"lib/gotrace-[^/]*/entry_points\.txt"
_ZIP_BEGINS = 315532800  # 1980
_LAUNCHER = """\
#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys

if sys.version_info < (3, 10):
    sys.exit("{name}: gotrace needs Python 3.10 or newer; %s is %s" % (
        sys.executable, sys.version.split()[0]))
if os.uname().machine != "{machine}":
    sys.exit("{name}: this bundle is for {arch} ({machine}), and this machine is %s: unpack the"
             " bundle that is for it" % os.uname().machine)
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(folder, "lib"))
from {module} import {function}

sys.exit({function}())
"""


def main() -> int:
    """Make what is asked for and print its path."""
    parser = argparse.ArgumentParser(description="Make a wheel or a bundle of this clone.")
    commands = parser.add_subparsers(dest="what", required=True)
    wheel = commands.add_parser("wheel", help="make a wheel with compiled BPF programs")
    here = next((arch for arch, name in MACHINES.items() if name == os.uname().machine), "amd64")
    of_what = wheel.add_mutually_exclusive_group()
    of_what.add_argument("--arch", choices=MACHINES, default=here, help="whose programs to compile")
    of_what.add_argument("--programs", type=Path, help="a folder of compiled programs")
    bundle = commands.add_parser("bundle", help="make a folder with all dependencies, packed")
    bundle.add_argument("wheel", type=Path)
    for command in (wheel, bundle):
        command.add_argument("-o", dest="directory", default=Path("dist"), type=Path)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="gotrace-package-") as place:
            if options.what == "wheel":
                made = _make_wheel(Path(place), options.arch, options.programs)
            else:
                made = _make_bundle(Path(place), options.wheel)
            options.directory.mkdir(parents=True, exist_ok=True)
            print(shutil.copy(made, options.directory))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("package: interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


def _make_wheel(place: Path, arch: str, programs: Path | None) -> Path:
    """Make the wheel of a copy, as a build leaves files in its tree, and return its path."""
    source = place / "source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "tests")
    shutil.copytree(CLONE, source, ignore=ignored)
    shutil.rmtree(source / COMPILED, ignore_errors=True)
    if home := os.environ.get("GOTRACE_HOME"):
        _add_home(source / "setup.cfg", home)
    if programs is not None:
        shutil.copytree(programs, source / COMPILED)
    else:
        (source / COMPILED).mkdir()
        _compile(source, arch)
    machine = json.loads((source / COMPILED / "manifest.json").read_text())["machine"]
    tag = f"--config-settings=--build-option=--plat-name=linux_{machine}"
    environment = {"SOURCE_DATE_EPOCH": str(_commit_time())}
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", tag, "-w", str(place), str(source))
    _python(*words, more=environment)
    (wheel,) = place.glob("gotrace-*.whl")
    tags = [f"{tag}_{machine}" for tag in TAGS]
    _settle(wheel, tags)
    return wheel.rename(wheel.with_name(f"{wheel.stem.rpartition('-')[0]}-{'.'.join(tags)}.whl"))


def _add_home(setup: Path, home: str) -> None:
    """Name the repository in the metadata: a clone does not know where it is public."""
    pages = {
        "Source": "",
        "Documentation": "/tree/main/docs",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues",
    }
    rows = "".join(f"    {name} = {home}{page}\n" for name, page in pages.items())
    text = setup.read_text()
    setup.write_text(text.replace("[metadata]\n", f"[metadata]\nproject_urls =\n{rows}", 1))


def _compile(source: Path, arch: str) -> None:
    """Compile the programs of a copy into it."""
    code = (
        "from pathlib import Path; from gotrace import architecture;"
        " from gotrace.doctor.precompile import package_programs;"
        f" package_programs(Path({str(COMPILED)!r}), arch=architecture.{arch.upper()})"
    )
    # A cache has room for the programs of one wheel.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gotrace", "wheel")
    _python("-c", code, cwd=source, more={"XDG_CACHE_HOME": str(cache / arch)})


def _python(*words: str, cwd: Path | None = None, more: Mapping[str, str]) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more}
    # stdout has the path of what is made, and nothing else.
    command = [sys.executable, *words]
    subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL)


def _commit_time() -> int:
    """Return when the commit was made, or what SOURCE_DATE_EPOCH says."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        command = ["git", "-C", str(CLONE), "log", "-1", "--format=%ct"]
        try:
            given = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            given = "0"  # an archive of the sources, not a clone
    return max(int(given), _ZIP_BEGINS)


def _settle(wheel: Path, tags: Sequence[str]) -> None:
    """Put the files of a wheel in order, with rights and times that are not the clone's.

    ``tags`` are the platforms that it is for.
    """
    with zipfile.ZipFile(wheel) as archive:
        files = {each.filename: archive.read(each) for each in archive.infolist()}
    _retag(files, tags)
    # What a wheel is comes last (the wheel format recommends it).
    order = sorted(files, key=lambda name: (".dist-info/" in name, name))
    date = time.gmtime(_commit_time())[:6]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in order:
            entry = zipfile.ZipInfo(name, date)
            entry.create_system = 3  # Unix
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)


def _retag(files: dict[str, bytes], tags: Sequence[str]) -> None:
    """Say which platforms a wheel is for; setuptools takes one."""
    (name,) = (name for name in files if name.endswith(".dist-info/WHEEL"))
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    lines = files[name].decode().splitlines()
    rest = [line for line in lines if line and not line.startswith("Tag: ")]
    content = "".join(f"{line}\n" for line in (*rest, *(f"Tag: py3-none-{tag}" for tag in tags)))
    files[name] = content.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
    row = f"{name},sha256={digest},{len(files[name])}"
    rows = files[record].decode().splitlines()
    rows = [row if line.startswith(f"{name},") else line for line in rows]
    files[record] = "".join(f"{line}\n" for line in rows).encode()


def _make_bundle(place: Path, wheel: Path) -> Path:
    """Unpack a wheel and its dependencies beside each other, pack that, and return its path."""
    arch = next(
        (arch for arch, name in MACHINES.items() if f"linux_1_1_{name}." in wheel.name), None
    )
    if arch is None:
        raise OSError(f"{wheel} is not for an architecture: make wheel")
    machine = MACHINES[arch]
    wheels = place / "wheels"
    words = ("-m", "pip", "download", "--quiet", "-d", str(wheels), "--only-binary", ":all:")
    target = ["--python-version", OLDEST_PYTHON]
    target += [f"--platform={platform}_{machine}" for platform in PLATFORMS]
    _python(*words, *target, f"{wheel}[completion]", more={})
    files: dict[str, bytes] = {}
    for path in sorted(wheels.iterdir()):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith("/") and ".data/scripts/" not in name:
                    files[_place(name)] = archive.read(name)
    (entries,) = (name for name in files if re.fullmatch(_ENTRY_POINTS, name))
    for line in files[entries].decode().splitlines():
        name, equals, entry = line.partition(" = ")
        if equals:
            module, _, function = entry.partition(":")
            text = _LAUNCHER.format(
                name=name, module=module, function=function, arch=arch, machine=machine
            )
            files[f"bin/{name}"] = text.encode()
    for name in ("README.md", "LICENSE"):
        files[name] = (CLONE / name).read_bytes()
    bundle = place / f"gotrace-{arch}.tar.gz"
    with (
        bundle.open("wb") as stream,
        gzip.GzipFile("", "wb", 9, stream, mtime=_commit_time()) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            member = tarfile.TarInfo(f"gotrace/{name}")
            member.size, member.mtime = len(files[name]), _commit_time()
            member.mode = 0o755 if name.startswith("bin/") else 0o644
            member.uname = member.gname = "root"
            tar.addfile(member, io.BytesIO(files[name]))
    return bundle


def _place(name: str) -> str:
    """Return where the bundle has a wheel's file: modules in lib, man pages and so on in share."""
    _, data, rest = name.partition(".data/data/")
    if data:
        return rest
    _, data, rest = name.partition(".data/purelib/")
    return f"lib/{rest or name}"


if __name__ == "__main__":
    sys.exit(main())
