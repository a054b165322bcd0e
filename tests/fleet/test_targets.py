# SPDX-License-Identifier: Apache-2.0
"""Programs are found by path and name, followed to new files, and dropped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gotrace.fleet.config import TargetSpec
from gotrace.fleet.targets import Finder, Program, ProgramKey


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a directory for processes as /proc shows them."""
    directory = tmp_path / "proc"
    directory.mkdir()
    (directory / "uptime").write_text("1 1")
    return directory


def run(proc: Path, pid: int, program: Path, comm: str = "x") -> None:
    """Have a process run a program."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "exe").symlink_to(program)
    (proc / str(pid) / "comm").write_text(f"{comm}\n")


def relinked(proc: Path, pid: int, program: Path) -> None:
    """Have a process's link lead elsewhere."""
    (proc / str(pid) / "exe").unlink()
    (proc / str(pid) / "exe").symlink_to(program)


def found(finder: Finder) -> list[tuple[str, str, tuple[int, ...]]]:
    rows = finder.look().values()
    return sorted((row.key.target, row.shown, tuple(sorted(row.processes))) for row in rows)


def test_by_path_before_it_runs_and_by_processes(proc: Path, tmp_path: Path) -> None:
    server, other = tmp_path / "server", tmp_path / "other"
    finder = Finder([TargetSpec("s", exe=str(server))], str(proc))
    assert found(finder) == []
    server.write_text("1")
    other.write_text("2")
    assert found(finder) == [("s", str(server), ())]
    run(proc, 10, server)
    run(proc, 11, other)
    run(proc, 12, server)
    assert found(finder) == [("s", str(server), (10, 12))]


