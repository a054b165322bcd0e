# SPDX-License-Identifier: Apache-2.0
"""Messages of errors, from their fields: no Error method of the program can be called.

Known are the errors that servers meet: those of errors, fmt, io/fs, os, net, net/url, net/http,
strconv, encoding/json, crypto/tls, crypto/x509, context, syscall and the runtime, and of
github.com/pkg/errors. Errors of other types show their values. Each rule follows the method's
source (in Go's standard library the same in all releases from 1.15 to 1.27 that have the type).
Where releases differ there is no rule: net/textproto.Error, net/http.http2headerFieldValueError.
Parts of a message that are not known are kept apart from those that are.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gotrace.records import dataclass, replace
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
from gotrace.values.scalars import quoted
from gotrace.values.stdlib_text import address_text


@dataclass(frozen=True, slots=True)
class Message:
    """A message, or a part of one; ``known``, ``length`` and ``guessed`` as in ErrorValue."""

    text: str
    known: str | None = None
    length: int | None = None
    guessed: bool = False

    def __add__(self, other: Message | str) -> Message:
        part = Message(other) if isinstance(other, str) else other
        guessed = self.guessed or part.guessed
        if self.known is None:
            known = None if part.known is None else self.text + part.known
            return Message(self.text + part.text, known, _sum(self, part), guessed)
        # A cut text says so within a message, and a replacement does already.
        gap = "..." if self.known == self.text and part.text else ""
        return Message(self.text + gap + part.text, self.known, _sum(self, part), guessed)

    def __radd__(self, other: str) -> Message:
        return Message(other) + self


def _sum(*parts: Message) -> int | None:
    """Return the length of parts together, where at least one is not whole."""
    total = 0
    for part in parts:
        length = part.length
        if part.known is None:
            length = len(part.text.encode("utf-8", "surrogateescape"))
        if length is None:
            return None
        total += length
    return total


def go_errno_text(number: int) -> str:
    """Return the text of a syscall.Errno: the C library's, with its first letter in lower case.

    Done as mkerrors.sh in src/syscall did when it made Go's table, which ends with 132.
    """
    text = os.strerror(number) if 0 < number < 133 else ""
    if not text or text.startswith("Unknown error"):
        return f"errno {number}"
    if text[:1].isupper() and text[1:2].islower():
        text = text[0].lower() + text[1:]
    return text


def text_of(value: Value | None) -> Message:
    """Return a part's text in a message."""
    if isinstance(value, NamedValue):
        return text_of(value.value)
    if isinstance(value, StringValue):
        data = _whole_characters(value)
        text = data.decode("utf-8", "surrogateescape")
        return Message(text, text, value.length) if value.is_cut else Message(text)
    if isinstance(value, ErrorValue):
        return Message(value.message, value.known, value.length, value.guessed)
    if isinstance(value, TextValue):
        return Message(value.text)
    if isinstance(value, InterfaceValue):
        if isinstance(value.value, UnavailableValue):
            return text_of(value.value)
        return address_of(value.value) or missing_text(f"<{value.dynamic or 'error'}>")
    if isinstance(value, UnavailableValue):
        return missing_text(f"<unavailable: {value.why}>")
    if isinstance(value, Nil):
        return Message("<nil>")
    if value is None or isinstance(value, bool | int | float | complex):
        return Message("" if value is None else str(value))
    return missing_text(f"<{getattr(value, 'type', 'error')}>")


def missing_text(text: str) -> Message:
    """Return the text that stands in a message for a part that is not known."""
    return Message(text, "")


def _whole_characters(value: StringValue) -> bytes:
    """Return a string's text, without a last character that a cut went through."""
    if value.is_cut:
        try:
            value.text.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return value.text[: error.start]
    return value.text


def quoted_text(value: Value | None) -> Message:
    if isinstance(value, NamedValue):
        return quoted_text(value.value)
    if not isinstance(value, StringValue):
        return text_of(value)
    shown = quoted(_whole_characters(value))
    return Message(f"{shown}...", shown[:-1]) if value.is_cut else Message(shown)


def address_of(value: Value | None) -> Message | None:
    """Return a net.Addr of the standard library as it prints."""
    target = value.target if isinstance(value, PointerValue) else value
    if not isinstance(target, StructValue):
        return None
    fields = dict(target.fields)
    if target.type == "net.UnixAddr":
        return text_of(fields.get("Name"))
    if target.type not in ("net.TCPAddr", "net.UDPAddr", "net.IPAddr"):
        return None
    zone = fields.get("Zone")
    text = _ip(fields.get("IP"))
    if is_set(zone):
        text += with_prefix("%", zone)
    if target.type == "net.IPAddr":
        return text
    certain = text.text if text.known is None else text.known
    host = "[" + text + "]" if ":" in certain else text
    return host + ":" + text_of(fields.get("Port"))


