# SPDX-License-Identifier: Apache-2.0
"""One command on one host, whatever takes it there: ``ssh``, or ``kubectl``.

The shell there runs it under ``timeout``, and reads its own standard input meanwhile: when that
ends, whoever asked is gone, and the command is ended. So nothing outlives a connection, and if that
is never seen to be lost, nothing outlives its time.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import IO, Protocol

from gotrace.errors import GotraceError
from gotrace.hosts.bundle import Bundle

#: The host's first words, before the command runs: whether it has the bundle, or which it needs.
_HAVE, _NEED = b"gofleet: have\n", b"gofleet: need "
_ATTACHED = b'{"kind":"attached"'
_KEPT = 16 << 20  # bytes of output in memory
_MOST_ERRORS = 64 << 10
_MOST_LINE = 4 << 20  # bytes; no command writes one of a tenth of it
_MOST_OUTPUT = 256 << 20  # bytes: half a million rows
_CONNECT = 30  # seconds for a connection, and for the command to start
GRACE = 15  # seconds that a command has to end
#: Exit statuses of timeout, of a shell, and of ssh.
TIMED_OUT, NOT_FOUND, FAILED = 124, 127, 255
#: Why a host was not asked when all was to end.
STOPPED = "stopped before it began"


class HostError(GotraceError):
    """Why a host cannot be asked, in one line."""


class Reach(Protocol):
    """How hosts are reached. All may be called in any thread."""

    @property
    def bundles(self) -> Sequence[Bundle]:
        """Return the bundles, each for other machines, for hosts that do not have theirs."""

    @property
    def brings(self) -> str:
        """Return advice for a host that does not have the command."""

    def words(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs words on a host that is ready."""

    def ready(self, host: str, is_over: threading.Event) -> AbstractContextManager[None]:
        """Prepare a host for commands, as long as none is asked to end. Raises HostError."""

    def close(self) -> None:
        """Remove everything that was made ready."""


def remote_script(words: Sequence[str], seconds: int, bundles: Sequence[Bundle] = ()) -> str:
    """Return the script for the host's shell; the command is the first of ``words``.

    Of the bundle for its machine it reads the bytes from its standard input first, unless it is
    there already.
    """
    tool, *rest = words
    begin = ""
    if bundles:
        choices = "".join(
            f" {each.machine or '*'}) h={each.digest} k={each.digest[:16]} n={len(each.data)};;"
            for each in bundles
        )
        place = '"${XDG_CACHE_HOME:-$HOME/.cache}/gotrace/fleet/$k"'
        begin = (
            f"m=$(uname -m); case $m in{choices} *) echo no --push is a bundle for $m >&2; exit 1;;"
            f' esac; d={place}; if [ -x "$d/gotrace/bin/{tool}" ]; then echo gofleet: have; else'
            ' umask 077; mkdir -p "$d" && t=$(mktemp -d "$d.XXXXXX") || exit 1;'
            " echo gofleet: need $k; head -c $n >$t/x &&"
            ' echo "$h  $t/x" | sha256sum -c --status && tar -xzf $t/x -C $t &&'
            ' rm $t/x && { mv -T $t/gotrace "$d/gotrace" || [ -e "$d/gotrace" ]; } ||'
            " { echo the bundle did not arrive whole >&2; rm -rf $t; exit 1; }; rm -rf $t; fi; "
        )
        tool = "$d/gotrace/bin/" + tool
    else:
        tool = shlex.quote(tool)
    command = " ".join([f'"{tool}"' if bundles else tool, *map(shlex.quote, rest)])
    # A background command of a shell has no standard input of its own, so 3 is kept for cat. A
    # timeout that is ended while it forks leaves the command in its process group. That the time is
    # over is seen by the clock: busybox's timeout ends with the command's status.
    return (
        f"{begin}exec 3<&0; b=$(date +%s);"
        f" timeout -s TERM -k {GRACE} {seconds} {command} </dev/null 3<&- & p=$!;"
        " { cat >/dev/null; kill -TERM $p; } <&3 >/dev/null 2>&1 & w=$!;"
        " exec 3<&-; wait $p; s=$?; { kill -TERM -$p; kill $w; } 2>/dev/null;"
        f" [ $(($(date +%s) - b)) -lt {seconds} ] || s={TIMED_OUT}; exit $s"
    )


