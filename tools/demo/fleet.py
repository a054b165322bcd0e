#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Show gotraced on three live Go servers, scraped by Prometheus and sending to a collector.

All of them listen on loopback. The servers are sent known numbers of requests; what PromQL answers
is compared with what they have counted themselves, and what the collector has received is shown.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CLONE))

from tests.debian import FetchError, fetch_program, fetched_program  # noqa: E402
from tools.demo.demo import DemoError, Server, compile_server, running  # noqa: E402

#: How many requests each server is sent for Euler's number, and as many for the store's users.
REQUESTS = {"shop": 300, "cart": 200, "stock": 100}
#: What may not take longer, in seconds: the first start compiles BPF programs.
READY = 120.0
ANSWER = 30.0
PAUSE = 0.005

CONFIG = """\
listen: 127.0.0.1:0
targets:
{targets}
metrics:
  - {{name: compute_e, type: counter, probe: main.computeE}}
  - {{name: store_get_seconds, type: histogram, probe: 'main.(*Store).Get'}}
  - name: store_get
    type: counter
    probe: 'main.(*Store).Get'
    labels: {{failed: '$ret2 != nil'}}
  - name: http_server_seconds
    type: histogram
    probe: '@http.server'
    labels: {{method: req.Method, path: req.URL.Path}}
spans:
  - {{probe: 'main.(*Store).Get', attributes: {{key: key}}, rate: 5/s}}
otlp: {{endpoint: '{collector}', protocol: http, interval: 1s}}
# Generous, for a busy machine: the default is 2%.
budget: 20%
"""

#: As root: the configuration must be root's, and gotraced must end when this process does.
START = """\
umask 077
config=$(mktemp) && cat "$1" >"$config" || exit 1
trap 'rm -f "$config"' EXIT
tools/gotraced --config "$config" &
daemon=$!
{ read -r _ || :; kill "$daemon"; } <&3 3<&- >/dev/null 2>&1 &
exec 3<&-
wait "$daemon"
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A question for Prometheus, and what it is about. ``exact``: servers know the answer."""

    says: str
    promql: str
    exact: bool = False


QUERIES = (
    Query("How often did each server compute e?", "sum by (target) (compute_e_total)", exact=True),
    Query("How many look-ups failed?", 'sum by (target) (store_get_total{failed="true"})'),
    Query(
        "Which requests did the shop serve?",
        'sum by (method, path) (http_server_seconds_count{target="shop"})',
    ),
    Query(
        "How long do nine of ten look-ups take at most, in seconds?",
        "histogram_quantile(0.9, sum by (target, le) (store_get_seconds_bucket))",
    ),
    Query(
        "What did tracing cost the servers, in seconds of CPU time?",
        "sum by (target) (gotraced_probe_cost_seconds_total)",
    ),
    Query("What was missed? Nothing:", "sum(gotraced_probe_lost_total)"),
    Query("How large is gotraced, in bytes?", 'process_resident_memory_bytes{job="gotraced"}'),
)


class Child:
    """A process whose output is read as it comes; it is ended at the end of the context."""

    def __init__(
        self, name: str, command: Sequence[str | Path], stop: Callable[[Child], None] | None = None
    ) -> None:
        """``stop`` has it end, by SIGTERM if that is not given."""
        self.name = name
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._stop = stop
        try:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                cwd=CLONE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise DemoError(f"cannot run {command[0]}: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    @property
    def lines(self) -> list[str]:
        """Return what it has printed so far."""
        with self._more:
            return list(self._lines)

    def wait_for(self, pattern: str, seconds: float) -> re.Match[str]:
        """Return the first match in a line of the output. Raises DemoError."""
        until = time.monotonic() + seconds
        with self._more:
            while True:
                for line in self._lines:
                    if found := re.search(pattern, line):
                        return found
                left = until - time.monotonic()
                if not self._reader.is_alive() or left <= 0:
                    last = self._lines[-1] if self._lines else "it said nothing"
                    how = "ended" if left > 0 else "is not ready"
                    raise DemoError(f"{self.name} {how}: {last}")
                self._more.wait(min(left, 0.5))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop(self)
        elif self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(READY)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1.0)


