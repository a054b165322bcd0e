# SPDX-License-Identifier: Apache-2.0
"""Check messages of errors that test_nodes_program does not come by."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gotrace.fleet.naming import attribute, label
from gotrace.values.error_messages import KEY_FIELDS, error_value, go_errno_text
from gotrace.values.fmt import format_values, parse_format
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    BytesValue,
    ErrorValue,
    InterfaceValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    UnavailableValue,
    Value,
)
from gotrace.values.python import from_json, to_python
from gotrace.values.to_json import to_json
from tests.toolchains import newest


def text(content: str, length: int | None = None) -> StringValue:
    data = content.encode()
    return StringValue(data, len(data) if length is None else length)


def pointer(name: str, /, **fields: Value) -> PointerValue:
    return PointerValue(name, 0xC000, StructValue(name.removeprefix("*"), tuple(fields.items())))


def address(name: str, /, **fields: Value) -> InterfaceValue:
    return InterfaceValue("net.Addr", name, pointer(name, **fields))


def error_message(name: str, value: Value, *, guess: bool) -> str | None:
    """Return a message that is known as a whole, marked where it is guessed."""
    found = error_value(name, value, guess=guess)
    if found is None:
        return None
    assert not found.is_cut and found.length is None
    assert (found.type, found.value) == (name, value)
    return "~" * found.guessed + found.message


EOF = ErrorValue("*errors.errorString", "EOF", Nil(""))
PORT = address("*net.TCPAddr", IP=TextValue("net.IP", "::1"), Port=80, Zone=text("lo"))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("*os.PathError", {"Op": text("open"), "Path": text("/x"), "Err": EOF}, "open /x: EOF"),
        ("*os.SyscallError", {"Syscall": text("read"), "Err": EOF}, "read: EOF"),
        (
            "*os.LinkError",
            {"Op": text("rename"), "Old": text("a"), "New": text("b"), "Err": EOF},
            "rename a b: EOF",
        ),
        (
            "*net.OpError",
            {"Op": text("read"), "Net": text("tcp"), "Source": PORT, "Addr": PORT, "Err": EOF},
            "read tcp [::1%lo]:80->[::1%lo]:80: EOF",
        ),
        (
            "*net.OpError",
            {"Op": text("x"), "Net": text(""), "Source": Nil(""), "Addr": Nil(""), "Err": EOF},
            "x: EOF",
        ),
        (
            "*net.DNSError",
            {"Err": text("no such host"), "Name": text("h"), "Server": text("s:53")},
            "lookup h on s:53: no such host",
        ),
        ("*net.AddrError", {"Err": text("bad"), "Addr": text("q")}, "address q: bad"),
        ("*net.AddrError", {"Err": text("bad"), "Addr": text("")}, "bad"),
        (
            "*encoding/json.InvalidUTF8Error",
            {"S": text('a"')},
            'json: invalid UTF-8 in string: "a\\""',
        ),
        ("*github.com/pkg/errors.withMessage", {"cause": EOF, "msg": text("m")}, "m: EOF"),
        ("*errors.joinError", {"errs": SequenceValue("[]error", (EOF, EOF), 2, 2)}, "EOF\nEOF"),
    ],
)
def test_rules(name: str, fields: dict[str, Value], message: str) -> None:
    assert error_message(name, pointer(name, **fields), guess=False) == message


LOST = UnavailableValue("capture limit reached")
UNKNOWN = InterfaceValue("error", None, UnavailableValue("type not known"))
LONG = ErrorValue("*errors.errorString", "abc", Nil(""), "abc", 300)


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("*errors.errorString", {"s": text("cut", 300)}, ("cut", "cut", 300)),
        ("*errors.errorString", {"s": text("", 300)}, ("", "", 300)),
        # Half of a character at the end is left out.
        ("*errors.errorString", {"s": StringValue(b"a\xc3", 300)}, ("a", "a", 300)),
        ("*errors.errorString", {"s": StringValue(b"a\xff", 300)}, ("a\udcff", "a\udcff", 300)),
        ("*errors.errorString", {"s": LOST}, ("<unavailable: capture limit reached>", "", None)),
        (
            "*errors.joinError",
            {"errs": SequenceValue("[]error", (EOF, EOF), 3, 3)},
            ("EOF\nEOF\n", "EOF\nEOF\n", None),
        ),
        ("*errors.joinError", {"errs": SequenceValue("[]error", (), 3, 3)}, ("", "", None)),
        (
            "*errors.joinError",
            {"errs": SequenceValue("[]error", (LONG, EOF), 2, 2)},
            ("abc...\nEOF", "abc", 304),
        ),
        (
            "*os.SyscallError",
            {"Syscall": text("read"), "Err": LOST},
            ("read: <unavailable: capture limit reached>", "read: ", None),
        ),
        (
            "*io/fs.PathError",
            {"Op": text("open"), "Path": text("/x"), "Err": UNKNOWN},
            ("open /x: <unavailable: type not known>", "open /x: ", None),
        ),
        (
            "*io/fs.PathError",
            {"Op": text("open"), "Path": text("/x", 50), "Err": LONG},
            ("open /x...: abc", "open /x", 357),
        ),
        (
            "*os.SyscallError",
            {"Syscall": text("read"), "Err": InterfaceValue("error", "*main.e", None)},
            ("read: <*main.e>", "read: ", None),
        ),
        (
            "*os.SyscallError",
            {"Syscall": text("read"), "Err": StructValue("main.e", ())},
            ("read: <main.e>", "read: ", None),
        ),
        (
            "*net/url.Error",
            {"Op": text("Get"), "URL": text('a"b', 30), "Err": EOF},
            ('Get "a\\"b"...: EOF', 'Get "a\\"b', None),
        ),
        (
            # Without a source, no space would follow.
            "*net.OpError",
            {"Op": text("x"), "Net": text(""), "Source": LOST, "Addr": Nil(""), "Err": EOF},
            ("x <unavailable: capture limit reached>: EOF", "x", None),
        ),
        (
            "*net.DNSError",
            {"Err": text("no such host"), "Name": text("h"), "Server": LOST},
            ("lookup h on <unavailable: capture limit reached>: no such host", "lookup h", None),
        ),
        (
            "*net.AddrError",
            {"Err": text("bad"), "Addr": LOST},
            ("address <unavailable: capture limit reached>: bad", "", None),
        ),
        (
            "*net.OpError",
            {
                "Op": text("x"),
                "Net": text(""),
                "Source": Nil(""),
                "Addr": address("*net.TCPAddr", IP=BytesValue("net.IP", b"1234", 16), Port=8),
                "Err": EOF,
            },
            ("x <net.IP>:8: EOF", "x ", None),
        ),
    ],
)
def test_messages_of_which_not_all_is_known(
    name: str, fields: dict[str, Value], expected: tuple[str, str, int | None]
) -> None:
    found = error_value(name, pointer(name, **fields), guess=False)
    assert found is not None and found.is_cut
    assert (found.message, found.known, found.length) == expected


def test_addresses() -> None:
    for name, fields, shown in [
        ("*net.UDPAddr", {"IP": BytesValue("", bytes([1, 2, 3, 4]), 4), "Port": 5}, "1.2.3.4:5"),
        ("*net.IPAddr", {"IP": TextValue("net.IP", "1.2.3.4"), "Zone": text("")}, "1.2.3.4"),
        ("*net.UnixAddr", {"Name": text("/run/s"), "Net": text("unix")}, "/run/s"),
    ]:
        fields_of: dict[str, Value] = {
            "Op": text("dial"),
            "Net": text("n"),
            "Source": Nil(""),
            "Addr": address(name, **fields),  # type: ignore[arg-type]
            "Err": EOF,
        }
        error = pointer("*net.OpError", **fields_of)
        assert error_message("*net.OpError", error, guess=False) == f"dial n {shown}: EOF"


def test_strings_are_messages_of_errors_only() -> None:
    label = NamedValue("main.e", text("told"))
    assert error_message("main.e", label, guess=True) == "~told"
    assert error_message("main.e", label, guess=False) is None
    runtime = NamedValue("runtime.errorString", text("index out of range"))
    told = error_message("runtime.errorString", runtime, guess=False)
    assert told == "runtime error: index out of range"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("net/url.EscapeError", text("%zz"), 'invalid URL escape "%zz"'),
        ("net/url.InvalidHostError", text(" "), 'invalid character " " in host name'),
        ("net.InvalidAddrError", text("told"), "told"),
        ("net/http.http2ConnectionError", 1, "connection error: PROTOCOL_ERROR"),
        (
            "net/http/internal/http2.ConnectionError",
            99,
            "connection error: unknown error code 0x63",
        ),
        ("crypto/tls.alert", 42, "tls: bad certificate"),
        ("crypto/tls.AlertError", 7, "tls: alert(7)"),
    ],
)
def test_rules_of_kinds_that_are_no_structs(name: str, value: Value, message: str) -> None:
    assert error_message(name, NamedValue(name, value), guess=False) == message
    held = PointerValue(f"*{name}", 0xC000, NamedValue(name, value))
    assert error_message(f"*{name}", held, guess=True) == message


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("crypto/tls.RecordHeaderError", {"Msg": text("odd")}, "tls: odd"),
        ("runtime.errorAddressString", {"msg": text("m"), "addr": 4}, "runtime error: m"),
        (
            "runtime.boundsError",
            {"x": -1, "y": 2, "signed": False, "code": NamedValue("runtime.boundsErrorCode", 7)},
            "runtime error: slice bounds out of range [18446744073709551615:2:]",
        ),
        (
            "net/http.http2connError",
            {"Code": NamedValue("net/http.http2ErrCode", 6), "Reason": text("why")},
            "http2: connection error: FRAME_SIZE_ERROR: why",
        ),
        (
            "net/http.http2StreamError",
            {"StreamID": 3, "Code": NamedValue("net/http.http2ErrCode", 8), "Cause": EOF},
            "stream error: stream ID 3; CANCEL; EOF",
        ),
        (
            "net/http.http2StreamError",
            {"StreamID": 3, "Code": NamedValue("net/http.http2ErrCode", 8), "Cause": Nil("error")},
            "stream error: stream ID 3; CANCEL",
        ),
        (
            "crypto/x509.SystemRootsError",
            {"Err": EOF},
            "x509: failed to load system roots and no roots provided; EOF",
        ),
        (
            "crypto/x509.UnknownAuthorityError",
            {"Cert": Nil("*x509.Certificate"), "hintErr": Nil("error")},
            "x509: certificate signed by unknown authority",
        ),
        *(
            (
                "crypto/x509.CertificateInvalidError",
                {"Reason": NamedValue("crypto/x509.InvalidReason", reason), "Detail": text(detail)},
                f"x509: {message}",
            )
            for reason, detail, message in (
                (1, "old", "certificate has expired or is not yet valid: old"),
                (5, "", "issuer name does not match subject from issuing certificate"),
                (8, "", "unknown error"),
                (10, "", "no valid chains built"),
                (10, "why", "no valid chains built: why"),
            )
        ),
    ],
)
def test_rules_of_structs(name: str, fields: dict[str, Value], message: str) -> None:
    value = StructValue(name, tuple(fields.items()))
    assert error_message(name, value, guess=False) == message
    assert error_message(f"*{name}", pointer(f"*{name}", **fields), guess=False) == message


def test_the_host_is_known_of_a_message_with_names_of_a_certificate() -> None:
    name = "crypto/x509.HostnameError"
    found = error_value(name, StructValue(name, (("Host", text("h")),)), guess=False)
    assert found is not None and found.is_cut
    assert found.message == "<crypto/x509.HostnameError h>"


def test_keys_have_no_certificates() -> None:
    """Of no error of the newest release: one is more than there is room for, and takes long."""
    sources = newest().go.resolve().parents[1] / "src/crypto"
    found = {
        f"crypto/{path.parent.name}.{name}"
        for package in ("tls", "x509")
        for path in (sources / package).glob("*.go")
        for name, fields in re.findall(r"(?ms)^type (\w+Error) struct {(.*?)^}", path.read_text())
        if re.search(r"\*(x509\.)?Certificate$", fields, re.MULTILINE)
    }
    assert "crypto/x509.HostnameError" in found
    assert found <= KEY_FIELDS.keys()


def test_what_the_standard_library_says_is_not_guessed() -> None:
    for name in (
        "*net/textproto.Error",
        "image/png.e",
        "*errors.e",
        "*encoding/json.e",
        "*vendor/x/y.e",
    ):
        assert error_message(name, pointer(name, msg=text("m")), guess=True) is None
        plain = name[1:]
        assert error_message(plain, NamedValue(plain, text("m")), guess=True) is None
    for name in ("*main.e", "*example.com/x.e", "*example%2ecom.e", "*main.e[net/url.Error]"):
        assert error_message(name, pointer(name, msg=text("m")), guess=True) == "~m"
        assert error_message(name[1:], NamedValue(name[1:], text("m")), guess=True) == "~m"
    assert error_message("*e.x/y.e[main.T]", pointer("", name=text("m")), guess=True) is None


def test_a_guess_needs_one_string_that_is_named_as_a_message() -> None:
    assert error_message("*main.e", pointer("*main.e", why=text("only")), guess=True) is None
    assert error_message("*main.e", pointer("*main.e", msg=text("m"), n=1), guess=True) == "~m"
    assert error_message("*main.e", pointer("*main.e", name=text("m"), n=1), guess=True) is None
    assert (
        error_message("*main.e", pointer("*main.e", msg=text("m"), to=text("")), guess=True) is None
    )
    assert error_message("*main.e", Nil("*main.e"), guess=True) is None
    assert error_message("*main.e", UnavailableValue("why"), guess=True) is None


def test_a_guess_within_a_message_makes_it_one() -> None:
    guess = error_value("main.e", NamedValue("main.e", text("told")), guess=True)
    assert guess is not None and guess.guessed
    held = pointer("*net/url.Error", Op=text("Get"), URL=text("/"), Err=guess)
    assert error_message("*net/url.Error", held, guess=True) == '~Get "/": told'
    joined = pointer("*errors.joinError", errs=SequenceValue("[]error", (EOF, guess), 2))
    assert error_message("*errors.joinError", joined, guess=True) == "~EOF\ntold"
    wrapped = pointer("*fmt.wrapError", msg=text("more: told"), err=guess)
    assert error_message("*fmt.wrapError", wrapped, guess=True) == "more: told"
    shown = replace(guess, value=Nil("main.e"))
    assert go_syntax(shown) == '~"told" (main.e)'
    text_of_all = format_values(parse_format("%v %q %8s|%-7v|"), [shown] * 4, [None] * 4)
    assert text_of_all == '~told ~"told"    ~told|~told  |'
    read = from_json(to_json(shown))
    assert read == to_python(shown) and read.guessed and str(read) == "told"
    assert read != "told" and repr(read) == "<main.e: ~told>"
    assert label(shown) == attribute(read) == "~told"


def test_errno() -> None:
    # As printed by syscall.Errno(n).Error() on Linux.
    assert go_errno_text(2) == "no such file or directory"
    assert go_errno_text(5) == "input/output error"
    assert go_errno_text(104) == "connection reset by peer"
    assert go_errno_text(77) == "file descriptor in bad state"
    assert go_errno_text(133) == "errno 133"
    assert go_errno_text(0) == "errno 0"
    assert go_errno_text(5000) == "errno 5000"
    assert go_errno_text(-1) == "errno -1"
    assert error_message("syscall.Errno", NamedValue("syscall.Errno", 17), guess=False) == (
        "file exists"
    )
