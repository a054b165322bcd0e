# SPDX-License-Identifier: Apache-2.0
"""Root asks a running daemon for more: for a time, within a budget, and nobody else does."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.asked import Snippets, beside, read_snippet
from gotrace.fleet.config import Config, parse_config
from gotrace.fleet.control import MAX_BYTES, Control, ControlOrder, settle
from gotrace.fleet.daemon import Daemon as FleetDaemon
from gotrace.fleet.gotraced import main
from tests.fleet.test_gotraced import Daemon, configured, wait_until
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.tools.harness import Fixture, code_of, run_tool

NOBODY = 65534
HANDLES = "  - {name: handles, type: counter, probe: main.handle}"
VIAS = "metrics: [{name: vias, type: counter, probe: main.via*, functions: true}]\n"

FILE = """\
listen: 127.0.0.1:0
targets: [{name: shop, exe: /x/shop}]
metrics: [{name: gets, type: counter, probe: main.get}]
"""


def file() -> Config:
    return parse_config("file", FILE)


def test_a_snippet_has_the_form_of_the_configuration() -> None:
    text = VIAS + "targets: [{name: other, comm: other}]\n"
    found = read_snippet("more", text, 0.01, 5.0, file())
    assert [metric.targets for metric in found.metrics] == [("other",)]
    config = beside(file(), [found])
    assert [metric.name for metric in config.metrics] == ["gets", "vias"]
    assert [target.name for target in config.targets] == ["shop", "other"]
    assert [(limit.name, set(limit.jobs)) for limit in config.limits] == [("more", {"vias"})]
    usual = read_snippet("more", VIAS, 0.01, 5.0, file())
    assert [metric.targets for metric in usual.metrics] == [("shop",)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("metrics: []", "is too short|non-empty"),
        (VIAS + "spans: [{probe: main.f}]", "unknown key 'spans'"),
        (VIAS + "listen: 0.0.0.0:1", "unknown key 'listen'"),
        (VIAS.replace("vias", "gets"), "'gets' is there twice"),
        (VIAS.replace("functions", "targets: [none], functions"), "no target is named 'none'"),
        (VIAS.replace("main.via*", "main.f (x"), "line 1: "),
        (VIAS + "targets: [{name: shop, exe: /y}]", "'shop' is there twice"),
        ("metrics: " + "[" * 3000, "line 1: "),
        ("metrics: &a [*a]", "anchors and aliases"),
        (
            "metrics:\n" + "".join(HANDLES.replace("s,", f"{n},") + "\n" for n in range(65)),
            "more: there are 65 metrics, and room for 64",
        ),
    ],
)
def test_other_snippets_are_refused_with_their_line(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_snippet("more", text, 0.01, 5.0, file())


def test_a_reload_keeps_what_goes_with_the_new_file() -> None:
    one = read_snippet("one", VIAS, 0.01, 5.0, file())
    other = read_snippet("other", VIAS.replace("vias", "puts"), 0.01, 9.0, file())
    asked = Snippets(file(), (one, other))
    assert asked.over(4.9) == () and asked.over(5.0) == (one,)
    kept, problems = asked.fitting(parse_config("file", FILE.replace("name: gets", "name: puts")))
    assert kept == (one,) and problems == ["other: 'puts' is there twice"]
    kept, problems = asked.fitting(parse_config("file", FILE.replace("name: shop", "name: s")))
    assert kept == () and problems[0] == "one: no target is named 'shop'"
    with pytest.raises(UsageError, match="asked for already"):
        asked.check(one)
    with pytest.raises(UsageError, match="32 are asked for already: end one"):
        Snippets(file(), (other,) * 32).check(one)
    with pytest.raises(UsageError, match="'none' is not asked for: there is one, other"):
        asked.named("none")


@pytest.fixture
def control() -> Iterator[Control]:
    """Return a socket, behind which each order is answered by its kind."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # other users come as far as the socket
        yield from answering(f"{place}/control")


def answering(path: str) -> Iterator[Control]:
    made = Control(path, file)
    made.start()
    ended = threading.Event()

    def obey() -> None:
        while not ended.is_set():
            if (order := made.take()) is not None:
                settle(order, ["begun"] if order.begin else [order.end or "listed"])
            ended.wait(0.01)

    thread = threading.Thread(target=obey)
    thread.start()
    yield made
    ended.set()
    thread.join()
    made.close()
    assert not Path(made.path).exists()


