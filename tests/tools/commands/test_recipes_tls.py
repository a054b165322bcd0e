# SPDX-License-Identifier: Apache-2.0
"""Recipes of TLS, and of HTTP over TLS and by HTTP/2, in each way that a program has.

| package | the way | passes |
|---|---|---|
| crypto/tls | Dial, Dialer, Client, HandshakeContext, the first Write | clientHandshake |
| crypto/tls | Listen, Server with Handshake, the first Read | serverHandshake |
| crypto/tls | a session that is resumed | the same; writeKeyLog only with TLS 1.3 |
| net/http | Get, Head, Post, PostForm, Client, Transport; both versions; redirections | roundTrip |
| net/http | NewClientConn, since Go 1.26 | ClientConn.RoundTrip |
| net/http | handlers by TLS, by HTTP/2, since Go 1.24 also without TLS | serverHandler.ServeHTTP |
| net/http | handlers by HTTP/2 that return | handlerDone |
| net/http | handlers by HTTP/2 that panic | runHandler, whose writer then still has its state |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from gotrace.probes.recipes import find_recipe
from gotrace.probes.spec import parse_probe
from tests.toolchains import BUILD_MODES, FIXTURES, build, require
from tests.tools.harness import Fixture, of_kind, tool

_NAMES = ("http.client", "http.server", "http2", "tls", "tls.keys")
_OWNERS = {
    parse_probe(probe.function).pattern: name
    for name in _NAMES
    for probe in find_recipe(name).probes
}
#: Of handlers that panic no result is known; an alert of the other side has a type that the
#: program makes while it runs.
_UNKNOWN = {
    "http.server": (r"^\d+ (GET /(?:panics|aborts)), \d+ bytes", r"<unavailable> \1"),
    "tls": (r"remote error: tls: .*", "<unavailable>"),
}
#: Of errors, by their type: some, and all others.
_OF_RECORD = '@tls (type($ret) == "crypto/tls.RecordHeaderError")'
_OF_OTHERS = _OF_RECORD.replace("==", "!=")
_BY_TYPE = ("--json", "--by", "type($ret)", "-p")


def _known(name: str, text: str) -> str:
    """Return a message without what the recipe cannot have."""
    if "<unavailable: the call did not return>" in text:
        return re.sub(r".*(GET /\w+),.*", r"<unavailable> \1", text)
    text = text.replace("<unavailable: type not known>...", "<unavailable>")
    return re.sub(*_UNKNOWN[name], text) if name in _UNKNOWN else text


def _counted(name: str, texts: Iterable[str]) -> Counter[str]:
    return Counter(_known(name, text) for text in texts)


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("minor", "mode"),
    [
        ("1.15", "default"),
        pytest.param("1.24", "default", marks=pytest.mark.thorough),
        pytest.param("1.26", "default", marks=pytest.mark.thorough),
        ("1.27", "stripped"),
    ],
)
def test_each_way_is_seen_once(minor: str, mode: str) -> None:
    path = build(FIXTURES / "live_recipes_tls", require(minor), flags=BUILD_MODES[mode])
    with Fixture([path]) as fixture:
        pid = str(fixture.ready)
        with (
            tool("gotrace", "--json", "-p", pid, *(f"@{name}" for name in _NAMES)) as tracing,
            tool("gofunccount", "--json", "-p", pid, "@http.server") as counting,
            tool("gofunccount", "--json", "-p", pid, "@tls") as shaking,
            tool("gofunclatency", "--json", "-p", pid, "@http2") as measuring,
            tool("gofunccount", *_BY_TYPE, pid, _OF_RECORD) as records,
            tool("gofunccount", *_BY_TYPE, pid, _OF_OTHERS) as others,
        ):
            truth = fixture.work("")
            result, counted, measured = tracing.end(), counting.end(), measuring.end()
            shaken = of_kind(shaking.end(), "count")
            by_type = [
                sum(row["count"] for row in of_kind(one.end(), "count"))
                for one in (records, others)
            ]
        assert fixture.finish() == 0
    shown: dict[str, list[str]] = {name: [] for name in _NAMES}
    for call in of_kind(result, "call"):
        shown[_OWNERS[call["func"]]].append(call["message"])
    for name in _NAMES:
        assert _counted(name, shown[name]) == _counted(name, truth[name]), name
    assert of_kind(result, "lost") == []
    # Errors that hold certificates, which a key has no room for.
    errors = [row["by"]["error"]["$error"] for row in shaken if row["by"]["error"]]
    refused = [text.partition(", error ")[2] for text in truth["tls"] if "x509" in text]
    assert sorted(text for text in errors if "x509" in text) == sorted(refused)
    failed = [text for text in truth["tls"] if ", error <nil>" not in text]
    strange = [text for text in failed if "first record does not look like" in text]
    assert by_type == [len(strange), len(failed) - len(strange)]
    for name, rows in (
        ("http.server", of_kind(counted, "count")),
        ("http2", of_kind(measured, "histogram")),
    ):
        calls = Counter[str]()
        for row in rows:
            calls["{method} {path}".format(**row["by"])] += row["count"]
        wanted = (re.search(r"[A-Z]+ /\w+", text) for text in truth[name])
        assert calls == Counter(found[0] for found in wanted if found)


@pytest.mark.live
@pytest.mark.apart
def test_flights_take_calls_by_each_paragraph_of_a_recipe(tmp_path: Path) -> None:
    path = build(FIXTURES / "live_recipes_tls", require("1.27"), flags=BUILD_MODES["stripped"])
    with Fixture([path]) as fixture:
        words = ["--when", '@http.server (path == "/get")', "-o", str(tmp_path / "x-%n.trace")]
        command = ("gotrace", "flight", "10s", "--json", *words, "-p", str(fixture.ready))
        with tool(*command) as flying:
            fixture.work("")
            written = [row for row in of_kind(flying.end(), "summary") if row["what"] == "file"]
        assert fixture.finish() == 0
    assert sum(row["requests"] for row in written) == 2  # by HTTP/1.1 and by HTTP/2
