# SPDX-License-Identifier: Apache-2.0
"""Names of files that -o takes, in every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gotrace.cli.files import check_name, is_json
from gotrace.cli.habits import check_words
from gotrace.errors import UsageError

TOOLS = (
    *("gofunccount", "gofunclatency", "gotrace", "gotrace tree", "gostacks", "gooffcpu"),
    *("gooncpu", "gofleet"),
)
_TABLES = ("x.txt", "x.log.gz", "x.ndjson", "x.json", "x.json.gz", "x.JSONL", "x.gz", "./json")
_REQUESTS = ("x.trace", "x.pftrace")
_PROFILES = ("x.html", "x.htm", "x.pb.gz", "x.PPROF", "x.speedscope.json", "x.folded")
#: No form is asked for: dates, what mktemp makes, hidden files, devices.
_ANY = ("x", "x.20241231", "run-1.23", "/tmp/tmp.cK3vOxNq7a", ".profile", "x.", "/dev/stdout")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_end_is_known_or_refused(tool: str) -> None:
    has_requests = tool == "gotrace tree"
    known = [*_ANY, *_TABLES, *(_REQUESTS if has_requests else _PROFILES)]
    for name in known:
        check_name(tool, name)
    for name in {*_REQUESTS, *_PROFILES, "h.csv", "x.csv.gz", "x.md", "x.xlsx", "x.pb"} - {*known}:
        with pytest.raises(
            UsageError, match=r"\.pftrace" if has_requests else r"\.html|gotrace tree"
        ):
            check_name(tool, name)


def test_a_name_that_cannot_be_meant_is_refused() -> None:
    for files, text in ((["-"], "standard output without -o"), (["c.pb.gz", "./c.pb.gz"], "twice")):
        with pytest.raises(UsageError, match=text):
            check_words("gofunccount", {"output": files})


def test_the_message_lists_what_is_known() -> None:
    with pytest.raises(UsageError) as refused:
        check_name("gofunclatency", "h.csv")
    assert str(refused.value) == (
        "'h.csv': -o writes no .csv file: give a name that ends in .ndjson, .json,"
        " .jsonl, .txt, .log, .out (these also with .gz), .pb.gz, .pprof, .speedscope.json,"
        " .folded, .html or .htm"
    )


def test_what_is_there_and_no_file_takes_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pipe")
    check_name("gostacks", str(tmp_path / "x.pipe"))


def test_json_is_asked_for_by_name() -> None:
    assert all(map(is_json, ("x.json", "x.ndjson.gz", "x.JSONL")))
    assert not any(map(is_json, ("x.speedscope.json", "x.txt", "json", "x.gz")))
