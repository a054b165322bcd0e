# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of the library: one error, in the library's words."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gotrace
from gotrace.api.checks import os_errors
from gotrace.api.rows import Group, Groups
from gotrace.api.streams import _Stream
from tests.test_imports import ALLOWED, GOTRACE

ROW = {"kind": "count", "func": "main.f", "count": 3, "ts": 1.0, "interval_s": 1.0}
#: Of the functions that are not methods of a session, an argument for each that needs one.
GIVEN: dict[str, Any] = {"a": "w", "b": "w", "path": "w", "source": "w", "calls": [], "root": "f"}
GIVEN |= {"process": 1, "command": ["true"], "file": "w", "seconds": 1.0}


@pytest.fixture(autouse=True)
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w").write_text(json.dumps(ROW))


def functions() -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield each public function and method of a session, with the name of each parameter."""
    session = gotrace.start(["true"])  # which is started by its first run
    public: list[Any] = [getattr(gotrace, name) for name in gotrace.__all__]
    public += [one for _, one in inspect.getmembers(session, inspect.ismethod)]
    for one in filter(inspect.isroutine, public):
        if not one.__name__.startswith("_"):
            yield from ((one, name) for name in inspect.signature(one).parameters)


@pytest.mark.parametrize(
    ("function", "name"), [*functions()], ids=lambda one: getattr(one, "__name__", one)
)
def test_an_argument_of_no_type_is_refused_by_its_name(
    function: Callable[..., Any], name: str
) -> None:
    given: list[Any] = []
    named: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        value = object() if one.name == name else GIVEN.get(one.name)
        if one.kind is one.KEYWORD_ONLY:
            named |= {one.name: value} if one.name == name or one.default is one.empty else {}
        elif one.name == name or (one.default is one.empty and one.kind is not one.VAR_POSITIONAL):
            given.append(value)
    with pytest.raises(TypeError, match=f"^{name} is <object") as caught:
        function(*given, **named)
    assert isinstance(caught.value, gotrace.UsageError)


@pytest.mark.parametrize(
    "function", list(dict.fromkeys(one for one, _ in functions())), ids=lambda one: one.__name__
)
def test_an_argument_that_there_is_not_is_refused_by_its_name(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(gotrace.WrongTypeError, match=r"^\w+\(\) has no nonsense: it has "):
        function(nonsense=1)


def test_what_other_libraries_call_an_argument_is_known() -> None:
    go: Any = gotrace.start(["true"])
    for given, meant in (("duration", "seconds"), ("second", "seconds"), ("every", "interval")):
        with pytest.raises(TypeError) as caught:
            go.count("main.f", **{given: 1})
        assert str(caught.value) == f"count() has no {given}: did you mean {meant}?"
    with pytest.raises(gotrace.WrongTypeError, match=r"^diff\(\): missing a required argument"):
        gotrace.diff("w")  # type: ignore[call-arg]


GROUP = Group("main.f", {}, 1)
BARE: Any = SimpleNamespace(
    _stacks=None, _left=1, _made=[1], _opened=SimpleNamespace(is_closing=True)
)


def refuse() -> None:
    with os_errors():
        os.open("/nowhere", os.O_RDONLY)


def test_values_that_make_no_sense_are_usage_errors() -> None:
    go: Any = gotrace.start(["true"])
    uses: list[tuple[Callable[[], Any], str]] = [
        (lambda: gotrace.merge("w", hosts="w"), r"hosts takes several: hosts=\['w'\]"),
        (lambda: gotrace.merge("w", hosts=["a", "b"]), "hosts are 2 and recordings 1"),
        (lambda: gotrace.merge("w").rows("nope"), r"rows\('nope'\): give one of 'count'"),
        (lambda: gotrace.read("x\0y"), "cannot read x"),
        (lambda: gotrace.load("x\0y"), "cannot read x"),
        (lambda: gotrace.write("x\0y", []), "cannot write 'x"),
        (lambda: gotrace.attach(""), "no process"),
        (lambda: gotrace.attach("/bin/no_such"), "no process is named"),
        (lambda: go.trace("main.f", limit=True), "limit is True: give int"),
        (lambda: go.flight("main.f", seconds=1, memory=1 << 80), "memory is"),
        (lambda: go.waits(state="asleep"), "state is 'asleep': give Literal"),
        (
            lambda: go.latency("main.f", of="n, m"),
            "of is 'n, m': give one value to make histograms of",
        ),
        (lambda: go.count("main.f", rows=0), "rows is 0: give a positive whole number"),
        (lambda: GROUP.times, "these calls have no times: use latency"),
        (lambda: GROUP.values, r"these calls have no values: give latency\(\) an expression as of"),
        (lambda: Groups._profile.__get__(BARE), r"these calls have no stacks: give by='\$stack'"),
        (lambda: _Stream._next(BARE), "this trace was closed meanwhile"),
        (lambda: gotrace.path("/bin/true").check("main.f == 0"), r"check\(\) is about one program"),
        (refuse, "cannot trace: /nowhere: No such file"),
    ]
    for use, words in uses:
        with pytest.raises(gotrace.GotraceError, match=words):
            list(use())


def spoken(tree: ast.AST) -> Iterator[str]:
    """Yield texts of a module but those of docstrings, and those that ``said`` chooses from."""
    for node in ast.iter_child_nodes(tree):
        is_said = isinstance(node, ast.Call) and ast.unparse(node.func) == "said"
        is_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not is_said and not is_alone:
            yield from spoken(node)


def test_rooms_that_commands_and_library_share_name_no_options() -> None:
    option = re.compile(r"(?:^|[\s(])(?:-[A-Za-z]\b|--[a-z][a-z-]+)")
    # Other programs' options, and the name of the format of recordings.
    others = re.compile(
        r"(ulimit|mount|objcopy|setcap|go build|go test -c) -[-\w]+|--json|--list$|^-[DIS]$"
    )
    # Words that ``said`` gets from there, and the command lines that look further at a finding.
    tables = {"kernel/unpackaged.py", "results/kinds.py", "live/causes.py", "session/bare.py"}
    found = []
    for path in GOTRACE.rglob("*.py"):
        name = path.relative_to(GOTRACE)
        room = name.parts[0].removesuffix(".py")
        if room in ALLOWED["api"] - {"hosts"} | {"api"} and str(name) not in tables:
            for text in spoken(ast.parse(path.read_text())):
                if option.search(others.sub("", text)):
                    found.append(f"{name}: {text}")
    assert found == []
