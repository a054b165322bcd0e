# SPDX-License-Identifier: Apache-2.0
"""Check the table of kernels that the documents have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.order import Result
from tests.kernels.table import keep, kept, row, table, write

PAGE = Path(__file__).parents[2] / "docs" / "support.md"

RESULTS = [
    Result("doctor", "", True, 60.0, "Tracing works."),
    Result("counts", "multi", True, 9.0, "342,998 calls of 21 functions"),
    Result("counts", "perf-ip", True, 9.0, "342,998 calls of 21 functions"),
    Result("migrating rounds", "multi", True, 60.0, "60 rounds, 723,900 calls, 9 changed threads"),
    Result("migrating records", "multi", True, 60.0, "20 rounds, 38,400 records of 38,400 calls"),
    Result("end", "", True, 300.0, "6.18.15+deb13-cloud-amd64, 2 CPU, preemption full", True),
]


def test_row_of_a_guest() -> None:
    assert row(RESULTS).text() == (
        "| 6.18.15 | 2, full | `multi`, `perf-ip` | 5 of 5 | 0 of 723,900 | 0 of 38,400 |"
    )


def test_row_names_what_failed() -> None:
    bad = Result("migrating rounds", "multi", False, 60.0, "main.migrate: 1 of 2")
    assert row([*RESULTS[:3], bad, *RESULTS[4:]]).text() == (
        "| 6.18.15 | 2, full | `multi`, `perf-ip` | 4 of 5; not `migrating rounds` | **some** |"
        " 0 of 38,400 |"
    )


def test_row_of_a_kernel_with_less() -> None:
    end = Result("end", "", True, 9.0, "5.10.0-32-cloud-amd64, 1 CPU, preemption voluntary", True)
    text = row([RESULTS[2], end]).text()
    assert text == "| 5.10.0 | 1, voluntary | `perf-ip` | 1 of 1 | needs 5.12 | needs 5.12 |"


def test_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept() == {}
    keep("6.18", RESULTS)
    keep("5.10", RESULTS[-1:])
    assert list(kept().items()) == [("5.10", RESULTS[-1:]), ("6.18", RESULTS)]


def test_only_the_table_of_a_page_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    before = page.read_text()
    write(page, table([row(RESULTS)]))
    once = page.read_text()
    write(page, table([row(RESULTS)]))
    assert page.read_text() == once != before
    for part, mark in ((0, "<!-- kernels"), (-1, "<!-- end -->")):
        assert before.split(mark)[part] == once.split(mark)[part]
