# SPDX-License-Identifier: Apache-2.0
"""Start a command from the clone that this file lies in, with the clone's virtual environment."""

from __future__ import annotations

import importlib
import os
import site
import sys

if sys.flags.no_site:
    site.main()


def command(name: str, package: str = "cli") -> int:
    """Run the command ``name`` of a package of gotrace and return its exit status.

    Where there is a virtual environment (``make setup`` makes it), its packages come first. The
    process replaces itself by that environment's interpreter unless it is the same one.
    """
    clone = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    environment = os.path.join(clone, ".venv")
    python = os.path.join(environment, "bin", "python")
    if sys.executable != python and os.access(python, os.X_OK):
        packages = _packages(environment)
        if packages is None:
            os.execv(python, [python, "-S", *sys.argv])
        sys.path.insert(_first_packages(), packages)
    # As a tuple: of a comparison with version_info itself, linters say that it cannot be true.
    if tuple(sys.version_info) < (3, 10):
        version = ".".join(map(str, sys.version_info[:3]))
        needed = f"gotrace needs Python 3.10 or newer; {sys.executable} is {version}"
        print(f"{name}: {needed}", file=sys.stderr)
        return 1
    sys.path[0] = clone
    try:
        module = importlib.import_module(f"gotrace.{package}.{name}")
    except (ImportError, OSError) as error:
        print(f"{name}: {error}: run make setup in {clone}", file=sys.stderr)
        return 1
    status: int = module.main()
    return status


def _packages(environment: str) -> str | None:
    """Return where an environment has its packages, None where this is not its interpreter.

    Starting the interpreter a second time, which differs in nothing but them, takes 20 to 50 ms.
    """
    try:
        with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = [line.partition("=") for line in file]
    except (OSError, UnicodeDecodeError):
        return None
    settings = {name.strip(): value.strip() for name, _, value in lines}
    is_ours = (
        sys.prefix == sys.base_prefix
        and settings.get("home") == os.path.dirname(sys.executable)
        and settings.get("include-system-site-packages") == "true"
    )
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = os.path.join(environment, "lib", version, "site-packages")
    return packages if is_ours and os.path.isdir(packages) else None


def _first_packages() -> int:
    """Return the place in ``sys.path`` of the first of the interpreter's own packages."""
    ends = ("site-packages", "dist-packages")
    places = [at for at, path in enumerate(sys.path) if path.endswith(ends)]
    return places[0] if places else len(sys.path)
