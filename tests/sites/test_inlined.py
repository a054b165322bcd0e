# SPDX-License-Identifier: Apache-2.0
"""Inlined calls are counted where that is proven, and nowhere else.

The referee of counts are the counters of another build of the program, with ``-cover``. In that one
each block has a counter, which keeps it in its place: it is the plain build that is probed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import capstone
import pytest

from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from gotrace.kernel.attach import Point, ProbeGroup, attach
from gotrace.kernel.cookie import cookie
from gotrace.settings import CountSettings
from gotrace.sites import inlined
from gotrace.sites.graph import Graph, read_graph
from gotrace.sites.inlined import (
    Code,
    InlinedSites,
    Pin,
    Proof,
    ProofPlaces,
    Unproven,
    _Call,
    untraced,
)
from gotrace.sites.sites import Site
from tests.covered import covered_calls
from tests.toolchains import FIXTURES, Toolchain, build, each_since, newest

GOFUNCCOUNT = Path(__file__).parents[2] / "tools" / "gofunccount"
SOURCE = FIXTURES / "sites_inlined"
FUNCTIONS = (
    *("pure", "below", "belowLarge", "add", "addLarge", "calls", "sum", "early", "around", "bump"),
    *("fill", "get", "loadStore", "thrice", "after", "first", "moved", "unlike", "present"),
    *("notPositive", "keep", "setLast"),
)


def places(table: FunctionTable) -> dict[str, list[Proof]]:
    names = {f"main.{name}" for name in FUNCTIONS}
    calls = list(table.inlined_calls(names))
    found: dict[str, list[Proof]] = {}
    for call, place in zip(calls, InlinedSites(table).of(calls), strict=True):
        found.setdefault(call.name.removeprefix("main."), []).append(place)
    return found


def jumps(table: FunctionTable, name: str) -> list[str]:
    """Return a function's conditional jumps, by a disassembler."""
    (row,) = table.rows_named(name)
    function = table.function(row)
    code = table.image.read(function.entry, function.end - function.entry)
    found = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(bytes(code), 0)
    return [mnemonic for _, _, mnemonic, _ in found if mnemonic[0] == "j" and mnemonic != "jmp"]


def test_what_is_executed_without_a_call_has_no_place() -> None:
    """From Go 1.26 on: a conditional move, and one comparison for the caller's and the call's."""
    with ElfImage.open(build(SOURCE, newest())) as image:
        table = load_functions(image)
        (row,) = table.rows_named("main.chosen")
        function = table.function(row)
        code = bytes(image.read(function.entry, function.end - function.entry))
        assert re.search(rb"[\x48-\x4f]\x0f[\x40-\x4f]", code), "no conditional move"
        assert jumps(table, "main.fused") == ["jae"]
        assert jumps(table, "main.fusedLarge") == ["jbe"]  # its constant is in a register
        found = places(table)
        assert found["pure"] == [(None, Unproven.SPECULATED)]
        assert jumps(table, "main.fusedZero") == ["jne"]
        for name in ("below", "belowLarge", "notPositive"):
            assert found[name] == [(None, Unproven.SPECULATED)]


def test_what_stays_in_its_place_is_counted_there() -> None:
    with ElfImage.open(build(SOURCE, newest())) as image:
        found = places(load_functions(image))
        for name in ("around", "bump", "after", "first", "unlike", "present"):
            assert found[name]
            assert all(place.unproven is None for place in found[name]), name
            addresses = [place.site.address for place in found[name] if place.site]
            assert len(set(addresses)) == len(found[name])
        assert found["sum"] == found["fill"] == [(None, Unproven.LOOP_HEAD)]
        assert (None, Unproven.ENTRY_BLOCK) in found["addLarge"]
        (one,) = (place for place in found["add"] if place.unproven is Unproven.BRANCH)
        assert one.site is not None
        for name in ("moved", "keep"):
            assert [place.unproven for place in found[name]] == [Unproven.BRANCH]


def test_a_loop_that_may_be_the_calls_own_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the condition of a loop has the caller's position, the head is what the loop stores."""
    own = vars(Code)["own"].func

    def stores(code: Code) -> dict[int, set[int]]:
        found = own(code)
        return {one: {at for at in found[one] if code.pin(at) is Pin.ACCESS} for one in found}

    with ElfImage.open(build(SOURCE, newest())) as image:
        table = load_functions(image)
        monkeypatch.setattr(Code, "own", property(stores))
        assert places(table)["fill"] == [(None, Unproven.BRANCH)]
        monkeypatch.setattr(_Call, "_is_once", lambda *_: True)  # without the rule
        ((site, _),) = places(table)["fill"]
        assert site is not None


