# SPDX-License-Identifier: Apache-2.0
"""Start commands as copies of one process that has imported them, and has run none.

Importing takes two thirds of what a short run takes. The process (``python -m tests.tools.warm``)
is asked through a socket: it gets the command's words and its files, forks, and the copy goes on
as the command would after its imports. Where no test runs (``make bench``), and with
GOTRACE_COLD=1, as in ``make test-all``, each command is started as its users start it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import gotrace

_CLONE = Path(__file__).parents[2]
_OPTIONS = {"cwd", "env", "stdin", "stdout", "stderr"}
#: What the interpreter or a library reads when it starts.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "_ARG", "MALLOC")
_MAX_REQUEST = 1 << 18  # bytes: more than a socket takes at once
_MAX_FILES = 4

Words = Sequence[str | Path]

_starting = threading.Lock()


def can_be_warm(command: Words, options: Mapping[str, Any]) -> bool:
    """Return whether a command is one of this clone's, and nothing needs a start of its own."""
    if os.environ.get("GOTRACE_COLD") or "PYTEST_CURRENT_TEST" not in os.environ:
        return False
    if Path(command[0]).parent != _CLONE / "tools":
        return False
    asked: Mapping[str, str] = options.get("env") or os.environ
    return options.keys() <= _OPTIONS and all(
        asked.get(name) == os.environ.get(name)
        for name in asked.keys() | os.environ.keys()
        if name.startswith(_READ_AT_START)
    )


class Warm:
    """A command that runs in a copy; it has the part of subprocess.Popen's interface that is used.

    ``kept`` is a descriptor of this process that the command and its children have open, too.
    """

    def __init__(self, command: Words, kept: int, **options: Any) -> None:
        ours: list[int | None] = []
        theirs: list[int] = []
        pipes: list[int] = []
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            file = options.get(name)
            if file == subprocess.PIPE:
                reading, writing = os.pipe()
                ours.append(reading if number else writing)
                theirs.append(writing if number else reading)
                pipes.append(theirs[-1])
            elif file == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                pipes.append(theirs[-1])
                ours.append(None)
            else:
                if file is None:
                    theirs.append(number)
                elif file == subprocess.STDOUT:
                    theirs.append(theirs[1])
                else:
                    theirs.append(file if isinstance(file, int) else file.fileno())
                ours.append(None)
        request = {
            "words": [str(word) for word in command],
            "env": dict(options.get("env") or os.environ),
            "cwd": os.fspath(options.get("cwd") or os.getcwd()),
        }
        self._answers, far = socket.socketpair()
        with _starting:  # by threads of one test
            server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], [*theirs, kept, far.fileno()])
        far.close()
        for descriptor in pipes:
            os.close(descriptor)
        self._lines = self._answers.makefile("r")
        self.pid = int(self._lines.readline())
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended
            self._descriptor = -1
        self._status: int | None = None
        self.stdin, self.stdout, self.stderr = (
            None if file is None else _text(file, mode)
            for file, mode in zip(ours, ("w", "r", "r"), strict=True)
        )

    def wait(self, seconds: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            if seconds is not None and not select.select([self._answers], [], [], seconds)[0]:
                raise subprocess.TimeoutExpired("", seconds)
            self._status = int(self._lines.readline())
            self._lines.close()
            self._answers.close()
            if self._descriptor >= 0:
                os.close(self._descriptor)
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self._status is None and self._descriptor >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """Kill the command, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def _text(descriptor: int, mode: str) -> IO[str]:
    return open(descriptor, mode, errors="surrogateescape")


@functools.cache
def _server() -> socket.socket:
    """Start the process that is copied, which ends with this one; return the socket to it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.tools.warm", str(far.fileno())]
    subprocess.Popen(command, cwd=_CLONE, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL)
    far.close()
    return near


def _serve(requests: socket.socket) -> None:
    """Copy this process for each request, and report how the copies end, until nobody asks."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor in select.select([requests.fileno(), *running], [], [])[0]:
            if descriptor == requests.fileno():
                request, files, _, _ = socket.recv_fds(requests, _MAX_REQUEST, _MAX_FILES + 1)
                if not request:
                    return
                asker = socket.socket(fileno=files.pop())
                pid = os.fork()
                if pid == 0:
                    for own in (requests, asker, *(far for _, far in running.values())):
                        own.detach()  # what has its number from now on is the command's
                    _become(json.loads(request), files)
                for file in files:
                    os.close(file)
                asker.send(f"{pid}\n".encode())
                running[os.pidfd_open(pid)] = pid, asker
            else:
                pid, asker = running.pop(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):
                    asker.send(f"{status}\n".encode())
                asker.close()


def _become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Go on as a command that has just been started, and end this process with its status."""
    *standard, kept = files
    for number, file in enumerate(standard):
        os.dup2(file, number)
    last = max(map(int, os.listdir("/proc/self/fd"))) + 1
    os.closerange(3, kept)
    os.closerange(kept + 1, last)
    os.set_inheritable(kept, True)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    sys.stdin, sys.stdout, sys.stderr = (
        _standard(number, stream)
        for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )
    name = Path(sys.argv[0]).name
    package = "fleet" if name == "gotraced" else "cli"
    sys.exit(sys.modules[f"gotrace.{package}.{name}"].main())


def _standard(number: int, like: Any) -> io.TextIOWrapper:
    """Return a stream to a standard descriptor as the interpreter opens it."""
    raw = isinstance(like.buffer, io.RawIOBase)  # PYTHONUNBUFFERED
    mode = "wb" if number else "rb"
    file: Any = open(number, mode, 0 if raw else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        file,
        like.encoding,
        like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=raw,
    )


def main() -> None:
    """Import all that commands import, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: whoever asks ends it
    for module in pkgutil.walk_packages(gotrace.__path__, "gotrace."):
        importlib.import_module(module.name)
    for name in ("capstone", "elftools.dwarf.dwarfinfo", "elftools.dwarf.dwarf_expr"):
        importlib.import_module(name)
    assert threading.active_count() == 1, "a copy would lack the other threads"
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
