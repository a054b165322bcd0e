# SPDX-License-Identifier: Apache-2.0
"""Hold the process that keeps probes to what is asked of it, with files in place of probes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace.errors import GotraceError
from gotrace.kernel import holder
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
    with pytest.raises(GotraceError, match="cannot attach any more: the probes are being removed"):
        keeper.ask(None)


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


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Have one process hold all; return its number when asked."""
    monkeypatch.setattr(keepers, "_holding", holding := keepers._Holding())
    keepers.hold_together()

    def holder() -> int:
        found = holding.holder()
        assert found is not None
        return found.pid

    yield holder
    last = holding.holder()
    assert last is not None
    last.control.close()
    assert os.waitpid(last.pid, 0)[1] == 0


class Held:
    """A pipe of which a keeper holds the writing end."""

    def __init__(self, path: Path, times: int = 1) -> None:
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        held: list[int] = []

        def attach() -> int:
            held.extend(os.open(path, os.O_WRONLY) for _ in range(times))
            return os.getpid()

        self.keeper = Keeper(attach, lambda: None, lambda: held)

    def is_held(self) -> bool:
        try:
            return os.read(self._end, 1) != b""
        except BlockingIOError:
            return True


def test_one_process_holds_what_keepers_have_attached(
    together: Callable[[], int], tmp_path: Path
) -> None:
    first, second, third = (Held(tmp_path / name) for name in "abc")
    assert {one.keeper.pid for one in (first, second, third)} == {together()}
    assert not Path(f"/proc/{first.keeper.result}").exists()  # who has attached has ended
    assert Path(f"/proc/{together()}/comm").read_text() == "gotrace-keeper\n"
    os.kill(together(), signal.SIGTERM)  # which it blocks
    assert second.keeper.end(time.monotonic() + 60)
    assert [one.is_held() for one in (first, second, third)] == [True, False, True]
    assert first.keeper.holds() and not second.keeper.killed
    first.keeper.release()
    first.keeper.end()
    assert third.keeper.end(time.monotonic() + 60)
    assert not first.is_held() and not third.is_held()


def test_a_keeper_with_too_many_descriptors_holds_them_by_itself(
    together: Callable[[], int], tmp_path: Path
) -> None:
    most = Held(tmp_path / "a", holder.MAX_HELD)
    most.keeper.drop(range(1, holder.MAX_HELD))
    most.keeper.wait(None)
    assert most.is_held() and most.keeper.holds()
    most.keeper.drop([0])
    assert most.keeper.holds()  # before and after the answer
    most.keeper.wait(None)
    assert not most.is_held() and most.keeper.holds()
    most.keeper.end()
    most = Held(tmp_path / "c", holder.MAX_HELD)
    more = Held(tmp_path / "b", holder.MAX_HELD + 1)
    assert most.keeper.pid == together()
    assert more.keeper.pid == more.keeper.result != together()
    for held in (most, more):
        assert held.is_held()
        held.keeper.end()
        assert not held.is_held()


def test_a_keeper_holds_by_itself_if_there_is_no_room(
    together: Callable[[], int], tmp_path: Path
) -> None:
    resource.prlimit(together(), resource.RLIMIT_NOFILE, (3, 3))
    held = Held(tmp_path / "a")
    assert held.keeper.pid == held.keeper.result != together()
    assert held.is_held()
    held.keeper.end()
    assert not held.is_held()


def test_another_process_holds_after_the_first_was_killed(
    together: Callable[[], int], tmp_path: Path
) -> None:
    first = Held(tmp_path / "a")
    os.kill(together(), signal.SIGKILL)
    os.waitid(os.P_PID, first.keeper.pid, os.WEXITED | os.WNOWAIT)
    assert not first.keeper.holds()
    first.keeper.end()
    assert first.keeper.killed and not first.is_held()
    second = Held(tmp_path / "b")
    assert second.keeper.pid == together() != first.keeper.pid
    second.keeper.end()


def test_a_keeper_that_is_killed_does_not_hold() -> None:
    keeper = Keeper(os.getpid, lambda: None, lambda: [2])
    assert keeper.holds()
    os.kill(keeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
    assert not keeper.holds()
    keeper.end()
    assert keeper.killed
