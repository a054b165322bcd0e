# SPDX-License-Identifier: Apache-2.0
"""The sites at which channels hand items over are where the runtime's source has them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.sites import scheduler
from gotrace.sites.edges import channel_sites, collection_site, timer_sites, try_sites
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, SiteKind
from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    each_architecture,
    every_toolchain,
    minor,
    newest,
    require,
)

#: Of chansend and chanrecv, and of selectgo.
SITES = {
    **dict.fromkeys(("on_write", "on_send", "on_read", "on_receive"), 2),
    "on_miss": 4,
}


def test_a_runtime_without_inlining_has_the_same_sites() -> None:
    """Users are told to build such a program if calls are inlined."""
    flags = ("-gcflags=all=-l",)
    with Binary(ElfImage.open(str(build(FIXTURES / "live_parked", newest(), flags=flags)))) as one:
        assert Counter(site.function for site in channel_sites(one.functions)) == SITES


@every_toolchain
@each_architecture
def test_sites_of_channels(toolchain: Toolchain, env: Mapping[str, str]) -> None:
    """What the code says of the channel agrees with the type's description."""
    with Binary(ElfImage.open(str(build(FIXTURES / "live_parked", toolchain, env=env)))) as binary:
        if binary.go_version is None or binary.go_version.release < (1, 19):
            with pytest.raises(SiteError):
                channel_sites(binary.functions)
            return
        found = channel_sites(binary.functions)
        assert Counter(site.function for site in found) == SITES
        assert binary.dwarf is not None
        members = binary.dwarf.struct_members("runtime.hchan")
        assert {(site.number >> 8 & 0xFF) * 8 for site in found} == {members["elemtype"]}
        assert [members[name] - members["elemtype"] for name in ("sendx", "recvx")] == [8, 16]
        # HCHAN_... of bpf/edges.h.
        places = [members[name] for name in ("dataqsiz", "buf", "elemsize")]
        assert places == [8, 16, 24]
        assert {site.site.form for site in found} == {SiteForm.EMULATED}
        made, *reset = [
            site for site in timer_sites(binary.functions) if site.function == "on_timer"
        ]
        timer = binary.dwarf.struct_members("runtime.timer")["arg"] + 8
        if is_new := binary.go_version.release >= (1, 23):
            timer += binary.dwarf.struct_members("runtime.timeTimer")["timer"]
        assert made.number == (0 if is_new else timer)
        assert [site.number for site in reset] == [timer] * len(reset)
        assert collection_site(binary.functions).function == "on_collected"
        # EDGE_KIND and the like of bpf/edges.h.
        if binary.go_version.release >= (1, 21):
            kind, elem = binary.dwarf.struct_members("internal/abi.Type"), "internal/abi.SliceType"
            assert (kind["PtrBytes"], kind["Kind_"]) == (8, 23)
            assert binary.dwarf.struct_members(elem)["Elem"] == 48


@every_toolchain
@each_architecture
def test_sites_of_tries(toolchain: Toolchain, env: Mapping[str, str]) -> None:
    """Those alone whose item is wanted: others are polled for often, such as a context's end."""
    if minor(toolchain) < 19:
        return
    with Binary(
        ElfImage.open(str(build(FIXTURES / "live_requests", toolchain, env=env)))
    ) as binary:
        found = {
            function.name
            for site in try_sites(binary.functions)
            if (function := binary.functions.find(site.site.address)) is not None
            and function.name.startswith("main.")
        }
        assert found == {
            "main.leaky.func2.1",
            "main.afterDefault.func1",
            "main.afterCond.func1",
        }
        after = [each.function for each in timer_sites(binary.functions)]
        assert ("on_after" in after) == (minor(toolchain) >= 21)


@each_architecture
def test_a_stripped_program_has_the_same_sites(env: Mapping[str, str]) -> None:
    toolchain = require("1.27")
    found = []
    for flags in ((), ("-ldflags=-s -w",)):
        path = build(FIXTURES / "live_parked", toolchain, flags=flags, env=env)
        with Binary(ElfImage.open(str(path))) as binary:
            found.append(channel_sites(binary.functions))
    assert found[0] == found[1]


def test_what_would_be_single_stepped_at_each_change_of_state_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepped = Site(0, SiteKind.ENTRY, SiteForm.FIRST, 0)
    monkeypatch.setattr(scheduler, "_needed", lambda table, name: stepped)
    said = "watching its scheduler would take single-stepping"
    with (
        ElfImage.open(build(FIXTURES / "sites_inlined", newest())) as image,
        pytest.raises(SiteError, match=said),
    ):
        scheduler.scheduler_sites(load_functions(image))


def test_a_switch_to_a_coroutine_of_another_form_is_refused(tmp_path: Path) -> None:
    path = build(FIXTURES / "live_coroutines", newest())
    copy = tmp_path / "copy"
    shutil.copyfile(path, copy)
    with ElfImage.open(path) as image:
        table = load_functions(image)
        switch = table.function(table.rows_named("runtime.coroswitch_m")[0])
        with copy.open("r+b") as file:
            file.seek(image.offset_of(switch.entry))
            file.write(b"\x90" * (switch.end - switch.entry))
    said = "runtime.coroswitch_m does not begin as in any release known"
    with ElfImage.open(copy) as image, pytest.raises(SiteError, match=said):
        scheduler.scheduler_sites(load_functions(image))
