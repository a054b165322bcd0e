# SPDX-License-Identifier: Apache-2.0
"""Ask hosts that a real sshd stands for: sums are exact, and nothing stays behind anywhere."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sshd import Sshd
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture, Process, Result, code_of, json_counts, tool_command
from tests.tools.unprivileged import make_cache

pytestmark = [pytest.mark.live, pytest.mark.apart, pytest.mark.slow]

_PATIENCE = 60.0  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    place = tmp_path_factory.mktemp("sshd")
    cache = make_cache(place / "cache", os.getuid(), has_programs=True)
    with Sshd(place, [f"SetEnv XDG_CACHE_HOME={cache}"]) as running:
        yield running


@pytest.fixture
def program() -> Iterator[Fixture]:
    with Fixture([build(FIXTURES / "live_count", newest())]) as fixture:
        yield fixture


def fleet(server: Sshd, *words: str, tool: str = "gofunccount") -> Process:
    """Start gofleet; what it says on standard error comes with its results."""
    where = ["--ssh", server.ssh, "--remote-command", str(CLONE / "tools" / tool)]
    command = server.within(*tool_command("gofleet", *where, *words))
    return Process(["sh", "-c", 'exec "$@" 2>&1', "sh", *command])


def ended(process: Process) -> Result:
    lines = process.rest()
    return Result(process.wait(), lines, process.errors)


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def running_on(pid: int) -> list[int]:
    """Return the commands that trace a process."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(pid).encode() in words and any(b"gofunccount" in word for word in words):
            found.append(int(place.name))
    return found


@pytest.mark.parametrize("by_host", [False, True])
def test_counts_are_those_of_all_hosts(server: Sshd, program: Fixture, by_host: bool) -> None:
    code = code_of(program.ready)
    options = ["--json", *(["--by-host"] if by_host else [])]
    question = ["gofunccount", "-p", str(program.ready), "main.*"]
    with fleet(server, "--on", "ssh:web[01-03]", *options, "--", *question) as asking:
        asking.read_until("gofleet: tracing on 3 hosts")
        truth = program.work()
        asking.signal(signal.SIGINT)  # it ends everywhere, and prints what has come
        lines = ended(asking)
    rows = [json.loads(line) for line in lines.lines]
    assert lines.status == 0
    calls = truth["calls"]
    each = dict.fromkeys(("web01", "web02", "web03"), calls)
    if by_host:
        found = {
            host: json_counts(
                Result(0, [line for line in lines.lines if f'"host":"{host}"' in line], ""), calls
            )
            for host in each
        }
        assert found == each
    else:
        assert json_counts(lines, calls) == {name: 3 * number for name, number in calls.items()}
    assert [host["host"] for host in rows[0]["hosts"]] == ["web01", "web02", "web03"]
    until(lambda: not running_on(program.ready))
    assert code_of(program.ready) == code


def test_a_failed_host_is_named_and_the_others_go_on(server: Sshd, program: Fixture) -> None:
    hosts = "ssh:web[01-02],127.0.0.9x,web03"
    question = ["gofunccount", "-d", "1", "-p", str(program.ready), "main.*"]
    with fleet(server, "--on", hosts, "--", *question) as asking:
        done = ended(asking)
    assert done.status == 1
    said = [line for line in done.lines if line.startswith("gofleet: 127")]
    assert len(said) == 1 and "resolve" in said[0]
    assert "3 hosts: web01, web02, web03\n" in done.lines


def test_all_hosts_may_refuse(server: Sshd, program: Fixture) -> None:
    question = ["gofunccount", "-d", "1", "-p", str(program.ready), "main.nothingLikeThat"]
    with fleet(server, "--on", "ssh:web[01-02]", "--", *question) as asking:
        done = ended(asking)
    assert done.status == 3
    assert sum("web01: gofunccount: " in line for line in done.lines) == 1


def test_what_is_not_installed_is_said(server: Sshd) -> None:
    words = ["--ssh", server.ssh, "--on", "ssh:web01", "--", "gooncpu", "-p", "1"]
    command = server.within("env", "PATH=/usr/bin:/bin", *tool_command("gofleet", *words))
    with Process(command) as asking:
        assert ended(asking).status == 1
    expected = "gofleet: web01: gooncpu is not installed there: --push BUNDLE brings it\n"
    assert expected in asking.errors


@pytest.mark.parametrize("how", ["killed", "network"])
def test_nothing_outlives_the_one_who_asked(server: Sshd, program: Fixture, how: str) -> None:
    code = code_of(program.ready)
    ttl = ["--ttl", "4"] if how == "network" else []
    question = ["gofunccount", "-p", str(program.ready), "main.*"]
    with fleet(server, "--on", "ssh:web[01-02]", *ttl, "--", *question) as asking:
        asking.read_until("gofleet: tracing on 2 hosts")
        assert code_of(program.ready) != code
        if how == "killed":
            asking.signal(signal.SIGKILL)
        else:
            server.set_network("down")  # no packet says so: the time there has to end it
        began = time.monotonic()
        try:
            until(lambda: not running_on(program.ready) and code_of(program.ready) == code)
        finally:
            server.set_network("up")
        assert how == "killed" or time.monotonic() - began < 30
        asking.signal(signal.SIGKILL)


