# SPDX-License-Identifier: Apache-2.0
"""One command on one host, whatever takes it there: ``ssh``, or ``kubectl``.

The shell there runs it under ``timeout``, and reads its own standard input meanwhile: when that
ends, whoever asked is gone, and the command is ended. So nothing outlives a connection, and if that
is never seen to be lost, nothing outlives its time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import IO, Protocol

from gotrace.errors import GotraceError
from gotrace.hosts.bundle import Bundle

__all__ = [
    "FAILED",
    "GRACE",
    "NOT_FOUND",
    "STOPPED",
    "TIMED_OUT",
    "HostError",
    "RemoteRun",
    "Way",
    "remote_script",
]

#: What the host says before the command runs: whether it has the bundle, or which one it needs.
_HAVE, _NEED = b"gofleet: have\n", b"gofleet: need "
_ATTACHED = b'{"kind":"attached"'
_KEPT = 16 << 20  # bytes of output in memory
_MOST_ERRORS = 64 << 10
_MOST_LINE = 4 << 20  # bytes; no command writes one of a tenth of it
GRACE = 15  # seconds that a command has to end
#: Exit statuses of timeout, of a shell, and of ssh.
TIMED_OUT, NOT_FOUND, FAILED = 124, 127, 255
#: Why a host was not asked when all was to end.
STOPPED = "stopped before it began"


class HostError(GotraceError):
    """Why a host cannot be asked, in one line."""


class Way(Protocol):
    """How hosts are reached. All may be called in any thread."""

    @property
    def bundles(self) -> Sequence[Bundle]:
        """Return what is brought to hosts that do not have it, each to other machines."""

    @property
    def brings(self) -> str:
        """Return what to do about a command that a host does not have."""

    def words(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs words on a host that is ready."""

    def ready(self, host: str, is_over: threading.Event) -> AbstractContextManager[None]:
        """Have a host ready for commands, as long as none is asked to end. Raises HostError."""

    def close(self) -> None:
        """Remove what is left of what was made ready."""


def remote_script(words: Sequence[str], seconds: int, bundles: Sequence[Bundle] = ()) -> str:
    """Return what the shell there does; the command is the first of ``words``.

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
    """A command that runs on a host. ``end`` may be called in any thread."""

    def __init__(self, words: Sequence[str], bundles: Sequence[Bundle] = ()) -> None:
        """Start the command line that runs it there. Raises OSError."""
        self.output: IO[bytes] = tempfile.SpooledTemporaryFile(_KEPT)  # noqa: SIM115
        self.errors = b""
        self._bundles = bundles
        self._lock = threading.Lock()
        # Ctrl-C is for us: in a session of its own the command does not get it.
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def wait(self, attached: Callable[[], None]) -> int:
        """Read what it says until it ends, and return its exit status.

        ``attached`` is called when it says that its probes are in place. Raises HostError if a line
        does not end.
        """
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._read_errors, daemon=True)
        reader.start()
        with self._process.stdout as stream:
            if self._bundles:
                self._push(stream)
            begin: bytes | None = b""  # of what it says, up to there
            length = 0  # of the last line so far
            while piece := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self.output.write(piece)
                _, end, rest = piece.rpartition(b"\n")
                length = len(rest) if end else length + len(rest)
                if length > _MOST_LINE:
                    self.kill()
                    self._process.wait()
                    raise HostError(f"it prints a line of more than {_MOST_LINE >> 20} MB")
                if begin is not None:
                    begin = (begin + piece)[:_MOST_ERRORS]
                    if _ATTACHED in begin:
                        begin = None
                        attached()
        status = self._process.wait()
        reader.join(GRACE)
        self.end()
        return status

    def _push(self, stream: IO[bytes]) -> None:
        """Send the bundle that the host asks for."""
        line = stream.readline(1 << 10)
        wanted = line.removeprefix(_NEED).strip().decode(errors="replace")
        bundle = next((one for one in self._bundles if one.digest[:16] == wanted), None)
        if bundle is not None:
            with suppress(OSError):  # it ends, and says why
                assert self._process.stdin is not None
                self._process.stdin.write(bundle.data)
                self._process.stdin.flush()
        elif line != _HAVE:
            self.output.write(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while piece := stream.read1(1 << 12):  # type: ignore[attr-defined]
                self.errors = (self.errors + piece)[-_MOST_ERRORS:]

    def end(self) -> None:
        """Have it end: its shell reads to the end of what we say."""
        with self._lock, suppress(OSError):
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()

    def kill(self) -> None:
        """Give the connection up; the host ends the command when it sees that."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