def test_a_new_file_at_the_path_is_another_program(proc: Path, tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("old")
    finder = Finder([TargetSpec("s", exe=str(server))], str(proc))
    (before,) = finder.look()
    fresh = tmp_path / "fresh"
    fresh.write_text("new!")
    os.replace(fresh, server)
    (after,) = finder.look()
    assert before != after
    assert before.target == after.target == "s"


def test_a_process_stays_its_targets_if_its_file_is_renamed(proc: Path, tmp_path: Path) -> None:
    """As ``mv app app.old`` does before a new file is installed, while the old process drains."""
    server, old, name = tmp_path / "server", tmp_path / "server.old", "a-name-over-15-bytes"
    server.write_text("1")
    (tmp_path / name).write_text("22")
    run(proc, 7, server)
    run(proc, 8, tmp_path / name, name[:15])
    targets = [TargetSpec("s", exe=str(server)), TargetSpec("n", comm=name)]
    now = 0.0

    def clock() -> float:
        return now

    finder = Finder(targets, str(proc), clock=clock)
    before = found(finder)
    server.rename(old)
    (tmp_path / name).rename(tmp_path / "b")
    relinked(proc, 7, old)
    relinked(proc, 8, tmp_path / "b")
    assert found(finder) == before
    server.write_text("333")
    run(proc, 9, old)  # it is nobody's: the file at the path is another one
    after = sorted([*before, ("s", str(server), ())])
    for _ in range(2):
        assert found(finder) == found(finder) == after
        now += 31  # a look at everything
        assert found(finder) == after
        finder = Finder(targets, str(proc), clock=clock, before=finder)  # a reload
    relinked(proc, 7, tmp_path / "b")  # it executes another file
    assert found(finder) == [before[0], after[1]]
    elsewhere = Finder([TargetSpec("s", exe=str(tmp_path / "other"))], str(proc), before=finder)
    assert not elsewhere.look()


def test_by_name_only_while_it_runs(proc: Path, tmp_path: Path) -> None:
    program = tmp_path / "worker"
    program.write_text("1")
    finder = Finder([TargetSpec("w", comm="worker"), TargetSpec("n", comm="renamed")], str(proc))
    assert found(finder) == []
    run(proc, 7, program, "renamed")
    assert found(finder) == [("n", str(program), (7,)), ("w", str(program), (7,))]
    shutil.rmtree(proc / "7")
    assert found(finder) == []


def test_a_program_that_restarts_is_kept_between_its_processes(proc: Path, tmp_path: Path) -> None:
    program = tmp_path / "worker"
    program.write_text("1")
    now = 0.0
    finder = Finder([TargetSpec("w", comm="worker")], str(proc), clock=lambda: now)

    def look(runs: bool) -> list[tuple[str, str, tuple[int, ...]]]:
        nonlocal now
        now += 20
        if runs:
            run(proc, 7, program)
        rows = found(finder)
        if runs:
            shutil.rmtree(proc / "7")
        return rows

    here, between = [("w", str(program), (7,))], [("w", str(program), ())]
    assert [look(True), look(False)] == [here, []]  # it has ended, for all that is known
    assert [look(True), look(False), look(False), look(True)] == [here, between, between, here]
    assert [look(False), look(False), look(False)] == [between, between, []]
    assert [look(False), look(False), look(True), look(False)] == [[], [], here, []]


def test_a_look_that_sees_nothing_new_finds_the_same(proc: Path, tmp_path: Path) -> None:
    """Which takes a fraction of the time, and must miss nothing."""
    now = 0.0
    server, fresh = tmp_path / "server", tmp_path / "fresh"
    server.write_text("1")
    run(proc, 7, server)
    (proc / "9").mkdir()  # a thread of the kernel
    targets = [TargetSpec("s", exe=str(server)), TargetSpec("w", comm="worker")]
    finder = Finder(targets, str(proc), clock=lambda: now)
    before = finder.look()
    for _ in range(4):
        now += 5
        assert finder.look() is before
    run(proc, 8, server, "worker")
    assert found(finder) == [("s", str(server), (7, 8)), ("w", str(server), (8,))]
    shutil.rmtree(proc / "7")
    assert found(finder) == [("s", str(server), (8,)), ("w", str(server), (8,))]
    (proc / "8" / "comm").write_text("other\n")
    now += 61
    assert found(finder) == [("s", str(server), (8,))]
    fresh.write_text("new!")
    os.replace(fresh, server)  # and the process executes it: it has the same number and name
    assert [key.size for key in finder.look()] == [4]
    assert finder.look() is finder.look()
    (key,) = finder.look()
    assert finder.part(key, os.stat(server).st_dev)
    assert {key.device for key in finder.look()} == {os.stat(server).st_dev}
    shutil.rmtree(proc / "9")  # its number is another process's
    run(proc, 9, server)
    assert found(finder)[-1][2] == (8,)
    now += 31
    assert found(finder)[-1][2] == (8, 9)


def test_a_program_that_ran_long_is_kept_as_long_as_one_that_did_not(
    proc: Path, tmp_path: Path
) -> None:
    now, program = 0.0, tmp_path / "worker"
    program.write_text("1")
    finder = Finder([TargetSpec("w", comm="worker")], str(proc), clock=lambda: now)
    for kept in (False, True):  # once it was here again
        run(proc, 7, program)
        for _ in range(10):
            now += 20
            (key,) = finder.look()
        shutil.rmtree(proc / "7")
        for _ in range(2):
            now += 20
            assert list(finder.look()) == [key] * kept
        run(proc, 7, program)
        finder.look()
        shutil.rmtree(proc / "7")


def test_short_processes_are_opened_by_their_files_path(proc: Path, tmp_path: Path) -> None:
    program = tmp_path / "worker"
    program.write_text("1")
    run(proc, 7, program)
    run(proc, 8, tmp_path / "gone (deleted)")
    (tmp_path / "gone (deleted)").write_text("2")  # stands for what only /proc shows
    finder = Finder([TargetSpec("w", comm="worker"), TargetSpec("g", comm="gone")], str(proc))
    opened = {key.target: row.path for key, row in finder.look().items()}
    assert opened == {"w": str(program), "g": str(proc / "8" / "exe")}


def test_a_control_group_that_is_not_there_is_a_problem_and_no_more(
    proc: Path, tmp_path: Path
) -> None:
    program = tmp_path / "server"
    program.write_text("1")
    run(proc, 7, program)
    finder = Finder([TargetSpec("g", cgroup=str(tmp_path / "none"))], str(proc))
    assert found(finder) == []
    assert "none" in finder.problems["g"]


def test_processes_that_end_meanwhile_are_passed_over(proc: Path, tmp_path: Path) -> None:
    (proc / "9").mkdir()  # no exe: a thread of the kernel, or gone
    finder = Finder([TargetSpec("s", exe=str(tmp_path / "server"))], str(proc))
    assert found(finder) == []


def test_files_of_a_target_are_bounded(proc: Path, tmp_path: Path) -> None:
    server = tmp_path / "server"
    finder = Finder([TargetSpec("s", comm="server", max_files=3)], str(proc))
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "server").write_text(str(number))
        run(proc, 10 + number, tmp_path / str(number) / "server")
    before = found(finder)
    assert len(before) == 3 and finder.problems == {} and finder.passed_over == {"s": 0}
    for number in range(4, 7):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "server").write_text("x" * number)
        run(proc, number, tmp_path / str(number) / "server")
    assert found(finder) == before  # those that were there
    assert finder.passed_over == {"s": 3}
    assert "more than 3 files" in finder.problems["s"]
    shutil.rmtree(proc / "10")
    assert len(found(finder)) == 3 and finder.passed_over == {"s": 2}

    server.write_text("the file itself")  # which comes first
    target = TargetSpec("s", exe=str(server), max_files=1)
    finder = Finder([target], str(proc), before=finder)
    assert found(finder) == [("s", str(server), ())]


def test_targets_that_are_one_file_are_said_to_be(proc: Path, tmp_path: Path) -> None:
    """Calls of both were counted in each, and nothing said so."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("x")
    other.hardlink_to(one)
    run(proc, 7, one)
    targets = [TargetSpec(path.name, exe=str(path)) for path in (one, other)]
    finder = Finder(targets, str(proc))
    finder.look()
    assert finder.problems == {
        "other": f"{other} is the same file as {one} of target one: each counts the calls of both:"
        " make it a copy to keep them apart"
    }
    same = Finder([*targets[:1], TargetSpec("same", exe=str(one))], str(proc))
    same.look()
    assert same.problems == {}
    other.unlink()
    shutil.copy(one, other)
    finder.look()
    assert finder.problems == {}


def test_one_file_in_many_containers_counts_once(proc: Path, tmp_path: Path) -> None:
    key = ProgramKey("s", 1, 2, 3)
    programs = {
        one: Program(one, "/a", "/a", (7,))
        for one in (key._replace(container=number) for number in range(5))
    }
    finder = Finder([TargetSpec("s", comm="server", max_files=1)], str(proc))
    assert finder._bounded(programs, set()) == programs
    other = ProgramKey("s", 2, 2, 3)
    assert other not in finder._bounded({other: programs[key], **programs}, set())
