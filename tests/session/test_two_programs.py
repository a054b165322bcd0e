# SPDX-License-Identifier: Apache-2.0
"""Tell apart two programs that are traced at once, and a program from the one it turns into."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gotrace.kernel.attach import AttachError, attach
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.select import Selector
from gotrace.session.lifetime import Lifetime
from gotrace.session.plan import BinaryRequest, ProbePlan, make_plan
from gotrace.session.symbols import Symbolizer
from gotrace.settings import CountSettings
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture


def program(name: str) -> Path:
    """Build files of these tests' own: others may be traced by path meanwhile."""
    return build(FIXTURES / name, newest(), name=f"{name}_twin")


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.close()


def plan_of(target: Target, *paths: Path) -> ProbePlan:
    requests = [BinaryRequest(str(path), Selector(["main.main"])) for path in paths]
    return make_plan(target, requests, returns=False, verb="count")


def test_names_are_those_of_the_program_that_a_process_runs(target: Target) -> None:
    other, ours = program("live_latency"), program("live_count")
    plan = plan_of(target, other, ours)
    symbols = Symbolizer([file.binary for file in plan.binaries])
    leaf = next(
        function
        for row in plan.binaries[1].binary.functions.rows_named("main.leaf")
        for function in [plan.binaries[1].binary.functions.function(row)]
    )
    with Fixture([ours]) as fixture:
        (frame,) = symbols.frames_before(fixture.ready, leaf.entry + 1)
        assert frame[0] == "main.leaf"
    with Fixture([other]) as fixture:
        frames = symbols.frames_before(fixture.ready, leaf.entry + 1)
        assert "main.leaf" not in [name for name, _, _ in frames]


def test_sites_at_one_address_are_refused_where_only_that_tells_them_apart(
    target: Target, tmp_path: Path
) -> None:
    ours, copy = program("live_count"), tmp_path / "copy"
    copy.write_bytes(ours.read_bytes())
    groups = plan_of(target, ours, copy).entry_groups("on_entry", 0)
    with pytest.raises(AttachError, match=rf"{ours} and {copy} have functions at the same"):
        attach(CountSettings(counters=1), groups, AttachMethod.ADDRESS)


def inode_of(pid: int) -> int | None:
    """Return that of the program that a process runs, None while it changes from one to another."""
    try:
        return os.stat(f"/proc/{pid}/exe").st_ino
    except FileNotFoundError:
        return None


def test_process_that_runs_another_program_before_the_first_look() -> None:
    with subprocess.Popen(
        ["sh", "-c", "read word; exec sleep 100"], stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        target = Target.of(process.pid, None)
        shell = inode_of(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        while inode_of(process.pid) in (shell, None):
            pass
        replaced = Lifetime(target, ProbePlan((), ())).replaced_program()
        process.kill()
    target.close()
    assert replaced is not None and replaced.endswith("sleep")
