# SPDX-License-Identifier: Apache-2.0
"""Wheels with compiled programs, of a few shapes where not all are needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gotrace.architecture import HOST, Architecture
from gotrace.doctor import precompile
from gotrace.settings import ProgramSettings
from tests.tools.harness import CLONE


def make_programs(
    folder: Path, settings: Sequence[ProgramSettings], arch: Architecture | None = HOST
) -> Path:
    """Compile programs of these settings, or take kept ones, as a package has them."""
    folder.mkdir(mode=0o755)
    precompile.package_programs(folder, settings, arch)
    return folder


def make_wheel(
    place: Path,
    settings: Sequence[ProgramSettings] | None,
    arch: Architecture | None = HOST,
) -> Path:
    """Make a wheel in a directory, with all programs if no settings are given."""
    command: list[str | Path] = [CLONE / "tools" / "package.py", "wheel", "-o", place]
    if settings is not None:
        command += ["--programs", make_programs(place / "programs", settings, arch)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
