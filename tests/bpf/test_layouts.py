# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of BPF maps' values to what a C compiler makes of it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from gotrace.architecture import AMD64
from gotrace.gotypes.runtime import table_layout
from gotrace.histogram import BUCKETS, ROW_SIZE, UNIT_ROWS, Histogram, bucket_bounds
from gotrace.kernel import program
from gotrace.kernel.cookie import (
    COOKIE_INDEX_MASK,
    MAX_FILES,
    Jumps,
    TaskKind,
    cookie,
    landing_cookie,
)
from gotrace.session import count, goroutines, landings, latency, tasks
from gotrace.session import open_calls as calls
from gotrace.session.budget import HitRow
from gotrace.settings import HIT_KINDS
from gotrace.sites.landings import _MAX_DISTANCE
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind
from tests.bpf.c import CLayout, run_c


@pytest.fixture
def c(tmp_path: Path) -> CLayout:
    return CLayout("latency.c", tmp_path)


@pytest.mark.parametrize("form", [SiteForm.EMULATED, SiteForm.BRANCH, SiteForm.FIRST])
@pytest.mark.parametrize("task", TaskKind)
@pytest.mark.parametrize(
    ("index", "sp_offset", "jumps"),
    [
        (0, 0, Jumps.NONE),
        (COOKIE_INDEX_MASK, 0, Jumps.AWAY),
        (7, 0xFFFFFF, Jumps.NONE),
        (5, 8, Jumps.TRACED),
    ],
)
def test_cookie(
    c: CLayout, form: SiteForm, task: TaskKind, index: int, sp_offset: int, jumps: Jumps
) -> None:
    number = MAX_FILES - 1 if index else 0
    site = Site(0x401000, SiteKind.ENTRY, form, sp_offset)
    value = cookie(index, site, task, jumps, number)
    assert 0 <= value < 1 << 64
    parts = (
        "COOKIE_INDEX_MASK",
        "COOKIE_BRANCH",
        "COOKIE_G_REGISTER",
        "COOKIE_G_TLS",
        "COOKIE_JUMPS",
        "COOKIE_LEAVES",
    )
    asked = [f"{value}ULL & {part}" for part in parts]
    asked.append(f"{value}ULL >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK")
    found_index, branch, register, tls, to_traced, leaves, file, offset = c.constants(
        *asked, f"{value}ULL >> COOKIE_SP_SHIFT"
    )
    assert (found_index, file, offset) == (index, number, sp_offset)
    assert bool(branch) is (form is SiteForm.BRANCH)
    assert bool(register) is (task is TaskKind.G_REGISTER)
    assert bool(tls) is (task is TaskKind.G_TLS)
    assert bool(leaves) is (jumps is not Jumps.NONE)
    assert bool(to_traced) is (jumps is Jumps.TRACED)


def test_programs_that_begin_again(c: CLayout) -> None:
    places = {"on_recovery": "AGAIN_RECOVERY", "on_goexit": "AGAIN_GOEXIT"}
    assert set(places) == set(program._BEGIN_AGAIN)
    numbers = c.constants(*(places[name] for name in program._BEGIN_AGAIN), "AGAIN")
    assert numbers == list(range(len(places) + 1))


def test_caller(c: CLayout) -> None:
    row, values = c.fields("caller", "return_pc", "function")
    assert list(landings._CALLER.unpack(row)) == values
    row, values = c.fields("landing", "address", "calls")
    assert list(landings._LANDING.unpack(row)) == values
    row, values = c.fields("returning", "way", "entry")
    assert list(landings._WAY.unpack(row)) == values
    assert c.constants("MOVING_EPOCH", "MOVING_FAULTS", "MOVING") == [0, 1, 257]
    row, _ = c.fields("passes", "ended", "missed")
    assert len(row) == 16


def test_landing_cookie(c: CLayout) -> None:
    value = landing_cookie(0x123, TaskKind.THREAD, 5, row=0x3FFF)
    own = f"({value}ULL & COOKIE_INDEX_MASK)"
    places = (f"{own} & COOKIE_DISTANCE_MASK", f"{own} >> COOKIE_PASSES_SHIFT")
    assert c.constants(*places) == [0x123, 0x3FFF]
    assert c.constants("COOKIE_DISTANCE_MASK") == [_MAX_DISTANCE]


def test_fault(tmp_path: Path) -> None:
    row, values = CLayout("count.c", tmp_path).fields("fault", "distance", "file")
    distance, file = count._FAULT.unpack(row)
    assert [distance % (1 << 64), file] == values