class Received:
    """What a collector has printed of what it received, in its detailed form."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    @property
    def spans(self) -> int:
        """Return how many spans it has received."""
        return sum(line.startswith("Span #") for line in self._lines)

    @property
    def metrics(self) -> set[str]:
        """Return the names of the metrics that it has received."""
        descriptions = zip(self._lines, self._lines[1:], strict=False)
        return {
            after.partition(": ")[2]
            for line, after in descriptions
            if line.startswith("Descriptor:")
        }

    def first_span(self) -> list[str]:
        """Return the lines of the span that came first; there must be another after it."""
        starts = [at for at, line in enumerate(self._lines) if line.startswith("Span #")]
        lines = self._lines[starts[0] : starts[1]]
        return [line for line in lines if line.startswith(_OF_SPANS)]


_OF_SPANS = (" ", "Span", "Start time", "End time", "Attributes")


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def find_prometheus() -> Path:
    """Return Prometheus, fetched from Debian and unpacked where it is missing. Raises DemoError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gotrace"
    toolchains = Path(os.environ.get("GOTRACE_TOOLCHAINS") or cache / "toolchains")
    place = toolchains / "prometheus"
    found = fetched_program("prometheus", place)
    if found is None:
        print("# Fetching Debian's Prometheus, to be unpacked, not installed", flush=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch_program("prometheus", "bookworm", place)
        except (FetchError, OSError) as error:
            raise DemoError(f"cannot fetch Prometheus: {error}: install it") from error
        found = fetched_program("prometheus", place)
    if found is None:
        raise DemoError("cannot run Prometheus: install it")
    return found


def find_collector() -> Path:
    """Return the collector, which is a program in a Python package. Raises DemoError."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        raise DemoError("no collector: run tools/setup.sh demo-fleet")
    return Path(spec.origin).parent / "rotel-agent"


@contextmanager
def collector(place: Path) -> Iterator[tuple[Child, str]]:
    """Start a collector that prints what it receives; yield it and its address for OTLP."""
    port, grpc = free_port(), free_port()
    command: list[str | Path] = [find_collector(), "start", "--exporter", "blackhole"]
    for name in ("metrics", "traces"):
        command += ["--debug-log", name]
    command += ["--debug-log-verbosity", "detailed", "--pid-file", place / "collector.pid"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{port}"]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    with Child("the collector", command) as child:
        child.wait_for("Starting Rotel", READY)
        yield child, f"http://127.0.0.1:{port}"


@contextmanager
def gotraced(config: Path) -> Iterator[tuple[Child, int]]:
    """Start gotraced; yield it and its port once all its probes are attached."""
    root = [] if os.geteuid() == 0 else ["sudo"]
    command: list[str | Path] = [*root, "sh", "-c", f"exec 3<&0; {START}", "sh", config]
    print(f"\n$ {shlex.join([*root, 'gotraced', '--config', config.name])}", flush=True)
    with Child("gotraced", command, _end_input) as child:
        port = int(child.wait_for(r"listening on 127\.0\.0\.1:(\d+)", READY)[1])
        child.wait_for(r"probes attached", READY)
        for line in child.lines:
            print(line, flush=True)
        yield child, port
    if child.process.returncode != 0:
        raise DemoError(f"gotraced ended with status {child.process.returncode}")


def _end_input(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.close()


class Prometheus:
    """A server that scrapes gotraced every second, and can be asked."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, promql: str) -> dict[str, float]:
        """Return the rows of an instant query by their labels; none while it is starting."""
        words = urllib.parse.urlencode({"query": promql})
        try:
            url = f"{self.address}/api/v1/query?{words}"
            with urllib.request.urlopen(url, timeout=ANSWER) as answer:
                rows = json.load(answer)["data"]["result"]
        except OSError:
            return {}
        return {_labels(row["metric"]): float(row["value"][1]) for row in rows}


def _labels(metric: Mapping[str, str]) -> str:
    shown = {name: value for name, value in metric.items() if name not in ("job", "instance")}
    name = shown.pop("__name__", "")
    return name + "{" + ", ".join(f'{key}="{shown[key]}"' for key in sorted(shown)) + "}"


@contextmanager
def prometheus(place: Path, scraped: int) -> Iterator[Prometheus]:
    """Start Prometheus on gotraced's port."""
    config, port = place / "prometheus.yml", free_port()
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n  - job_name: gotraced\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]\n"
    )
    command: list[str | Path] = [find_prometheus(), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={place / 'data'}", "--log.level=error"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    with Child("Prometheus", command) as child:
        engine = Prometheus(port)
        wait_until(lambda: engine.ask("up") == {"up{}": 1.0}, child, "does not scrape gotraced")
        yield engine


def wait_until(is_so: Callable[[], bool], child: Child, problem: str) -> None:
    """Wait until something is so, for as long as a process runs. Raises DemoError."""
    until = time.monotonic() + ANSWER
    while not is_so():
        if time.monotonic() > until or child.process.poll() is not None:
            raise DemoError(f"{child.name} {problem}")
        time.sleep(0.2)


def send(server: Server, requests: int) -> None:
    """Ask a server for e and for users, one in ten of which it does not know."""
    connection = HTTPConnection(server.host, server.port, timeout=ANSWER)
    for turn in range(requests):
        for path in (f"/e?iterations={1 + turn % 20}", f"/get?key=user:{turn % 110}"):
            connection.request("GET", path)
            connection.getresponse().read()
        time.sleep(PAUSE)
    connection.close()


def drive(servers: Mapping[str, Server]) -> None:
    """Send all servers their requests at the same time, and wait for the last answer."""
    threads = [
        threading.Thread(target=send, args=(server, REQUESTS[name]), daemon=True)
        for name, server in servers.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(READY)
        if thread.is_alive():
            raise DemoError("the example servers do not answer")


def show_received(child: Child) -> None:
    """Print what the collector has received. Raises DemoError where it lacks something."""
    wanted = {"compute_e", "store_get_seconds", "store_get", "http_server_seconds"}

    def is_complete() -> bool:
        received = Received(child.lines)
        return received.spans > 1 and wanted <= received.metrics

    wait_until(is_complete, child, "has not received all metrics, and spans")
    received = Received(child.lines)
    print(f"\n# The collector has received {', '.join(sorted(received.metrics))},")
    print(f"# and {received.spans} spans, at most 5 a second of each server. The first one:")
    print("\n".join(received.first_span()))


def show(place: Path) -> None:
    """Run it all, and compare."""
    program = compile_server(place)
    own: dict[str, Server] = {}
    with ExitStack() as all_servers:
        for name in REQUESTS:
            copy = shutil.copy(program, place / name)
            own[name] = all_servers.enter_context(running(Path(copy)))
        print(f"# Three Go servers run: {', '.join(REQUESTS)}")
        with ExitStack() as rest:
            child, address = rest.enter_context(collector(place))
            targets = "".join(f"  - {{name: {one}, exe: {place / one}}}\n" for one in REQUESTS)
            config = place / "fleet.yaml"
            config.write_text(CONFIG.format(targets=targets.rstrip("\n"), collector=address))
            print(f"# A collector listens at {address}. The configuration:\n\n{config.read_text()}")
            _, port = rest.enter_context(gotraced(config))
            engine = rest.enter_context(prometheus(place, port))
            print(f"# Prometheus at {engine.address} scrapes http://127.0.0.1:{port}/metrics")
            print(f"# The servers are sent {2 * sum(REQUESTS.values())} requests", flush=True)
            drive(own)
            sent = {_labels({"target": name}): float(n) for name, n in REQUESTS.items()}
            (exact,) = (query.promql for query in QUERIES if query.exact)
            until = time.monotonic() + ANSWER
            while engine.ask(exact) != sent and time.monotonic() < until:
                time.sleep(0.2)
            answers = {query: engine.ask(query.promql) for query in QUERIES}
            show_received(child)
    for query, rows in answers.items():
        print(f"\n# {query.says}\npromql> {query.promql}")
        if not rows:
            print("(no rows)")
        for labels, value in sorted(rows.items()):
            print(f"{labels} {value:g}" if value < 1e6 else f"{labels} {value:.0f}")
        if query.exact:
            truth = {_labels({"target": name}): float(own[name].own_count) for name in own}
            counted = ", ".join(f"{name} {one.own_count}" for name, one in own.items())
            if rows != truth:
                raise DemoError(f"the servers themselves counted {counted}")
            print(f"# The servers themselves counted {counted}: exact.")


def main() -> int:
    """Run the demonstration; return 0 when every number agrees."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="gotrace-demo-") as directory:
        try:
            show(Path(directory))
        except DemoError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
