"""Tell an error's message from its fields, since nobody can call its Error method.

Each rule follows the method's source in Go's standard library (the same in all releases from 1.15
to 1.27 unless said), or in github.com/pkg/errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gotrace.goabi.nodes_text import address_text
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
from gotrace.goabi.verb_scalars import quoted

__all__ = ["error_message", "go_errno_text"]

#: Messages of types that have no fields.
_FIXED = {
    "context.deadlineExceededError": "context deadline exceeded",
    "*internal/poll.DeadlineExceededError": "i/o timeout",
    "*poll.DeadlineExceededError": "i/o timeout",
    "internal/poll.errNetClosing": "use of closed network connection",
    "*net.timeoutError": "i/o timeout",
    "net.canceledError": "operation was canceled",
    "net/http.tlsHandshakeTimeoutError": "net/http: TLS handshake timeout",
    "net/http.http2noCachedConnError": "http2: no cached connection was available",
}

#: What stands in front of a string kind's text.
_STRING_PREFIXES = {
    "runtime.errorString": "runtime error: ",
    "net.UnknownNetworkError": "unknown network ",
}

#: Fields that hold a message where they are the only string of a struct.
_MESSAGE_FIELDS = frozenset(
    {
        *("s", "msg", "Msg", "message", "Message", "text", "Text", "err", "Err", "error", "Error"),
        *("errorString", "ErrorString", "reason", "Reason", "desc", "Desc", "str", "what"),
    }
)

_Fields = dict[str, Value]


def error_message(type_name: str, value: Value, *, guess: bool) -> str | None:
    """Return the message of an error of a dynamic type; None when its rule is not known.

    ``guess``: the value is known to be an error, so that a string kind's text, or a struct's only
    string where its name suggests so, is taken for the message.
    """
    fixed = _FIXED.get(type_name)
    if fixed is not None:
        return fixed
    if type_name == "syscall.Errno" and isinstance(value, NamedValue):
        return go_errno_text(value.value) if isinstance(value.value, int) else None
    target = value.target if isinstance(value, PointerValue) else value
    if isinstance(target, StructValue):
        rule = _RULES.get(type_name)
        if rule is not None:
            return rule(dict(target.fields))
        return _only_string(target) if guess else None
    if isinstance(target, NamedValue) and isinstance(target.value, StringValue):
        prefix = _STRING_PREFIXES.get(type_name)
        return (prefix or "") + _text(target.value) if guess or prefix else None
    return None


def go_errno_text(number: int) -> str:
    """Return what syscall.Errno says: the C library's words, their first letter in lower case.

    Done as mkerrors.sh in src/syscall did when it made Go's table, which ends with 132.
    """
    text = os.strerror(number) if 0 < number < 133 else ""
    if not text or text.startswith("Unknown error"):
        return f"errno {number}"
    if text[:1].isupper() and text[1:2].islower():
        text = text[0].lower() + text[1:]
    return text


def _text(value: Value | None) -> str:
    """Return what a part contributes to a message."""
    if isinstance(value, NamedValue):
        return _text(value.value)
    if isinstance(value, StringValue):
        return value.text.decode("utf-8", "surrogateescape") + ("..." if value.is_cut else "")
    if isinstance(value, ErrorValue):
        return value.message
    if isinstance(value, InterfaceValue):
        if isinstance(value.value, Unavailable):
            return _text(value.value)
        return _address(value.value) or f"<{value.dynamic or 'error'}>"
    if isinstance(value, Unavailable):
        return f"<unavailable: {value.why}>"
    if isinstance(value, Nil):
        return "<nil>"
    return "" if value is None else str(value)


def _quoted(value: Value | None) -> str:
    return quoted(value.text) if isinstance(value, StringValue) else _text(value)


def _address(value: Value | None) -> str | None:
    """Return a net.Addr of the standard library as it prints."""
    target = value.target if isinstance(value, PointerValue) else value
    if not isinstance(target, StructValue):
        return None
    fields = dict(target.fields)
    if target.type == "net.UnixAddr":
        return _text(fields.get("Name"))
    if target.type not in ("net.TCPAddr", "net.UDPAddr", "net.IPAddr"):
        return None
    ip, zone = fields.get("IP"), fields.get("Zone")
    text = ip.text if isinstance(ip, TextValue) else ""
    if isinstance(ip, BytesValue):
        text = address_text(ip.data) or ""
    if isinstance(zone, StringValue) and zone.text:
        text += "%" + _text(zone)
    if target.type == "net.IPAddr":
        return text
    return (
        f"[{text}]:{_text(fields.get('Port'))}"
        if ":" in text
        else f"{text}:{_text(fields.get('Port'))}"
    )


def _parts(template: str) -> Callable[[_Fields], str]:
    """Return a rule that fills ``{Field}`` with a field's text, ``{Field!q}`` with it quoted."""
    pieces = template.replace("}", "{").split("{")

    def rule(fields: _Fields) -> str:
        out = []
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                out.append(piece)
            elif piece.endswith("!q"):
                out.append(_quoted(fields.get(piece[:-2])))
            else:
                out.append(_text(fields.get(piece)))
        return "".join(out)

    return rule


