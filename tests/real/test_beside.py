# SPDX-License-Identifier: Apache-2.0
"""Several tracers on the same functions at once: each of them sees every call."""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from gotrace.kernel.compiler import bpf_directory
from tests.live import skip_or_fail
from tests.toolchains import program_of
from tests.tools.harness import (
    Fixture,
    Process,
    Result,
    Running,
    json_counts,
    of_kind,
    run_tool,
    tool,
)

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_count")


def test_two_counters_and_a_meter_at_once() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), *NAMES)
        with (
            tool("gofunccount", *words) as first,
            tool("gofunccount", *words) as second,
            tool("gofunclatency", "-F", *words) as meter,
        ):
            truth = fixture.work()
            results = [first.end(), second.end()]
            measured = meter.end()
    expected = {name: truth["calls"][name] for name in NAMES}
    assert [json_counts(result, NAMES) for result in results] == [expected, expected]
    rows = {row["func"]: row["count"] for row in of_kind(measured, "histogram")}
    assert rows == expected


def headers(place: Path) -> dict[str, str]:
    """Give bcc's tools the product's own stand-in headers, and two that they want beside."""
    shutil.copytree(bpf_directory() / "include", place / "include")
    linux = place / "include" / "linux"
    (linux / "ptrace.h").write_text("#include <uapi/linux/ptrace.h>\n")
    (linux / "sched.h").write_text("#define TASK_COMM_LEN 16\n")
    return {**os.environ, "BCC_KERNEL_SOURCE": str(place), "PYTHONUNBUFFERED": "1"}


def others(path: Path, pid: int, name: str) -> list[tuple[list[str], str, str]]:
    """Return other tracers' command lines, what they say once attached, and how they count."""
    script = f'BEGIN {{ printf("attached\\n"); }} uprobe:{path}:"{name}" {{ @ = count(); }}'
    return [
        (["bpftrace", "-p", str(pid), "-e", script], "attached", r"@: (\d+)"),
        (
            ["funccount-bpfcc", "-p", str(pid), f"{path}:{name}"],
            "Tracing 1 functions",
            rf"{re.escape(name)} +(\d+)",
        ),
    ]


Trio = tuple[Result, Result, Result]


def beside(
    number: int, name: str, place: Path, ours_first: bool, *options: str
) -> tuple[int, Trio, str]:
    """Run all of ours and another tracer on a function; return its calls and what each says.

    ``options`` are those of gofunclatency and gotrace.
    """
    path = program()
    with Fixture([path]) as fixture, ExitStack() as opened:
        command, attached, _ = others(path, fixture.ready, name)[number]
        if shutil.which(command[0]) is None:
            skip_or_fail(f"there is no {command[0]}")

        def start_ours() -> list[Running]:
            words = ("--json", "-p", str(fixture.ready), name)
            counting = opened.enter_context(tool("gofunccount", *words))
            names = ("gofunclatency", "gotrace")
            following = [opened.enter_context(tool(one, *options, *words)) for one in names]
            for each in following if options else ():
                assert '"returns":"landing"' in each.lines_until('{"kind":"moved"')
            return [counting, *following]

        running = start_ours() if ours_first else []
        other = opened.enter_context(Process(command, env=headers(place)))
        other.read_until(attached)
        running = running or start_ours()
        truth = fixture.work()
        counted, measured, traced = (one.end() for one in running)
        other.signal(signal.SIGINT)
        said = "".join(other.rest())
    return truth["calls"][name], (counted, measured, traced), said


def seen_by(number: int, name: str, said: str) -> int:
    """Return how many hits another tracer tells of."""
    found = re.findall(others(program(), 0, name)[number][2], said)
    return int(found[-1])


BPFTRACE, FUNCCOUNT = range(2)
#: Not bcc's trace, which loses lines at this rate.
each_other = pytest.mark.parametrize("number", [BPFTRACE, FUNCCOUNT], ids=["bpftrace", "funccount"])
each_order = pytest.mark.parametrize("ours_first", [True, False], ids=["first", "second"])


def assert_exact(calls: int, name: str, ours: Trio) -> None:
    counted, measured, traced = ours
    assert json_counts(counted)[name] == calls
    assert [row["count"] for row in of_kind(measured, "histogram")] == [calls]
    lost = sum(row["calls"] for row in of_kind(traced, "lost"))  # too many open at once
    shown = len(of_kind(traced, "call"))
    assert shown + lost == calls and shown > calls // 2


@each_other
@each_order
def test_beside_another_tracer(number: int, ours_first: bool, tmp_path: Path) -> None:
    """It is at the first instruction, which runs again when the stack has grown; we are not."""
    name = "main.smallFrame"
    calls, ours, said = beside(number, name, tmp_path, ours_first)
    assert_exact(calls, name, ours)
    assert seen_by(number, name, said) >= calls


@each_other
@each_order
def test_beside_another_tracer_at_landings(number: int, ours_first: bool, tmp_path: Path) -> None:
    name = "main.smallFrame"
    calls, ours, said = beside(number, name, tmp_path, ours_first, "--returns", "landing")
    assert_exact(calls, name, ours)
    assert seen_by(number, name, said) >= calls


@each_order
def test_on_the_same_instruction_as_bpftrace(ours_first: bool, tmp_path: Path) -> None:
    calls, ours, said = beside(BPFTRACE, "main.leaf", tmp_path, ours_first)
    assert_exact(calls, "main.leaf", ours)
    assert seen_by(BPFTRACE, "main.leaf", said) == calls


def test_on_the_same_instruction_as_bcc(tmp_path: Path) -> None:
    """bcc's probe says that it counts references: whoever comes second is refused, and told."""
    path, name = program(), "main.leaf"
    with Fixture([path]) as fixture:
        command, attached, _ = others(path, fixture.ready, name)[FUNCCOUNT]
        with Process(command, env=headers(tmp_path)) as other:
            other.read_until(attached)
            for one in ("gofunccount", "gofunclatency", "gotrace"):
                refused = run_tool(one, "-p", str(fixture.ready), name)
                assert refused.status == 1
                assert "perf-cookie: another tracer, such as a bcc tool" in refused.errors
            words = ("--json", "-d", "0.1", "-p", str(fixture.ready), name, NAMES[0])
            both = run_tool("gofunccount", *words)
            calls = fixture.work()["calls"][name]
            other.signal(signal.SIGINT)
            said = "".join(other.rest())
    assert both.status == 0
    (warning,) = of_kind(both, "warning")
    assert "another tracer, such as a bcc tool" in warning["message"]
    assert seen_by(FUNCCOUNT, name, said) == calls
