# SPDX-License-Identifier: Apache-2.0
"""Start a command from the clone that this file lies in, under the clone's virtual environment."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

__all__ = ["command"]


def command(name: str, package: str = "cli") -> int:
    """Run the command ``name`` of a package of gotrace and return its exit status.

    The process replaces itself by the virtual environment's interpreter first, where there is one
    (``make setup`` makes it) and it is not running already.
    """
    clone = Path(__file__).resolve().parent.parent
    python = str(clone / ".venv" / "bin" / "python")
    if sys.executable != python and os.access(python, os.X_OK):
        os.execv(python, [python, *sys.argv])
    # As a tuple: of a comparison with version_info itself, linters say that it cannot be true.
    if tuple(sys.version_info) < (3, 10):
        version = ".".join(map(str, sys.version_info[:3]))
        needed = f"gotrace needs Python 3.10 or newer; {sys.executable} is {version}"
        print(f"{name}: {needed}", file=sys.stderr)
        return 1
    sys.path[0] = str(clone)
    try:
        module = importlib.import_module(f"gotrace.{package}.{name}")
    except (ImportError, OSError) as error:
        print(f"{name}: {error}: run make setup in {clone}", file=sys.stderr)
        return 1
    status: int = module.main()
    return status
