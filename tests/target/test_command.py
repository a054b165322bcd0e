# SPDX-License-Identifier: Apache-2.0
"""Start commands that wait before their first instruction until they are released."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gotrace.target.command import Command, CommandError, resolve_command

# A program that runs until it is killed and writes nothing: its output is this process's own.
ENDLESS = ["sleep", "infinity"]
SHOW = "import os, sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"


@contextmanager
def endless() -> Iterator[Command]:
    """Start an endless program that waits to be released, and kill it whatever the test finds."""
    command = Command(ENDLESS)
    try:
        yield command
    finally:
        if command.status is None:
            os.kill(command.pid, signal.SIGKILL)
            command.reap()


def test_nothing_runs_before_the_release(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = Command(["touch", str(mark)])
    executable = os.readlink(f"/proc/{command.pid}/exe")
    assert executable == os.path.realpath(sys.executable)
    assert not mark.exists()
    command.release()
    assert os.waitstatus_to_exitcode(command.reap()) == 0
    assert mark.exists()


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["a b", "$HOME", "*", "", "'", "é"]
    command = Command([sys.executable, "-c", SHOW, str(out), *words])
    command.release()
    assert os.waitstatus_to_exitcode(command.reap()) == 0
    assert out.read_text() == repr(words)


def test_release_returns_when_the_program_runs() -> None:
    with endless() as command:
        command.release()
        name = Path(os.readlink(f"/proc/{command.pid}/exe")).name
        assert name in ("sleep", "coreutils", "busybox")


def test_command_that_is_never_released_ends_unrun(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = Command(["touch", str(mark)])
    command.close()
    assert not mark.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(command.pid, 0)
    command.close()


def test_a_command_that_waits_ends_before_a_later_one() -> None:
    """The later child has ends of all pipes that were open when it was forked."""
    first, later = Command(ENDLESS), Command(ENDLESS)
    signal.alarm(10)
    try:
        first.close()
    finally:
        signal.alarm(0)
        os.kill(later.pid, signal.SIGKILL)
        later.close()
    assert first.status is not None


def test_running_command_outlives_close() -> None:
    with endless() as command:
        command.release()
        command.close()
        os.kill(command.pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(command.reap()) == -signal.SIGTERM
        assert command.reap() == command.reap()


def test_program_that_is_not_there() -> None:
    with pytest.raises(CommandError, match="no-such-program-here"):
        Command(["no-such-program-here"])
    with pytest.raises(CommandError, match="no such program"):
        resolve_command([])


def test_program_that_the_kernel_refuses(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    command = Command([str(script)])
    with pytest.raises(CommandError, match=os.strerror(errno.ENOENT)):
        command.release()
    command.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(command.pid, 0)


def test_program_is_looked_up_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError):
        resolve_command(["program"])
    program.chmod(0o755)
    assert resolve_command(["program", "x"]) == str(program)
    monkeypatch.chdir(tmp_path)
    assert resolve_command(["./program"]) == str(program)


def test_pipes_break_for_the_command_as_for_others() -> None:
    """Python ignores SIGPIPE, and children inherit what is ignored."""
    shell = Command(["sh", "-c", "kill -PIPE $$"])
    shell.release()
    assert os.waitstatus_to_exitcode(shell.reap()) == -signal.SIGPIPE


def pipes(pid: int) -> set[str]:
    """Return the pipes that a process has open."""
    links = {
        os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if entry.is_symlink()
    }
    return {link for link in links if link.startswith("pipe:")}


def test_pipe_ends_do_not_leak() -> None:
    """Pipes of other tests may be closed meanwhile, when their owners are collected."""
    before = pipes(os.getpid())
    with endless() as command:
        opened = pipes(os.getpid()) - before
        assert len(opened) == 2
        command.release()
        assert not pipes(command.pid) & opened
        assert not pipes(os.getpid()) & opened