def test_the_time_ends_a_run_and_its_results_count(server: Sshd, program: Fixture) -> None:
    question = ["gofunccount", "-p", str(program.ready), "main.*"]
    ttl = ["--ttl", "12", "--json"]
    with fleet(server, "--on", "ssh:web01", *ttl, "--", *question) as asking:
        asking.read_until("gofleet: tracing on 1 host")
        truth = program.work()
        done = ended(asking)
    assert done.status == 0
    assert done.lines[0] == "gofleet: web01: ended by --ttl, after 12 s\n"
    calls = truth["calls"]
    assert json_counts(Result(0, done.lines[1:], ""), calls) == calls


def test_no_more_hosts_at_once_than_asked(server: Sshd, tmp_path: Path) -> None:
    script = tmp_path / "count"
    script.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/in.$$; ls {tmp_path}/in.* | wc -l >>{tmp_path}/seen\n"
        f"sleep 0.1; rm {tmp_path}/in.$$\n"
        'echo \'{"kind":"count","func":"main.f","count":1,"ts":1.5,"interval_s":1.0}\'\n'
    )
    script.chmod(0o755)
    words = ["--ssh", server.ssh, "--at-once", "4", "--on", "ssh:web[01-20]", "--json", "-q"]
    command = tool_command("gofleet", *words, "--remote-command", str(script))
    with Process(server.within(*command, "--", "gofunccount", "main.f")) as asking:
        done = ended(asking)
    assert (done.status, done.errors) == (0, "")
    assert [row["count"] for row in done.objects if row["kind"] == "count"] == [20]
    assert max(map(int, (tmp_path / "seen").read_text().split())) <= 4


@pytest.mark.parametrize(
    "said",
    ["Welcome to web01!", '{"kind":"count","func":"f"}', '{"kind":"call"}', "\\377", "[" * 9],
)
def test_other_words_of_a_host_are_refused(server: Sshd, said: str) -> None:
    words = ["--ssh", server.ssh, "--on", "ssh:web01", "--remote-command", f"printf '{said}\\n'"]
    command = tool_command("gofleet", *words, "--", "gofunccount", "main.f")
    with Process(server.within(*command)) as asking:
        done = ended(asking)
    assert (done.status, done.lines) == (1, [])
    assert asking.errors.count("gofleet: web01: ") == 1


def pack(bundle: Path, machine: str, text: bytes) -> Path:
    """Make what looks like a bundle for a machine, with one command."""
    manifest = json.dumps({"machine": machine}).encode()
    members = {"bin/gofunccount": text, "lib/gotrace/_compiled/manifest.json": manifest}
    with tarfile.open(bundle, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(f"gotrace/{name}")
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    return bundle


def test_each_host_gets_the_bundle_for_its_machine_once(
    server: Sshd, program: Fixture, tmp_path: Path
) -> None:
    real = CLONE / "tools" / "gofunccount"
    text = f'#!/bin/sh\nexec {shlex.quote(str(real))} "$@"\n# {os.urandom(2000).hex()}\n'.encode()
    ours = pack(tmp_path / "ours.tar.gz", os.uname().machine, text)
    other = pack(tmp_path / "other.tar.gz", "s390x", b"#!/bin/false\n")
    question = ["gofunccount", "-d", "0.5", "-p", str(program.ready), "main.*"]
    where = ["--ssh", server.ssh, "--on", "ssh:web[01-02]", "-q"]

    def ask(*bundles: Path) -> Result:
        push = [word for bundle in bundles for word in ("--push", str(bundle))]
        command = tool_command("gofleet", *where, *push, "--", *question)
        with Process(server.within(*command)) as asking:
            return ended(asking)

    for _ in range(2):
        done = ask(other, ours)
        assert (done.status, done.errors) == (0, "")
        time.sleep(0.1)
    (place,) = (Path(server.place) / "cache" / "gotrace" / "fleet").iterdir()
    assert sorted(path.name for path in place.iterdir()) == ["gotrace"]
    assert (place / "gotrace" / "bin" / "gofunccount").read_bytes() == text
    assert place.stat().st_mode & 0o777 == 0o700
    refused = ask(other)
    assert refused.status == 1
    assert f"no --push is a bundle for {os.uname().machine}" in refused.errors
    twice = ask(ours, ours)
    expected = f"--push {ours}: an earlier --push is for the same machines"
    assert (twice.status, expected in twice.errors) == (2, True), twice.errors


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (["gofunclatency", "--why", "-d", "1", "main.*"], "where the time went"),
        (["gooffcpu", "-d", "1"], " of 2 hosts"),
        (["gooncpu", "-d", "1"], " of CPU time of 2 hosts"),
        (["gostacks"], "goroutines of 2 hosts"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_other_commands_are_asked(
    server: Sshd, program: Fixture, question: list[str], expected: str
) -> None:
    tool, *words = question
    pid = ["-p", str(program.ready)]
    force = ["--force"] if tool == "gooffcpu" else []
    hosts = ["--on", "ssh:web[01-02]"]
    with fleet(server, *hosts, "--", tool, *force, *pid, *words, tool=tool) as asking:
        if tool == "gofunclatency":
            asking.read_until("gofleet: tracing on 2 hosts")
            program.work()
        done = ended(asking)
    assert done.status == 0, done.lines
    assert any(expected in line for line in done.lines), done.lines
