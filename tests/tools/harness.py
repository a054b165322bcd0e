# SPDX-License-Identifier: Apache-2.0
"""Run a fixture program and a tool on it, in step: each tells the other side what it waits for.

A fixture prints ``ready PID``, waits for a line, does its calls, prints ``truth `` and what it
knows of them as JSON, waits for another line, and ends. A tool prints that it has attached. So no
test guesses how long anything takes; a process that hangs is killed, which fails its test.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from gotrace.results.kinds import kind_of
from tests.tools.warm import Warm, can_be_warm

CLONE = Path(__file__).parents[2]

Words = Sequence[str | Path]
Json = dict[str, Any]

#: Seconds, more than anything here takes on a slow machine; an emulated one needs more.
_HANGS = float(os.environ.get("GOTRACE_PATIENCE", "100"))
#: What is in lines that depend on the machine alone.
_SLOW = (
    "the kernel is still removing probes",
    ": reading the program and placing probes...",
    ": compiling the BPF program, which the next runs find...",
    "counting took about ",
)


def without_compiler(directory: Path) -> Mapping[str, str]:
    """Return an environment where a broken binding, made there, leaves only programs kept.

    Most of what the doctor takes is compiling: what is not about that can do without.
    """
    (directory / "bcc.py").write_text("raise ImportError('no such thing')")
    return {**os.environ, "PYTHONPATH": str(directory)}


def default_signals() -> None:
    """Undo what ``nohup`` or a shell's ``&`` has ignored, in a process that is being started."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Family:
    """What a process and all that it forks hold as long as they live: a lock."""

    def __init__(self) -> None:
        # Locked for as long as any process has it open that was forked from this one.
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def descriptor(self) -> int:
        """Return what the process is to inherit."""
        return self._lock.fileno()

    def wait(self) -> None:
        """Wait until the processes that were forked have ended, too."""
        ours = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR)
        self._lock.close()  # ours of the lock
        try:
            patience = time.monotonic() + _HANGS
            pause = threading.Event()
            while True:
                try:
                    return fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    assert time.monotonic() < patience, "a keeper hangs"
                    pause.wait(0.02)
        finally:
            os.close(ours)

    def close(self) -> None:
        """Let go of the lock."""
        self._lock.close()


