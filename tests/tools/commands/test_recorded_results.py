# SPDX-License-Identifier: Apache-2.0
"""Results of the library that are kept as recordings, beside those of the commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gotrace
from tests.toolchains import newest
from tests.tools.harness import Fixture, run_tool
from tests.tools.trace import program

pytestmark = pytest.mark.live

#: Kinds of lines that depend on the run.
_NOTICES = {"exited", "lost", "summary", "warning"}
#: The go command has no debug information.
_GETENV = "os.Getenv(key string)"
_Sums = Callable[[Any], dict[str, int]]


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    with Fixture([program()]) as fixture:
        yield fixture


def fields_of(path: Path) -> dict[str, set[tuple[str, ...]]]:
    """Return the names of the fields of each kind of line, as a file has them."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["kind"], set()).add(tuple(sorted(row)))
    return {kind: names for kind, names in found.items() if kind not in _NOTICES}


def _times(found: gotrace.Latencies) -> dict[str, int]:
    return {name: times.count for name, times in found.items()}


KINDS: list[tuple[str, Callable[[gotrace.Session], Any], str, _Sums, str, str, str]] = [
    ("gofunccount", lambda go: go.count("main.*"), "main.*", dict, "count", "func", "count"),
    (
        "gofunccount",
        lambda go: go.count("main.main", by="$stack"),
        "--by '$stack' main.main",
        lambda found: {one.function: one.calls for one in found},
        *("count", "func", "count"),
    ),
    (
        "gofunclatency",
        lambda go: go.latency("main.*", why=True, force=True),
        "--why main.*",
        _times,
        *("histogram", "func", "count"),
    ),
    (
        "gofunclatency",
        lambda go: go.latency("os.Getenv", by_goroutine=True),
        "-g os.Getenv",
        lambda found: {one.function: times.count for one, times in found.items()},
        *("histogram", "func", "count"),
    ),
    (
        "gofunclatency",
        lambda go: go.latency(_GETENV, by="key"),
        f"--by key '{_GETENV}'",
        lambda found: {"os.Getenv": sum(one.times.count for one in found)},
        *("histogram", "func", "count"),
    ),
    (
        "gofunclatency",
        lambda go: go.latency(_GETENV, of="len(key)"),
        f"--of 'len(key)' '{_GETENV}'",
        lambda found: {one.function: one.values.sum for one in found},
        *("histogram", "func", "sum"),
    ),
    (
        "gooffcpu",
        lambda go: go.waits(open=True, wakers=True),
        "--open --wakers",
        lambda found: {"wait": found.total_count},
        *("wait", "kind", "count"),
    ),
    (
        "gooffcpu",
        lambda go: go.syscalls(),
        "--state syscall --names",
        lambda found: {one.name: one.times.count for one in found},
        *("syscall", "name", "calls"),
    ),
    (
        "gooncpu",
        lambda go: go.on_cpu(hertz=997),
        "-F 997",
        lambda found: {"cpu_stack": found.samples},
        *("cpu_stack", "kind", "samples"),
    ),
    (
        "gooncpu",
        lambda go: go.wall(hertz=997),
        "--off -F 997",
        lambda found: {one.group: one.wall_ns for one in found},
        *("wall_group", "group", "wall_ns"),
    ),
]


@pytest.mark.parametrize(
    ("tool", "measure", "options", "sums", "kind", "key", "number"),
    KINDS,
    ids=[f"{row[0]} {row[2]}" for row in KINDS],
)
def test_a_recording_is_as_the_command_writes_it(
    tool: str,
    measure: Callable[[gotrace.Session], Any],
    options: str,
    sums: _Sums,
    kind: str,
    key: str,
    number: str,
    tmp_path: Path,
) -> None:
    command = [str(newest().go), "list", "std"]
    kept, written = tmp_path / "kept.ndjson", tmp_path / "written.ndjson"
    with gotrace.start(command) as go:
        found = measure(go)
        found.write(kept)
    done = run_tool(tool, "-q", "-o", written, *shlex.split(options), "--", *command)
    assert done.status == 0, done.errors
    assert fields_of(kept) == fields_of(written)
    told: dict[str, int] = {}
    for row in gotrace.merge(kept).rows(kind):
        told[row[key]] = told.get(row[key], 0) + row[number]
    assert told == sums(found)
    merged = run_tool("gofleet", "--merge", kept, "--json")
    assert merged.status == 0, merged.errors
    assert sum(row[number] for row in map(json.loads, merged.lines) if row["kind"] == kind) == sum(
        told.values()
    )
    assert run_tool(tool, "--diff", written, kept).status == 0
    assert len(gotrace.diff(found, kept).changes) > 0  # of the object, too
    assert all(one.change == 0 for one in gotrace.diff(found, kept).changes)


def test_goroutines_are_kept_as_a_dump(fixture: Fixture, tmp_path: Path) -> None:
    kept, written = tmp_path / "kept.ndjson", tmp_path / "written.ndjson.gz"
    with gotrace.attach(fixture.ready) as go:
        found = go.goroutines()
        found.write(kept)
    assert run_tool("gostacks", "-o", written, "-p", str(fixture.ready)).status == 0
    (dump,) = gotrace.merge(written).rows("dump")
    assert gotrace.merge(kept).rows("dump")[0]["shown"] == len(found) == dump["shown"]
    assert not any(one.change for one in gotrace.diff(kept, written).changes)


def test_intervals_are_one_recording(fixture: Fixture, tmp_path: Path) -> None:
    with gotrace.attach(fixture.ready) as go:
        intervals = go.count("main.echo", interval=0.1, seconds=5)
        echoed = fixture.work("goroutines")["Echoed"]
        go.stop()
        results = list(intervals)
    gotrace.write(tmp_path / "x.ndjson.gz", results)
    merged = gotrace.merge(tmp_path / "x.ndjson.gz")
    assert [row["count"] for row in merged.rows("count")] == [echoed]
    lengths = [one.reading.seconds for one in results if one.reading]
    assert len(lengths) == len(results)
    assert merged.units == pytest.approx(sum(lengths), abs=1e-6)
    assert run_tool("gofunccount", "--diff", *[tmp_path / "x.ndjson.gz"] * 2).status == 0
