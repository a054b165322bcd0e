# SPDX-License-Identifier: Apache-2.0
"""The systemd unit is right, and gotraced does its work under all that it forbids."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gotrace.kernel.privileges import Capability
from tests.live import skip_or_fail
from tests.systemd import Systemd, why_no_systemd
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture, code_of
from tests.tools.unprivileged import public_copy

UNIT = CLONE / "deploy" / "systemd" / "gotraced.service"
NAMES = {"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"}
#: What systemd-analyze may find at most; 10 is a service without any restriction.
MAX_EXPOSURE = 3.0
OLDEST = 250  # of systemd-analyze: security --offline
PATIENCE = 90.0  # seconds

COMMAND = """\
#!/bin/sh
PYTHONPATH=/opt/gotrace:/opt/gotrace/site exec {python} -c \
'import sys; from gotrace.fleet.gotraced import main; sys.exit(main())' "$@"
"""
CONFIG = """\
listen: 127.0.0.1:0
targets: [{name: keys, comm: server}]
metrics:
  - {name: handles, type: counter, probe: main.handle}
  - {name: errors, type: counter, probe: main.handle, labels: {error: $ret2}}
  - {name: handle_seconds, type: histogram, probe: main.handle}
spans:
  - {probe: main.handle, rate: 1000/s, attributes: {key: key}}
flights:
  - {name: rare, when: [main.handle (shard == 7)], folder: /var/lib/gotraced/flights, memory: 4MiB}
otlp: {endpoint: 'http://127.0.0.1:9', timeout: 100ms}
runtime_metrics: {interval: 100ms}
budget: 100%
"""


def analyze(*words: str | Path) -> str:
    if shutil.which("systemd-analyze") is None:
        skip_or_fail("systemd-analyze is missing: install systemd")
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True)
    if int(version.stdout.split()[1]) < OLDEST:
        pytest.skip(f"systemd-analyze reads files from version {OLDEST} on")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_systemd_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    (command,) = settings("ExecStart")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(command.split()[0], "/bin/true"))
    assert analyze("verify", "--man=no", copy) == ""


def test_exposure() -> None:
    found = analyze("security", "--offline=true", "--no-pager", UNIT)
    overall = re.search(r"Overall exposure level for \S+: ([\d.]+)", found)
    assert overall is not None and float(overall[1]) <= MAX_EXPOSURE, found


def test_capabilities_are_those_of_the_documents() -> None:
    assert [set(words.split()) for words in settings("AmbientCapabilities")] == [NAMES]
    assert settings("CapabilityBoundingSet") == settings("AmbientCapabilities")
    page = (CLONE / "docs" / "man" / "gotraced.8").read_text()
    assert "root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE." in page


@pytest.mark.live
@pytest.mark.apart
def test_it_traces_others_programs_with_the_units_rights(tmp_path: Path) -> None:
    if reason := why_no_systemd():
        pytest.skip(reason)
    config = tmp_path / "gotraced.yaml"
    config.write_text(CONFIG)
    config.chmod(0o644)
    with public_copy() as copy:
        server = copy.directory / "server"
        shutil.copy(build(FIXTURES / "live_keys", newest()), server)
        command = copy.directory / "bin" / "gotraced"
        command.parent.mkdir()
        command.write_text(COMMAND.format(python=os.path.realpath(sys.executable)))
        for path in (server, command):
            path.chmod(0o755)
        with Systemd(UNIT, copy.directory, config) as systemd:
            port = int(systemd.wait_for("listening on 127.0.0.1:"))
            with (
                Fixture(systemd.inside("/opt/gotrace/server")) as fixture,
                ended(child_of(fixture.pid)) as process,
            ):
                before = code_of(process)
                wait_until(port, "gotraced_probe_attached", 5)
                truth = fixture.work("2 150 10")
                found = scraped(port)
                assert found["handles_total"] == truth["Calls"]
                assert found["handle_seconds_count"] == truth["Calls"]
                assert found["errors_total"] == truth["Calls"]
                assert found["gotraced_target_processes"] == 1
                wait_until(port, "go_info", 1)
                assert scraped(port)["go_memstats_sys_bytes"] > 0
                wait_until(port, "gotraced_flights_written_total", 1)
                (file,) = systemd.run("ls", "-l", "/var/lib/gotraced/flights").splitlines()[1:]
                assert re.fullmatch(r"-rw------- .* rare-keys-\d+-\d+T\d+\.trace", file)
                systemd.run("systemctl", "reload", UNIT.name)
                wait_until(port, "gotraced_reloads_total", 1)
                (main,) = systemd.run(
                    "systemctl", "show", "--property=MainPID", "--value", UNIT.name
                ).split()
                status = systemd.run("cat", f"/proc/{main}/status")
                for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
                    value = re.search(rf"^{kind}:\t(.*)$", status, re.MULTILINE)
                    assert value is not None
                    held = {
                        f"CAP_{one.name}"
                        for one in Capability
                        if int(value[1], 16) >> one.value & 1
                    }
                    assert held == NAMES and int(value[1], 16).bit_count() == len(NAMES)
                assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
                assert not re.search(r"^Uid:.*\b0\b", status, re.MULTILINE)
                assert systemd.run("ls", "/var/cache/gotraced/gotrace/bpf").split()
                systemd.run("systemctl", "stop", UNIT.name)
                assert code_of(process) == before
                assert systemd.run("systemctl", "show", "--property=Result", UNIT.name) == (
                    "Result=success\n"
                )
                fixture.finish()


def child_of(pid: int) -> int:
    """Return the process that nsenter has forked, as it is numbered here."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextmanager
def ended(pid: int) -> Iterator[int]:
    """Have a process end with the context: what ends nsenter does not end its child."""
    with suppress(ProcessLookupError):
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def scraped(port: int) -> dict[str, float]:
    """Return what the samples of each name add up to."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found[sample.name] += int(sample.value)
        return dict(found)


def wait_until(port: int, name: str, value: int) -> None:
    until, pause = time.monotonic() + PATIENCE, threading.Event()
    while (found := scraped(port)).get(name) != value:
        assert time.monotonic() < until, found
        pause.wait(0.2)
