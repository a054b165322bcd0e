"""Enforce the direction of imports between gotrace's packages, and that bcc stays in one place."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GOTRACE = Path(__file__).parent.parent / "gotrace"

#: Packages, and modules directly under gotrace, in the order in which they may be imported: each
#: imports only from those before it.
ROOMS = (
    "errors",
    "text",
    "histogram",
    "elf",
    "gotypes",
    "abi",
    "values",
    "capture",
    "sites",
    "probes",
    "target",
    "kernel",
    "session",
    "report",
    "doctor",
    "cli",
)
#: Package or module directly under gotrace -> those it may import besides itself.
ALLOWED = {"__init__": set[str]()} | {room: set(ROOMS[:at]) for at, room in enumerate(ROOMS)}


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the absolute dotted names that an import statement in ``package`` may bind."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(room: str, package: str, source: str) -> list[str]:
    """Return one line for each import in a module's source that its room may not do."""
    tree = ast.parse(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, functions)
        for inner in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        for name in imported(node, package):
            parts = name.split(".")
            if parts[0] == "gotrace" and len(parts) > 1 and not parts[1].startswith("__"):
                if parts[1] not in ALLOWED[room] | {room}:
                    found.append(f"{room} imports gotrace.{parts[1]}")
            elif parts[0] == "bcc":
                if room != "kernel":
                    found.append(f"{room} imports bcc")
                elif id(node) not in lazy:
                    found.append("bcc is imported outside of a function")
    return found


def modules() -> list[Path]:
    return sorted(GOTRACE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(GOTRACE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(GOTRACE)
    package = ".".join(["gotrace", *relative.parent.parts])
    assert violations(relative.parts[0].removesuffix(".py"), package, path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("elf", "import gotrace.gotypes.symbols"),
        ("elf", "from gotrace import gotypes"),
        ("elf", "from ..gotypes import symbols"),
        ("gotypes", "from .. import probes"),
        ("probes", "def f():\n    from gotrace.session.plan import Plan"),
        ("capture", "from gotrace.sites.sites import Site"),
        ("report", "if True:\n    import gotrace.cli"),
        ("errors", "import gotrace.elf"),
        ("cli", "def f():\n    import bcc"),
        ("kernel", "import bcc"),
        ("kernel", "class C:\n    from bcc import BPF"),
    ],
)
def test_each_forbidden_import_is_seen(room: str, source: str) -> None:
    assert len(violations(room, f"gotrace.{room}", source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("elf", "from .image import ElfImage\nfrom gotrace.errors import GotraceError"),
        ("probes", "from ..gotypes import symbols\nfrom gotrace.elf import image"),
        ("report", "import gotrace\nimport gotrace.session"),
        ("kernel", "def f():\n    from bcc import BPF"),
        ("cli", "from gotrace import __version__, report, session"),
    ],
)
def test_allowed_imports_pass(room: str, source: str) -> None:
    assert violations(room, f"gotrace.{room}", source) == []


def test_required_packages_are_those_that_are_used() -> None:
    setup = configparser.ConfigParser()
    setup.read(GOTRACE.parent / "setup.cfg")
    required = re.findall(r"^[\w-]+", setup["options"]["install_requires"], re.MULTILINE)
    used = {
        name.partition(".")[0]
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node, "gotrace")
    }
    # bcc is the system's, _typeshed the type checker's
    distributions = used - sys.stdlib_module_names - {"gotrace", "bcc", "_typeshed"}
    assert distributions == set(required)


def test_commands_start_without_bcc() -> None:
    commands = [path.stem for path in (GOTRACE / "cli").glob("go*.py")]
    assert commands
    imports = "".join(f"import gotrace.cli.{name}\n" for name in commands)
    code = f"import sys\n{imports}print('bcc' in sys.modules)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=GOTRACE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
