# SPDX-License-Identifier: Apache-2.0
"""Long runs: memory stays flat, counts are exact, and what is lost is told to the last call."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from tests.real.report import figures
from tests.toolchains import program_of
from tests.tools.harness import Fixture, Process, code_at, of_kind, run_tool, tool, tool_command
from tests.tools.latency import program as latency_program

pytestmark = pytest.mark.live

MILLION = 1_000_000
_PATIENCE = 3600.0  # seconds
_PERIOD = 0.25
#: What may be added to a tool's memory after the first tenth of a run.
_GROWTH = 1.10


program = program_of("bench_calls")


class Memory:
    """Sample a process's resident set while a block runs; a context manager."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.samples: list[int] = []

    def _sample(self) -> None:
        while not self._over.wait(_PERIOD):
            pages = int(self._file.read_text().split()[1])
            self.samples.append(pages * os.sysconf("SC_PAGE_SIZE"))

    @property
    def growth(self) -> float:
        """Return the most that was seen, over what it was at the end of the first tenth."""
        tenth = max(1, len(self.samples) // 10)
        return max(self.samples) / max(self.samples[:tenth])

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def until_attached(path: Path, process: Process) -> None:
    """Wait for the first line of a tool that writes to a file."""
    pause = threading.Event()
    while b'"kind":"attached"' not in path.read_bytes()[:4096]:
        assert Path(f"/proc/{process.pid}").exists(), process.errors
        pause.wait(0.05)


def until_probed(pid: int, process: Process) -> None:
    """Wait for the probe at the RET, which only gotrace has there, in a program's code."""
    rows = of_kind(run_tool("gotrace", "-l", "--json", "-p", str(pid), "main.framed"), "function")
    pause = threading.Event()
    while code_at(pid, rows[0]["rets"][:1]) != b"\xcc":
        assert Path(f"/proc/{process.pid}").exists(), process.errors
        pause.wait(0.05)


@pytest.mark.parametrize("more", [[], ["--entry"]], ids=["returns", "entries"])
def test_ten_million_calls_traced_to_a_file(more: list[str], tmp_path: Path) -> None:
    path = tmp_path / "calls"
    with Fixture([program()], patience=_PATIENCE) as fixture, path.open("wb") as out:
        words = ("--json", *more, "-p", str(fixture.ready), "main.framed")
        command = tool_command("gotrace", *words)
        with Process(command, patience=_PATIENCE, stdout=out) as tracing:
            until_attached(path, tracing)
            with Memory(tracing.pid) as memory:
                fixture.say(f"run {10 * MILLION}")
                took = int(fixture.read_until("done ")[0])
            tracing.signal(signal.SIGINT)
            assert tracing.wait() == 0, tracing.errors
    shown = lost = 0
    for line in lines_of(path):
        assert line.endswith(b"}\n")
        if line.startswith(b'{"kind":"call"'):
            shown += 1
        elif line.startswith(b'{"kind":"lost"'):
            lost += json.loads(line)["calls"]
    path.unlink()
    figures(
        f"gotrace --json {' '.join(more)}".strip(),
        calls=10 * MILLION,
        shown=shown,
        lost=lost,
        seconds=took / 1e9,
        peak=max(memory.samples),
        growth=round(memory.growth, 3),
    )
    assert shown + lost == 10 * MILLION
    assert memory.growth < _GROWTH


def test_ten_million_calls_traced_to_nowhere() -> None:
    """What is written is not seen, but what is lost is known from a second tool's exact count."""
    with Fixture([program()], patience=_PATIENCE) as fixture, open(os.devnull, "wb") as out:
        pid = str(fixture.ready)
        counting = tool("gofunccount", "--json", "-p", pid, "main.framed", patience=_PATIENCE)
        command = tool_command("gotrace", "--json", "-p", pid, "main.framed")
        with counting, Process(command, patience=_PATIENCE, stdout=out) as tracing:
            until_probed(fixture.ready, tracing)
            with Memory(tracing.pid) as memory:
                fixture.say(f"run {10 * MILLION}")
                fixture.read_until("done ")
            tracing.signal(signal.SIGINT)
            assert tracing.wait() == 0, tracing.errors
            (counted,) = of_kind(counting.end(), "count")
    figures("gotrace --json to /dev/null", peak=max(memory.samples), growth=round(memory.growth, 3))
    assert counted["count"] == 10 * MILLION
    assert memory.growth < _GROWTH


@pytest.mark.parametrize(
    ("calls", "more"),
    [(100 * MILLION, []), (10 * MILLION, ["-i", "1"])],
    ids=["whole", "intervals"],
)
def test_calls_counted(calls: int, more: list[str]) -> None:
    with Fixture([program()], patience=_PATIENCE) as fixture:
        words = ("--json", *more, "-p", str(fixture.ready), "main.framed")
        with tool("gofunccount", *words, patience=_PATIENCE) as counting:
            with Memory(counting.pid) as memory:
                fixture.say(f"run {calls}")
                took = int(fixture.read_until("done ")[0])
            rows = of_kind(counting.end(), "count")
    figures(
        f"gofunccount {' '.join(more)}".strip(),
        calls=calls,
        intervals=len(rows),
        seconds=took / 1e9,
        peak=max(memory.samples),
        growth=round(memory.growth, 3),
    )
    assert sum(row["count"] for row in rows) == calls
    assert memory.growth < _GROWTH


def test_a_million_goroutines_measured() -> None:
    with Fixture([latency_program()], patience=_PATIENCE) as fixture:
        words = ("--json", "-g", "-p", str(fixture.ready), "main.once")
        with tool("gofunclatency", *words, patience=_PATIENCE) as measuring:
            with Memory(measuring.pid) as memory:
                truth = fixture.work("throng " * 10)
            result = measuring.end()
        assert fixture.finish() == 0
    rows = of_kind(result, "histogram")
    (rest,) = of_kind(result, "rest")
    calls = truth["Functions"]["main.once"]["Calls"]
    figures(
        "gofunclatency -g",
        goroutines=calls,
        unnamed=rest["unnamed"],
        peak=max(memory.samples),
        growth=round(memory.growth, 3),
    )
    assert calls == 10 * 100_003
    assert sum(row["count"] for row in rows) + rest["count"] == calls
    assert len(rows) + rest["goroutines"] + rest["unnamed"] == calls
    assert of_kind(result, "lost") == []
    assert memory.growth < _GROWTH
