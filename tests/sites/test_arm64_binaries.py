# SPDX-License-Identifier: Apache-2.0
"""Sites of whole programs for arm64, held against what Go's own disassembler says."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gotrace.architecture import ARM64
from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.scheduler import scheduler_sites, start_site
from gotrace.sites.sites import Site, entry_site, return_sites
from gotrace.sites.unwind import unwind_sites
from tests.sites.listing import Listed, go_objdump_arm64
from tests.sites.test_sites_binaries import BOTH_ENDS
from tests.toolchains import (
    FIXTURES,
    FOR_ARM64,
    Toolchain,
    build,
    each_toolchain,
    newest,
    require,
)

pytestmark = pytest.mark.slow

#: What the kernel simulates, as Go's disassembler writes it.
_CONDITIONAL = r"B(?:EQ|NE|[CHV]S|[CV]C|LO|HI|MI|PL|L[SET]|G[ET])|CBN?ZW?|TBN?Z"
_SIMULATED = re.compile(rf"({_CONDITIONAL}|JMP|CALL|RET|ADRP?)\b")
_BRANCH = re.compile(rf"(?:{_CONDITIONAL}|JMP)\b.* (-?\d+)\(PC\)$|JMP (-?\d+)\(PC\)$")
_LEAVES = re.compile(rf"({_CONDITIONAL}|JMP|CALL|RET|SVC|BRK|HLT|ERET|HVC|SMC)\b|\?")
#: Loads and stores, but for the registers that every function may use as bases.
_BY_POINTER = re.compile(r"\((?!RSP\)|R28\)|PC\))\w+\)|\((?!RSP\)|R28\)|PC\))\w+\)\(")
#: Registers that carry arguments, or g, or the return address, as the last operand.
_ARGUMENT = re.compile(r"(R(?:\d|1[0-5]|26|28|30)|[FV](?:\d|1[0-5])(?:\.\w+)?)$")
_STORES = re.compile(r"(MOV\w*|F?STP\w*|STLR\w*|FMOV\w*)(\.\w)? .*\((RSP|R\d+)\)(\(.*\))?$")
_COMPARES = re.compile(r"(CMP|CMN|TST|FCMP|CCMP|NOOP|PRFM|BTI|HINT)")


def chosen(listed: Listed, values: bool = True, at_rets: bool = False) -> Site | None:
    try:
        return entry_site(listed.code, listed.function, ARM64, values=values, at_rets=at_rets)
    except SiteError:
        return None


def jumps_to(listed: Listed, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the jumps to addresses low..high, with their targets."""
    for address, _, text in listed.instructions:
        match = _BRANCH.match(text)
        target = address + 4 * int(match[1] or match[2]) if match else None
        if text == f"JMP {listed.name}(SB)":
            target = listed.entry
        if target is not None and low <= target <= high:
            yield address, target


def check_whole(binary: Path, toolchain: Toolchain) -> tuple[int, Counter[str]]:
    """Check all functions; return how many there are, and the forms of sites for counting."""
    counts: Counter[str] = Counter()
    functions = 0
    for listed in go_objdump_arm64(binary, toolchain):
        functions += 1
        texts = {address: text for address, _, text in listed.instructions}
        expected = [at for at, text in texts.items() if re.match(r"RET( R\d+)?$", text)]
        try:
            found = return_sites(listed.code, listed.function, ARM64)
        except SiteError:
            counts["no returns"] += 1
            assert expected == [], listed.name
        else:
            assert [site.address for site in found.sites] == expected, listed.name
            counts["RETs"] += len(expected)
        grows = any(text.startswith("CALL runtime.morestack") for text in texts.values())
        for values, at_rets in ((True, False), (False, False), (False, True)):
            site = chosen(listed, values, at_rets)
            form = site.form.value if site else "none"
            counts[f"{'values' if values else 'counted' if at_rets else 'measured'} {form}"] += 1
            if site is None:
                assert not grows, listed.name
                continue
            assert site.address in texts, listed.name
            check_site(listed, site, texts, grows, values, at_rets)
            counts["faults"] += bool(site.faults)
    return functions, counts


