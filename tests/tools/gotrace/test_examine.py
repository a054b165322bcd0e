# SPDX-License-Identifier: Apache-2.0
"""Servers with one fault each: it is among the first findings, and healthy ones have none."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.cli.options import parse_plain
from gotrace.live.causes import Looks
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Process, of_kind, run_tool, tool_command
from tests.tools.quota import quota_group

pytestmark = pytest.mark.live

#: What the machine lacks while other tests run is true, and no fault of the server's.
_OTHERS = "others"

#: Of each fault the kind of the finding, and what it names.
_FAULTS = [
    ("convoy", "lock", "main.(*Store).get"),
    ("holder", "lock", "main.(*Store).compact"),
    ("nplusone", "sleep", "main.list"),
    ("gc", "memory", "main.allocate"),
    ("procs", "gomaxprocs", "GOMAXPROCS is 1"),
    ("quota", "quota", "may use 0.3 CPUs"),
    ("leak", "growth", "chan receive"),
    ("fsync", "syscall", "os.(*File).Sync"),
    ("pool", "select", "database/sql"),
    ("noreader", "select", "main.publish"),
    ("handover", "send", "main.handOver"),
    ("retry", "sleep", "main.retry"),
    ("timers", "scheduler", "timers"),
    ("regexp", "function", "regexp.MustCompile"),
    ("loglock", "lock", "log.(*Logger).Printf"),
    ("tiny", "function", "os.(*File).Write"),
    ("slowkey", "key", "/item/7 is"),
    ("cold", "sleep", "main.lookUp"),
    ("names", "receive", "net.(*Resolver).LookupHost"),
    ("tls", "function", "crypto/tls.(*Conn).HandshakeContext"),
]
#: What something else may come before.
_NOT_FIRST = ("regexp", "slowkey")  # the collector, and the wait of its requests
_QUICK = ("convoy", "leak", "regexp", "slowkey")
#: Other tests that run meanwhile have CPUs that these servers would use up.
_ALONE = pytest.mark.thorough
#: Servers without a fault that have little to do, and that have much.
_IDLE = [
    "",
    "-streams",
    "-sockets",
    "-workers",
    "-tickers",
    "-parked",
    "-cond",
    "-pipe",
    "-heap",
    "-group",
]
_BUSY = ["streams", "sockets", "workers", "tickers", "pipeline", "fan-out", "readers", "files"]
_HEALTHY = [
    *(f"idle{kind}" for kind in [*_IDLE, "-clients"]),
    *(f"busy-{kind}" for kind in [*_BUSY, "timeouts"]),
]


@contextmanager
def _server(fault: str, group: Path | None) -> Iterator[str]:
    """Start a server, in a control group if there is one, and yield its process's number."""
    command = [str(build(FIXTURES / "live_faults", newest())), fault]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if group is not None:
                (group / "cgroup.procs").write_text(str(process.pid))
            yield process.stdout.readline().split()[1]
        finally:
            process.stdin.close()
            process.wait()


def _examined(fault: str, group: Path | None = None) -> list[dict[str, Any]]:
    with _server(fault, group) as pid:
        # What probes cost beside other tests is many times of what it is elsewhere.
        result = run_tool("gotrace", "examine", "--json", "-d", "5", "--budget", "20%", "-p", pid)
    assert result.status == 0, result.errors
    (end,) = of_kind(result, "examined")
    assert end["fine"] and not any("wait" in text for text in end["fine"])
    assert any(" requests a second, p50 " in text for text in end["means"])
    if fault.endswith(("-streams", "-sockets")):
        lasting = [text for text in end["means"] if "lasted all the time" in text]
        assert sum(int(text.split()[0]) for text in lasting) == 5
    found = [row for row in of_kind(result, "finding") if row["what"] != _OTHERS]
    for row in found:
        tool, *words = shlex.split(row["deeper"])
        assert parse_plain(import_module(f"gotrace.cli.{tool}")._parser(), words).processes == [pid]
    return found


@pytest.mark.parametrize(
    ("fault", "kind", "names"),
    [one if one[0] in _QUICK else pytest.param(*one, marks=_ALONE) for one in _FAULTS],
)
def test_a_fault_is_among_the_first_findings(fault: str, kind: str, names: str) -> None:
    with quota_group() if fault == "quota" else nullcontext() as group:
        found = _examined(fault, group)
    first = [
        row
        for row in found[: 3 if fault in _NOT_FIRST else 1]
        if row["what"] == kind and names in " ".join([row["text"], *row["evidence"]])
    ]
    assert first, found
    shares = [row["share"] for row in found]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("load", ["none", *(pytest.param(one, marks=_ALONE) for one in _HEALTHY)])
def test_a_healthy_server_has_no_findings(load: str) -> None:
    assert _examined(load) == []


def test_what_was_seen_of_a_process_that_ends_is_reported() -> None:
    with ExitStack() as server:
        pid = server.enter_context(_server("none", None))
        with Process(tool_command("gotrace", "examine", "--json", "-d", "60", "-p", pid)) as tool:
            begun, _ = tool.read_until('{"kind":"attached"')
            assert f"Looking at process {pid} for 60 s..." in begun
            server.close()
            rest = tool.rest()
            assert tool.wait() == 0
    kinds = [json.loads(line)["kind"] for line in rest]
    assert kinds[0] == "exited" and kinds[-1] == "examined"


def test_the_library_returns_findings() -> None:
    with _server("convoy", None) as pid, gotrace.attach(int(pid)) as go:
        found = go.examine(3.0, budget=0.2)
        with pytest.raises(gotrace.UsageError, match="budget is 0"):
            go.examine(budget=0.0)
    first = found.findings[0]
    assert first.kind == "lock"
    assert "main.(*Store).get" in " ".join([first.text, *first.evidence])
    assert found.fine and found.means


@pytest.mark.parametrize("most", [1, 1 << 14])
def test_more_goroutines_with_requests_than_are_counted(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Those last then that have waited in one place at each look."""
    monkeypatch.setattr("gotrace.live.served._GOROUTINES", most)
    counted: list[bool] = []
    leave_out = Looks.leave_out_lasting

    def left_out(looks: Looks, began: Collection[int] | None) -> None:
        counted.append(began is not None)
        leave_out(looks, began)

    monkeypatch.setattr(Looks, "leave_out_lasting", left_out)
    with _server("idle-streams", None) as pid, gotrace.attach(int(pid)) as go:
        found = go.examine(3.0, budget=0.2)
    assert counted == [most > 1]
    assert [one for one in found.findings if one.kind != _OTHERS] == []
    lasting = [text for text in found.means if "lasted all the time" in text]
    assert sum(int(text.split()[0]) for text in lasting) == 5


def test_without_a_process_it_asks_for_one() -> None:
    result = run_tool("gotrace", "examine")
    assert result.status == 2
    assert "type gotrace examine -p PID" in result.errors.replace("Type", "type")
