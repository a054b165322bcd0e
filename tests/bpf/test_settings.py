# SPDX-License-Identifier: Apache-2.0
"""Hold the settings that the C sources read to the records that Python gives them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gotrace.kernel.compiler import bpf_directory, joined_source
from gotrace.settings import (
    HIT_KINDS,
    AllocSettings,
    CountSettings,
    ExecutionSettings,
    LatencySettings,
    OnCpuSettings,
    ProgramSettings,
    Role,
    SiteSettings,
    StateSettings,
    SyscallSettings,
    TraceSettings,
    TrialSettings,
    WaitSettings,
)

RECORDS: tuple[type[ProgramSettings], ...] = (
    AllocSettings,
    CountSettings,
    LatencySettings,
    OnCpuSettings,
    ExecutionSettings,
    StateSettings,
    SyscallSettings,
    TraceSettings,
    TrialSettings,
    WaitSettings,
)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
#: A map's declaration: what it is made by, its name, and how many entries it has.
MAP = re.compile(r"\bBPF_[A-Z_]+\((?:\"\w+\", [^;]*?, [^;]*?, )?(\w+), (?:[^;]*?, )?([^,;]+)\);")
#: What a source is given with others, though it has no use for it.
UNREAD: dict[type[ProgramSettings], set[str]] = {
    AllocSettings: {"g_startpc", "g_sched_sp", "g_waitreason"},
    OnCpuSettings: {"g_startpc", "g_sched_sp", "g_waitreason"},
    SyscallSettings: {
        *("g_startpc", "g_gopc", "g_sched_sp", "g_waitreason", "histogram_rows"),
    },
    TraceSettings: {"g_startpc", "g_gopc"},
    StateSettings: {"g_startpc", "g_gopc", "g_sched_sp"},
    ExecutionSettings: {each.name for each in SiteSettings.fields()},  # it has no probes
    WaitSettings: {"g_startpc"},
}
#: What a header looks at that a source includes, and that is not given with that source.
NOT_GIVEN: dict[type[ProgramSettings], set[str]] = {
    LatencySettings: {"nested"},
    StateSettings: {"why"},
    WaitSettings: {"why"},
}


def code(source: str) -> str:
    return COMMENT.sub("", joined_source(source))


def read_by(source: str) -> set[str]:
    return {name.lower() for name in re.findall(r"GOTRACE_(\w+)", code(source))}


def test_every_source_has_a_record() -> None:
    assert {record.source for record in RECORDS} == {p.name for p in bpf_directory().glob("*.c")}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.source)
def test_a_record_has_what_its_source_reads(record: type[ProgramSettings]) -> None:
    names = [each.name for each in record.fields()]
    assert len(set(names)) == len(names)
    read = read_by(record.source) - NOT_GIVEN.get(record, set())
    assert read | UNREAD.get(record, set()) == set(names)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.source)
def test_maps_have_the_sizes_that_the_record_says(record: type[ProgramSettings]) -> None:
    sizes = {
        name: (each.name, factor)
        for each in record.fields()
        if each.metadata["role"] is Role.SIZE
        for name, factor in each.metadata["maps"].items()
    }
    declared = {}
    for name, entries in MAP.findall(code(record.source)):
        found = re.fullmatch(r"\(?(HITS \* )?GOTRACE_(\w+?)(?: \* (\d+))?\)?", entries)
        assert found or "GOTRACE" not in entries, name
        if found:
            factor = HIT_KINDS if found[1] else int(found[3] or 1)
            declared[name] = (found[2].lower(), factor)
    assert declared.items() <= sizes.items()
    # Those of a header that this source does not include are declared by the other one.
    others = {name for other in RECORDS for name, _ in MAP.findall(code(other.source))}
    assert set(sizes) <= others


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.source)
def test_what_is_known_at_loading_only_is_not_looked_at_by_the_preprocessor(
    record: type[ProgramSettings],
) -> None:
    late = {each.name for each in record.fields() if each.metadata["role"] is not Role.SHAPE}
    conditions = re.findall(r"^#(?:if|elif) (.*)$", code(record.source), re.M)
    read = {
        name.lower()
        for condition in conditions
        for name in re.findall(r"(?<!defined\()\bGOTRACE_(\w+)", condition)
    }
    assert read & late == set()
    # A shape that is not given is 0: it is always defined.
    asked = re.findall(r"(?:^#ifn?def |\bdefined\()GOTRACE_(\w+)", code(record.source), re.M)
    shapes = {each.name for each in record.fields() if each.metadata["role"] is Role.SHAPE}
    assert {name.lower() for name in asked} & shapes == set()


def test_values_and_sizes_of_a_run_are_not_compiled_in() -> None:
    one = CountSettings(site=SiteSettings(tgid=1), counters=1)
    other = CountSettings(site=SiteSettings(tgid=4_000_000), counters=17_000)
    assert one.definitions() == other.definitions()
    assert other.sizes() == {"counts": 17_000, "hits": HIT_KINDS, "counted": 1, "faults": 1}
    assert other.values()[CountSettings.numbers()["tgid"]] == 4_000_000
    everything = replace(one, site=SiteSettings())
    assert everything.definitions() == one.definitions()
    assert everything.values()[CountSettings.numbers()["tgid"]] == 0


def test_sites_without_cookies_have_a_map() -> None:
    settings = CountSettings(counters=1).by_address(5)
    sizes = {"counts": 1, "site_by_ip": 5, "hits": HIT_KINDS, "counted": 1, "faults": 1}
    assert settings.sizes() == sizes
    assert "GOTRACE_SITE_BY_IP=1" in settings.definitions()
