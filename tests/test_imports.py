# SPDX-License-Identifier: Apache-2.0
"""The order of gotrace's packages: what each may import, and how large each may grow."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

GOTRACE = Path(__file__).parent.parent / "gotrace"

#: Packages, and modules directly under gotrace, in the order in which they may be imported: each
#: imports only from those before it.
ROOMS = (
    "closing",
    "records",
    "kept",
    "errors",
    "arguments",
    "text",
    "units",
    "tables",
    "histogram",
    "overhead",
    "settings",
    "results",
    "hosts",
    "architecture",
    "elf",
    "gotypes",
    "profiles",
    "abi",
    "values",
    "calls",
    "capture",
    "sites",
    "probes",
    "target",
    "goroutines",
    "kernel",
    "session",
    "requests",
    "assertions",
    "live",
    "api",
    "report",
    "doctor",
    "screen",
    "cli",
    "fleet",
    "start",
)
MAX_SHARE = 0.15  # of all lines, with the packages within it
#: Package or module directly under gotrace -> those it may import besides itself.
ALLOWED = {room: set(ROOMS[:at]) for at, room in enumerate(ROOMS)}
#: The library's names come from the rooms that define them.
ALLOWED["__init__"] = ALLOWED["api"] | {"api"}
#: The daemon is built on the sessions, not on the commands.
ALLOWED["fleet"] -= {"report", "doctor", "cli"}


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
            elif parts[0] == "elftools":
                if package != "gotrace.elf.dwarf" or id(node) in lazy:
                    found.append(f"{package} imports elftools")
            elif parts[0] == "bcc":
                if room != "kernel":
                    found.append(f"{room} imports bcc")
                elif id(node) not in lazy:
                    found.append("bcc is imported outside of a function")
            elif parts[0] == "dataclasses" and room != "records":
                found.append(f"{package} imports dataclasses: gotrace.records has them")
            elif parts[0] == "argparse" and room not in ("cli", "fleet"):
                found.append(f"{room} imports argparse")
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
        ("report", "import argparse"),
        ("errors", "import gotrace.elf"),
        ("cli", "def f():\n    import bcc"),
        ("cli", "from dataclasses import dataclass"),
        ("kernel", "import bcc"),
        ("kernel", "class C:\n    from bcc import BPF"),
        ("elf", "from elftools.elf.elffile import ELFFile"),
        ("gotypes", "def f():\n    from elftools.dwarf.die import DIE"),
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


#: What the library and the commands are made of, beside themselves; the rest is behind it.
LAYER = {"session", "requests", "assertions", "live", "goroutines", "target", "profiles"}
LAYER |= {
    "closing",
    "records",
    "errors",
    "arguments",
    "text",
    "units",
    "tables",
    "histogram",
    "overhead",
    "calls",
    "results",
    "hosts",
}
BESIDE = {
    "api": {"kernel.attach", "values.python"},
    "cli": {
        *(
            "report",
            "screen",
            "doctor",
            "kernel.compiling",
            "kernel.methods",
            "gotypes.symbols",
            "sites.records",
        ),
        *("probes.pattern", "probes.spec", "probes.recipes"),
    },
}


@pytest.mark.parametrize(
    "path",
    sorted(path for room in BESIDE for path in (GOTRACE / room).glob("[!_]*.py")),
    ids=lambda path: str(path.relative_to(GOTRACE)),
)
def test_commands_and_library_ask_the_same_layer(path: Path) -> None:
    if path.stem == "completion":
        pytest.skip("it reads names without a session, to be fast")
    room = path.relative_to(GOTRACE).parts[0]
    names = {
        name.removeprefix("gotrace.")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node, f"gotrace.{room}")
        if name.startswith("gotrace.") and not name.startswith("gotrace.__")
    }
    known = LAYER | BESIDE[room] | {room}
    strange = {
        name
        for name in names
        if not {".".join(name.split(".")[:length]) for length in (1, 2)} & known
    }
    assert strange == set()


def calls_in(path: Path) -> set[str]:
    """Return the names of functions and classes that a module calls."""
    called = (
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    )
    return {name.id for name in called if isinstance(name, ast.Name)}


def test_a_measurement_starts_in_one_way() -> None:
    """By a request: nobody else makes what attaches, or finds out what that takes."""
    apart = {"find_tasks", "why_probes", "Prepared"}
    made = {
        node.name
        for path in (GOTRACE / "session").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and {base.id for base in node.bases if isinstance(base, ast.Name)} & {"Probing", "Paired"}
    }
    assert {"CallCounter", "CallTracer", "WaitMeter"} < made
    users = [path for path in modules() if GOTRACE / "session" not in path.parents]
    found = {path.stem: calls_in(path) & (made | apart) for path in users}
    # A check of a configuration attaches nothing.
    assert {name: calls for name, calls in found.items() if calls} == {"check": {"find_tasks"}}


def imports_among(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return module -> other modules among ``sources`` (name -> text) that it imports anywhere.

    Imports within functions and those for type checkers alone count. A package's name stands for
    its ``__init__.py``.
    """
    packages = {name.rpartition(".")[0] for name in sources}
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for module, source in sources.items():
        package = module if module in packages else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(source)):
            for name in imported(node, package):
                # from a.b import c: a.b.c where that is a module, else something in a.b
                found = name if name in sources else name.rpartition(".")[0]
                if found in sources and found != module:
                    graph[module].add(found)
    return graph


