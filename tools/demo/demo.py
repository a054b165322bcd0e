"""Show every tool on a live Go HTTP server that knows how often its function was called.

Each step starts a server of its own and one tool on it, sends requests once the tool says that it
is tracing, and compares what the tool printed with what the server counted itself.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["main"]

CLONE = Path(__file__).resolve().parents[2]
CONNECTIONS = 4
REQUESTS_PER_CONNECTION = 100
LOAD_SECONDS = 2.0


class DemoError(Exception):
    """Report why the demonstration cannot go on, in one line."""


@dataclass(frozen=True, slots=True)
class Step:
    """Describe one tool's turn.

    ``arguments`` follow ``-p PID`` on the command line. ``calls`` reads the number of calls of
    main.computeE that the tool saw out of its output.
    """

    tool: str
    says: str
    arguments: tuple[str, ...]
    calls: Callable[[str], int]


def counted_calls(output: str) -> int:
    """Return the count in gofunccount's row for main.computeE."""
    rows = re.findall(r"^main\.computeE +(\d+)$", output, re.MULTILINE)
    return sum(map(int, rows))


STEPS = (
    Step(
        tool="gofunccount",
        says="Which functions of the program itself run, and how often?",
        arguments=("-d", "4", "main.*", "net/http.(*conn).serve", "net/http.(*ServeMux).*"),
        calls=counted_calls,
    ),
)


@dataclass(slots=True)
class Server:
    """Hold a running example server; ``own_count`` is its last word, known after its end."""

    process: subprocess.Popen[str]
    host: str
    port: int
    own_count: int = field(default=-1)


@contextmanager
def running(program: Path) -> Iterator[Server]:
    """Start the server on a free loopback port and stop it at the end."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            listening = re.fullmatch(r"listening on (\S+):(\d+)\n", process.stdout.readline())
            if listening is None:
                raise DemoError("the example server did not start")
            server = Server(process, listening[1], int(listening[2]))
            yield server
            process.send_signal(signal.SIGTERM)
            last = re.search(r"(\d+) times", process.stdout.read())
            if last is None:
                raise DemoError("the example server ended early")
            server.own_count = int(last[1])
        finally:
            process.kill()


def send_requests(server: Server) -> None:
    """Ask for e over and over on one connection, for a bounded number of times and seconds."""
    deadline = time.monotonic() + LOAD_SECONDS
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LOAD_SECONDS)
    for turn in range(REQUESTS_PER_CONNECTION):
        if time.monotonic() > deadline:
            break
        connection.request("GET", f"/e?iterations={1 + turn % 20}")
        connection.getresponse().read()
        time.sleep(0.005)
    connection.close()


def load(server: Server) -> list[threading.Thread]:
    """Start sending requests on several connections in the background."""
    threads = [
        threading.Thread(target=send_requests, args=(server,), daemon=True)
        for _ in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    return threads


def trace(step: Step, server: Server) -> str:
    """Run a step's tool on the server, show what it prints as it comes, and return that."""
    command = [f"tools/{step.tool}", "-p", str(server.process.pid), *step.arguments]
    if os.geteuid() != 0:
        command.insert(0, "sudo")
    print(f"$ {shlex.join(command)}", flush=True)
    output = []
    threads: list[threading.Thread] = []
    with subprocess.Popen(
        command, cwd=CLONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
            if line.startswith("Tracing") and not threads:
                threads = load(server)
    for thread in threads:
        thread.join()
    if process.returncode != 0:
        raise DemoError(f"{step.tool} failed with status {process.returncode}")
    if not threads:
        raise DemoError(f"{step.tool} did not say that it is tracing")
    return "".join(output)


def show(step: Step, program: Path) -> None:
    """Take one step and compare the tool's number of calls with the server's."""
    with running(program) as server:
        print(f"\n# {step.says}")
        print(f"# A Go server runs as process {server.process.pid}: ", end="")
        print(f"http://{server.host}:{server.port}/e?iterations=N\n")
        seen = step.calls(trace(step, server))
    print(f"\n# The server itself counted {server.own_count} calls of main.computeE, ", end="")
    if seen != server.own_count:
        raise DemoError(f"but {step.tool} saw {seen}")
    print(f"{step.tool} saw {seen}: exact.")


def compile_server(directory: Path) -> Path:
    """Compile the example server with the machine's Go; no C compiler and no network needed."""
    go = shutil.which("go")
    if go is None:
        raise DemoError("there is no Go toolchain: run make setup")
    program = directory / "server"
    source = Path(__file__).parent / "server" / "main.go"
    print(f"# Building {source.relative_to(CLONE)}: half a minute the first time", flush=True)
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    if subprocess.run([go, "build", "-o", program, source], env=env).returncode != 0:
        raise DemoError("the example server does not compile")
    return program


def main(steps: Sequence[Step] = STEPS) -> int:
    """Take all steps in turn; return 0 when every number agrees."""
    with tempfile.TemporaryDirectory(prefix="gotrace-demo-") as directory:
        try:
            program = compile_server(Path(directory))
            for step in steps:
                show(step, program)
        except DemoError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
