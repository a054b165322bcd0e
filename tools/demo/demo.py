#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Show every tool on a live Go HTTP server that knows how often its function was called.

Each step starts a server of its own and one tool on it, sends requests once the tool says that it
is tracing, and compares what the tool printed with what the server counted itself.

``demo.py serve`` does nothing but run the server and keep it busy, for tools to be tried on.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
LOAD_SECONDS = 2.0
PAUSE = 0.005
#: Before what takes milliseconds: computing for long, and handshakes of TLS.
LONG_PAUSE = 0.05


class DemoError(Exception):
    """Report why the demonstration cannot go on, in one line."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tool's turn.

    ``arguments`` follow ``-p PID`` on the command line. On each of ``connections`` the server is
    sent ``requests``. ``calls`` reads the number of calls of main.computeE (or of main.handleE,
    which makes one each) that the tool saw out of its output.
    """

    tool: str
    says: str
    arguments: tuple[str, ...]
    connections: int
    requests: int
    calls: Callable[[str], int]


def counted_calls(output: str) -> int:
    """Return the count in gofunccount's row for main.computeE."""
    rows = re.findall(r"^main\.computeE +(\d+)\b", output, re.MULTILINE)
    return sum(map(int, rows))


def measured_calls(output: str) -> int:
    """Return the sum of the counts that gofunclatency -g shows."""
    apart = re.findall(r", count: (\d+)(?:, share: \d+\.\d%)?$", output, re.MULTILINE)
    rest = re.findall(r"^\d+ other goroutines: (\d+) calls", output, re.MULTILINE)
    return sum(map(int, apart + rest))


def shown_calls(output: str) -> int:
    """Return how many calls with the right result gotrace shows."""
    calls = re.findall(r"main\.computeE\(iterations=(\d+)\) = ([\d.]+) ", output)
    return sum(abs(float(e) - compute_e(int(iterations))) < 1e-15 for iterations, e in calls)


def compute_e(iterations: int) -> float:
    """Return what the server's computeE does."""
    total = term = 1.0
    for n in range(1, iterations):
        term /= n
        total += term
    return total


STEPS = (
    Step(
        tool="gofunccount",
        says="Which functions of the program itself run, and how often?",
        arguments=("-d", "4", "main.*", "net/http.(*conn).serve", "net/http.(*ServeMux).*"),
        connections=4,
        requests=100,
        calls=counted_calls,
    ),
    Step(
        tool="gofunclatency",
        says="How long does the handler take, on each connection's goroutine?",
        arguments=("-d", "4", "-u", "-g", "--top", "2", "main.handleE"),
        connections=4,
        requests=100,
        calls=measured_calls,
    ),
    Step(
        tool="gotrace",
        says="What is computed, call by call?",
        arguments=("-d", "8", "-M", "20", "main.computeE"),
        connections=1,
        requests=20,
        calls=shown_calls,
    ),
)


@dataclass(slots=True)
class Server:
    """A running example server; ``own_count`` is its last word, known after its end."""

    process: subprocess.Popen[str]
    host: str
    port: int
    own_count: int = field(default=-1)


@contextmanager
def running(program: Path, *arguments: str, log: int | None = None) -> Iterator[Server]:
    """Start the server on a free loopback port, logging to ``log``, and stop it at the end."""
    command = [str(program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
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


def send_requests(server: Server, requests: int) -> None:
    """Ask for e over and over on one connection, for a bounded number of times and seconds."""
    deadline = time.monotonic() + LOAD_SECONDS
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LOAD_SECONDS)
    for turn in range(requests):
        if time.monotonic() > deadline:
            break
        connection.request("GET", f"/e?iterations={1 + turn % 20}")
        connection.getresponse().read()
        time.sleep(PAUSE)
    connection.close()


def load(step: Step, server: Server) -> list[threading.Thread]:
    """Start sending a step's requests in the background."""
    threads = [
        threading.Thread(target=send_requests, args=(server, step.requests), daemon=True)
        for _ in range(step.connections)
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
    try:
        process = subprocess.Popen(
            command, cwd=CLONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        advice = ": run it as root" if command[0] == "sudo" else ""
        raise DemoError(f"cannot run {command[0]}: {error.strerror}{advice}") from error
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
            if line.startswith("Tracing") and not threads:
                threads = load(step, server)
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
        raise DemoError("there is no Go toolchain: run tools/setup.sh demo")
    program = directory / "server"
    source = Path(__file__).parent / "server" / "main.go"
    print(f"# Building {source.relative_to(CLONE)}: half a minute the first time", flush=True)
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    if subprocess.run([go, "build", "-o", program, source], env=env).returncode != 0:
        raise DemoError("the example server does not compile")
    return program


def keep_busy(connection: http.client.HTTPConnection, paths: Sequence[str], pause: float) -> None:
    """Ask for paths in turn until the server is gone."""
    for path in itertools.cycle(paths):
        time.sleep(pause)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except ConnectionRefusedError:
            return
        except (OSError, http.client.HTTPException):
            connection.close()  # after a panic: the next request opens it anew


class NamedConnection(http.client.HTTPSConnection):
    """Speak TLS with the example server under a name of one's choice, anew for each request."""

    def __init__(self, server: Server, port: int, name: str) -> None:
        super().__init__(server.host, port, timeout=LOAD_SECONDS)
        self._name = name
        self._insecure = ssl.create_default_context()
        self._insecure.check_hostname = False
        self._insecure.verify_mode = ssl.CERT_NONE

    def connect(self) -> None:
        """Connect and shake hands."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._insecure.wrap_socket(self.sock, server_hostname=self._name)

    def request(self, method: str, url: str, *rest: object, **more: object) -> None:
        """Send a request on a new connection."""
        self.close()
        super().request(method, url, headers={"Connection": "close"})


def serve(program: Path) -> None:
    """Run the server, keep it busy on several connections, and wait for Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running(program, "-tls", "127.0.0.1:0", log=subprocess.DEVNULL) as server:
        assert server.process.stdout is not None
        port = int(server.process.stdout.readline().rpartition(":")[2])
        users = [f"/get?key=user:{n}" for n in range(0, 110, 7)]
        plain = [
            ([f"/e?iterations={n}" for n in range(1, 21)], PAUSE),
            (["/e?iterations=1000000", "/e?iterations=20"], LONG_PAUSE),
            (users, PAUSE),
            ([*users, "/panic"], PAUSE),
            (["/list", "/e?iterations=many"], PAUSE),
        ]
        connections: list[tuple[http.client.HTTPConnection, Sequence[str], float]] = [
            (http.client.HTTPConnection(server.host, server.port, timeout=LOAD_SECONDS), *each)
            for each in plain
        ]
        connections += [
            (NamedConnection(server, port, name), ["/e?iterations=20"], LONG_PAUSE)
            for name in ("one.example", "two.example")
        ]
        for each in connections:
            threading.Thread(target=keep_busy, args=each, daemon=True).start()
        print(f"# A Go server runs as process {server.process.pid}, and is kept busy: ", end="")
        print(f"http://{server.host}:{server.port}/e?iterations=N", flush=True)
        server.process.wait()


def main(steps: Sequence[Step] = STEPS) -> int:
    """Take all steps in turn; return 0 when every number agrees."""
    parser = argparse.ArgumentParser(description="Show every tool on a live Go server.")
    parser.add_argument("what", nargs="?", choices=["serve"], help="only run a busy server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gotrace-demo-") as directory:
        try:
            program = compile_server(Path(directory))
            if options.what == "serve":
                serve(program)
            for step in steps if options.what is None else ():
                show(step, program)
        except DemoError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
