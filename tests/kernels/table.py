# SPDX-License-Identifier: Apache-2.0
"""Keep what came of guests, and write the table of kernels in docs/support.md from it.

To write it: python -m tests.kernels.table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kernels import images
from tests.kernels.order import Result
from tests.kernels.releases import RELEASES

_PAGE = Path(__file__).parents[2] / "docs" / "support.md"
_BEGIN, _END = "<!-- kernels: make test-kernels -->", "<!-- end -->"
_HEAD = (
    "| kernel | CPUs, preemption | attach | checks | migrating goroutines: calls missing |"
    " records mixed up |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One guest's line in the table."""

    kernel: str
    setting: str
    methods: str
    checks: str
    rounds: str
    records: str

    def text(self) -> str:
        return f"| {' | '.join(asdict(self).values())} |"


def keep(name: str, results: Sequence[Result]) -> None:
    """Keep the results of a guest that came to its end."""
    place = _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(result) for result in results], indent=1))
    unfinished.rename(place)


def kept() -> Mapping[str, list[Result]]:
    """Return the results of the guests' last runs, oldest kernel first."""
    found = {}
    for release in RELEASES:
        if _place(release.name).exists():
            rows = json.loads(_place(release.name).read_text())
            found[release.name] = [Result(**row) for row in rows]
    return found


def _place(name: str) -> Path:
    return images.kernels_dir() / "results" / f"{name}.json"


def row(results: Sequence[Result]) -> Row:
    """Return the line of a guest whose results end with that of the end."""
    *checks, end = results
    kernel, _, setting = end.detail.partition(", ")
    methods = dict.fromkeys(result.method for result in checks if result.method)
    passed = sum(result.ok for result in checks)
    failed = sorted({f"`{result.check}`" for result in checks if not result.ok})
    words = f"{passed} of {len(checks)}" + (f"; not {', '.join(failed)}" if failed else "")
    return Row(
        f"{kernel.partition('-')[0] if '+' not in kernel else kernel.partition('+')[0]}",
        setting.replace(" CPU, preemption ", ", "),
        ", ".join(f"`{method}`" for method in methods),
        words,
        _of(checks, "migrating rounds", r"([\d,]+) calls"),
        _of(checks, "migrating records", r"([\d,]+) records"),
    )


def _of(checks: Iterable[Result], name: str, pattern: str) -> str:
    """Return how many of a check's calls went wrong, and of how many."""
    for result in checks:
        if result.check == name:
            match = re.search(pattern, result.detail)
            return f"0 of {match[1]}" if result.ok and match else "**some**"
    return "needs 5.12"


def table(rows: Iterable[Row]) -> str:
    """Return the table in Markdown."""
    return "\n".join((*_HEAD, *(one.text() for one in rows))) + "\n"


def write(page: Path, text: str) -> None:
    """Put a table in the place of the one that a page has, between its two marks."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table of kernels")
    page.write_text(f"{before}{_BEGIN}\n\n{text}\n{_END}{after}")


if __name__ == "__main__":
    write(_PAGE, table(row(results) for results in kept().values()))
