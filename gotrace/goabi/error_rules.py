"""Say how the errors of Go's standard library, and some others, word their messages.

Each rule follows the method's source in Go's standard library (the same in all releases from 1.15
to 1.27 that have the type), or in github.com/pkg/errors. Where releases differ there is no rule:
net/textproto.Error, net/http.http2headerFieldValueError.
"""

from __future__ import annotations

from collections.abc import Callable

from gotrace.goabi.error_text import (
    Message,
    behind,
    is_set,
    missing_text,
    quoted_text,
    text_of,
)
from gotrace.goabi.values import NamedValue, SequenceValue, Unavailable, Value

__all__ = ["FIXED", "POINTER_RULES", "VALUE_RULES"]

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

    ``{Field!code}`` is the name of an error code of HTTP/2. For what is no struct, a field without
    a name stands for all of it.
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
        text += behind(" ", fields["Net"])
    if is_set(fields.get("Source")):
        text += behind(" ", fields["Source"])
    if is_set(fields.get("Addr")):
        text += behind("->" if is_set(fields.get("Source")) else " ", fields["Addr"])
    return text + ": " + text_of(fields.get("Err"))


def _dns_error(fields: _Fields) -> Message:
    text = "lookup " + text_of(fields.get("Name"))
    if is_set(fields.get("Server")):
        text += behind(" on ", fields["Server"])
    return text + ": " + text_of(fields.get("Err"))


def _addr_error(fields: _Fields) -> Message:
    address, text = fields.get("Addr"), text_of(fields.get("Err"))
    if isinstance(address, Unavailable):
        return missing_text(f"address {text_of(address).text}: ") + text
    return "address " + text_of(address) + ": " + text if is_set(address) else text


def _address_parse_error(fields: _Fields) -> Message:
    at = fields.get("at")
    text = "ParseAddr(" + quoted_text(fields.get("in")) + "): " + text_of(fields.get("msg"))
    if isinstance(at, Unavailable):
        return text + behind(" (at ", at) + ")"
    return text + " (at " + quoted_text(at) + ")" if is_set(at) else text


def _roots_error(fields: _Fields) -> Message:
    text = Message("x509: failed to load system roots and no roots provided")
    return text + behind("; ", fields["Err"]) if is_set(fields.get("Err")) else text


def _stream_error(fields: _Fields) -> Message:
    text = "stream error: stream ID " + text_of(fields.get("StreamID"))
    text = text + "; " + _code(fields.get("Code"))
    return text + behind("; ", fields["Cause"]) if is_set(fields.get("Cause")) else text