def circle_in(graph: Mapping[str, Set[str]]) -> list[str]:
    """Return modules each of which imports the next, the last being the first; empty if none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # it lists each after the one that imports it
    return []


def test_no_modules_import_each_other() -> None:
    sources = {
        ".".join(path.relative_to(GOTRACE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text()
        for path in modules()
    }
    graph = imports_among(sources)
    assert "gotrace.errors" in graph["gotrace.elf.image"]
    assert "gotrace.cli.completion" in graph["gotrace.cli.options"]  # within a function
    assert " -> ".join(circle_in(graph)) == ""


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import name",
        "from .a import name",
        "def f():\n    from p.a import name",
        "if TYPE_CHECKING:\n    from p.a import name",
    ],
)
def test_each_circle_is_seen(back: str) -> None:
    sources = {"p": "", "p.a": "from p.q import c", "p.q": "", "p.q.c": "import p.b", "p.b": back}
    circle = circle_in(imports_among(sources))
    assert circle[0] == circle[-1]
    assert {*pairwise(circle)} == {("p.a", "p.q.c"), ("p.q.c", "p.b"), ("p.b", "p.a")}


COMMENT = re.compile(r"/\*.*?\*/", re.S)
INCLUDE = re.compile(r'^#include "(\w+\.h)"$', re.M)
#: What C defines: a function, a type, a macro or a map.
DEFINED = re.compile(
    r"^(?:static [^;=]*?\b(?=\w+\()|(?:struct|enum) (?=\w+ \{)|#define "
    r"|BPF_[A-Z_]+\((?:\"\w+\", [^;]*?, [^;]*?, )?)(\w+)",
    re.M,
)
#: And what it uses of that.
USED = re.compile(r"\b(?:struct|enum) \w+|(?<![.>\w])\w+(?=\(|\.\w+\()|\b[A-Z]\w+")


def c_sources() -> dict[str, str]:
    """Return the BPF programs' sources and headers by their names, without comments."""
    paths = (GOTRACE.parent / "bpf").glob("*.[ch]")
    return {path.name: COMMENT.sub("", path.read_text()) for path in paths}


def test_no_headers_include_each_other() -> None:
    graph = {name: set(INCLUDE.findall(text)) for name, text in c_sources().items()}
    assert "calls.h" in graph["latency.c"]
    assert " -> ".join(circle_in(graph)) == ""


@pytest.mark.parametrize("name", c_sources())
def test_headers_are_included_before_all_else(name: str) -> None:
    """Within a condition one would be missing for the others where that does not hold."""
    text = c_sources()[name]
    head = text[: text.rfind('#include "') + 1]
    assert re.findall("^#if", head, re.M) == []
    assert len(INCLUDE.findall(text)) == text.count('include "')
    assert name.endswith(".c") or "#pragma once" in text


