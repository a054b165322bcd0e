# SPDX-License-Identifier: Apache-2.0
"""Sites of whole programs, held against what other disassemblers say."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from gotrace.architecture import AMD64
from gotrace.sites.prologue import split_stack, stack_check
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, entry_site, return_sites
from tests.live import skip_or_fail
from tests.sites.listing import Listed, gnu_objdump, go_objdump
from tests.toolchains import FIXTURES, Toolchain, build, gccgo_build, newest, toolchains

pytestmark = pytest.mark.slow

#: The oldest and the newest release: their prologues have nothing in common.
BOTH_ENDS = pytest.mark.parametrize(
    "toolchain",
    [
        pytest.param(found, id=f"go{found.minor}")
        for found in toolchains()[:1] + toolchains()[1:][-1:]
    ],
)


def chosen(listed: Listed, values: bool = True) -> Site | None:
    try:
        return entry_site(listed.code, listed.function, AMD64, values=values)
    except SiteError:
        return None


def check_returns(listed: Listed, expected: list[int]) -> None:
    found = return_sites(listed.code, listed.function, AMD64)
    assert [site.address for site in found.sites] == expected, listed.name


@BOTH_ENDS
def test_sites_of_a_whole_go_program(toolchain: Toolchain) -> None:
    check_go(toolchain)


@pytest.mark.thorough
def test_sites_of_a_whole_position_independent_program() -> None:
    check_go(newest(), "-buildmode=pie")


def check_go(toolchain: Toolchain, *flags: str) -> None:
    binary = build(FIXTURES / "sites_http", toolchain, flags=flags, env={"CGO_ENABLED": "0"})
    forms: Counter[SiteForm | None] = Counter()
    grown = cheaper = 0
    missed = set()
    for listed in go_objdump(binary, toolchain):
        check_returns(listed, listed.returns())
        if stack_check(listed.code) is None and any(
            text.startswith("CALL runtime.morestack") for _, _, text in listed.instructions
        ):
            missed.add(listed.name)
        site = chosen(listed)
        forms[site.form if site else None] += 1
        if site is not None:
            grown += check_go_site(listed, site)
            cheaper += check_counted(listed, site)
    assert sum(forms.values()) > 5_000
    assert forms[None] < 20
    assert grown > 4_000
    assert cheaper > 20
    behind_check = SiteForm.BRANCH if toolchain.minor in ("1.15", "1.19") else SiteForm.EMULATED
    assert forms[behind_check] > 4_000
    # Every function that can grow its stack is recognised.
    assert {name for name in missed if not name.startswith("runtime.morestack")} == set()


def check_go_site(listed: Listed, site: Site) -> bool:
    """Check that nothing but the way back from morestack leads to the site or before it."""
    assert site.address in listed.boundaries, listed.name
    jumps = listed.jumps_to(listed.entry, site.address)
    texts = {address: text for address, _, text in listed.instructions}
    if stack_check(listed.code) is None:
        assert jumps == [], (listed.name, jumps)
        assert site.address > listed.entry or site.form in (SiteForm.FIRST, SiteForm.EMULATED)
        return False
    (back,) = jumps
    assert back[1] == listed.entry, listed.name
    assert any("runtime.morestack" in texts[at] for at in texts if back[0] - 200 < at < back[0])
    if site.form is SiteForm.BRANCH:
        assert texts[site.address].startswith("JBE")
    else:
        assert texts[site.address] == "PUSHQ BP"
    return True


#: What cannot be between an entry and its site, as Go's disassembler writes it.
_LEAVES = re.compile(r"(J|CALL|RET|UD|INT|I?DIV|SYS|REP|LOCK|XCHG|POP|HLT|LOOP)")
#: Memory but that of the stack and of the program's own data; or g, where wrappers look.
_ELSEWHERE = re.compile(r"\((?!SP\)|IP\)|SB\)|R14\), R12$)")
_WRITES_G_OR_SP = re.compile(r"(?!CMP|TEST|SUBQ \$|ADDQ \$-).*, (R14|SP)$")


def check_counted(listed: Listed, site: Site) -> bool:
    """Check the site for calls that are only counted; return whether it is another one."""
    counted = chosen(listed, values=False)
    assert counted is not None, listed.name
    if counted == site:
        return False
    assert site.form is SiteForm.FIRST and counted.form is SiteForm.EMULATED
    check_passed_by(listed, counted)
    return True


def check_passed_by(listed: Listed, site: Site) -> None:
    """Check that every call comes by the site, whatever its arguments are."""
    check_go_site(listed, site)
    for address, _, text in listed.instructions:
        if address < site.address:
            assert not _LEAVES.match(text), (listed.name, text)
            assert text.startswith(("LEA", "NOP")) or not _ELSEWHERE.search(text), (
                listed.name,
                text,
            )
            assert not _WRITES_G_OR_SP.match(text), (listed.name, text)


def test_returns_of_vector_code() -> None:
    if shutil.which("objdump") is None:
        skip_or_fail("there is no objdump: make setup-test")
    binary = build(FIXTURES / "sites_http", newest(), env={"CGO_ENABLED": "0"})
    vectors = 0
    for listed in gnu_objdump(binary):
        texts = [text for _, _, text in listed.instructions]
        if any("(bad)" in text for text in texts):  # data in text, which the code jumps over
            with pytest.raises(SiteError, match="cannot be decoded"):
                return_sites(listed.code, listed.function, AMD64)
            continue
        vectors += any(text.startswith("v") for text in texts)
        check_returns(listed, listed.returns())
    assert vectors > 10


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-fcf-protection")], ids=" ".join)
def test_sites_of_a_gccgo_program(flags: tuple[str, ...]) -> None:
    check_gccgo(gccgo_build(FIXTURES / "sites_gccgo", flags), at_least=3)


@pytest.mark.thorough
def test_sites_of_a_whole_gccgo_library() -> None:
    libraries = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libgo.so.*"))
    if not libraries:
        skip_or_fail("there is no libgo: make setup-test")
    check_gccgo(libraries[0], at_least=10_000)


def check_gccgo(binary: Path, at_least: int) -> None:
    """Check the sites of all functions that begin with a split-stack check."""
    if shutil.which("objdump") is None:
        skip_or_fail("there is no objdump: make setup-test")
    split_functions = 0
    for listed in gnu_objdump(binary):
        calls = {
            address + len(raw)
            for address, raw, text in listed.instructions
            if text.startswith("call") and "morestack" in text
        }
        check_returns(listed, [at for at in listed.returns() if at not in calls])
        site = chosen(listed)
        if site is None:
            continue
        assert site.address in listed.boundaries, listed.name
        jumps = listed.jumps_to(listed.entry, site.address)
        split = split_stack(listed.code)
        if split is None:
            assert jumps == [], listed.name
            continue
        split_functions += 1
        assert calls, listed.name
        assert site.form is SiteForm.EMULATED
        if site.address == listed.entry + split.body:
            jumps = [jump for jump in jumps if not is_way_to_body(jump, listed, site, calls)]
        assert jumps == [], (listed.name, jumps)
    assert split_functions >= at_least


def is_way_to_body(jump: tuple[int, int], listed: Listed, site: Site, calls: set[int]) -> bool:
    """Tell the jumps of the check's two ways: its own, and the one after __morestack's RET.

    Between that RET and the jump the static chain may be restored, or an endbr64 stand.
    """
    at, to = jump
    split = split_stack(listed.code)
    own = split is not None and at == listed.entry + split.branch
    return to == site.address and (own or any(0 < at - ret <= 8 for ret in calls))
