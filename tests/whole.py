# SPDX-License-Identifier: Apache-2.0
"""Run the tests, in three parts beside each other: python -m tests.whole.

With --all also those that repeat others with one more Go release, seed or way (``thorough``), and
each command is started as users start it (``tests/tools/warm.py``).

Live tests are two runs, as they wait for others for a good part of their time. They would see each
other's calls, so the second one (``apart``) traces copies of the programs. All other tests take the
CPUs then, and give way to the two. On few CPUs the runs disturb each other all the same, and some
live tests hold what a user is promised within seconds. So failures, where they are few, run once
more when the machine is quiet. What failed at first stays in the output, which ends with the names:
a test that appears there more than once has a defect, or has found one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from gotrace.text import counted
from tests.toolchains import COPIES

CACHE = Path(".pytest_cache")
#: More failures than these have another cause than the other parts.
MAX_AGAIN = 5


class Part:
    """One run of pytest, which remembers the names of what failed; ``before`` starts it."""

    def __init__(self, name: str, marks: str, *before: str) -> None:
        self._name = name
        self._cache = CACHE / name
        self._marks = marks
        self._before = before
        self._last_failed.unlink(missing_ok=True)

    @property
    def _last_failed(self) -> Path:
        return self._cache / "v" / "cache" / "lastfailed"

    @property
    def failed(self) -> list[str]:
        """The names of the tests that failed in the last run, by their files."""
        try:
            return sorted(json.loads(self._last_failed.read_text()))
        except FileNotFoundError:
            return []

    def start(self, *options: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        cache = ("-o", f"cache_dir={self._cache}")
        return subprocess.Popen(
            [*self._before, sys.executable, "-m", "pytest", *cache, "-m", self._marks, *options],
            stdout=output,
            stderr=output and subprocess.STDOUT,
            env={**os.environ, **({COPIES: self._name} if self._name == "apart" else {})},
        )


def run(first: Part, *others: Part) -> set[int]:
    """Run all, and show the others' output after the first's. Returns their exit statuses."""
    with ExitStack() as ending:
        beside = []
        for part in others:
            output = ending.enter_context(tempfile.TemporaryFile())
            process = part.start(output=output)
            ending.callback(process.wait)
            ending.callback(process.terminate)
            beside.append((process, output))
        statuses = {first.start().wait(), *(process.wait() for process, _ in beside)}
        sys.stdout.flush()
        for _, output in beside:
            output.seek(0)
            sys.stdout.buffer.writelines(output)
        sys.stdout.flush()
    return statuses


def main() -> int:
    """Run the tests. Returns 0 where each has passed, at the second try at the latest."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    which = " and not thorough"
    if "--all" in sys.argv[1:]:
        which = ""
        os.environ["GOTRACE_COLD"] = "1"
    # A third of each start is compiling what is imported, and there are hundreds of starts.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parts = (
        Part("live", f"live and not apart{which}"),
        Part("apart", f"apart{which}"),
        Part("others", f"not live and not apart{which}", "nice", "-n", "5"),
    )
    statuses = run(*parts) - {pytest.ExitCode.OK}
    failed = [name for part in parts for name in part.failed]
    if not statuses or statuses != {pytest.ExitCode.TESTS_FAILED} or len(failed) > MAX_AGAIN:
        return max(statuses, default=0)
    what = counted("{} test{s}", len(failed))
    print(f"\n{what} failed: once more, with nothing beside", flush=True)
    statuses = {part.start("--last-failed").wait() for part in parts if part.failed}
    still = {name for part in parts for name in part.failed}
    for name in failed:
        print(f"{'failed twice' if name in still else 'passed at the second try'}: {name}")
    print(counted("{} test{s} passed only at the second try", len(failed) - len(still)))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
