# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry Collector itself, built of Debian's packages of its source.

Debian has it as a library for other programs. The command is this project's: the receiver of OTLP,
batches, and the exporter of OTLP by HTTP. Packages are unpacked and not installed; Go builds them
in the way that Debian does, without modules.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.debian import FetchError, PrivateApt, unpack
from tests.live import skip_or_fail
from tests.toolchains import cache_dir, newest

#: The first suites that have it are not released yet.
_SUITE = "sid"
_PACKAGE = "golang-opentelemetry-collector-dev"
_SOURCE = Path(__file__).parent / "otelcol"
_PATIENCE = 1800.0  # seconds
_READY = "Everything is ready"

_CONFIG = """\
receivers:
  otlp:
    protocols:
      http: {{endpoint: '127.0.0.1:{http}'}}
      grpc: {{endpoint: '127.0.0.1:{grpc}'}}
processors: {{batch: {{}}}}
exporters: {{otlphttp: {{endpoint: '{further}'}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], processors: [batch], exporters: [otlphttp]}}
    metrics: {{receivers: [otlp], processors: [batch], exporters: [otlphttp]}}
"""
Protocols = dict[str, str]


def collector() -> Path:
    """Return the command, fetched and built the first time: 260 MB, some minutes.

    Skips, or fails with GOTRACE_LIVE=1, where that is not possible.
    """
    digest = hashlib.sha256((_SOURCE / "main.go").read_bytes()).hexdigest()
    program = cache_dir() / f"collector-{digest[:12]}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        place = Path(directory)
        try:
            apt = PrivateApt(_SUITE, place)
            apt.update()
            # What is of Go, and neither the compiler nor C's libraries.
            names = [
                name
                for name in apt.resolve([_PACKAGE])
                if name.startswith("golang-") and name.endswith("-dev")
            ]
            packages = place / "packages"
            packages.mkdir()
            for package in apt.download(names, packages):
                unpack(package, place / "root")
        except FetchError as error:
            skip_or_fail(f"no collector: {error}")
        path = place / "root" / "usr" / "share" / "gocode"
        shutil.copytree(_SOURCE, path / "src" / "collector")
        go = newest()
        more = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": str(path), "CGO_ENABLED": "0"}
        done = subprocess.run(
            [go.go, "build", "-o", place / "collector", "collector"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            env={**go.env(), **more, "GOCACHE": str(place / "cache")},
        )
        assert done.returncode == 0, done.stderr
        (place / "collector").rename(program)
    return program


@contextmanager
def collecting(further: str, place: Path) -> Iterator[Protocols]:
    """Have a collector pass on all that it gets, and return its endpoints by protocol."""
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        ports = {"http": one.getsockname()[1], "grpc": other.getsockname()[1]}
    config = place / "collector.yaml"
    config.write_text(_CONFIG.format(**ports, further=further))
    with subprocess.Popen(
        [collector(), "--config", f"file:{config}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if _READY in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            process.terminate()
            process.stderr.read()
            assert process.wait(60) == 0
        finally:
            process.kill()