def check_site(
    listed: Listed, site: Site, texts: dict[int, str], grows: bool, values: bool, at_rets: bool
) -> None:
    text, name = texts[site.address], listed.name
    places = [at for at in texts if at < site.address]
    before = [texts[at] for at in places]
    if grows or site.form is SiteForm.BRANCH:
        assert site.form is SiteForm.BRANCH and text.startswith("BLS "), (name, text)
        assert before[0] in ("MOVD 16(R28), R16", "MOVD 24(R28), R16") or before[0] in (
            "MOVD 16(R28), R1",
            "MOVD 24(R28), R1",
        ), (name, before)
        ways = list(jumps_to(listed, listed.entry, site.address))
        assert [to for _, to in ways] == [listed.entry], (name, ways)
        (grown,) = (int(match[1]) for match in [_BRANCH.match(text)] if match)
        way = [texts.get(at, "") for at in range(site.address + 4 * grown, ways[0][0], 4)]
        assert any(each.startswith("CALL runtime.morestack") for each in way), (name, way)
        assert not any("RSP" in each.rpartition(", ")[2] for each in before if "CMP" not in each)
        return
    assert list(jumps_to(listed, listed.entry, site.address)) == [], name
    if site.form is SiteForm.FIRST:
        # Behind the first instruction only where that begins a sequence by R27, which ends there.
        assert all(each.endswith(", R27") for each in before), (name, before)
        assert site.address == listed.entry or "R27" in text, (name, text)
        assert not text.endswith(", R27") or "(R27)" not in texts.get(site.address + 4, "")
        return
    assert site.form is SiteForm.EMULATED and _SIMULATED.match(text), (name, text)
    assert not re.match(r"ADRP? .*, R27$", text), (name, text)
    if text == "RET":
        assert site.sp_offset == 0 and (at_rets or site.address == listed.entry)
    own, faults = False, []
    for at, each in zip(places, before, strict=True):
        assert not _LEAVES.match(each), (name, each)
        own = own or each.startswith("ADRP")
        if _BY_POINTER.search(each) and not (own and "(R27)" in each):
            faults.append(at)
        if values and not _COMPARES.match(each) and not _STORES.match(each):
            assert not _ARGUMENT.search(each), (name, each)
    assert list(site.faults) == faults and (at_rets or not faults), name


def report(binary: Path, toolchain: Toolchain) -> tuple[int, Counter[str]]:
    functions, counts = check_whole(binary, toolchain)
    print(binary.name, functions, dict(counts))
    return functions, counts


@BOTH_ENDS
def test_sites_of_a_whole_arm64_program(toolchain: Toolchain) -> None:
    binary = build(FIXTURES / "sites_http", toolchain, env=FOR_ARM64)
    functions, counts = report(binary, toolchain)
    assert functions > 5_000
    assert counts["values branch"] > 0.75 * functions
    assert counts["RETs"] > functions
    assert counts["counted first"] + counts["counted none"] < functions / 100


@pytest.mark.thorough
def test_sites_of_a_whole_position_independent_arm64_program() -> None:
    binary = build(FIXTURES / "sites_http", newest(), flags=("-buildmode=pie",), env=FOR_ARM64)
    functions, counts = report(binary, newest())
    assert counts["counted first"] + counts["counted none"] < functions / 100


@pytest.mark.thorough
@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.24", "1.27"])
def test_sites_of_the_arm64_compiler(minor: str, tmp_path: Path) -> None:
    toolchain = require(minor)
    compiler = tmp_path / "compile"
    command = [str(toolchain.go), "build", "-o", str(compiler), "cmd/compile"]
    source = toolchain.go.parent.parent / "src"
    subprocess.run(
        command, cwd=source, env={**toolchain.env(), "GOFLAGS": "", **FOR_ARM64}, check=True
    )
    functions, counts = report(compiler, toolchain)
    assert functions > 9_000
    assert counts["counted first"] + counts["counted none"] < functions / 100


@each_toolchain
def test_runtimes_of_arm64_are_watched_as_those_of_amd64(toolchain: Toolchain) -> None:
    """Its scheduler is found where the same release has it for the other architecture."""
    found: list[object] = []
    for env in ({}, FOR_ARM64):
        path = build(FIXTURES / "live_why", toolchain, env=env)
        with Binary(ElfImage.open(path)) as binary:
            table, unwind = binary.functions, unwind_sites(binary.functions)
            try:
                sites = scheduler_sites(table)
            except SiteError as error:
                found.append((str(error), len(unwind.recoveries)))
                if env:
                    with pytest.raises(SiteError, match="gets its arguments on the stack"):
                        start_site(table)
                continue
            assert binary.dwarf is not None
            coroarg = binary.dwarf.struct_members("runtime.g").get("coroarg")
            assert sites.coroarg in (None, coroarg)
            watched = (sites.syscall is None, sites.coroutine is None, sites.coroarg is None)
            found.append((watched, start_site(table).form, len(unwind.recoveries)))
            assert len(unwind.ends) >= 1
    assert found[0] == found[1]
