# SPDX-License-Identifier: Apache-2.0
"""The image's recipe takes along the wheel, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def test_what_is_copied_is_the_wheel_alone() -> None:
    assert copied() == {"dist/gotrace-*.whl": "/dist/gotrace-*.whl"}
    lines = (CLONE / ".containerignore").read_text().splitlines()
    assert lines == ["**", "!dist/gotrace-*.whl"]


def test_no_headers_and_no_compilers() -> None:
    packages = {
        package
        for _, rest in STEPS
        for words in re.findall(r"apt-get install -y --no-install-recommends ([^&]+)", rest)
        for package in words.split()
    }
    assert packages == {"busybox", "libstdc++6", "python3", "python3-venv"}


def test_the_daemon_set_starts_what_the_image_would() -> None:
    pod = yaml.safe_load((CLONE / "deploy" / "kubernetes" / "base" / "daemonset.yaml").read_text())
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    steps = dict(STEPS)  # the last of each name
    assert json.loads(steps["ENTRYPOINT"]) == ["gotraced"]
    assert json.loads(steps["CMD"]) == container["args"]
    assert "command" not in container