def _ip(value: Value | None) -> Message:
    if isinstance(value, BytesValue) and not value.is_cut:
        odd = f"?{value.data.hex()}" if value.data else ""
        return Message(address_text(value.data) or odd)
    if isinstance(value, BytesValue):
        return missing_text("<net.IP>")
    return Message("") if value is None or isinstance(value, Nil) else text_of(value)


def is_set(value: Value | None) -> bool:
    if isinstance(value, StringValue):
        return value.length != 0
    return value is not None and not isinstance(value, Nil)


def with_prefix(mark: str, value: Value | None) -> Message:
    """Return a part that is set with its mark, of which neither is certain if it is not known."""
    if isinstance(value, UnavailableValue):
        return missing_text(mark + text_of(value).text)
    return mark + text_of(value)


#: Messages of types that have no fields.
FIXED = {
    "context.deadlineExceededError": "context deadline exceeded",
    "*internal/poll.DeadlineExceededError": "i/o timeout",
    "*poll.DeadlineExceededError": "i/o timeout",
    "internal/poll.errNetClosing": "use of closed network connection",
    "*net.timeoutError": "i/o timeout",
    "net.canceledError": "operation was canceled",
    "net/http.tlsHandshakeTimeoutError": "net/http: TLS handshake timeout",
    "net/http.http2noCachedConnError": "http2: no cached connection was available",
    "net/http/internal/http2.noCachedConnError": "http2: no cached connection was available",
    "net/http.http2goAwayFlowError": "connection exceeded flow control window size",
    "net/http/internal/http2.goAwayFlowError": "connection exceeded flow control window size",
    "*net/http.MaxBytesError": "http: request body too large",
    "crypto/tls.timeoutError": "tls: DialWithDialer timed out",
    "*crypto/tls.ECHRejectionError": "tls: server rejected ECH",
    "crypto/x509.ConstraintViolationError": (
        "x509: invalid signature: parent certificate cannot sign this kind of certificate"
    ),
    "crypto/x509.UnhandledCriticalExtension": "x509: unhandled critical extension",
}

_Fields = dict[str, Value]


_Rule = Callable[[_Fields], Message]


def _parts(template: str) -> _Rule:
    """Return a rule that fills ``{Field}`` with a field's text, ``{Field!q}`` with it quoted.

    ``{Field!code}`` is the name of an error code of HTTP/2. For what is not a struct, a field
    without a name means all of it.
    """
    pieces = template.replace("}", "{").split("{")

    def rule(fields: _Fields) -> Message:
        message = Message("")
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                message += piece
            elif piece.endswith("!q"):
                message += quoted_text(fields.get(piece[:-2]))
            elif piece.endswith("!code"):
                message += _code(fields.get(piece[:-5]))
            else:
                message += text_of(fields.get(piece))
        return message

    return rule


def _joined(fields: _Fields) -> Message:
    errs = fields.get("errs")
    if not isinstance(errs, SequenceValue):
        return text_of(errs)
    message = Message("")
    for index, err in enumerate(errs.elements):
        message = message + ("\n" if index else "") + text_of(err)
    if not errs.is_cut:
        return message
    start = "\n" if errs.elements else ""
    return message + Message(start, start)


def _op_error(fields: _Fields) -> Message:
    text = text_of(fields.get("Op"))
    if is_set(fields.get("Net")):
        text += with_prefix(" ", fields["Net"])
    if is_set(fields.get("Source")):
        text += with_prefix(" ", fields["Source"])
    if is_set(fields.get("Addr")):
        text += with_prefix("->" if is_set(fields.get("Source")) else " ", fields["Addr"])
    return text + ": " + text_of(fields.get("Err"))


def _dns_error(fields: _Fields) -> Message:
    text = "lookup " + text_of(fields.get("Name"))
    if is_set(fields.get("Server")):
        text += with_prefix(" on ", fields["Server"])
    return text + ": " + text_of(fields.get("Err"))


def _addr_error(fields: _Fields) -> Message:
    address, text = fields.get("Addr"), text_of(fields.get("Err"))
    if isinstance(address, UnavailableValue):
        return missing_text(f"address {text_of(address).text}: ") + text
    return "address " + text_of(address) + ": " + text if is_set(address) else text