class RemoteRun:
    """A command that runs on a host. ``end`` and ``kill`` may be called in any thread."""

    def __init__(
        self, words: Sequence[str], seconds: float, bundles: Sequence[Bundle] = ()
    ) -> None:
        """Start the command line that runs it there, for ``seconds`` at most. Raises OSError."""
        self.output: IO[bytes] = tempfile.SpooledTemporaryFile(_KEPT)  # noqa: SIM115
        self.errors = b""
        self._bundles = bundles
        self._seconds = seconds + GRACE + _CONNECT
        # Ctrl-C is for us: in a session of its own the command does not get it. Without buffers no
        # thread that writes to it keeps another one from ending it.
        self._process = subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._given_up = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_killed = self._has_said_much = False

    def wait(self, attached: Callable[[], None]) -> int:
        """Read the command's output until it ends, and return its exit status.

        ``attached`` is called when it says that its probes are in place. Raises HostError if it
        says too much or does not end in time, OSError if there is no room for what it says.
        """
        reader = threading.Thread(target=self._read_errors, daemon=True)
        reader.start()
        try:
            begin = self._push() if self._bundles else b""
            self._read(begin, attached)
            if self._has_said_much:
                raise HostError(f"it writes more than {_MOST_OUTPUT >> 20} MB to stderr")
        except BaseException:
            self.kill()
            raise
        finally:
            try:
                status = self._process.wait(GRACE)
            except subprocess.TimeoutExpired:  # it has closed its output, and goes on
                self.kill()
                status = self._process.wait()
            reader.join(0 if self._is_killed else GRACE)  # another process may keep it open
            self.end()
            assert self._process.stdout is not None
            self._process.stdout.close()
            os.close(self._given_up)
        return status

    def _read(self, begin: bytes, attached: Callable[[], None]) -> None:
        """Keep the output after the first words."""
        said: bytes | None = b""  # the first of it, until it has said that it is attached
        length = 0  # of the last line so far
        for piece in chain([begin], self._pieces()):
            if self.output.tell() + len(piece) > _MOST_OUTPUT:
                raise HostError(
                    f"it prints more than {_MOST_OUTPUT >> 20} MB: ask for fewer functions or"
                    " intervals, or record there with -o x.ndjson.gz and use --merge"
                )
            self.output.write(piece)
            _, end, rest = piece.rpartition(b"\n")
            length = len(rest) if end else length + len(rest)
            if length > _MOST_LINE:
                raise HostError(f"it prints a line of more than {_MOST_LINE >> 20} MB")
            if said is not None:
                said = (said + piece)[:_MOST_ERRORS]
                if _ATTACHED in said:
                    said = None
                    attached()

    def _pieces(self) -> Iterator[bytes]:
        """Yield the output until it ends or is given up. Raises HostError if it does neither."""
        stream = self._process.stdout
        assert stream is not None
        end = time.monotonic() + self._seconds
        while self._is_ready(stream, select.POLLIN, end):
            if not (piece := os.read(stream.fileno(), 1 << 16)):
                return
            yield piece

    def _is_ready(self, stream: IO[bytes], event: int, end: float) -> bool:
        """Wait for a stream; return whether it is ready, False if the run is given up."""
        poll = select.poll()
        poll.register(stream, event)
        poll.register(self._given_up, select.POLLIN)
        ready = [number for number, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000)]
        if not ready:
            raise HostError(f"it did not end within {self._seconds:g} s: it was given up")
        return self._given_up not in ready

    def _push(self) -> bytes:
        """Send the bundle that the host asks for; return the rest of its output."""
        said = b""
        for piece in self._pieces():
            said += piece
            if b"\n" in said or len(said) > _MOST_ERRORS:
                break
        line, _, rest = said.partition(b"\n")
        if line + b"\n" == _HAVE:
            return rest
        wanted = line.removeprefix(_NEED).strip().decode(errors="replace")
        bundle = next((one for one in self._bundles if one.digest[:16] == wanted), None)
        stream = self._process.stdin
        if bundle is None or stream is None:
            return said
        end = time.monotonic() + self._seconds
        left = memoryview(bundle.data)
        with suppress(OSError, ValueError):  # it ends, or is ended, and says why
            os.set_blocking(stream.fileno(), False)
            while left and self._is_ready(stream, select.POLLOUT, end):
                left = left[os.write(stream.fileno(), left) :]
        return rest

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            length = 0
            while piece := stream.read(1 << 12):
                self.errors = (self.errors + piece)[-_MOST_ERRORS:]
                length += len(piece)
                if length > _MOST_OUTPUT:
                    self._has_said_much = True
                    with suppress(ProcessLookupError):  # its output ends with it
                        if self._process.poll() is None:
                            os.killpg(self._process.pid, signal.SIGKILL)
                    return

    def end(self) -> None:
        """End the command: its shell reads to the end of our messages."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def kill(self) -> None:
        """Give the connection up; the host ends the command when it sees that."""
        self._is_killed = True
        with suppress(OSError):  # it has ended
            os.eventfd_write(self._given_up, 1)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
