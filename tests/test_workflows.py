# SPDX-License-Identifier: Apache-2.0
"""What the workflows run is there, and a release has all that is installed from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CLONE = Path(__file__).parent.parent
WORKFLOWS = sorted((CLONE / ".github" / "workflows").glob("*.yml"))

Json = dict[Any, Any]


def read(path: Path) -> Json:
    found: Json = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[Json]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def scripts(path: Path) -> list[str]:
    return [step["run"] for step in steps(path) if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_run_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CLONE / "Makefile").read_text(), re.MULTILINE))
    asked = {
        word
        for script in scripts(path)
        for words in re.findall(r"^make (.*)$", script, re.MULTILINE)
        for word in words.split()
        if "=" not in word
    }
    assert asked and asked <= targets
    for script in scripts(path):
        assert subprocess.run(["bash", "-n", "-c", script]).returncode == 0
        for name in re.findall(r"build -f (\S+)", script):
            assert (CLONE / name).is_file(), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_end_and_have_few_rights(path: Path) -> None:
    workflow = read(path)
    wanted = {"contents": "write" if path.name == "release.yml" else "read"}
    assert workflow["permissions"] == wanted
    assert all(job["timeout-minutes"] <= 360 for job in workflow["jobs"].values())
    used = {step["uses"] for step in steps(path) if "uses" in step}
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_a_release_is_tested_before_it_is_attached() -> None:
    path = CLONE / ".github" / "workflows" / "release.yml"
    # YAML 1.1 reads the key "on" as true.
    assert read(path)[True] == {"push": {"tags": ["v*"]}}
    text = "\n".join(scripts(path))
    order = ["make test\n", "make test-install", "ARCH=arm64", "podman build", "sha256sum"]
    order.append("gh release create")
    places = [text.index(step) for step in order]
    assert places == sorted(places)
    assert text.endswith("dist/*")
    notes = re.search(r"--notes-file (\S+)", text)
    assert notes is not None and (CLONE / notes[1]).is_file()