def said(control: Control, data: bytes, more: bool = False) -> dict[str, Any]:
    """Send bytes and return the answer; ``more``: without an end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(control.path)
        try:
            connection.sendall(data)
            if not more:
                connection.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass  # it has seen enough
        text = b""
        try:
            while piece := connection.recv(1 << 16):
                text += piece
        except ConnectionResetError:
            pass  # it had not read all of what we have sent
    answer: dict[str, Any] = json.loads(text)
    return answer


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be root")


@root_only
def test_orders_reach_the_daemon(control: Control) -> None:
    assert os.stat(control.path).st_mode & 0o777 == 0o600
    start = {"do": "start", "name": "x", "snippet": VIAS, "ttl": "10m", "budget": "1%"}
    assert said(control, json.dumps(start).encode() + b"\n") == {"said": ["begun"]}
    assert said(control, b'{"do":"end","name":"x"}\n') == {"said": ["x"]}
    assert said(control, b'{"do":"list"}\n') == {"said": ["listed"]}


_START = {"do": "start", "name": "x", "snippet": VIAS, "ttl": "10m", "budget": "1%"}


@root_only
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the request is not whole: a line of JSON"),
        (b"{}", "not whole"),
        (b"\n", "the request is not a line of JSON in UTF-8"),
        (b"\xff\xfe\n", "not a line of JSON in UTF-8"),
        (b"[" * 60000 + b"\n", "not a line of JSON"),
        (b"[1]\n", "the request is not an object"),
        (b'{"do":"list","x":1}\n', "unknown key 'x'"),
        (b'{"do":"end","name":"../x"}\n', "is not a name"),
        (b'{"do":"rm","name":"x"}\n', "there is start, list and end"),
        (json.dumps({**_START, "ttl": "25h"}).encode() + b"\n", "24h at most"),
        (json.dumps({**_START, "ttl": 7}).encode() + b"\n", "a time is as in 10m"),
        (json.dumps({**_START, "budget": "0%"}).encode() + b"\n", "a budget is"),
        (json.dumps({**_START, "snippet": "\ud800"}).encode() + b"\n", "line 1: |x: |UTF-8"),
        (json.dumps({**_START, "snippet": "- " * 30000}).encode() + b"\n", "line 1: "),
        (json.dumps({**_START, "snippet": "? " * 30000}).encode() + b"\n", "line 1: "),
        (json.dumps({**_START, "snippet": "{" * 30000}).encode() + b"\n", "line 1: "),
        (json.dumps({**_START, "snippet": "a:\n " * 10000}).encode() + b"\n", "line "),
        (b"x" * (MAX_BYTES + 1), "the request has more than 65536 bytes"),
        (b"x" * (64 << 20), "more than 65536 bytes"),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_other_words_are_refused_in_bounded_time(
    control: Control, data: bytes, reason: str
) -> None:
    began = time.process_time()
    answer = said(control, data)
    assert set(answer) == {"error", "status"}
    assert any(part in answer["error"] for part in reason.split("|")), answer
    assert time.process_time() - began < 5
    assert said(control, b'{"do":"list"}\n') == {"said": ["listed"]}


@root_only
def test_a_request_without_an_end_is_given_up(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gotrace.fleet.control._READING", 1.0)
    began = time.monotonic()
    assert "took more than 1 s" in said(control, b'{"do":', more=True)["error"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control.path)
        for _ in range(14):  # a byte now and then does not keep it
            try:
                connection.sendall(b"x")
            except BrokenPipeError:
                break
            time.sleep(0.5)
        else:
            pytest.fail("it goes on reading")
    assert said(control, b'{"do":"list"}\n') == {"said": ["listed"]}
    assert time.monotonic() - began < 30


@root_only
def test_other_users_are_refused(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect(sys.argv[1])\n"
        "except PermissionError: print('refused')\n"
        "else:\n print(s.recv(1000).decode())\n"
    )

    def ask() -> str:
        words = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "/usr/bin/python3", "-c", code]
        return subprocess.run(
            [*words, control.path], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert ask() == "refused"
    os.chmod(control.path, 0o666)  # nor if somebody has opened the file to them
    assert json.loads(ask()) == {"error": "only root may ask", "status": 2}
    assert f"control: user {NOBODY} is refused" in caplog.text


def test_who_goes_away_is_not_answered(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: socket.socket) -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr(control, "_talk", refuse)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control.path)
    wait_until(lambda: "control: a request was not answered: " in caplog.text)


def test_an_order_that_runs_into_a_bug_costs_that_order_alone() -> None:
    orders = [ControlOrder(), ControlOrder()]

    def obey(order: ControlOrder) -> list[str]:
        if order is orders[0]:
            raise ZeroDivisionError
        return ["listed"]

    waiting = iter([*orders, None])
    daemon: Any = SimpleNamespace(_asked=Snippets(file()), _obey=obey, _engine_turn=lambda: 60.0)
    daemon._control = SimpleNamespace(take=lambda: next(waiting))
    FleetDaemon.turn(daemon)
    with pytest.raises(GotraceError, match=r"^ZeroDivisionError: see the log$"):
        orders[0].answer.result()
    assert orders[1].answer.result() == ["listed"]


def test_what_is_there_already(tmp_path: Path) -> None:
    path = tmp_path / "control"
    path.write_text("mine")
    with pytest.raises(GotraceError, match="something else, not a socket"):
        Control(str(path), file)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # of a daemon that was killed
    Control(str(path), file).close()
    first = Control(str(path), file)
    with pytest.raises(GotraceError, match="another process listens there"):
        Control(str(path), file)
    first.close()
    with pytest.raises(GotraceError, match="cannot listen"):
        Control(str(tmp_path / "no" / "control"), file)


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["ctl"], 2, "start | list | end"),
        (["ctl", "start", "/nowhere.yaml"], 1, "/nowhere.yaml: No such file"),
        (["ctl", "--socket", "/nowhere", "list"], 1, "does gotraced run with --control?"),
        (["--check", "x", "--control", "y"], 2, "--control is for --config"),
    ],
)
def test_mistakes_are_said_in_a_line(
    words: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == status
    found = capsys.readouterr().err
    assert reason in found and found.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: \xff", "asked.yaml is not UTF-8: byte 3"),
        (b"#" * MAX_BYTES, f"this is too much: a request has {MAX_BYTES} bytes at most"),
        (b"", "control: this is not gotraced: b'SSH-2.0'"),
    ],
    ids=["bytes", "large", "another"],
)
def test_what_cannot_be_asked(
    content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, place = tmp_path / "asked.yaml", str(tmp_path / "control")
    asked.write_bytes(content)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(place)
        other.listen()

        def answer() -> None:
            with suppress(OSError), other.accept()[0] as connection:  # it may not be asked
                connection.recv(MAX_BYTES)
                connection.sendall(b"SSH-2.0")

        threading.Thread(target=answer, daemon=True).start()
        assert main(["ctl", "--socket", place, "start", str(asked)]) in (1, 2)
    assert reason in capsys.readouterr().err


def ctl(place: Path, *words: str, text: str = "") -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        done = run_tool("gotraced", "ctl", "--socket", place, *words, stdin=given)
    return done.status, "".join(done.lines) + done.errors


@pytest.mark.live
@pytest.mark.apart
def test_probes_come_and_end_by_themselves(server: Path, tmp_path: Path) -> None:
    place = tmp_path / "control"
    config = configured(tmp_path, server, HANDLES)
    snippet = tmp_path / "slow.yaml"
    snippet.write_text(VIAS)
    with (
        Daemon(config, "--control", str(place), probes=1) as daemon,
        Fixture([server]) as fixture,
    ):
        wait_until(lambda: daemon.samples()["gotraced_target_processes"][()] == 1)
        code = code_of(fixture.ready)
        status, text = ctl(place, "start", str(snippet), "--ttl", "12s", "--budget", "50%")
        assert (status, text.partition(" s left")[2]) == (0, ", budget 50.00%, 1 attached\n")
        assert code_of(fixture.ready) != code
        began = time.monotonic()
        daemon.read_until("gotraced: INFO: slow has begun, for 12 s: root has asked for it")
        assert ctl(place, "list")[1].startswith("slow: vias: ")
        # A reload keeps it, and what it has counted.
        truth = fixture.work("1 20 5")
        config.write_text(config.read_text().replace("budget: 100%", "budget: 90%"))
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: INFO: reloaded")
        more = fixture.work("1 30 5")
        found = daemon.samples()
        assert found["handles_total"] == {(): truth["Calls"] + more["Calls"]}
        assert sum(found["vias_total"].values()) > 0
        before = found["vias_total"]
        assert ctl(place, "start", "-", text=VIAS)[1].endswith("'vias' is there twice\n")
        daemon.read_until("gotraced: INFO: slow has ended: its time is over")
        assert ctl(place, "list")[1] == "nothing is asked for\n"
        assert 9 < time.monotonic() - began < 25
        assert code_of(fixture.ready) == code
        assert before and "vias_total" not in daemon.samples()
        # And again, until it is told to end.
        assert ctl(place, "start", "-", "--name", "again", text=VIAS)[0] == 0
        assert code_of(fixture.ready) != code
        assert ctl(place, "end", "again") == (0, "again has ended\n")
        daemon.read_until("gotraced: INFO: again has ended: root has asked for it")
        assert code_of(fixture.ready) == code
        bad = VIAS.replace("main.via*", "main.nosuch")
        status, text = ctl(place, "start", "-", "--name", "bad", text=bad)
        assert status == 0 and "0 attached" in text and "no function matches" in text
        config.write_text(config.read_text().replace("name: handles", "name: vias"))
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: WARNING: ended by the reload: bad: 'vias' is there twice")
        daemon.end()
        assert not place.exists()


@pytest.mark.live
@pytest.mark.apart
def test_a_budget_of_its_own_holds(server: Path, tmp_path: Path) -> None:
    place = tmp_path / "control"
    config = configured(tmp_path, server, HANDLES, "budget: 100%")
    with (
        Daemon(config, "--control", str(place), probes=1) as daemon,
        Fixture([server]) as fixture,
    ):
        wait_until(lambda: daemon.samples()["gotraced_target_processes"][()] == 1)
        assert ctl(place, "start", "-", "--budget", "0.001%", text=VIAS)[0] == 0
        until = time.monotonic() + 60
        while "over the budget" not in (text := ctl(place, "list")[1]):
            assert time.monotonic() < until
            fixture.work("1 3000 5")
        assert text.startswith("stdin: vias: ")
        found = daemon.samples()["gotraced_probe_over_budget_total"]
        assert found[("probe", "handles"),] == 0  # the file's own is not touched
        daemon.end()
