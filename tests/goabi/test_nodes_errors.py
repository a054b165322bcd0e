"""Check messages of errors that test_nodes_program does not come by."""

from __future__ import annotations

import pytest

from gotrace.goabi.nodes_errors import error_message, go_errno_text
from gotrace.goabi.values import (
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
    Unavailable,
    Value,
)


def text(content: str, length: int | None = None) -> StringValue:
    data = content.encode()
    return StringValue(data, len(data) if length is None else length)


def pointer(name: str, /, **fields: Value) -> PointerValue:
    return PointerValue(name, 0xC000, StructValue(name.removeprefix("*"), tuple(fields.items())))


def address(name: str, /, **fields: Value) -> InterfaceValue:
    return InterfaceValue("net.Addr", name, pointer(name, **fields))


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
        ("*os/exec.Error", {"Name": text("ls"), "Err": EOF}, 'exec: "ls": EOF'),
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
        ("*net/textproto.Error", {"Code": 550, "Msg": text("no")}, "550 no"),
        ("*github.com/pkg/errors.withMessage", {"cause": EOF, "msg": text("m")}, "m: EOF"),
        (
            "*errors.joinError",
            {"errs": SequenceValue("[]error", (EOF, EOF), 3, 3)},
            "EOF\nEOF\n...",
        ),
        ("*fmt.wrapError", {"msg": text("cut", 300), "err": EOF}, "cut..."),
        (
            "*os.SyscallError",
            {"Syscall": text("read"), "Err": Unavailable("capture limit reached")},
            "read: <unavailable: capture limit reached>",
        ),
        (
            "*os.SyscallError",
            {"Syscall": text("read"), "Err": InterfaceValue("error", "*main.e", None)},
            "read: <*main.e>",
        ),
    ],
)
def test_rules(name: str, fields: dict[str, Value], message: str) -> None:
    assert error_message(name, pointer(name, **fields), guess=False) == message


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
    assert error_message("main.e", label, guess=True) == "told"
    assert error_message("main.e", label, guess=False) is None
    runtime = NamedValue("runtime.errorString", text("index out of range"))
    told = error_message("runtime.errorString", runtime, guess=False)
    assert told == "runtime error: index out of range"


def test_a_guess_needs_one_string_that_looks_like_a_message() -> None:
    assert error_message("*x.e", pointer("*x.e", why=text("only")), guess=True) == "only"
    assert error_message("*x.e", pointer("*x.e", msg=text("m"), n=1), guess=True) == "m"
    assert error_message("*x.e", pointer("*x.e", name=text("m"), n=1), guess=True) is None
    assert error_message("*x.e", pointer("*x.e", msg=text("m"), to=text("")), guess=True) is None
    assert error_message("*x.e", Nil("*x.e"), guess=True) is None
    assert error_message("*x.e", Unavailable("why"), guess=True) is None


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
