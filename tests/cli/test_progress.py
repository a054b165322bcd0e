# SPDX-License-Identifier: Apache-2.0
"""The line that says that a start takes its time, on a terminal of its own and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

_START = """
from gotrace.cli.progress import Progress
progress = Progress("gotrace")
input()
progress.end()
print("over", flush=True)
"""


def terminal(*, term: str, until: bytes) -> bytes:
    """Return what a start writes to a terminal: it lasts until ``until`` was read there."""
    child, screen = pty.fork()
    if child == 0:
        os.environ["TERM"] = term
        os.execv(sys.executable, [sys.executable, "-c", _START])
    shown = b""
    while until not in shown:
        shown += os.read(screen, 4096)
    os.write(screen, b"\n")
    while b"over" not in shown:
        shown += os.read(screen, 4096)
    os.waitpid(child, 0)
    os.close(screen)
    return shown


def test_a_start_that_takes_long_is_said_to_on_one_line_that_goes_away() -> None:
    shown = terminal(term="xterm", until=b" 2 s")
    said = re.findall(
        rb"\r\x1b\[Kgotrace: reading the program and placing probes\.\.\. \d s", shown
    )
    assert len(said) >= 2
    # Each takes the place of the one before, and in the end there is none.
    assert shown.count(b"\r\x1b[K") == len(said) + 1
    assert shown.index(b"over") > shown.rindex(b"\r\x1b[K") > shown.rindex(said[-1])


def test_a_terminal_that_cannot_take_it_back_is_left_alone() -> None:
    assert b"placing" not in terminal(term="dumb", until=b"")


def test_where_the_line_stays_it_is_written_once() -> None:
    command = [sys.executable, "-c", _START]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as start:
        assert start.stderr is not None
        assert start.stderr.readline() == "gotrace: reading the program and placing probes...\n"
        assert start.communicate("\n") == ("over\n", "")


def test_a_start_does_not_wait_for_a_reader() -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    # The thread ends by itself, or never if it waits for the reader.
    code = _START.replace("input()", "progress._thread.join()")
    done = subprocess.run([sys.executable, "-c", code], stderr=writing, timeout=60, check=True)
    assert done.returncode == 0
    os.close(reading)
    os.close(writing)


def test_a_run_that_compiles_says_so_at_once() -> None:
    said = "gotrace: compiling the BPF program, which the next runs find..."
    start = _START.replace("input()", "progress.compiles(); input()")
    done = subprocess.run([sys.executable, "-c", start], input="\n", text=True, capture_output=True)
    assert (done.stdout, done.stderr) == ("over\n", f"{said}\n")
