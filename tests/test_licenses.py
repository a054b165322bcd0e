# SPDX-License-Identifier: Apache-2.0
"""The license of each source file: on its first line, after ``#!``, or in REUSE.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CLONE = Path(__file__).parent.parent
APACHE = "SPDX-License-Identifier: Apache-2.0"
#: What runs in the kernel may be combined with it.
DUAL = "SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only"


def sources() -> Iterator[Path]:
    """Yield all source files, and scripts of any language."""
    for top in ("gotrace", "bpf", "tests", "tools", ".ci"):
        for path in sorted((CLONE / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and _is_source(path):
                yield path


def _is_source(path: Path) -> bool:
    kinds = {".py", ".c", ".h", ".sh", ".go", ".s", ".mod"}
    return path.suffix in kinds or path.read_bytes()[:2] == b"#!"


def annotated() -> re.Pattern[str]:
    """Return what matches the paths to which REUSE.toml gives the license."""
    text = (CLONE / "REUSE.toml").read_text()
    licenses = re.findall(r'^SPDX-License-Identifier = "(.*)"$', text, re.M)
    assert licenses == ["Apache-2.0", "MIT"]
    globs, others = re.findall(r"^path = \[(.*)\]$", text, re.M)
    assert others == '"gotrace/profiles/viewer/**"'
    parts = [
        re.escape(glob).replace(r"\*\*/", "(.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        for glob in re.findall(r'"([^"]*)"', globs)
    ]
    return re.compile("|".join(parts))


def named(path: Path) -> str:
    """Return the first line of a file, after ``#!``, without the marks of a comment."""
    lines = path.read_text().split("\n", 2)
    return lines[lines[0].startswith("#!")].strip("#/* ")


def test_each_source_file_names_its_license() -> None:
    wrong, in_table = {}, annotated()
    for path in sources():
        name = path.relative_to(CLONE).as_posix()
        expected = DUAL if path.suffix in {".c", ".h"} else APACHE
        if not in_table.fullmatch(name) and (line := named(path)) != expected:
            wrong[name] = line
    assert wrong == {}


def test_the_table_is_for_programs_that_are_traced_alone() -> None:
    named_there = [
        path for path in sources() if annotated().fullmatch(str(path.relative_to(CLONE)))
    ]
    assert {path.suffix for path in named_there} == {".go", ".c", ".s", ".mod"}
