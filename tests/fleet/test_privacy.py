# SPDX-License-Identifier: Apache-2.0
"""Texts of errors, and fields and keys that are called as secrets are, do not leave a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.fleet.config import parse_config
from gotrace.fleet.leaving import leaving
from gotrace.fleet.naming import label, private_attribute
from gotrace.fleet.privacy import Errors, Privacy, hashed_form
from gotrace.values.model import (
    ErrorValue,
    MapValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    Value,
)
from tests.fleet.test_gotraced import Daemon, configured
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.tools.harness import Fixture

SECRET = "hunter2-s3cr3t"


def text(words: str) -> StringValue:
    return StringValue(words.encode(), len(words))


def error() -> ErrorValue:
    return ErrorValue("*fs.PathError", f"open {SECRET}", text(SECRET))


#: Values that have the secret at a place that is called so, or in an error.
NESTED: list[Value] = [
    StructValue("main.User", (("Name", text("ann")), ("Password", text(SECRET)))),
    StructValue("main.User", (("access_token", PointerValue("*string", 1, text(SECRET))),)),
    MapValue("map[string]string", ((text("X-Api-Key"), text(SECRET)),), 1),
    MapValue("http.Header", ((NamedValue("main.K", text("Set-Cookie")), text(SECRET)),), 1),
    SequenceValue("[]main.User", (StructValue("main.User", (("sessionID", text(SECRET)),)),), 1),
    PointerValue("*main.T", 1, StructValue("main.T", (("Err", error()),))),
    error(),
]


@pytest.mark.parametrize("value", NESTED, ids=range(len(NESTED)))
@pytest.mark.parametrize("errors", [Errors.OFF, Errors.TYPE])
def test_no_secret_is_in_what_is_exported(value: Value, errors: Errors) -> None:
    privacy = Privacy(errors)
    for is_hashed in (False, True):
        shown = [label(value, privacy, is_hashed), private_attribute(value, privacy, is_hashed)]
        assert SECRET not in repr(shown)
    assert SECRET in label(value, Privacy(Errors.TEXT, ()))


def test_errors() -> None:
    shown = {kind: label(error(), Privacy(kind)) for kind in Errors}
    assert shown == {
        Errors.OFF: "error",
        Errors.TYPE: "*fs.PathError",
        Errors.TEXT: f"open {SECRET}",
    }
    assert {label(Nil("error"), Privacy(kind)) for kind in Errors} == {"nil"}


@pytest.mark.parametrize("word", ["nil", "others", "unknown"])
def test_what_says_that_there_is_no_value_is_not_a_value(word: str) -> None:
    message = ErrorValue("*errors.errorString", word, text(word))
    assert label(message, Privacy(Errors.TEXT)) == label(text(word)) == f'"{word}"'
    assert label(NamedValue("main.S", text(word))) == f'"{word}"'


def test_hashes_are_the_same_for_the_same_value_and_key() -> None:
    one, other = Privacy(key=b"k" * 16), Privacy(key=b"l" * 16)
    found = label(text("ann"), one, True)
    assert found == label(text("ann"), one, True) == private_attribute(text("ann"), one, True)
    assert len(found) == 16 and "ann" not in found
    assert found not in (label(text("bob"), one, True), label(text("ann"), other, True))


def test_forms() -> None:
    assert hashed_form("hash:r.User") == (True, "r.User")
    assert hashed_form("length: token") == (False, "len(token)")
    assert hashed_form('m["hash:a"]') == (False, 'm["hash:a"]')


def config(labels: str, more: str = "") -> str:
    return (
        "listen: 127.0.0.1:0\ntargets: [{name: t, exe: /a}]\n"
        f"metrics: [{{name: m, type: counter, probe: f, labels: {labels}}}]\n{more}\n"
    )


@pytest.mark.parametrize(
    "expression",
    ["password", "r.Header['Authorization'][0]", "u.AccessToken", "cfg.api_key", "s.sessionID"],
)
def test_expressions_that_are_called_as_secrets_are(expression: str) -> None:
    quoted = f'"{expression}"'.replace("'", '\\"')
    with pytest.raises(UsageError, match=r"line 3: .* may be a secret: write 'hash:"):
        parse_config("c", config(f"{{a: {quoted}}}"))
    (metric,) = parse_config("c", config(f"{{a: {quoted[0]}hash:{quoted[1:]}}}")).metrics
    assert metric.hashed == {"a"}
    (metric,) = parse_config("c", config(f"{{a: {quoted[0]}length:{quoted[1:]}}}")).metrics
    assert metric.hashed == frozenset()
    assert metric.key is not None and metric.key.texts[0].startswith("len(")


def test_lists_of_names() -> None:
    parse_config("c", config("{a: tokens}", "allow_names: [token]"))
    with pytest.raises(UsageError, match="may be a secret"):
        parse_config("c", config("{a: p.Email}", "deny_names: [e-mail]"))
    with pytest.raises(UsageError, match=r"'tokn': .*token"):
        parse_config("c", config("{a: b}", "allow_names: [tokn]"))
    assert parse_config("c", config("{a: b}", "errors: off")).privacy.errors is Errors.OFF


def test_what_leaves_a_host_is_listed() -> None:
    lines = list(leaving(parse_config("c", config("{a: 'hash:token', b: c.d}", "errors: text"))))
    assert "metric m: a = hash of token, b = c.d" in lines
    assert "errors: types and texts" in lines
    assert lines[0] == "metrics at 127.0.0.1:0, to all who reach it"


@pytest.mark.live
@pytest.mark.apart
def test_by_default_no_text_of_an_error_leaves(server: Path, tmp_path: Path) -> None:
    received = Received()
    metrics = """\
  - {name: errors, type: counter, probe: main.handle, labels: {error: $ret2}}
  - {name: users, type: counter, probe: main.handle, labels: {user: 'hash:key', n: 'length:key'}}"""
    with over_http(received) as endpoint:
        file = configured(tmp_path, server, metrics)
        spans = "spans:\n  - {probe: main.handle, attributes: {key: 'hash:key'}, rate: 1000/s}\n"
        otlp = f"otlp: {{endpoint: '{endpoint}', interval: 1h}}\n"
        file.write_text(file.read_text().replace("errors: text\n", "") + spans + otlp)
        with Daemon(file, probes=3) as daemon, Fixture([server]) as fixture:
            truth = fixture.work("1 100 10")
            found = daemon.samples()
            received.wait_for_spans(100)
            fixture.finish()
            daemon.end()
    texts = {message for message in truth["Errors"] if message != "nil"}
    kinds = {dict(at)["error"] for at in found["errors_total"]}
    assert {"nil", "*io/fs.PathError"} < kinds and not kinds & texts
    assert sum(found["errors_total"].values()) == 100
    assert len(found["users_total"]) >= len(truth["Keys"])
    lengths = {dict(at)["n"] for at in found["users_total"]}
    assert lengths == {str(len(key)) for key in truth["Keys"]}
    for _, span in received.spans:
        assert span.status.message == ""
        shown = attributes(span.attributes)
        assert not any(key in str(shown) for key in truth["Keys"])
        assert span.status.code != 2 or shown["error.type"] in kinds
    assert texts and not any(message in str(received.spans) for message in texts)
