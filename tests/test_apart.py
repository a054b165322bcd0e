# SPDX-License-Identifier: Apache-2.0
"""Hold modules marked ``apart`` to their promise: they run beside the other live tests."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
MARK = "mark.apart"


def fixtures_named_in(page: str) -> set[str]:
    """Return the programs that a module traces, without those that it makes a copy of."""
    page = re.sub(r'copy\(build\(FIXTURES / "\w+"', "", page)
    return {
        name for name in re.findall(r'"([a-z0-9_]+)"', page) if (TESTS / "fixtures" / name).is_dir()
    }


def test_no_program_is_traced_in_both_runs() -> None:
    """But live_count, which test_cgo.py builds in a way of its own: that is another file."""
    apart: set[str] = set()
    others: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        page = path.read_text()
        if path != Path(__file__) and "pytest.mark.live" in page and "real" not in path.parts:
            (apart if MARK in page else others).update(fixtures_named_in(page))
    assert len(apart) > 5 and len(others) > 5
    assert apart & others == {"live_count"}
