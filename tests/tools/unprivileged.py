# SPDX-License-Identifier: Apache-2.0
"""Run the tools from a copy that every user can read, as a user with chosen capabilities."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.toolchains import cache_dir
from tests.tools.harness import CLONE, Process, Result, Running

_NOBODY = 65534
#: Runs what follows as a user without rights.
NOBODY = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")

_PACKAGES = ("capstone", "elftools", "tabulate")
#: For env: the copy has its bytecode beside it, where no user that it runs as could write it.
_OWN_BYTECODE = "PYTHONPYCACHEPREFIX="


@dataclass(frozen=True, slots=True)
class PublicCopy:
    """The tools in a directory that every user can read, and what else is put there."""

    directory: Path

    def add(self, program: Path) -> Path:
        """Copy a program there."""
        copy = Path(shutil.copy(program, self.directory / program.name))
        copy.chmod(0o755)
        return copy

    def command(
        self, name: str, *arguments: str | Path, capabilities: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line of a tool for a user with these capabilities and no others."""
        granted = ",".join(f"+{capability}" for capability in capabilities)
        rights = [f"--inh-caps={granted}", f"--ambient-caps={granted}"] if granted else []
        cache = f"XDG_CACHE_HOME={self.directory / 'cache'}"
        return [*NOBODY, *rights, "env", cache, *self.python_command(name), *map(str, arguments)]

    def python_command(self, name: str) -> list[str]:
        """Return the command line of a tool, for env."""
        python = os.path.realpath(CLONE / ".venv" / "bin" / "python")
        code = f"import sys; from gotrace.cli.{name} import main; sys.exit(main())"
        path = f"PYTHONPATH={self.directory}:{self.directory / 'packages'}"
        return [path, _OWN_BYTECODE, python, "-c", code]

    def run(
        self,
        name: str,
        *arguments: str | Path,
        capabilities: Sequence[str] = (),
        limits: Sequence[str] = (),
    ) -> Result:
        """Run a tool that ends by itself; ``limits`` are options of prlimit."""
        command = self.command(name, *arguments, capabilities=capabilities)
        with Process(["prlimit", *limits, *command] if limits else command, cwd="/") as process:
            lines = process.rest()
            return Result(process.wait(), lines, process.errors)

    def start(self, name: str, *arguments: str | Path, capabilities: Sequence[str]) -> Running:
        """Start a tool and return once its probes are attached."""
        return Running(self.command(name, *arguments, capabilities=capabilities), cwd="/")


def make_cache(cache: Path, user: int, *, has_programs: bool = False) -> Path:
    """Make a user's cache, with the programs that are kept for whoever runs the tests or without.

    A program is compiled with the user's rights if it is not there.
    """
    if not cache.exists():
        cache.mkdir()
        kept = cache_dir() / "bpf"
        if has_programs and kept.exists():
            shutil.copytree(kept, cache / "gotrace" / "bpf")
        for path in (cache, *cache.rglob("*")):
            os.chown(path, user, user)
    return cache


@contextmanager
def public_copy() -> Iterator[PublicCopy]:
    """Make the copy, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="gotrace-", dir="/var/tmp") as name:
        tree = Path(name)
        for part in ("gotrace", "bpf"):
            shutil.copytree(CLONE / part, tree / part)
        (tree / "packages").mkdir()
        for package in _PACKAGES:
            found = importlib.util.find_spec(package)
            assert found is not None and found.origin is not None
            origin = Path(found.origin)
            if origin.name == "__init__.py":
                shutil.copytree(origin.parent, tree / "packages" / package)
            else:
                shutil.copy(origin, tree / "packages")
        compiling = [sys.executable, "-m", "compileall", "-q", str(tree)]
        subprocess.run(["env", _OWN_BYTECODE, *compiling], check=True)
        make_cache(tree / "cache", _NOBODY)
        tree.chmod(0o755)
        yield PublicCopy(tree)
