# SPDX-License-Identifier: Apache-2.0
"""The library's names: all that a user meets can be named, and type checkers know of it."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import gotrace

GOTRACE = Path(gotrace.__file__).parent
#: For other packages of the project alone; and the name of an alias, which a class has, too.
_INNER = {"DecodedCall", "Recorded", "Slice", "Source"}


def annotations_of(thing: Any) -> Iterator[tuple[str, str]]:
    """Yield where annotations are, and their text: of a function, or of all of a class."""
    if inspect.isfunction(thing):
        yield from (
            (f"{thing.__qualname__}: {name}", a) for name, a in thing.__annotations__.items()
        )
    elif isinstance(thing, type):
        for base in thing.__dict__.get("__orig_bases__", ()):
            yield thing.__name__, str(get_args(base))
        for owner in thing.__mro__:
            if not owner.__module__.startswith("gotrace"):
                continue
            for name, text in inspect.get_annotations(owner).items():
                if not name.startswith("_"):
                    yield f"{thing.__name__}.{name}", text
            for name, found in vars(owner).items():
                if not name.startswith("_"):
                    found = getattr(found, "fget", getattr(found, "__func__", found))
                    yield from annotations_of(found) if inspect.isfunction(found) else ()


def test_each_class_that_users_meet_can_be_imported_from_gotrace() -> None:
    classes = {
        one.name
        for path in GOTRACE.rglob("*.py")
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.ClassDef)
    }
    hidden = classes - {*gotrace.__all__} - _INNER
    found = {
        f"{where}: {name}"
        for public in gotrace.__all__
        for where, text in annotations_of(getattr(gotrace, public))
        for name in hidden & {*re.findall(r"\w+", re.sub(r"Literal\[.*?\]", "", str(text)))}
    }
    assert found == set()


def test_type_checkers_know_each_name() -> None:
    tree = ast.parse((GOTRACE / "__init__.py").read_text())
    [block] = [
        one for one in tree.body if isinstance(one, ast.If) and "not" not in ast.unparse(one.test)
    ]
    known = {
        (one.names[0].asname, one.module) for one in block.body if isinstance(one, ast.ImportFrom)
    }
    assert known == {*gotrace._HOME.items()}
    for name, module in gotrace._HOME.items():
        found = getattr(gotrace, name)
        assert isinstance(found, types.FunctionType | type) and found.__module__ == module
