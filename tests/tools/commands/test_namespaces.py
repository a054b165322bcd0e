# SPDX-License-Identifier: Apache-2.0
"""Number processes and threads as the tool's own pid namespace does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.toolchains import program_of
from tests.tools.harness import Fixture, of_kind
from tests.tools.namespaces import UNSHARE, Inside, numbers, outer_pid, threads

pytestmark = pytest.mark.live


program = program_of("trace_calls")


@contextmanager
def started(depth: int, mode: str = "default") -> Iterator[tuple[Fixture, int]]:
    """Start the program so many namespaces down and give its number here, too."""
    with Fixture([*UNSHARE * depth, program(mode=mode)]) as fixture:
        yield fixture, outer_pid(fixture, program(mode=mode))


def test_lines_have_the_tools_numbers() -> None:
    with (
        started(1) as (fixture, pid),
        Inside(fixture, "gotrace", "--json", "-p", "1", "main.echo") as tracing,
    ):
        made = fixture.work("goroutines")["Echoed"]
        known = threads(pid, 1)
        rows = of_kind(tracing.end(), "call")
    assert len(rows) == made
    assert {row["pid"] for row in rows} == {1}
    assert {row["tid"] for row in rows} <= known
    # The float arguments come by a signal to the thread, which is found again by its number.
    assert {type(row["args"]["f"]) for row in rows} == {float}


def test_predicates_and_formats_have_the_tools_numbers() -> None:
    probes = (
        'main.echo ($pid == 1 && $tid < 1000) "%d %d %s", $pid, $tid, $comm',
        "main.nest ($pid != 1)",
    )
    with (
        started(1) as (fixture, pid),
        Inside(fixture, "gotrace", "--json", "-p", "1", *probes) as tracing,
    ):
        made = fixture.work("goroutines recursion")["Echoed"]
        known = threads(pid, 1)
        rows = of_kind(tracing.end(), "call")
    assert max(known) < 1000
    assert {row["func"] for row in rows} == {"main.echo"}
    messages = [row["message"].split() for row in rows]
    assert len(messages) == made
    assert {(number, comm) for number, _, comm in messages} == {("1", "trace_calls")}
    assert {int(tid) for _, tid, _ in messages} <= known


def test_every_process_of_a_file_in_and_beside_the_namespace() -> None:
    """A goroutine's description needs the process's mappings, which its number leads to."""
    path = program(mode="pie")
    words = ("--json", "-g", "--top", "100", "--slower", "1ns", f"{path}:main.echo")
    with (
        started(1, "pie") as (fixture, pid),
        Fixture([path]) as beside,
        Inside(fixture, "gofunclatency", *words) as measuring,
    ):
        made = [each.work("goroutines")["Echoed"] for each in (fixture, beside)]
        known = threads(pid, 1)
        result = measuring.end()
    slow = of_kind(result, "slow")
    tids = [[row["tid"] for row in slow if row["pid"] == number] for number in (1, 0)]
    assert [len(each) for each in tids] == made
    assert set(tids[0]) <= known
    assert set(tids[1]) == {0}
    rows = of_kind(result, "histogram")
    assert sum(row["count"] for row in rows) == sum(made)
    described = [row["count"] for row in rows if "[main.goroutines." in row["goroutine"]]
    assert sum(described) == made[0]


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace"])
def test_target_in_a_namespace_within_the_tools(name: str) -> None:
    """Its own numbers are not the tool's: the process has the tool's, threads their own."""
    with started(2) as (fixture, pid):
        here, middle, inner = numbers(pid)
        assert here != middle != inner == 1
        with Inside(fixture, name, "--json", "main.echo", "-p", str(middle)) as tracing:
            made = fixture.work("goroutines")["Echoed"]
            known = threads(pid, 2)
            result = tracing.end()
    if name == "gotrace":
        rows = of_kind(result, "call")
        assert len(rows) == made
        assert {row["pid"] for row in rows} == {middle}
        assert {row["tid"] for row in rows} <= known
    else:
        kind = "count" if name == "gofunccount" else "histogram"
        assert sum(row["count"] for row in of_kind(result, kind)) == made


@pytest.mark.parametrize("name", ["gofunccount", "gotrace"])
def test_several_targets_in_namespaces_within_the_tools_are_refused(name: str) -> None:
    with started(2) as (fixture, pid):
        middle = numbers(pid)[1]
        expected = f"process {middle} is in another PID namespace than this tool"
        with pytest.raises(AssertionError, match=expected):  # it ends and says so
            Inside(fixture, name, "main.echo", "-p", f"{middle},1")