def _roots_error(fields: _Fields) -> Message:
    text = Message("x509: failed to load system roots and no roots provided")
    return text + with_prefix("; ", fields["Err"]) if is_set(fields.get("Err")) else text


def _stream_error(fields: _Fields) -> Message:
    text = "stream error: stream ID " + text_of(fields.get("StreamID"))
    text = text + "; " + _code(fields.get("Code"))
    return text + with_prefix("; ", fields["Cause"]) if is_set(fields.get("Cause")) else text


#: By a runtime.boundsErrorCode, as boundsErrorFmts of runtime/error.go. The one for slices that are
#: converted to arrays differs between releases.
_BOUNDS = (
    "index out of range [{x}] with length {y}",
    "slice bounds out of range [:{x}] with length {y}",
    "slice bounds out of range [:{x}] with capacity {y}",
    "slice bounds out of range [{x}:{y}]",
    "slice bounds out of range [::{x}] with length {y}",
    "slice bounds out of range [::{x}] with capacity {y}",
    "slice bounds out of range [:{x}:{y}]",
    "slice bounds out of range [{x}:{y}:]",
)


def _bounds(fields: _Fields) -> Message:
    x, code = fields.get("x"), fields.get("code")
    number = code.value if isinstance(code, NamedValue) else code
    if number == len(_BOUNDS):
        start = _parts("runtime error: cannot convert slice with length {y} to ")(fields)
        return start + missing_text("<array>") + _parts(" with length {x}")(fields)
    if not isinstance(x, int) or not isinstance(number, int) or number > len(_BOUNDS):
        return missing_text("<runtime.boundsError>")
    text = _BOUNDS[number]
    if x < 0 and fields.get("signed") is True:  # see boundsNegErrorFmts
        text = text.partition(" with ")[0].replace("{y}", "")
    return _parts("runtime error: " + text)(
        {**fields, "x": x if fields.get("signed") else x % 2**64}
    )


def _number(value: Value | None) -> int | None:
    number = value.value if isinstance(value, NamedValue) else value
    return number if isinstance(number, int) else None


def _code(value: Value | None) -> Message:
    """Return an error code of HTTP/2 as it prints."""
    number = _number(value)
    if number is None:
        return text_of(value)
    return Message(_HTTP2_CODES.get(number, f"unknown error code {number:#x}"))


def _alert(fields: _Fields) -> Message:
    number = _number(fields.get(""))
    if number is None:
        return text_of(fields.get(""))
    return Message("tls: " + _ALERTS.get(number, f"alert({number})"))


def _authority_error(fields: _Fields) -> Message:
    text = Message("x509: certificate signed by unknown authority")
    hint = fields.get("hintErr")
    return text + missing_text(" (possibly because of ...)") if is_set(hint) else text


def _certificate_error(fields: _Fields) -> Message:
    reason, detail = _number(fields.get("Reason")), fields.get("Detail")
    if reason is None:
        return missing_text("<crypto/x509.CertificateInvalidError>")
    text = Message("x509: " + _CERTIFICATES.get(reason, "unknown error"))
    has_detail = reason in _DETAILED or (reason == _NO_CHAINS and is_set(detail))
    return text + ": " + text_of(detail) if has_detail else text


def _hostname_error(fields: _Fields) -> Message:
    """Return the host that was wanted: the message has the certificate's names as well."""
    return missing_text("<crypto/x509.HostnameError ") + text_of(fields.get("Host")) + ">"


_PATH = _parts("{Op} {Path}: {Err}")