def test_c_includes_what_it_uses() -> None:
    sources = c_sources()
    places: dict[str, set[str]] = {}
    for name, text in sources.items():
        for defined in DEFINED.findall(text):
            places.setdefault(defined, set()).add(name)
    assert places["calls_enter"] == places["stacks"] == {"calls.h"}
    missing = []
    for name, text in sources.items():
        seen, ahead = set(), [name]
        while ahead:
            seen.add(one := ahead.pop())
            ahead += set(INCLUDE.findall(sources[one])) - seen
        used = {word.split()[-1] for word in USED.findall(text)}
        missing += [f"{name}: {word}" for word in used & places.keys() if not places[word] & seen]
    assert missing == []


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in GOTRACE.rglob("*.py"):
        for one in ast.parse(path.read_text()).body:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                places.setdefault(one.name, []).append(str(path.relative_to(GOTRACE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_only_the_library_lists_its_names() -> None:
    listing = {path for path in modules() if "\n__all__ = " in path.read_text()}
    assert listing == {GOTRACE / "__init__.py"}


@pytest.mark.parametrize(
    ("docstring", "is_wrong"),
    [
        ("What a hit costs, in ns.", True),
        ("Return what a hit costs, in ns.", True),
        ("Return the cost of a hit, in ns.", False),
        ("Whatever a pipe takes.", True),
    ],
)
def test_each_docstring_without_a_noun_is_seen(docstring: str, is_wrong: bool) -> None:
    assert bool(list(without_noun(f'def f():\n    """{docstring}"""'))) is is_wrong


def without_noun(source: str) -> Iterator[str]:
    """Yield the docstrings of a module's source that begin with a clause in place of a noun."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text is not None and text.startswith(("What", "Return what")):
            yield text.split("\n")[0]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """A fact has a name: "Return the cost of a hit", not "Return what a hit costs"."""
    assert [text for path in modules() for text in without_noun(path.read_text())] == []


def test_no_package_is_too_large() -> None:
    """A package stands for one concept: one that outgrows this share holds a second one."""
    lines: Counter[str] = Counter()
    for path in modules():
        room = path.relative_to(GOTRACE).parts[0]
        lines[room] += path.read_text().count("\n")
    most = lines.total() * MAX_SHARE
    assert [f"{room}: {count} lines" for room, count in lines.items() if count > most] == []


def test_required_packages_are_those_that_are_used() -> None:
    setup = configparser.ConfigParser()
    setup.read(GOTRACE.parent / "setup.cfg")
    required = re.findall(r"^[\w-]+", setup["options"]["install_requires"], re.MULTILINE)
    of_fleet = setup["options.extras_require"]["fleet"]
    extra = set(re.findall(r"^[\w-]+", of_fleet, re.MULTILINE))
    fleet = [path for path in modules() if GOTRACE / "fleet" in path.parents]
    assert distributions(set(modules()) - set(fleet)) == set(required)
    assert distributions(fleet) - set(required) - {"argcomplete"} == {
        name if not name.startswith("opentelemetry") else "opentelemetry" for name in extra
    }


def distributions(paths: Iterable[Path]) -> set[str]:
    """Return what has to be installed for modules to be imported."""
    used = {
        name.partition(".")[0]
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node, "gotrace")
    }
    # bcc is the system's, the last two are the type checker's
    used -= sys.stdlib_module_names | {"gotrace", "bcc", "_typeshed", "typing_extensions"}
    renamed = {
        "elftools": "pyelftools",
        "grpc": "grpcio",
        "prometheus_client": "prometheus-client",
        "yaml": "PyYAML",
    }
    return {renamed.get(name, name) for name in used}


def loaded_by(names: Iterable[str]) -> set[str]:
    """Return the top-level packages that importing modules loads."""
    imports = "".join(f"import {name}\n" for name in names)
    code = f"import sys\n{imports}print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=GOTRACE.parent, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_commands_start_without_bcc_and_pyelftools() -> None:
    commands = [path.stem for path in (GOTRACE / "cli").glob("go*.py")]
    assert commands
    loaded = loaded_by(f"gotrace.cli.{name}" for name in commands)
    assert "gotrace" in loaded
    assert not loaded & {"bcc", "elftools"}


def test_only_the_daemon_loads_its_packages() -> None:
    others = [path for path in modules() if GOTRACE / "fleet" not in path.parents]
    names = [".".join(path.relative_to(GOTRACE.parent).with_suffix("").parts) for path in others]
    loaded = loaded_by(name.removesuffix(".__init__") for name in names)
    assert not loaded & {"jsonschema", "opentelemetry", "prometheus_client", "yaml"}


def test_only_readers_of_dwarf_load_pyelftools() -> None:
    dwarf = GOTRACE / "elf" / "dwarf"
    loading = {dwarf / f"{name}.py" for name in ("reader", "search", "units")}
    assert loading < set(modules())
    others = (path for path in modules() if path not in loading)
    names = [".".join(path.relative_to(GOTRACE.parent).with_suffix("").parts) for path in others]
    assert "elftools" not in loaded_by(name.removesuffix(".__init__") for name in names)
    assert "elftools" in loaded_by(["gotrace.elf.dwarf.reader"])


def test_files_are_read_without_other_packages() -> None:
    loaded = loaded_by(["gotrace.elf.functions"])
    assert "gotrace" in loaded
    assert not loaded & {"bcc", "capstone", "elftools", "numpy"}


def test_the_library_loads_what_it_needs_on_first_use() -> None:
    heavy = {"bcc", "capstone", "elftools", "ctypes"}
    assert not loaded_by(["gotrace"]) & heavy
    assert not loaded_by(["gotrace.calls"]) & heavy  # reading a trace takes none of it
    assert not loaded_by(["gotrace.api.session"]) & {"bcc", "elftools"}
