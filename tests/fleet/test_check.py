# SPDX-License-Identifier: Apache-2.0
"""What --check fails for, and what neither it nor the log says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gotrace.fleet.config import OtlpSpec, Protocol
from gotrace.fleet.ctl import ctl_parser
from gotrace.fleet.gotraced import _Parser, main
from gotrace.fleet.otlp import Otlp
from gotrace.fleet.privacy import without_users
from tests.fleet.test_outage import call, free_port, wait_until


def check(tmp_path: Path, more: str) -> int:
    path = tmp_path / "c.yaml"
    path.write_text(
        "listen: 127.0.0.1:0\ntargets: [{name: t, exe: /nowhere/t}]\n"
        f"metrics: [{{name: m, type: counter, probe: main.f}}]\n{more}\n"
    )
    path.chmod(0o644)
    return main(["--check", str(path)])


def test_a_folder_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    flight = f"flights: [{{name: f, when: [panic], folder: {folder}}}]"
    assert check(tmp_path, flight) == 0  # it will be made
    folder.mkdir()
    folder.chmod(0o777)
    assert check(tmp_path, flight) == 2
    assert "refused: other users may write to it" in capsys.readouterr().err
    assert check(tmp_path, f"otlp: {{endpoint: 'http://a:1', disk: {folder}}}") == 2


def test_a_header_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "otlp: {endpoint: 'http://a:1', headers: {a: {env: NOPE}}}") == 1
    assert capsys.readouterr().err == "gotraced: header a: $NOPE is not set\n"


def test_a_password_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = f"ann:hunter2@127.0.0.1:{free_port()}"
    assert check(tmp_path, f"otlp: {{endpoint: 'http://{place}'}}") == 0
    assert check(tmp_path, f"otlp: {{endpoint: 'htp://{place}'}}") == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert "http://***@127.0.0.1" in said.out
    for protocol in Protocol:
        with caplog.at_level(logging.INFO):
            otlp = Otlp(OtlpSpec(f"http://{place}", protocol, interval=3600), list)
            otlp.put(call(1))
            wait_until(lambda: "does not take spans" in caplog.text)
            otlp.close()
        assert "hunter2" not in caplog.text
        caplog.clear()
    assert without_users("http://a:b@c@host/x") == "http://***@host/x"


def test_the_socket_may_follow_the_word() -> None:
    parser = ctl_parser(_Parser)
    assert parser.parse_args(["--socket", "/a", "list"]).socket == "/a"
    assert parser.parse_args(["list", "--socket", "/b"]).socket == "/b"
    assert parser.parse_args(["end", "x", "--socket", "/b"]).name == "x"
    assert parser.parse_args(["list"]).socket == "/run/gotraced/control"


@pytest.mark.parametrize("key", ["listen", "health"])
def test_a_name_to_listen_on_that_is_none(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    places = {"listen": "127.0.0.1:0", key: "nowhere.invalid:9435"}
    text = "".join(f"{name}: '{place}'\n" for name, place in places.items())
    path.write_text(
        f"{text}targets: [{{name: t, exe: /nowhere/t}}]\n"
        "metrics: [{name: m, type: counter, probe: main.f}]\n"
    )
    path.chmod(0o644)
    assert main(["--check", str(path)]) == 1
    assert "cannot listen on nowhere.invalid:9435: " in capsys.readouterr().err