class Process:
    """A process with pipes, killed when it hangs; a context manager that ends it.

    ``patience`` is how long it may take, in seconds; ``options`` are subprocess.Popen's.
    """

    def __init__(self, command: Words, patience: float = _HANGS, **options: Any) -> None:
        self.errors = ""
        self._family = Family()
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process: subprocess.Popen[str] | Warm
        if can_be_warm(command, options):
            self._process = Warm(command, self._family.descriptor, **{**pipes, **options})
        else:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                **{
                    **pipes,
                    "pass_fds": (self._family.descriptor,),
                    "preexec_fn": default_signals,
                    "text": True,
                    "errors": "surrogateescape",
                    **options,
                },
            )
        self._watchdog = threading.Timer(patience, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        self._reader: threading.Thread | None = None
        if self._process.stderr is not None:
            # Read as it comes: a full pipe would make the process wait for us.
            self._reader = threading.Thread(target=self._read_errors, args=(self._process.stderr,))
            self._reader.start()

    def _read_errors(self, stream: IO[str]) -> None:
        lines = stream.read().splitlines(keepends=True)
        # What a busy machine says in any run.
        self.errors = "".join(line for line in lines if not any(slow in line for slow in _SLOW))

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_until(self, start: str) -> tuple[str, list[str]]:
        """Return the rest of the first line with this start, and the lines before it."""
        assert self._process.stdout is not None
        before: list[str] = []
        for line in self._process.stdout:
            if line.startswith(start):
                return line[len(start) :].strip(), before
            before.append(line)
        self.wait()
        raise AssertionError(f"ended without {start!r}: {before} {self.errors}")

    def say(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close_output(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()

    def rest(self) -> list[str]:
        """Return the lines that are still to come, once the process has ended."""
        assert self._process.stdout is not None
        lines = self._process.stdout.readlines()
        self.wait()
        return lines

    def ends_within(self, seconds: float) -> bool:
        """Give the process some time and tell whether it has ended then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        status = self._process.wait()
        self._watchdog.cancel()
        if self._reader is not None:
            self._reader.join(_HANGS)
            assert not self._reader.is_alive(), "something that it started has its errors open"
        return status

    def wait_for_keepers(self) -> None:
        """Wait until the processes that the tool has forked have ended, too."""
        self._family.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self.wait()
        self._family.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Fixture(Process):
    """A fixture program that has said that it is ready."""

    def __init__(self, command: Words, **options: Any) -> None:
        super().__init__(command, **options)
        self.ready = int(self.read_until("ready ")[0])

    def work(self, order: str = "") -> Json:
        """Make the fixture do its calls and return what it knows of them."""
        self.say(order)
        return self.answer()

    def answer(self) -> Json:
        """Return what the fixture knows of the calls of its latest order."""
        truth: Json = json.loads(self.read_until("truth ")[0])
        return truth

    def finish(self) -> int:
        """Let the fixture end and return its exit status."""
        self.say()
        return self.wait()

    def __enter__(self) -> Fixture:
        return self


@dataclass(frozen=True, slots=True)
class Result:
    """How a tool ended and what it printed, by lines."""

    status: int
    lines: list[str]
    errors: str

    @property
    def objects(self) -> list[Json]:
        """Return the output's lines, each of which must be one JSON object."""
        objects = [json.loads(line) for line in self.lines]
        assert all(isinstance(row, dict) and isinstance(row["kind"], str) for row in objects)
        return objects


class Running(Process):
    """A tool that has said that its probes are attached.

    What comes before it is interrupted it is to print, however busy the machine is.
    """

    def __init__(self, command: Words, **options: Any) -> None:
        environment = {"GOTRACE_DRAIN": "30", **options.pop("env", os.environ)}
        super().__init__(command, env=environment, **options)
        self.as_json = "--json" in command
        is_sampling = Path(command[0]).name in ("goalloc", "gooncpu")
        does = "Sampling " if is_sampling else "Tracing "
        start = '{"kind":"attached"' if self.as_json else does
        rest, self.head = self.read_until(start)
        self.head.append(f"{start}{rest}\n")

    def lines_until(self, start: str) -> str:
        """Read on to the first line with this start, keep all, and return its rest."""
        rest, before = self.read_until(start)
        self.head += [*before, f"{start}{rest}\n"]
        return rest

    def end(self, number: signal.Signals = signal.SIGINT) -> Result:
        """Interrupt the tool and return how it ended."""
        self.signal(number)
        return self.result()

    def result(self) -> Result:
        """Wait for the tool to end by itself and return how it ended."""
        lines = [*self.head, *self.rest()]
        return Result(self.wait(), lines, self.errors)

    def __enter__(self) -> Running:
        return self


def tool_command(name: str, *arguments: str | Path) -> list[str]:
    """Return the command line that runs a tool from this clone."""
    return [str(CLONE / "tools" / name), *map(str, arguments)]


def tool(name: str, *arguments: str | Path, **options: Any) -> Running:
    """Start a tool and return once its probes are attached."""
    return Running(tool_command(name, *arguments), **options)


def run_tool(name: str, *arguments: str | Path, **options: Any) -> Result:
    """Run a tool that ends by itself."""
    with Process(tool_command(name, *arguments), **options) as process:
        lines = process.rest()
        return Result(process.wait(), lines, process.errors)


def count_on(fixture: Fixture, *arguments: str | Path) -> tuple[Json, Result]:
    """Count a ready fixture's calls; return its truth and the tool's JSON result."""
    with tool("gofunccount", "--json", "-p", str(fixture.ready), *arguments) as counting:
        truth = fixture.work()
        return truth, counting.end()


def code_of(pid: int) -> bytes:
    """Return all of the bytes that a process has mapped from its program's file to be run."""
    program = os.stat(f"/proc/{pid}/exe")
    code = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, mode, _, _, inode, *_ = line.split()
            if "x" in mode and int(inode) == program.st_ino:
                start, end = (int(word, 16) for word in span.split("-"))
                memory.seek(start)
                code.append(memory.read(end - start))
                assert len(code[-1]) == end - start
    return b"".join(code)


def code_at(pid: int, addresses: Iterable[int]) -> bytes:
    """Return the bytes that a process has at addresses, breakpoints included."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return b"".join(os.pread(memory, 1, address) for address in addresses)
    finally:
        os.close(memory)


def of_kind(result: Result, kind: str) -> list[Json]:
    """Return the result's JSON objects of one kind, which have to be as this declares them.

    But for the warning that the kernel is slow to remove the probes: that is the machine's doing.
    """
    rows = [row for row in result.objects if row["kind"] == kind and "keepers" not in row]
    for row in rows:
        if (how := kind_of(row)) is not None:
            known = {*how.derived, *how.unknown, *(field.name for field in how.fields)}
            assert row.keys() <= {"kind", "host", "ts", "interval_s", how.length, *known}
            how.checked(row)
    return rows


def elided(name: str) -> str:
    """Write a generic instance's name as Go before 1.21 does: compilers differ in shapes."""
    return re.sub(r"\[.*\]", "[...]", name)


def json_counts(result: Result, names: Iterable[str] | None = None) -> Mapping[str, int]:
    """Return the calls of each function, over all intervals; only of ``names`` when given."""
    counts: Counter[str] = Counter()
    for row in of_kind(result, "count"):
        counts[elided(row["func"])] += row["count"]
    return counts if names is None else {name: counts[name] for name in names}


def text_counts(result: Result) -> Mapping[str, int]:
    """Return the calls of each function in a text output, over all its tables."""
    counts: Counter[str] = Counter()
    for line in result.lines:
        if match := re.fullmatch(r"(\S.*?) +(\d+)(?: +[\d.]+)? +[\d.]+%\n", line):
            counts[elided(match[1])] += int(match[2])
    return counts


def sites(pid: int, *names: str) -> list[int]:
    """Return where the tool puts probes for functions of a program at a fixed address."""
    return _sites(os.readlink(f"/proc/{pid}/exe"), *names)


@functools.cache
def _sites(program: str, *names: str) -> list[int]:
    listed = run_tool("gofunccount", "-l", "--json", *(f"{program}:{name}" for name in names))
    rows = of_kind(listed, "function")
    assert len(rows) == len(names)
    return [row["site"] for row in rows]