def no(*_: object) -> bool:
    return False


def yes(*_: object) -> bool:
    return True


#: A rule, what is in its place if it is dropped, and the calls that are counted wrongly then.
RULES: tuple[tuple[object, str, object, str], ...] = (
    (_Call, "_may_be_speculated", no, "below belowLarge notPositive pure"),
    (Code, "may_compare_for_two", no, "below belowLarge notPositive"),
    (Code, "_has_wide_constant", False, "belowLarge"),
    (Code, "chooses_below", no, "pure"),
    (inlined, "_is_address", yes, "notPositive"),
    (inlined, "_loads", yes, "below belowLarge notPositive pure"),
    (_Call, "_begins_as_often", yes, "keep moved"),
    (_Call, "_is_entered", yes, "keep moved"),
    (Graph, "is_as_often", yes, "keep moved"),
    (Code, "begins_with_stack_check", True, "moved"),
    (_Call, "_before_faults", lambda _, __, found: ProofPlaces(found), "get loadStore"),
    (_Call, "_after_arguments", lambda call, _: ProofPlaces((call.mark,)), "get loadStore thrice"),
    (_Call, "_after_checks", lambda _, found, __: found, "setLast"),
    (inlined, "_is_checked", yes, "setLast"),
    (Code, "is_mark", lambda code, at: at in code.graph.block_of, "early"),
)


def hits(image: ElfImage, sites: Iterable[Site]) -> dict[int, int]:
    """Return how often the program of an image comes to sites, by their addresses."""
    by_address = {site.address: site for site in sites}
    points = [
        Point(image.offset_of(address), address, cookie(number, site))
        for number, (address, site) in enumerate(by_address.items())
    ]
    group = ProbeGroup("on_entry", image.display, image.display, points, 0, 0)
    attached = attach(CountSettings(counters=len(points)), [group])
    try:
        assert not attached.failed
        subprocess.run([image.display], input=b"x", check=True, capture_output=True)
        return dict(zip(by_address, attached.program.map("counts").sums(), strict=True))
    finally:
        attached.close()


@pytest.mark.live
@pytest.mark.apart
def test_without_a_rule_a_count_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = covered_calls(SOURCE, newest(), tmp_path)
    with ElfImage.open(build(SOURCE, newest())) as image:
        table = load_functions(image)
        found = []
        for owner, rule, instead, _ in RULES:
            with monkeypatch.context() as patched:
                patched.setattr(owner, rule, instead)
                found.append(places(table))
        proofs = [one for each in found for several in each.values() for one in several]
        counted = hits(image, [site for site, _ in proofs if site is not None])
    for (_, rule, _, names), each in zip(RULES, found, strict=True):
        wrong = []
        for name, several in each.items():
            count = sum(counted[site.address] for site, _ in several if site is not None)
            least = 0 if any(one.unproven for one in several) else truth[name]
            wrong += [] if least <= count <= truth[name] else [name]
        assert sorted(wrong) == names.split(), rule