def test_histogram_row(c: CLayout) -> None:
    last_bucket, last_unit = f"buckets[{BUCKETS - 1}]", f"units[{UNIT_ROWS - 1}]"
    names = ("count", "sum", "inverted_min", "max", "hits", "buckets[0]", last_bucket, "units[0]")
    row, values = c.fields("histogram", *names, last_unit)
    assert len(row) == ROW_SIZE
    times = Histogram.from_row(row)
    assert values == [
        times.count,
        times.sum,
        (1 << 64) - 1 - times.minimum,
        times.maximum,
        times.hits,
        times.buckets[0],
        times.buckets[BUCKETS - 1],
        times.units[0],
        times.units[UNIT_ROWS - 1],
    ]
    assert c.constants("BUCKETS", "UNIT_ROWS") == [BUCKETS, UNIT_ROWS]


def test_buckets(tmp_path: Path) -> None:
    values = [0, 1, (1 << 62) - 1]
    for exponent in range(1, 62):
        values += [(1 << exponent) + step for step in (-1, 0, 1, 1 << exponent >> 1)]
    show = "\n".join(
        f'printf("%u %u\\n", histogram_bucket({v}ULL), log2_of({v}ULL));' for v in values
    )
    output = run_c("latency.c", ["above", "log2_of", "histogram_bucket"], show, tmp_path)
    for value, line in zip(values, output.splitlines(), strict=True):
        bucket, exponent = map(int, line.split())
        assert exponent == max(value.bit_length() - 1, 0)
        low, high = bucket_bounds(bucket)
        if value < 1 << 44:
            assert low <= value < high
            assert high - low <= max(1, low / 16)
        else:
            assert bucket == BUCKETS - 1


def test_layout_of_a_runtime(c: CLayout) -> None:
    row, values = c.fields("layout", *tasks._OFFSETS, "tls_g")
    assert list(tasks._LAYOUT.unpack(row)) == values
    layout = replace(table_layout((1, 19), AMD64), tls_offset=-8)
    *offsets, tls = tasks._LAYOUT.unpack(tasks._row(layout))
    assert offsets == [getattr(layout, name) for name in tasks._OFFSETS]
    assert tls == (1 << 64) - 8


def test_goroutine_key(c: CLayout) -> None:
    row, values = c.fields("goroutine_key", "goid", "tgid", "row")
    assert list(goroutines._KEY.unpack(row)) == values


def test_goroutine_row(c: CLayout) -> None:
    row, values = c.fields("goroutine_row", "times.count", "startpc", "gopc")
    assert Histogram.from_row(row[:ROW_SIZE]).count == values[0]
    assert list(goroutines._PLACES.unpack_from(row, ROW_SIZE)) == values[1:]
    assert len(row) == ROW_SIZE + goroutines._PLACES.size


def test_slow_call(c: CLayout) -> None:
    row, values = c.fields(
        "slow_call", "end", "duration", "goid", "tgid", "tid", "function", "hits"
    )
    call = latency.SlowCall(*latency._SLOW.unpack(row))
    assert list(dataclasses.astuple(call)) == [*values, None]


def test_stack(c: CLayout) -> None:
    row, values = c.fields("stack", "level", "file")
    assert list(calls.STACK_LEVEL.unpack(row)) == values
    row, values = c.fields("stack", "top.function", "level", "epoch")
    assert list(calls.STACK_EPOCH.unpack_from(row)) == values
    row, values = c.fields("stack", "top.start", "top.return_pc", "level")
    assert list(calls.STACK_LATEST.unpack_from(row)) == values


def test_hits(c: CLayout) -> None:
    assert c.constants("HITS") == [HIT_KINDS] == [len(HitRow._fields)]
    missing = ["stacks_full", "outer_calls_full", "new_callers", "unwound"]
    places = c.constants(*(f"HIT_{name.upper()}" for name in missing))
    assert places == [HitRow._fields.index(name) for name in missing]


def test_resting(c: CLayout) -> None:
    places = c.constants("RESTING_LIMIT", "RESTING_HALF", "RESTING_SHARE", "RESTING_FILES")
    assert places == [*range(calls._RESTING_LIMIT, calls._RESTING_FILES + 1)]


def test_diagnostics(c: CLayout) -> None:
    names = [what.name for what in calls.Diagnostic]
    *values, number = c.constants(*names, "DIAGNOSTICS")
    assert values == [what.value for what in calls.Diagnostic]
    assert number == len(names)


def test_levels_of_open_calls_are_found_by_halves(c: CLayout) -> None:
    (most,) = c.constants("(1ULL << LEVEL_BITS) - 1")
    assert latency._OPEN_CALLS < most
