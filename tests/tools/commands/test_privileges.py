# SPDX-License-Identifier: Apache-2.0
"""Hold the capabilities that the documents name to what the kernel asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, gccgo_build, newest
from tests.tools.harness import Fixture, Result, json_counts
from tests.tools.unprivileged import NOBODY, PublicCopy, public_copy

pytestmark = pytest.mark.live

TOOLS = ("gofunccount", "gofunclatency", "gotrace")
PERF = ("perf-cookie", "perf-ip")
#: What all tools need; gotrace besides for its event buffers, where limits are those of a login.
LEAST = ("bpf", "perfmon")
BUFFERS = ("ipc_lock",)


@pytest.fixture(scope="module")
def public() -> Iterator[PublicCopy]:
    with public_copy() as copy:
        yield copy


@pytest.fixture(scope="module")
def program(public: PublicCopy) -> Path:
    return public.add(build(FIXTURES / "live_count", newest()))


def needs(name: str, method: str) -> tuple[str, ...]:
    """Return the capabilities that the README asks for."""
    return (*(("sys_admin",) if method in PERF else LEAST), *(BUFFERS if name == "gotrace" else ()))


def refused(result: Result, name: str, *parts: str) -> None:
    assert result.lines == []
    assert result.status == 1
    assert re.fullmatch(f"{name}: .+\n", result.errors), result.errors
    for part in parts:
        assert part in result.errors


@pytest.mark.parametrize("method", ["multi", *PERF])
@pytest.mark.parametrize("name", TOOLS)
def test_listed_capabilities_are_enough(
    public: PublicCopy, program: Path, name: str, method: str
) -> None:
    words = ("--attach", method, "-d", "0.01", f"{program}:main.leaf")
    result = public.run(name, *words, capabilities=needs(name, method))
    assert result.status == 0, result.errors
    assert result.lines[0].startswith("Tracing 1 function")


@pytest.mark.parametrize(
    ("name", "method", "granted", "part"),
    [
        ("gofunccount", "multi", (), "CAP_BPF and CAP_PERFMON"),
        ("gofunccount", "multi", ("bpf",), "CAP_BPF and CAP_PERFMON"),
        ("gofunclatency", "multi", ("perfmon",), "CAP_BPF and CAP_PERFMON"),
        ("gofunccount", "perf-cookie", LEAST, "CAP_SYS_ADMIN"),
        ("gofunclatency", "perf-ip", LEAST, "CAP_SYS_ADMIN"),
    ],
)
def test_what_is_missing_is_named(
    public: PublicCopy, program: Path, name: str, method: str, granted: Sequence[str], part: str
) -> None:
    words = ("--attach", method, "-d", "0.01", f"{program}:main.leaf")
    refused(public.run(name, *words, capabilities=granted), name, part, "run as root")


def test_event_buffers_that_are_not_permitted(public: PublicCopy, program: Path) -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid == -1:
        skip_or_fail("this kernel locks memory for everybody: perf_event_paranoid is -1")
    words = ("-d", "0.01", f"{program}:main.leaf")
    result = public.run("gotrace", *words, capabilities=LEAST, limits=["--memlock=65536:65536"])
    refused(result, "gotrace", "event buffer", "CAP_IPC_LOCK", "ulimit -l")


@pytest.mark.parametrize("name", TOOLS)
def test_processes_of_others(public: PublicCopy, program: Path, name: str) -> None:
    granted = needs(name, "multi")
    with Fixture([program]) as fixture:
        words = ("--json", "-d", "0.01", "-p", str(fixture.ready), "main.leaf")
        without = public.run(name, *words, capabilities=granted)
        refused(without, name, f"process {fixture.ready}", "user 0", "root", "CAP_SYS_PTRACE")
        with_it = public.run(name, *words, capabilities=(*granted, "sys_ptrace"))
    assert with_it.status == 0, with_it.errors
    assert with_it.objects[0]["kind"] == "attached"


def test_shared_library_of_an_own_process(public: PublicCopy) -> None:
    with Fixture([*NOBODY, public.add(gccgo_build(FIXTURES / "live_gccgo"))]) as fixture:
        found = re.search(r"(/\S*/libgo\.so\.\d+)", Path(f"/proc/{fixture.ready}/maps").read_text())
        if found is None:
            skip_or_fail("gccgo links without libgo.so")
        words = ("--json", "-p", str(fixture.ready), f"{found[1]}:fmt.*")
        with public.start("gofunccount", *words, capabilities=LEAST) as counting:
            truth = fixture.work()
            result = counting.end()
    assert json_counts(result, truth["library"]) == truth["library"]
