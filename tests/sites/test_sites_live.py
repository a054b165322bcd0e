# SPDX-License-Identifier: Apache-2.0
"""Sites of every form, counted in a running program that counts its own calls."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.kernel.attach import Point, ProbeGroup, attach
from gotrace.kernel.cookie import cookie
from gotrace.settings import CountSettings
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind, function_sites
from tests.toolchains import FIXTURES, Toolchain, build, marks_of, toolchains

pytestmark = [pytest.mark.live, pytest.mark.apart]

#: Whose first instruction runs again when the stack has grown.
GROWING = ("main.small", "main.large", "main.huge")
OTHERS = (
    *("main.compare", "main.load", "main.spin", "main.framed", "main.touch", "main.nothing"),
    *("main.stacked", "main.tail", "main.mixed", "main.faults", "main.faultsLater"),
)

#: Whose calls do not always return.
FAULTING = ("main.faults", "main.faultsLater")

Probe = tuple[str, Site]


UNOPTIMIZED = ("-gcflags=-N -l",)
#: Each release, and what the oldest and the newest make without optimizing.
BUILDS = [
    *(
        pytest.param(found, (), id=f"go{found.minor}", marks=marks_of(found))
        for found in toolchains()
    ),
    *(
        pytest.param(found, UNOPTIMIZED, id=f"go{found.minor}-unoptimized")
        for found in (*toolchains()[:1], *toolchains()[-1:])
    ),
]


@pytest.mark.parametrize(("toolchain", "flags"), BUILDS)
def test_hits_equal_calls(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    binary = build(FIXTURES / "sites_forms", toolchain, flags=flags)
    with ElfImage.open(binary) as image:
        probes = chosen_sites(image)
        naive = [
            (name, Site(function, SiteKind.ENTRY, SiteForm.FIRST, 0))
            for name, function in entries(image, GROWING)
        ]
        cheaper = counted_sites(image)
        hits, calls = run(binary, image, probes + naive)
        counted, calls_then = run(binary, image, cheaper) if cheaper else (Counter(), {})
    for name, site in cheaper:
        assert counted[name, site.kind, site.form] == calls_then[name], name
    if not flags and toolchain.minor != "1.15":
        assert {"main.mixed", "main.faultsLater"} <= {name for name, _ in cheaper}
        assert "main.faults" not in {name for name, _ in cheaper}
    for name, site in probes:
        assert hits[name, site.kind, site.form] == calls[name], (name, site.form)
    for name, _ in naive:
        assert hits[name, SiteKind.ENTRY, SiteForm.FIRST] > calls[name], name
    forms = {name: site.form for name, site in probes if site.kind is SiteKind.ENTRY}
    assert set(forms) >= {*GROWING, *OTHERS} - {"main.spin"}
    assert all(forms[name] in (SiteForm.BRANCH, SiteForm.EMULATED) for name in GROWING)
    assert forms["main.nothing"] is SiteForm.FIRST


def chosen_sites(image: ElfImage) -> list[Probe]:
    table = load_functions(image)
    return [
        (name, site)
        for name in (*GROWING, *OTHERS)
        for row in table.rows_named(name)
        if not table.is_wrapper(row)
        for found in [function_sites(image, table.function(row), returns=True)]
        for site in (*([found.entry] if found.entry else []), *found.returns)
        if name not in FAULTING or site.kind is SiteKind.ENTRY
    ]


def counted_sites(image: ElfImage) -> list[Probe]:
    """Return the entry sites that are others where calls are only counted."""
    table = load_functions(image)
    return [
        (name, cheap)
        for name in OTHERS
        for row in table.rows_named(name)
        for cheap in [function_sites(image, table.function(row), False, values=False).entry]
        if cheap is not None and cheap != function_sites(image, table.function(row), False).entry
    ]


def entries(image: ElfImage, names: Sequence[str]) -> list[tuple[str, int]]:
    table = load_functions(image)
    return [(name, table.function(row).entry) for name in names for row in table.rows_named(name)]


def run(
    binary: Path, image: ElfImage, probes: Sequence[Probe]
) -> tuple[Counter[tuple[str, SiteKind, SiteForm]], dict[str, int]]:
    """Run the program with all probes in place; return hits by site, and the program's truth."""
    points = [
        Point(image.offset_of(site.address), site.address, cookie(index, site))
        for index, (_, site) in enumerate(probes)
    ]
    with subprocess.Popen(
        [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        group = ProbeGroup("on_entry", str(binary), binary.name, points, None, 0)
        attached = attach(CountSettings(counters=len(points)), [group])
        try:
            assert not attached.failed
            printed, _ = process.communicate("go\n")
            counts = attached.program.map("counts").sums()
        finally:
            attached.close()
    hits: Counter[tuple[str, SiteKind, SiteForm]] = Counter()
    for (name, site), count in zip(probes, counts, strict=True):
        hits[name, site.kind, site.form] += count
    return hits, {name: int(calls) for name, calls in map(str.split, printed.splitlines())}