#: By the type of a pointer; fields are those of what it points to.
POINTER_RULES: dict[str, _Rule] = {
    "*errors.errorString": _parts("{s}"),
    "*fmt.wrapError": _parts("{msg}"),
    "*fmt.wrapErrors": _parts("{msg}"),
    "*errors.joinError": _joined,
    "*io/fs.PathError": _PATH,
    "*fs.PathError": _PATH,
    "*os.PathError": _PATH,
    "*os.SyscallError": _parts("{Syscall}: {Err}"),
    "*os.LinkError": _parts("{Op} {Old} {New}: {Err}"),
    "*net.OpError": _op_error,
    "*net.DNSError": _dns_error,
    "*net.AddrError": _addr_error,
    "*net.ParseError": _parts("invalid {Type}: {Text}"),
    "*net/url.Error": _parts("{Op} {URL!q}: {Err}"),
    "*strconv.NumError": _parts("strconv.{Func}: parsing {Num!q}: {Err}"),
    "*encoding/json.SyntaxError": _parts("{msg}"),
    "*encoding/json.UnsupportedValueError": _parts("json: unsupported value: {Str}"),
    "*encoding/json.InvalidUTF8Error": _parts("json: invalid UTF-8 in string: {S!q}"),
    "*crypto/tls.CertificateVerificationError": _parts("tls: failed to verify certificate: {Err}"),
    "*crypto/tls.permanentError": _parts("{err}"),
    "*crypto/tls.permamentError": _parts("{err}"),
    "*net.DNSConfigError": _parts("error reading DNS config: {Err}"),
    "*net.notFoundError": _parts("{s}"),
    "*net.temporaryError": _parts("{s}"),
    "*net/http.ProtocolError": _parts("{ErrorString}"),
    "*net/http.httpError": _parts("{err}"),
    "*net/http.http2httpError": _parts("{msg}"),
    "*net/http/internal/http2.httpError": _parts("{msg}"),
    "*net/http.timeoutError": _parts("{err}"),
    "*net/http.unsupportedTEError": _parts("{err}"),
    "*github.com/pkg/errors.fundamental": _parts("{msg}"),
    "*github.com/pkg/errors.withStack": _parts("{error}"),
    "*github.com/pkg/errors.withMessage": _parts("{msg}: {cause}"),
}

