# SPDX-License-Identifier: Apache-2.0
"""Names of files that -o takes, in every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gotrace.cli.files import check_name, is_json
from gotrace.errors import UsageError

_FUNCTIONS = ("gofunccount", "gofunclatency", "gotrace")
_STACKS = ("gostacks", "gooffcpu", "gooncpu")
_TABLES = ("x.txt", "x.log.gz", "x.ndjson", "x.json", "x.json.gz", "x.JSONL", "x.gz", "./json")
_PROFILES = ("x.html", "x.htm", "x.pb.gz", "x.PPROF", "x.speedscope.json", "x.folded")
#: No form is asked for: dates, what mktemp makes, hidden files, devices.
_ANY = ("x", "x.20241231", "run-1.23", "/tmp/tmp.cK3vOxNq7a", ".profile", "x.", "/dev/stdout")


@pytest.mark.parametrize("tool", [*_FUNCTIONS, *_STACKS, "gofleet"])
def test_each_end_is_known_or_refused(tool: str) -> None:
    known = [*_ANY, *_PROFILES, *(() if tool in _STACKS else _TABLES)]
    known += ["x.trace", "x.pftrace"] if tool == "gotrace" else []
    for name in known:
        check_name(tool, name, is_diff=False)
    others = {*_TABLES, "x.trace", "x.pftrace", "h.csv", "x.csv.gz", "x.md", "x.xlsx", "x.pb"}
    for name in others - set(known) - {"./json"}:
        with pytest.raises(UsageError, match=r"\.html"):
            check_name(tool, name, is_diff=False)


def test_what_a_comparison_writes_is_no_profile_of_a_run() -> None:
    for name in (*_TABLES, "x.html"):
        check_name("gostacks", name, is_diff=True)


def test_the_message_lists_what_is_known() -> None:
    with pytest.raises(UsageError) as refused:
        check_name("gofunclatency", "h.csv", is_diff=False)
    assert str(refused.value) == (
        "'h.csv': -o writes no .csv file: give a name that ends in .ndjson, .json,"
        " .jsonl, .txt, .log, .out, .pb.gz, .pprof, .speedscope.json, .folded, .html or .htm"
    )
    with pytest.raises(
        UsageError, match=r"^'x\.json': -o writes profiles here, .*--json > 'x\.json'$"
    ):
        check_name("gooncpu", "x.json", is_diff=False)


def test_what_is_there_and_no_file_takes_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pipe")
    check_name("gostacks", str(tmp_path / "x.pipe"), is_diff=False)


def test_json_is_asked_for_by_name() -> None:
    assert all(map(is_json, ("x.json", "x.ndjson.gz", "x.JSONL")))
    assert not any(map(is_json, ("x.speedscope.json", "x.txt", "json", "x.gz")))