def _code(value: Value | None) -> Message:
    """Return an error code of HTTP/2 as it prints."""
    number = value.value if isinstance(value, NamedValue) else value
    if not isinstance(number, int):
        return text_of(value)
    return Message(_HTTP2_CODES.get(number, f"unknown error code {number:#x}"))


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
    "*os/exec.Error": _parts("exec: {Name!q}: {Err}"),
    "*net.OpError": _op_error,
    "*net.DNSError": _dns_error,
    "*net.AddrError": _addr_error,
    "*net.ParseError": _parts("invalid {Type}: {Text}"),
    "*net/url.Error": _parts("{Op} {URL!q}: {Err}"),
    "*strconv.NumError": _parts("strconv.{Func}: parsing {Num!q}: {Err}"),
    "*encoding/json.SyntaxError": _parts("{msg}"),
    "*encoding/json.UnsupportedValueError": _parts("json: unsupported value: {Str}"),
    "*encoding/json.InvalidUTF8Error": _parts("json: invalid UTF-8 in string: {S!q}"),
    "*encoding/xml.SyntaxError": _parts("XML syntax error on line {Line}: {Msg}"),
    "*compress/flate.ReadError": _parts("flate: read error at offset {Offset}: {Err}"),
    "*compress/flate.WriteError": _parts("flate: write error at offset {Offset}: {Err}"),
    "*crypto/tls.CertificateVerificationError": _parts("tls: failed to verify certificate: {Err}"),
    "*crypto/tls.permanentError": _parts("{err}"),
    "*crypto/tls.permamentError": _parts("{err}"),
    "*go/build.NoGoError": _parts("no buildable Go source files in {Dir}"),
    "*go/build/constraint.SyntaxError": _parts("{Err}"),
    "*net.DNSConfigError": _parts("error reading DNS config: {Err}"),
    "*net.notFoundError": _parts("{s}"),
    "*net.temporaryError": _parts("{s}"),
    "*net/http.ProtocolError": _parts("{ErrorString}"),
    "*net/http.httpError": _parts("{err}"),
    "*net/http.http2httpError": _parts("{msg}"),
    "*net/http/internal/http2.httpError": _parts("{msg}"),
    "*net/http.timeoutError": _parts("{err}"),
    "*net/http.unsupportedTEError": _parts("{err}"),
    "*regexp/syntax.Error": _parts("error parsing regexp: {Code}: `{Expr}`"),
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
    "compress/bzip2.StructuralError": _parts("bzip2 data invalid: {}"),
    "compress/flate.CorruptInputError": _parts("flate: corrupt input before offset {}"),
    "compress/flate.InternalError": _parts("flate: internal error: {}"),
    "crypto/aes.KeySizeError": _parts("crypto/aes: invalid key size {}"),
    "crypto/des.KeySizeError": _parts("crypto/des: invalid key size {}"),
    "crypto/rc4.KeySizeError": _parts("crypto/rc4: invalid key size {}"),
    "crypto/tls.RecordHeaderError": _parts("tls: {Msg}"),
    "crypto/x509.SystemRootsError": _roots_error,
    "encoding/ascii85.CorruptInputError": _parts("illegal ascii85 data at input byte {}"),
    "encoding/asn1.StructuralError": _parts("asn1: structure error: {Msg}"),
    "encoding/asn1.SyntaxError": _parts("asn1: syntax error: {Msg}"),
    "encoding/base32.CorruptInputError": _parts("illegal base32 data at input byte {}"),
    "encoding/base64.CorruptInputError": _parts("illegal base64 data at input byte {}"),
    "encoding/xml.UnmarshalError": _parts("{}"),
    "image/jpeg.FormatError": _parts("invalid JPEG format: {}"),
    "image/jpeg.UnsupportedError": _parts("unsupported JPEG feature: {}"),
    "image/png.FormatError": _parts("png: invalid format: {}"),
    "image/png.UnsupportedError": _parts("png: unsupported feature: {}"),
    "math/big.ErrNaN": _parts("{msg}"),
    "net.InvalidAddrError": _parts("{}"),
    "net.UnknownNetworkError": _parts("unknown network {}"),
    "net/http.badRequestError": _parts("Bad Request: {}"),
    "net/http.nothingWrittenError": _parts("{error}"),
    "net/http.transportReadFromServerError": _parts(
        "net/http: Transport failed to read from server: {err}"
    ),
    "net/mail.charsetError": _parts("charset not supported: {!q}"),
    "net/netip.parseAddrError": _address_parse_error,
    "net/netip.parsePrefixError": _parts("netip.ParsePrefix({in!q}): {msg}"),
    "net/rpc.ServerError": _parts("{}"),
    "net/textproto.ProtocolError": _parts("{}"),
    "net/url.EscapeError": _parts("invalid URL escape {!q}"),
    "net/url.InvalidHostError": _parts("invalid character {!q} in host name"),
    "os/exec.wrappedError": _parts("{prefix}: {err}"),
    "os/user.UnknownGroupError": _parts("group: unknown group {}"),
    "os/user.UnknownGroupIdError": _parts("group: unknown groupid {}"),
    "os/user.UnknownUserError": _parts("user: unknown user {}"),
    "os/user.UnknownUserIdError": _parts("user: unknown userid {}"),
    "runtime.errorAddressString": _parts("runtime error: {msg}"),
    "runtime.errorString": _parts("runtime error: {}"),
    "runtime.plainError": _parts("{}"),
    "text/template.ExecError": _parts("{Err}"),
    "time.fileSizeError": _parts("time: file {} is too large"),
    **_http2_rules("net/http.http2"),
    **_http2_rules("net/http/internal/http2."),
}