_HTTP2_CODES = dict(
    enumerate(
        (
            *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR"),
            *("SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM"),
            *("CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
            *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
        )
    )
)

#: alertText in alert.go of crypto/tls, the same in all releases; Go 1.23 has added the last.
_ALERTS = {
    0: "close notify",
    10: "unexpected message",
    20: "bad record MAC",
    21: "decryption failed",
    22: "record overflow",
    30: "decompression failure",
    40: "handshake failure",
    42: "bad certificate",
    43: "unsupported certificate",
    44: "revoked certificate",
    45: "expired certificate",
    46: "unknown certificate",
    47: "illegal parameter",
    48: "unknown certificate authority",
    49: "access denied",
    50: "error decoding message",
    51: "error decrypting message",
    60: "export restriction",
    70: "protocol version not supported",
    71: "insufficient security level",
    80: "internal error",
    86: "inappropriate fallback",
    90: "user canceled",
    100: "no renegotiation",
    109: "missing extension",
    110: "unsupported extension",
    111: "certificate unobtainable",
    112: "unrecognized name",
    113: "bad certificate status response",
    114: "bad certificate hash value",
    115: "unknown PSK identity",
    116: "certificate required",
    120: "no application protocol",
    121: "encrypted client hello required",
}

#: By an InvalidReason of crypto/x509's verify.go; another one is unknown to it, too.
_CERTIFICATES = {
    0: "certificate is not authorized to sign other certificates",
    1: "certificate has expired or is not yet valid",
    2: "a root or intermediate certificate is not authorized to sign for this name",
    3: "too many intermediates for path length constraint",
    4: "certificate specifies an incompatible key usage",
    5: "issuer name does not match subject from issuing certificate",
    6: "issuer has name constraints but leaf doesn't have a SAN extension",
    7: "issuer has name constraints but leaf contains unknown or unconstrained name",
    9: "a root or intermediate certificate is not authorized for an extended key usage",
    10: "no valid chains built",
}
_DETAILED, _NO_CHAINS = {1, 2, 7, 9}, 10


def _http2_rules(prefix: str) -> dict[str, _Rule]:
    return {
        f"{prefix}ConnectionError": _parts("connection error: {!code}"),
        f"{prefix}StreamError": _stream_error,
        f"{prefix}GoAwayError": _parts(
            "http2: server sent GOAWAY and closed the connection; LastStreamID={LastStreamID}, "
            "ErrCode={ErrCode!code}, debug={DebugData!q}"
        ),
        f"{prefix}connError": _parts("http2: connection error: {Code!code}: {Reason}"),
        f"{prefix}pseudoHeaderError": _parts("invalid pseudo-header {!q}"),
        f"{prefix}duplicatePseudoHeaderError": _parts("duplicate pseudo-header {!q}"),
        f"{prefix}headerFieldNameError": _parts("invalid header field name {!q}"),
    }


#: Rules of methods that have no pointer for a receiver.
VALUE_RULES: dict[str, _Rule] = {
    "crypto/tls.AlertError": _alert,
    "crypto/tls.RecordHeaderError": _parts("tls: {Msg}"),
    "crypto/tls.alert": _alert,
    "crypto/x509.CertificateInvalidError": _certificate_error,
    "crypto/x509.HostnameError": _hostname_error,
    "crypto/x509.SystemRootsError": _roots_error,
    "crypto/x509.UnknownAuthorityError": _authority_error,
    "net.InvalidAddrError": _parts("{}"),
    "net.UnknownNetworkError": _parts("unknown network {}"),
    "net/http.badRequestError": _parts("Bad Request: {}"),
    "net/http.nothingWrittenError": _parts("{error}"),
    "net/http.transportReadFromServerError": _parts(
        "net/http: Transport failed to read from server: {err}"
    ),
    "net/textproto.ProtocolError": _parts("{}"),
    "net/url.EscapeError": _parts("invalid URL escape {!q}"),
    "net/url.InvalidHostError": _parts("invalid character {!q} in host name"),
    "runtime.boundsError": _bounds,
    "runtime.errorAddressString": _parts("runtime error: {msg}"),
    "runtime.errorString": _parts("runtime error: {}"),
    "runtime.plainError": _parts("{}"),
    **_http2_rules("net/http.http2"),
    **_http2_rules("net/http/internal/http2."),
}


#: The fields of which the messages are made, of errors that hold a connection or certificates as
#: well: rows are by what is said, and a certificate is more than a key has room for.
KEY_FIELDS = {
    "crypto/tls.CertificateVerificationError": {"Err"},
    "crypto/tls.RecordHeaderError": {"Msg"},
    "crypto/x509.CertificateInvalidError": {"Reason", "Detail"},
    "crypto/x509.HostnameError": {"Host"},
    "crypto/x509.UnknownAuthorityError": {"hintErr"},
}

#: Fields that hold a message where they are the only string of a struct.
_MESSAGE_FIELDS = frozenset(
    {
        *("s", "msg", "Msg", "message", "Message", "text", "Text", "err", "Err", "error", "Error"),
        *("errorString", "ErrorString", "reason", "Reason", "desc", "Desc", "str", "what"),
    }
)


def error_value(type_name: str, value: Value, *, guess: bool) -> ErrorValue | None:
    """Return an error of a dynamic type with its message; None when its rule is not known.

    ``guess``: the value is known to be an error, so that the text of a string kind, or a struct's
    only string where its name says so, is taken for the message. No type of the standard library
    is guessed about: its sources are known, and those that have no rule say more than that.
    """
    message = _message(type_name, value, guess)
    if message is None:
        return None
    length = None if message.known is None else message.length
    return ErrorValue(type_name, message.text, value, message.known, length, message.guessed)


def _message(type_name: str, value: Value, guess: bool) -> Message | None:
    fixed = FIXED.get(type_name)
    if fixed is not None:
        return Message(fixed)
    target = value.target if isinstance(value, PointerValue) else value
    if type_name == "syscall.Errno" and isinstance(target, NamedValue):
        return Message(go_errno_text(target.value)) if isinstance(target.value, int) else None
    rule = POINTER_RULES.get(type_name)
    if rule is None and type_name.startswith("*"):
        # A pointer has the methods of what it points to.
        rule = VALUE_RULES.get(type_name[1:])
    elif rule is None:
        rule = VALUE_RULES.get(type_name)
    if rule is not None and isinstance(target, StructValue):
        return rule(dict(target.fields))
    if not isinstance(target, NamedValue | StructValue):
        return None
    if rule is not None:
        return rule({"": target})
    if not guess or _is_standard(type_name):
        return None
    found: Message | None = None
    if isinstance(target, StructValue):
        found = _only_message(target)
    elif isinstance(target.value, StringValue):
        found = text_of(target)
    return None if found is None else replace(found, guessed=True)


def _is_standard(type_name: str) -> bool:
    """Return whether a type is the standard library's: its path's first word has no dot."""
    path = type_name.partition("[")[0].lstrip("*")
    first, slash, _ = path.partition("/")
    package = first if slash else first.rpartition(".")[0]
    return package != "main" and "." not in package.replace("%2e", ".")


def _only_message(value: StructValue) -> Message | None:
    """Return a struct's only string where its name says that it is the message."""
    strings = [
        (name, field)
        for name, field in value.fields
        if isinstance(field, StringValue)
        or (isinstance(field, NamedValue) and isinstance(field.value, StringValue))
    ]
    if len(strings) != 1:
        return None
    name, text = strings[0]
    return text_of(text) if name in _MESSAGE_FIELDS else None
