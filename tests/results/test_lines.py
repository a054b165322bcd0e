# SPDX-License-Identifier: Apache-2.0
"""Recordings as lines: of results that no run has returned, and of other commands."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import gotrace
from gotrace.cli import gooffcpu


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"kind": "count", "func": "f"}, "results of gofunccount: gotrace.merge and gotrace.diff"),
        ({"kind": "merged", "of": "gooncpu"}, "results of gooncpu: gotrace.merge and gotrace.diff"),
        ({"kind": "request"}, "requests of gotrace tree: gotrace.load reads them"),
        ({"kind": "program"}, 'lines of the kind "program"'),
        ({}, "lines of the kind null"),
    ],
)
def test_what_is_no_trace_says_what_it_is(row: dict[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text('{"kind":"attached"}\n' + json.dumps(row) + "\n")
    with pytest.raises(gotrace.GotraceError, match=f"x.ndjson: no calls of gotrace, but {said}"):
        list(gotrace.read(path))


def test_a_file_that_is_cut_off_or_hostile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson.gz"
    path.write_bytes(gzip.compress(b'{"kind":"attached"}\n')[:-6])
    with pytest.raises(gotrace.GotraceError, match=r"cannot read .*: its end is missing"):
        gotrace.merge(path)
    path.write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))
    with pytest.raises(gotrace.GotraceError, match=r"x.ndjson.gz:1: not a line .*: too deep"):
        gotrace.merge(path)
    path.write_bytes(gzip.compress(b"[]\n"))
    with pytest.raises(gotrace.GotraceError, match="not a line of --json: no object"):
        gotrace.merge(path)
    path.write_bytes(gzip.compress(b"\xff\n"))
    with pytest.raises(gotrace.GotraceError, match=r"cannot read .*: not UTF-8, as .* writes"):
        gotrace.merge(path)


def test_a_trace_without_calls_is_empty() -> None:
    rows = [{"kind": kind} for kind in ("attached", "warning", "summary", "detached")]
    assert list(gotrace.read(map(json.dumps, rows))) == []


def test_results_that_no_run_has_returned_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(gotrace.UsageError, match="this Counts is no result of a run"):
        gotrace.Counts(a=1).write(tmp_path / "x.ndjson")
    assert not [*tmp_path.iterdir()]


def test_what_is_merged_can_be_written(tmp_path: Path) -> None:
    row = {"kind": "count", "func": "f", "count": 3, "ts": 9.0, "interval_s": 1.0}
    merged = gotrace.merge([json.dumps(row)])
    merged.write(tmp_path / "x.ndjson.gz")
    assert gotrace.merge(tmp_path / "x.ndjson.gz").rows("count") == merged.rows("count")
    with pytest.raises(gotrace.GotraceError, match=r"cannot write .*: Is a directory"):
        merged.write(tmp_path)


def test_system_calls_are_compared_by_name_if_they_are_recorded_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = {"state": "syscall", "reason": "read", "stack": [], "open": False, "woken_by": None}
    head = {"ts": 2.0, "seconds": 1.0, "count": 7, "delay_ns": 70}
    for name in ("names", "waits"):
        rows = [
            {"kind": "attached", "names": name == "names", "state": "syscall"},
            {"kind": "waits", **head, "others": {"count": 0, "delay_ns": 0}},
            {"kind": "wait", **wait, "waker": None, "count": 7, "delay_ns": 70, "max_ns": 10},
            {"kind": "detached", "seconds": 1.0},
        ]
        (tmp_path / f"{name}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [str(tmp_path / "names.ndjson")] * 2
    assert gooffcpu.main(["--names", "--diff", *files]) == 0
    assert "nothing has changed" in capsys.readouterr().out
    assert gooffcpu.main(["--names", "--diff", *[str(tmp_path / "waits.ndjson")] * 2]) == 2
    assert "has no system calls by name: record with --names" in capsys.readouterr().err
    (changed,) = gotrace.diff(files[0], tmp_path / "names.ndjson").functions
    assert (changed.key.name, gotrace.diff(*files).a.events) == ("[read]", "calls")