def _joined(fields: _Fields) -> str:
    errs = fields.get("errs")
    if not isinstance(errs, SequenceValue):
        return _text(errs)
    lines = [_text(err) for err in errs.elements]
    return "\n".join(lines + (["..."] if errs.is_cut else []))


def _is_set(value: Value | None) -> bool:
    if isinstance(value, StringValue):
        return value.length != 0
    return value is not None and not isinstance(value, Nil)


def _op_error(fields: _Fields) -> str:
    text = _text(fields.get("Op"))
    if _is_set(fields.get("Net")):
        text += " " + _text(fields["Net"])
    if _is_set(fields.get("Source")):
        text += " " + _text(fields["Source"])
    if _is_set(fields.get("Addr")):
        text += ("->" if _is_set(fields.get("Source")) else " ") + _text(fields["Addr"])
    return text + ": " + _text(fields.get("Err"))


def _dns_error(fields: _Fields) -> str:
    text = "lookup " + _text(fields.get("Name"))
    if _is_set(fields.get("Server")):
        text += " on " + _text(fields["Server"])
    return text + ": " + _text(fields.get("Err"))


def _addr_error(fields: _Fields) -> str:
    text = _text(fields.get("Err"))
    return f"address {_text(fields['Addr'])}: {text}" if _is_set(fields.get("Addr")) else text


def _only_string(value: StructValue) -> str | None:
    """Return a struct's only string where it can be taken for the message."""
    strings = [
        (name, field)
        for name, field in value.fields
        if isinstance(field, StringValue)
        or (isinstance(field, NamedValue) and isinstance(field.value, StringValue))
    ]
    if len(strings) != 1:
        return None
    name, text = strings[0]
    return _text(text) if len(value.fields) == 1 or name in _MESSAGE_FIELDS else None


_PATH = _parts("{Op} {Path}: {Err}")

_RULES: dict[str, Callable[[_Fields], str]] = {
    "*errors.errorString": _parts("{s}"),
    "*fmt.wrapError": _parts("{msg}"),
    "*fmt.wrapErrors": _parts("{msg}"),
    "*errors.joinError": _joined,
    "*io/fs.PathError": _PATH,
    "*fs.PathError": _PATH,
    "*os.PathError": _PATH,
    "*os.SyscallError": _parts("{Syscall}: {Err}"),
    "*os.LinkError": _parts("{Op} {Old} {New}: {Err}"),
    "*os/exec.Error": _parts("exec: {Name!q}: {Err}"),
    "*net.OpError": _op_error,
    "*net.DNSError": _dns_error,
    "*net.AddrError": _addr_error,
    "*net.ParseError": _parts("invalid {Type}: {Text}"),
    "*net/url.Error": _parts("{Op} {URL!q}: {Err}"),
    "*strconv.NumError": _parts("strconv.{Func}: parsing {Num!q}: {Err}"),
    "*encoding/json.SyntaxError": _parts("{msg}"),
    "*net/textproto.Error": _parts("{Code} {Msg}"),
    "*github.com/pkg/errors.fundamental": _parts("{msg}"),
    "*github.com/pkg/errors.withStack": _parts("{error}"),
    "*github.com/pkg/errors.withMessage": _parts("{msg}: {cause}"),
}
