# SPDX-License-Identifier: Apache-2.0
"""Compile a kernel that Debian has no package of, from its package of the source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.debian import FetchError, unpack

_HOME = Path(__file__).parent / "guest"

#: make calls the kernel's architecture and the compiler so.
_MAKE = ("nice", "-n", "5", "make", "-s", "ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-")
_IMAGE = Path("arch", "arm64", "boot", "Image")


def configuration(name: str) -> Path:
    """Return the file with what the kernel of a release is configured with."""
    return _HOME / f"{name}.config"


def digest(file: Path) -> str:
    """Return a name for a configuration's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def compile_kernel(package: Path, wanted: Path, tree: Path, image: Path) -> str:
    """Compile the source in a package for arm64 with a configuration; return the kernel's name.

    ``tree`` gets the source and takes 3 GB, ``image`` the kernel. All processors are used, by
    processes that let others go first. Raises FetchError.
    """
    unpack(package, tree)
    (archive,) = tree.glob("usr/src/linux-source-*.tar.xz")
    _run("tar", "-xf", str(archive), "-C", str(tree))
    (source,) = tree.glob("linux-source-*")
    make = (*_MAKE, "-C", str(source))
    _run(*make, f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig")
    without = missing(wanted.read_text(), (source / ".config").read_text())
    if without:
        raise FetchError(f"{source.name} cannot be configured with {', '.join(without)}")
    _run(*make, f"-j{os.cpu_count() or 1}", _IMAGE.name)
    shutil.copy(source / _IMAGE, image)
    return (source / "include" / "config" / "kernel.release").read_text().strip()


def missing(wanted: str, got: str) -> list[str]:
    """Return the settings that a configuration lacks, as what they depend on is not there."""
    lines = set(got.splitlines())
    return [line for line in wanted.splitlines() if line[:7] == "CONFIG_" and line not in lines]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(os.environ))
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in words if "error" in line.lower()] or words[-1:]
        raise FetchError(f"{command[0]}: {errors[0]}")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no other make's words reach this one's."""
    return {key: text for key, text in given.items() if key not in ("MAKEFLAGS", "MFLAGS")}
