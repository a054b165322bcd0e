# SPDX-License-Identifier: Apache-2.0
"""Lists of whole programs: written as they are made, with work that grows with the functions."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from gotrace.elf.functions import FuncInfo
from gotrace.elf.image import ElfImage, string_at
from gotrace.elf.pclntab import functab as lines
from gotrace.elf.pclntab import inline, pcvalue
from gotrace.elf.pclntab.functab import FunctionRecord, FunctionRows
from gotrace.elf.pclntab.inline import InlineTrees
from gotrace.errors import NoMatchError
from gotrace.probes.select import Selector
from gotrace.report.listing import list_functions
from gotrace.report.output import JsonOutput, Output, TextOutput
from gotrace.session import plan as plans
from gotrace.session.plan import (
    BinaryRequest,
    Check,
    make_plan,
    select,
    to_be_measured,
    to_be_traced,
)
from gotrace.sites.sites import FunctionSites, function_sites
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest


@pytest.fixture(scope="module")
def program() -> Path:
    return build(FIXTURES / "sites_http", newest(), env={"CGO_ENABLED": "0"})


def listed(
    program: Path, *patterns: str, as_json: bool = False, check: Check = to_be_traced
) -> list[str]:
    out = io.StringIO()
    show(program, patterns, JsonOutput(out) if as_json else TextOutput(out, io.StringIO()), check)
    return out.getvalue().splitlines()


def show(
    program: Path, patterns: tuple[str, ...], output: Output, check: Check = to_be_traced
) -> None:
    target = Target()
    try:
        request = BinaryRequest(os.fspath(program), Selector(patterns))
        list_functions(select(target, [request], "trace"), output, "trace", check)
    finally:
        target.close()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count what is read of a function table."""
    counts: Counter[str] = Counter()
    record, runs = FunctionRows.record, pcvalue.runs_within

    def counted_record(rows: FunctionRows, row: int) -> FunctionRecord:
        counts["records"] += 1
        return record(rows, row)

    def counted_runs(*arguments: Any) -> tuple[list[int], list[int]]:
        ends, values = runs(*arguments)
        counts["tables"] += 1
        counts["runs"] += len(ends)
        return ends, values

    def counted_search(trees: InlineTrees, names: Collection[str]) -> set[int]:
        counts["names searched for"] += len(names)
        return search(trees, names)

    search = InlineTrees._offsets_of
    monkeypatch.setattr(InlineTrees, "_offsets_of", counted_search)
    monkeypatch.setattr(FunctionRows, "record", counted_record)
    monkeypatch.setattr(inline, "runs_within", counted_runs)
    yield counts


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_work_grows_no_faster_than_the_list(
    program: Path, work: Counter[str], as_json: bool
) -> None:
    few = len(listed(program, "net/http.*", as_json=as_json))
    work_of_few = Counter(work)
    work.clear()
    many = len(listed(program, "*", as_json=as_json))
    assert many > 8 * few > 2_000
    # Where each function of the program is inlined is read for either.
    for what, count in work.items():
        assert count - work_of_few[what] < 30 * (many - few), what
    assert work["records"] < 6 * many
    # A search through all names for each function was what made lists slow.
    assert work["names searched for"] == 0


def test_notices_of_many_functions_search_for_none_of_them(
    program: Path, work: Counter[str]
) -> None:
    target = Target()
    try:
        request = BinaryRequest(os.fspath(program), Selector(["strings.*"]))
        plan = make_plan(target, [request], returns=False, verb="count")
        assert 50 < len(plan.functions) <= 200
        assert plan.inlined()
    finally:
        target.close()
    assert work["names searched for"] == 0


@pytest.mark.slow
def test_rows_are_written_before_the_last_is_known(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rows(io.StringIO):
        written = 0

        def write(self, text: str) -> int:
            self.written += text.count("\n")
            return len(text)

    out = Rows()
    seen: list[int] = []
    hashed: list[bool] = []

    def watched(
        image: ElfImage, function: FuncInfo, returns: bool, **choices: bool
    ) -> FunctionSites:
        seen.append(out.written)
        sites = function_sites(image, function, returns, values=choices["values"])
        hashed.append(sites.is_hashed)
        return sites

    monkeypatch.setattr(plans, "function_sites", watched)
    show(program, ("*",), TextOutput(out, io.StringIO()))
    assert seen[0] == 0
    assert seen[400] > 256
    assert seen[-1] > len(seen) - sum(hashed) - 200  # some cannot be traced


def test_a_short_list_fits_its_columns(program: Path) -> None:
    rows = listed(program, "net/http.(*Client).*")
    for title in ("POSITION", "ADDRESS", "SITE", "RETS", "INLINED INTO"):
        at = rows[0].index(f" {title}")
        assert {row[at] for row in rows} == {" "}


def test_a_long_list_keeps_its_columns_but_for_long_names(program: Path) -> None:
    head, *rows = listed(program, "*")
    at = head.index("POSITION")
    assert at == 60 + 2
    assert all(row[at - 1] == " " or len(row.split("  ")[0]) > 60 for row in rows)
    addresses = [int(row.split(" 0x")[1].split()[0], 16) for row in rows]
    assert addresses == sorted(addresses)


def test_both_forms_list_the_same(program: Path) -> None:
    objects = [json.loads(row) for row in listed(program, "net/http.*", as_json=True)]
    _, *rows = listed(program, "net/http.*")
    found = [found for found in objects if found["kind"] == "function"]
    assert [row.split(" ")[0] for row in rows] == [entry["func"].split(" ")[0] for entry in found]
    for row, entry in zip(rows, found, strict=True):
        places = entry["inlined"]
        assert row.endswith("  -") == (not places)
        if len(places) > 3:
            assert row.endswith(f" and {len(places) - 3} more")


def test_what_cannot_be_measured_is_left_out(program: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    show(program, ("runtime.*",), TextOutput(out, err), to_be_measured)
    assert "runtime.cmpstring cannot be measured: it ends by jumping" in err.getvalue()
    assert "runtime.cmpstring " not in out.getvalue()
    with pytest.raises(NoMatchError, match=r"nothing to trace in .* it ends by"):
        listed(program, "runtime.cmpstring", check=to_be_measured)


def test_names_of_files_are_read_once(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[int] = Counter()

    def counted(data: bytes, offset: int, limit: int) -> str:
        read[offset] += 1
        return string_at(data, offset, limit)

    monkeypatch.setattr(lines, "string_at", counted)
    listed(program, "*")
    assert set(read.values()) == {1}


@pytest.mark.parametrize(
    ("flags", "sources"),
    [([], ("DWARF", "DWARF")), (["-ldflags=-s -w"], ("method table", "shape"))],
    ids=["whole", "stripped"],
)
def test_sources_of_signatures(flags: list[str], sources: tuple[str, str]) -> None:
    path = build(FIXTURES / "sites_http", newest(), flags=flags, env={"CGO_ENABLED": "0"})
    names = ("net/http.(*ServeMux).ServeHTTP", "main.main")
    rows = [json.loads(line) for line in listed(path, *names, as_json=True)]
    assert {row["func"]: row["signature"] for row in rows} == dict(zip(names, sources, strict=True))
    text = listed(path, *names)
    assert "SIGNATURE" in text[0]
    assert all(source in "".join(text[1:]) for source in sources)
