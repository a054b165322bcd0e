# SPDX-License-Identifier: Apache-2.0
"""The process that holds probes for keepers: what it waits for before it ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest

from gotrace.kernel import holder


def test_all_is_closed_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end kills its threads: the kernel leaves a breakpoint whose closing has a SIGKILL."""
    slow, go_on = threading.Event(), threading.Event()
    closed: list[int] = []
    close: Callable[[int], None] = os.close

    def close_slowly(descriptor: int) -> None:
        if descriptor in kept:
            slow.set()
            assert go_on.wait(60)
            closed.append(descriptor)
        close(descriptor)

    ours, control = socket.socketpair()
    channel, theirs = socket.socketpair()
    answer, told = os.pipe()
    # As when it is received: its numbers are the holder's own.
    kept = {os.open("/dev/null", os.O_RDONLY) for _ in range(3)}

    def received(control: socket.socket, *_: int) -> tuple[bytes, list[int], int, None]:
        if control.recv(1):
            return bytes([5]), [told, theirs.detach(), *kept], 0, None
        return b"", [], 0, None

    monkeypatch.setattr(socket, "recv_fds", received)
    monkeypatch.setattr(os, "close", close_slowly)
    ours.send(b"x")
    ending = threading.Thread(target=holder.hold, args=(control,))
    ending.start()
    assert os.read(answer, 1) == holder.HELD
    channel.close()  # the owner has been killed
    try:
        assert slow.wait(60)
        ours.close()
        ending.join(0.2)
        assert ending.is_alive()
    finally:
        go_on.set()
    ending.join(60)
    assert not ending.is_alive() and sorted(closed) == sorted(kept)
