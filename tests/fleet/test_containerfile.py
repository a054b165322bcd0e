# SPDX-License-Identifier: Apache-2.0
"""The image's recipe takes along what gotrace is made of, and no more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.tools.harness import CLONE

TEXT = (CLONE / "deploy" / "Containerfile").read_text()
#: Instructions, continued lines put together, without comments.
STEPS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line
]


def copied() -> dict[str, str]:
    """Return what is copied from the clone, and where to."""
    found = {}
    for name, rest in STEPS:
        if name == "COPY" and not rest.startswith("--from="):
            *sources, place = rest.split()
            for source in sources:
                into = place.endswith("/")
                found[source] = place + Path(source).name if into else place
    return found


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (CLONE / ".containerignore").read_text().splitlines()
    assert lines[0] == "**"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    for source in copied():
        assert (CLONE / source).exists(), source


@pytest.mark.slow
def test_what_is_copied_is_all_that_a_build_needs(tmp_path: Path) -> None:
    without = shutil.ignore_patterns("__pycache__")
    for source, place in copied().items():
        target = tmp_path / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if (CLONE / source).is_dir():
            shutil.copytree(CLONE / source, target, ignore=without)
        else:
            shutil.copy(CLONE / source, target)
    backend = "from setuptools import build_meta; build_meta.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", backend], cwd=tmp_path / "src", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    built = set(zipfile.ZipFile(wheel).namelist())
    sources = {"gotrace": "*.py", "gotrace/recipes": "*.txt", "bpf": "*.[ch]"}
    for place, pattern in sources.items():
        wanted = {str(path.relative_to(CLONE)) for path in (CLONE / place).rglob(pattern)}
        assert wanted
        assert {re.sub("^bpf/", "gotrace/_bpf/", name) for name in wanted} <= built
    pages = {path.name for path in (CLONE / "docs" / "man").glob("*.8")}
    assert pages <= {Path(name).name for name in built}


def test_no_headers_and_no_compilers() -> None:
    packages = {
        package
        for _, rest in STEPS
        for words in re.findall(r"apt-get install -y --no-install-recommends ([^&]+)", rest)
        for package in words.split()
    }
    assert packages == {"python3", "python3-bpfcc", "python3-venv"}


def test_the_daemon_set_starts_what_the_image_would() -> None:
    pod = yaml.safe_load((CLONE / "deploy" / "kubernetes" / "daemonset.yaml").read_text())
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    steps = dict(STEPS)  # the last of each name
    assert json.loads(steps["ENTRYPOINT"]) == ["gotraced"]
    assert json.loads(steps["CMD"]) == container["args"]
    assert "command" not in container
