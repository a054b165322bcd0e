# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is in it and whom it is for; it is the same each time, and runs without BCC."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gotrace.architecture import ARCHITECTURES, HOST, Architecture
from gotrace.kernel.program_cache import program_key
from gotrace.settings import CountSettings, HistogramSettings, LatencySettings
from tests.packages.wheels import make_programs, make_wheel
from tests.test_packaging import SEVEN_CALLS
from tests.toolchains import build, newest
from tests.tools.harness import CLONE

TIMES = HistogramSettings(rows=1, stripes=1, histograms=1, histogram_rows=1)
FEW = [CountSettings(counters=1), LatencySettings(stacks=1, outer_calls=1, times=TIMES)]
MAX_BYTES = 4_000_000
#: Of ELF files for the kernel: EM_BPF, include/uapi/linux/elf-em.h.
EM_BPF = 247


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the modules are as in a wheel, with a few programs, and no BCC."""
    place = tmp_path_factory.mktemp("wheel") / "lib"
    ignored = shutil.ignore_patterns("__pycache__", "_compiled")
    shutil.copytree(CLONE / "gotrace", place / "gotrace", ignore=ignored)
    shutil.copytree(CLONE / "bpf", place / "gotrace" / "_bpf")
    make_programs(place / "gotrace" / "_compiled", FEW)
    (place / "bcc.py").write_text("raise ImportError('there is no BCC here')\n")
    return place


def run(unpacked: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from gotrace.start import {words[0]}; sys.exit({words[0]}())"
    environment = {
        **os.environ,
        "PYTHONPATH": str(unpacked),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),  # nothing is kept there
    }
    return subprocess.run(
        [sys.executable, "-c", code, *words[1:]],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("seven") / "seven.go"
    source.write_text(SEVEN_CALLS)
    return build(source, newest())


@pytest.mark.live
@pytest.mark.apart
def test_packaged_programs_need_no_compiler(unpacked: Path, program: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    counted = run(unpacked, tmp_path, "gofunccount", "-c", str(program), "main.work")
    assert counted.returncode == 0, counted.stderr
    assert re.search(r"^main\.work +7 +100\.0%$", counted.stdout, re.MULTILINE)
    assert not list((tmp_path / "cache").rglob("*-*"))


@pytest.mark.live
@pytest.mark.apart
def test_what_is_not_packaged_is_refused(unpacked: Path, program: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    words = ("gofunclatency", "-g", "-c", str(program), "main.work")
    refused = run(unpacked, tmp_path, *words)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(
        "gofunclatency: this run needs a BPF program that the package does not have, and the BCC"
        " binding cannot be imported (there is no BCC here): install python3-bpfcc"
    )
    assert line.endswith(", or leave out -g")


@pytest.mark.live
@pytest.mark.apart
def test_doctor_says_where_programs_come_from(unpacked: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = run(unpacked, tmp_path, "gotrace", "doctor", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = {row["check"]: row for row in rows if row["kind"] == "check"}
    packaged = found["packaged programs"]
    assert re.match(r"2, \d+ kB, \S+/_compiled, compiled by BCC ", packaged["found"])
    assert found["bcc"]["state"] == "warn"
    count = found["program of gofunccount"]["found"]
    assert count == "comes with the package, and the kernel's verifier accepts it"
    assert "the package does not have" in found["program of gotrace"]["found"]


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.apart
def test_two_wheels_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACE_HOME", "https://example.com/a/gotrace")
    first, second = tmp_path / "first", tmp_path / "second"
    wheels = []
    for place in (first, second):
        place.mkdir()
        before = os.umask(0o077 if place is second else 0o022)
        try:
            wheels.append(make_wheel(place, FEW))
        finally:
            os.umask(before)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    tags = (
        f"{tag}_{os.uname().machine}"
        for tag in ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
    )
    assert wheels[0].name.endswith(f"-py3-none-{'.'.join(tags)}.whl")
    with zipfile.ZipFile(wheels[0]) as archive:
        entries = archive.infolist()
        manifest = json.loads(archive.read("gotrace/_compiled/manifest.json"))
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "\nProject-URL: Issues, https://example.com/a/gotrace/issues\n" in metadata
    assert {each.external_attr >> 16 for each in entries} == {0o100644}
    assert len({each.date_time for each in entries}) == 1
    assert len(manifest["programs"]) == len(FEW)
    assert set(manifest["sources"]) >= {"count.c", "trace.c", "site.h"}
    names = {each.filename for each in entries}
    assert {f"gotrace/_compiled/{each['file']}" for each in manifest["programs"]} <= names
    assert wheels[0].stat().st_size < MAX_BYTES


@pytest.fixture(scope="module")
def foreign() -> Architecture:
    """Return an architecture that is not this machine's."""
    return next(arch for arch in ARCHITECTURES if arch is not HOST)


@pytest.fixture(scope="module")
def foreign_wheel(foreign: Architecture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("foreign"), FEW, foreign)


def script(name: str, *words: str | Path) -> Path:
    """Run a script of the clone's that prints the path of what it has made."""
    command: list[str | Path] = [sys.executable, CLONE / "tools" / name, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.apart
def test_a_wheel_is_for_one_architecture(foreign: Architecture, foreign_wheel: Path) -> None:
    with zipfile.ZipFile(foreign_wheel) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("gotrace/_compiled/manifest.json"))
        (wheel,) = (archive.read(name).decode() for name in names if name.endswith("/WHEEL"))
    assert f"\nTag: py3-none-manylinux_2_17_{foreign.machine}\n" in wheel
    # The tags of a C library are true of what is linked with none.
    with zipfile.ZipFile(foreign_wheel) as archive:
        machines = {
            int.from_bytes(head[18:20], "little")
            for name in names
            if (head := archive.read(name)[:20]).startswith(b"\x7fELF")
        }
    assert machines <= {EM_BPF}
    assert manifest["machine"] == foreign.machine
    assert {each["file"] for each in manifest["programs"]} == {
        program_key(settings, foreign) for settings in FEW
    }
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        foreign_wheel,
    ]
    refused = subprocess.run(pip, capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"{foreign_wheel.name} is not a supported wheel on this platform" in refused.stderr


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.apart
def test_a_bundle_for_another_machine_says_so(
    foreign: Architecture, foreign_wheel: Path, tmp_path: Path
) -> None:
    bundle = script("package.py", "bundle", "-o", tmp_path, foreign_wheel)
    assert bundle.name == f"gotrace-{foreign.name}.tar.gz"
    subprocess.run(["tar", "xf", bundle, "-C", tmp_path], check=True)
    for command in (tmp_path / "gotrace" / "bin").iterdir():
        done = subprocess.run([command, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"{command.name}: this bundle is for {foreign.name} ({foreign.machine}), and this"
            f" machine is {os.uname().machine}: unpack the bundle that is for it\n"
        )
    libraries = [*(tmp_path / "gotrace" / "lib").rglob("*.so*")]
    assert libraries
    assert {path.read_bytes()[18] for path in libraries} == {foreign.elf_machine}


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.apart
def test_a_debian_package_is_for_the_wheels_architecture(
    foreign: Architecture, foreign_wheel: Path, tmp_path: Path
) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    package = script("deb.py", foreign_wheel, tmp_path)
    assert re.fullmatch(rf"gotrace_[^_]+_{foreign.name}\.deb", package.name)
    fields: list[str | Path] = ["dpkg-deb", "-f", package, "Architecture"]
    said = subprocess.run(fields, capture_output=True, text=True, check=True)
    assert said.stdout == f"{foreign.name}\n"
