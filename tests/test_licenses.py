# SPDX-License-Identifier: Apache-2.0
"""The license that each source file names, on its first line or after ``#!``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CLONE = Path(__file__).parent.parent
APACHE = "SPDX-License-Identifier: Apache-2.0"
#: What runs in the kernel may be combined with it.
DUAL = "SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only"
# Fixtures are small programs whose tests know their lines' numbers.
NOT_NAMED = CLONE / "tests" / "fixtures"


def sources() -> Iterator[Path]:
    """Yield all Python, C and shell files, and scripts of any language."""
    for top in ("gotrace", "bpf", "tests", "tools", ".ci"):
        for path in sorted((CLONE / top).rglob("*")):
            left_out = NOT_NAMED in path.parents or "__pycache__" in path.parts
            if path.is_file() and not left_out and _is_source(path):
                yield path


def _is_source(path: Path) -> bool:
    return path.suffix in {".py", ".c", ".h", ".sh"} or path.read_bytes()[:2] == b"#!"


def named(path: Path) -> str:
    """Return the first line of a file, after ``#!``, without the marks of a comment."""
    lines = path.read_text().split("\n", 2)
    return lines[lines[0].startswith("#!")].strip("#/* ")


def test_each_source_file_names_its_license() -> None:
    wrong = {
        str(path.relative_to(CLONE)): line
        for path in sources()
        if (line := named(path)) != (DUAL if path.suffix in {".c", ".h"} else APACHE)
    }
    assert wrong == {}
