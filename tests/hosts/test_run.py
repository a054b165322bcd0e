# SPDX-License-Identifier: Apache-2.0
"""Commands on hosts that are slow, odd or hostile: each host's trouble is its own, and all end."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, cast

import pytest

from gotrace.hosts import remote
from gotrace.hosts.bundle import Bundle
from gotrace.hosts.remote import HostError, RemoteRun
from gotrace.hosts.run import HostResult, HostRuns


@dataclass
class Shells:
    """Hosts whose names are what a shell here does."""

    bundles: Sequence[Bundle] = ()
    brings = "nothing brings it"

    def words(self, host: str, words: Sequence[str]) -> list[str]:
        return ["sh", "-c", host]

    def ready(self, host: str, is_over: threading.Event) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def runs(hosts: Sequence[str], way: Shells | None = None, seconds: float = 60) -> HostRuns:
    return HostRuns(way or Shells(), hosts, ["x"], len(hosts), lambda: None, seconds)


def by_host(found: HostRuns) -> dict[str, HostResult]:
    return {result.host: result for result in found.results()}


def test_a_full_disk_is_said_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, piece: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def tell(self) -> int:
            return 0

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda size: cast(IO[bytes], Full()))
    found = by_host(runs(["echo a", "echo b"]))
    assert {one.problem for one in found.values()} == {
        "what it prints cannot be kept: No space left on device"
    }


def test_an_exception_is_its_hosts() -> None:
    class Odd(Shells):
        def words(self, host: str, words: Sequence[str]) -> list[str]:
            if host == "echo b":
                raise ZeroDivisionError("odd")
            return super().words(host, words)

    found = by_host(runs(["echo a", "echo b"], Odd()))
    assert found["echo b"].problem == "ZeroDivisionError: odd"
    assert found["echo a"].problem is None
    assert list(found["echo a"].lines()) == ["a\n"]


def test_who_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it says something all the time, or closes its output and goes on."""
    monkeypatch.setattr(remote, "GRACE", 0.2)
    monkeypatch.setattr(remote, "_CONNECT", 0.1)
    yes = "while :; do echo y; done"  # slowly, each line by itself: not too much of them
    found = by_host(runs([yes, "exec >&- 2>&- sleep 600"], seconds=0.2))
    assert found[yes].problem == "it did not end within 0.5 s: it was given up"
    assert found["exec >&- 2>&- sleep 600"].status == -9


def test_who_says_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MOST_OUTPUT", 2 << 20)
    run = RemoteRun(["sh", "-c", "yes | head -c 2M"], 60)
    assert run.wait(lambda: None) == 0
    assert run.output.tell() == 2 << 20
    run = RemoteRun(["sh", "-c", "yes"], 60)
    with pytest.raises(HostError, match="it prints more than 2 MB: ask for fewer"):
        run.wait(lambda: None)
    run = RemoteRun(["sh", "-c", "yes >&2"], 60)
    with pytest.raises(HostError, match="it writes more than 2 MB to stderr"):
        run.wait(lambda: None)


def _ended(hosts: Sequence[str], way: Shells, end: Callable[[HostRuns], None]) -> list[HostResult]:
    """Return results of hosts that are ended once they run."""
    found: list[HostResult] = []
    asking, running, wait = runs(hosts, way), threading.Semaphore(0), RemoteRun.wait

    def awaited(run: RemoteRun, attached: Callable[[], None]) -> int:
        running.release()
        return wait(run, attached)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteRun, "wait", awaited)
        reader = threading.Thread(target=lambda: found.extend(asking.results()), daemon=True)
        reader.start()
        for _ in hosts:
            assert running.acquire(timeout=10)
        end(asking)
        reader.join(10)
    assert not reader.is_alive()
    return found


@pytest.fixture
def bundle() -> Iterator[Bundle]:
    yield Bundle(b"x" * (4 << 20), "0123456789abcdef" * 4, None)


def test_the_second_interrupt_ends_what_holds_its_output_open() -> None:
    """A process in a session of its own keeps the pipes, as a shared connection of ssh does."""
    kept = "setsid sleep 30 & echo started; wait"
    (result,) = _ended([kept], Shells(), HostRuns.abandon)
    assert result.status == -9


def test_an_interrupt_ends_who_takes_no_bundle(bundle: Bundle) -> None:
    asks = f"echo gofleet: need {bundle.digest[:16]}; exec sleep 30"
    way = Shells([bundle])
    begun = time.monotonic()

    def stop_and_abandon(asking: HostRuns) -> None:
        asking.stop()
        asking.abandon()

    (result,) = _ended([asks], way, stop_and_abandon)
    assert result.status == -9
    assert time.monotonic() - begun < 10
