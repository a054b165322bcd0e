# SPDX-License-Identifier: Apache-2.0
"""kustomize, to put the files for Kubernetes together as ``kubectl apply -k`` does.

``make setup-test`` unpacks Debian's package beside the toolchains and installs nothing: it needs
libc only.
"""

from __future__ import annotations

from pathlib import Path

from tests.debian import fetch_program, fetched_program
from tests.toolchains import toolchain_dir

_SUITE = "trixie"


def kustomize_place() -> Path:
    """Return where the fetched package is unpacked."""
    return toolchain_dir() / "kustomize"


def kustomize() -> Path | None:
    """Return the command, the fetched one first; None where there is none."""
    return fetched_program("kustomize", kustomize_place())


def fetch_kustomize(unpacked: Path) -> None:
    """Unpack Debian's package into a directory. Raises FetchError."""
    fetch_program("kustomize", _SUITE, unpacked)
