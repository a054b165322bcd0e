# SPDX-License-Identifier: Apache-2.0
"""The sites at which channels hand items over are where the runtime's source has them."""

from __future__ import annotations

from collections import Counter

import pytest

from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.sites.edges import channel_sites, collection_site, timer_sites
from gotrace.sites.sites import SiteError, SiteForm
from tests.toolchains import FIXTURES, Toolchain, build, every_toolchain, require


@every_toolchain
def test_sites_of_channels(toolchain: Toolchain) -> None:
    """What the code says of the channel agrees with the type's description."""
    with Binary(ElfImage.open(str(build(FIXTURES / "live_parked", toolchain)))) as binary:
        if binary.go_version is None or binary.go_version.release < (1, 19):
            with pytest.raises(SiteError):
                channel_sites(binary.functions)
            return
        found = channel_sites(binary.functions)
        # Of chansend and chanrecv, and of selectgo.
        assert Counter(site.function for site in found) == dict.fromkeys(
            ("on_write", "on_send", "on_read", "on_receive"), 2
        )
        assert binary.dwarf is not None
        members = binary.dwarf.struct_members("runtime.hchan")
        received = [site.number for site in found if site.function in ("on_read", "on_receive")]
        assert {(number >> 8 & 0xFF) * 8 for number in received} == {members["recvx"]}
        # HCHAN_... of bpf/edges.h.
        places = [members[name] for name in ("dataqsiz", "buf", "elemsize")]
        assert places == [8, 16, 24]
        assert {site.site.form for site in found} == {SiteForm.EMULATED}
        made, *reset = timer_sites(binary.functions)
        timer = binary.dwarf.struct_members("runtime.timer")["arg"] + 8
        if is_new := binary.go_version.release >= (1, 23):
            timer += binary.dwarf.struct_members("runtime.timeTimer")["timer"]
        assert made.number == (0 if is_new else timer)
        assert [site.number for site in reset] == [timer] * len(reset)
        assert collection_site(binary.functions).function == "on_collected"


def test_a_stripped_program_has_the_same_sites() -> None:
    toolchain = require("1.27")
    found = []
    for flags in ((), ("-ldflags=-s -w",)):
        path = build(FIXTURES / "live_parked", toolchain, flags=flags)
        with Binary(ElfImage.open(str(path))) as binary:
            found.append(channel_sites(binary.functions))
    assert found[0] == found[1]