@each_since(19)
def test_a_store_that_checks_an_argument_is_not_a_call(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place is after it. In Go 1.25 and 1.26 it has the position of the call."""
    with ElfImage.open(build(SOURCE, toolchain)) as image:
        table = load_functions(image)
        (row,) = table.rows_named("main.unusedArgument")
        entry = table.function(row).entry
        ((site, unproven),) = places(table)["setLast"]
        assert unproven is Unproven.FAULTS
        assert site is not None
        code = bytes(image.read(entry, site.address - entry))
        before = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(code, 0)
        assert any(re.fullmatch(r"qword ptr \[r.x \+ 8\], 3", each[3]) for each in before)
        monkeypatch.setattr(inlined, "_may_check", lambda _: False)
        ((site, unproven),) = places(table)["setLast"]
        assert unproven is None, "without the rule"


def graph_of(code: str, table: bytes = b"") -> Graph | None:
    def word(address: int) -> int | None:
        return int.from_bytes(table[address : address + 8], "little") if address >= 0 else None

    return read_graph(bytes.fromhex(code), 0x1000, word, lambda entry: entry == 0x2000)


@each_since(21)  # Go 1.19 keeps the record
def test_a_call_of_which_a_copy_of_its_caller_has_no_record(toolchain: Toolchain) -> None:
    path = build(SOURCE, toolchain)
    with ElfImage.open(path) as image:
        table = load_functions(image)
        names = {f"main.{name}" for name in (*FUNCTIONS, "note")}
        lacking = untraced(table, list(table.inlined_calls(names)))
        assert [(call.name, table.function(call.row).name) for call in lacking] == [
            ("main.note", "main.neverNoting")
        ]
    words = [sys.executable, str(GOFUNCCOUNT), "-l", f"{path}:main.note"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "not counted: a copy of its caller has no record of the call" in listed


def test_a_graph_has_dominators_and_loops() -> None:
    # 0: test eax,eax; je 8; 4: inc ecx; jmp 4 (to itself); 8: ret
    graph = graph_of("85c0 7404 ffc1 ebfc c3")
    assert graph is not None
    assert {start: each.successors for start, each in graph.blocks.items()} == {
        0: (4, 8),
        4: (4,),
        8: (),
    }
    assert graph.is_loop_head(4)
    assert graph.loop_around(4) == {4}
    assert graph.loop_around(8) == set()
    assert not graph.is_loop_head(8)
    assert graph.is_reducible
    assert graph.dominates(0, 8)
    assert not graph.dominates(4, 8)
    assert graph.head([4, 8]) is None
    assert graph.head([0, 4, 8]) == 0


def test_the_innermost_loop_that_has_a_block() -> None:
    # 0: nop; 1: nop (outer); 2: nop (inner); je 2; 5: nop; je 1; 8: ret
    graph = graph_of("90 90 90 74fd 90 74f9 c3")
    assert graph is not None
    loops = {start: graph.loop_around(start) for start in graph.blocks}
    assert loops == {0: set(), 1: {1, 2, 5}, 2: {2}, 5: {1, 2, 5}, 8: set()}


def test_a_loop_of_two_entries_is_not_reducible() -> None:
    # 0: je 5; 2: nop; nop; nop; 5: nop; je 2; ret
    graph = graph_of("7403 909090 90 74fa c3")
    assert graph is not None
    assert not graph.is_reducible


def test_a_call_that_never_returns_ends_its_block() -> None:
    # 0: je 7; 2: call 0x2000; 7: ret
    graph = graph_of("7405 e8f90f0000 c3")
    assert graph is not None
    assert graph.blocks[2].successors == ()


@pytest.mark.parametrize("code", ["ffe0", "ff24c8 c3", "7401 06 c3", "eb01 e890000000 c3"])
def test_what_cannot_be_followed_has_no_graph(code: str) -> None:
    """A jump by a register, by an unknown table; bad code, a jump into an instruction."""
    assert graph_of(code) is None


@pytest.mark.live
@pytest.mark.apart
@each_since(19)
def test_counts_are_those_of_coverage_counters(toolchain: Toolchain, tmp_path: Path) -> None:
    truth = covered_calls(SOURCE, toolchain, tmp_path)
    with ElfImage.open(build(SOURCE, toolchain)) as image:
        found = places(load_functions(image))
        by_site = hits(image, [site for each in found.values() for site, _ in each if site])
    counted = {
        name: sum(by_site[site.address] for site, _ in found.get(name, ()) if site)
        for name in FUNCTIONS
    }
    partly = {name for name, all_of in found.items() if any(one.unproven for one in all_of)}
    complete = [name for name in FUNCTIONS if name in found and name not in partly]
    assert {name: counted[name] for name in complete} == {name: truth[name] for name in complete}
    assert {"bump", "after"} <= set(complete)
    assert all(counted[name] <= truth[name] for name in partly)


@pytest.mark.live
@pytest.mark.apart
def test_a_function_that_is_named_is_counted_where_it_is_inlined(tmp_path: Path) -> None:
    """One has all of its places, of one some are not counted, one has none."""
    binary, truth = build(SOURCE, newest()), covered_calls(SOURCE, newest(), tmp_path)
    names = ["main.add", "main.bump", "main.outside"]

    def count(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(GOFUNCCOUNT), *more, *names, "--", str(binary)]
        return subprocess.run(command, input="x", capture_output=True, text=True)

    rows = [json.loads(line) for line in count("--json").stdout.splitlines() if line[:1] == "{"]
    found = {row["func"].removeprefix("main."): row for row in rows if row["kind"] == "count"}
    for name in ("bump", "outside"):
        assert found[name]["count"] == truth[name]
    assert (found["bump"]["places"], found["bump"]["uncounted_places"]) == (1, 0)
    assert "places" not in found["outside"]
    (warning,) = [row for row in rows if row["kind"] == "warning"]
    assert warning["uncounted"] == {"branch": 1}
    part = found["add"]
    assert (part["places"], part["uncounted_places"]) == (2, 1)
    assert 0 < part["count"] <= truth["add"]
    assert f">= {part['count']}" in count().stdout
    names = ["main.sum"]
    refused = count()
    assert refused.returncode == 3
    assert "no call can be seen: it begins with a loop" in refused.stderr
