# SPDX-License-Identifier: Apache-2.0
"""Hold the process that keeps probes to what is asked of it, with files in place of probes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace.errors import GotraceError
from gotrace.kernel import keeper as keepers
from gotrace.kernel.keeper import Keeper
from gotrace.target.command import Command
from tests.tools.harness import CLONE, Process


def test_attaches_at_once_and_detaches_in_the_end(tmp_path: Path) -> None:
    place = tmp_path / "probe"

    def attach() -> dict[str, int]:
        place.write_text("here")
        return {"pid": os.getpid()}

    keeper = Keeper(attach, place.unlink)
    assert keeper.result["pid"] != os.getpid()
    assert Path(f"/proc/{keeper.result['pid']}/comm").read_text() == "gotrace-keeper\n"
    assert place.exists()
    keeper.end()
    assert not place.exists()
    assert not Path(f"/proc/{keeper.result['pid']}").exists()
    keeper.end()  # once more does nothing


def test_raises_what_attaching_raises_and_detaches(tmp_path: Path) -> None:
    place = tmp_path / "probe"

    def attach() -> NoReturn:
        place.touch()
        raise GotraceError("no probe can be had")

    with pytest.raises(GotraceError, match="no probe can be had"):
        Keeper(attach, place.unlink)
    assert not place.exists()


def no_process() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where pids.max of a control group is reached."""
    monkeypatch.setattr(os, "fork", no_process)
    what = "Resource temporarily unavailable: raise ulimit -u, or pids.max of the control group"
    with pytest.raises(GotraceError, match=f"start a process that holds the probes: {what}"):
        Keeper(no_process, no_process)
    with pytest.raises(GotraceError, match=f"start a process for /.*/true: {what}"):
        Command(["true"])


def test_ends_in_any_order(tmp_path: Path) -> None:
    """A keeper has its elders' ends of sockets open: none may wait for these to be closed."""
    places = [tmp_path / "elder", tmp_path / "younger"]
    elder, younger = (Keeper(place.touch, place.unlink) for place in places)
    elder.end()
    assert [place.exists() for place in places] == [False, True]
    younger.end()
    assert not any(place.exists() for place in places)


def test_no_signal_but_one_to_itself_ends_it(tmp_path: Path) -> None:
    place = tmp_path / "probe"

    def attach() -> int:
        place.touch()
        return os.getpid()

    keeper = Keeper(attach, place.unlink)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(keeper.result, number)
    assert os.getpgid(keeper.result) != os.getpgid(0)
    assert place.exists()
    keeper.end()
    assert not place.exists()


def test_end_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    """The keeper goes on with what the kernel takes its time for."""
    probe, allowed = tmp_path / "probe", tmp_path / "allowed"
    os.mkfifo(allowed)

    def detach() -> None:
        allowed.read_bytes()  # waits until the other end is opened and closed
        probe.unlink()

    keeper = Keeper(probe.touch, detach)
    keeper.release()
    keeper.release()
    assert not keeper.end(time.monotonic() + 0.05)
    assert probe.exists()
    allowed.write_bytes(b"")
    assert keeper.end()
    assert not probe.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from gotrace.kernel.keeper import Keeper
place = Path(sys.argv[1])
keeper = Keeper(place.touch, place.unlink)
assert place.exists()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_detaches_when_its_maker_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "probe"
    command = [sys.executable, "-c", KILLED, str(place)]
    with Process(command, cwd=CLONE) as maker:
        assert maker.wait() == -signal.SIGKILL, maker.errors  # the keeper has no output open
        maker.wait_for_keepers()
    assert not place.exists()


def test_a_killed_keeper_is_told_of(tmp_path: Path) -> None:
    def attach() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(GotraceError, match="was killed"):
        Keeper(attach, attach)


def test_a_lean_keeper_holds_what_it_is_to_hold_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keepers, "_lean_path", None)
    keepers.hold_leanly()
    ends: list[int] = []

    def attach() -> int:
        ends[:] = os.pipe()
        return os.getpid()

    keeper = Keeper(attach, lambda: None, lambda: ends[1:])
    directory = Path(f"/proc/{keeper.result}")
    pause = threading.Event()
    while (directory / "comm").read_text() != "head\n":
        assert keeper.holds()
        pause.wait(0.01)
    # Beside its own three it has what is held; the other end of the pipe was let go.
    held = [os.readlink(entry) for entry in (directory / "fd").iterdir()]
    assert sum(name.startswith("pipe:") for name in held) == 1
    os.kill(keeper.pid, signal.SIGTERM)  # which it still blocks
    assert keeper.holds()
    assert keeper.end(time.monotonic() + 60)
    assert not keeper.killed
    assert not directory.exists()


@pytest.mark.parametrize("is_lean", [False, True])
def test_a_keeper_that_is_killed_does_not_hold(
    is_lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "_lean_path", None)
    if is_lean:
        keepers.hold_leanly()
    keeper = Keeper(os.getpid, lambda: None, lambda: [2])
    assert keeper.holds()
    os.kill(keeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
    assert not keeper.holds()
    keeper.end()
    assert keeper.killed
