# SPDX-License-Identifier: Apache-2.0
"""Results of String methods, from fields: no method of the program can be called.

Known are those of pointers to net/url.URL and the addresses of net, and of time's months and days.
Sources: src/net/url/url.go, src/net/tcpsock.go and src/time/time.go, from Go 1.15 to 1.27.
"""

from __future__ import annotations

import re

from gotrace.values.error_messages import Message, address_of, is_set, text_of
from gotrace.values.model import (
    NamedValue,
    PointerValue,
    StringValue,
    StructValue,
    Value,
)
from gotrace.values.stdlib_text import MONTHS

_NAMES = {
    "time.Month": ("", *MONTHS),
    "time.Weekday": (
        *("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    ),
}
#: What stands in a URL for a user, whose name lies behind a pointer, and for a password.
_USER = "..."
_PLAIN = rb"A-Za-z0-9_.~\-"
_NOT_IN_PATH = re.compile(rb"[^%b$&+,/:;=@]" % _PLAIN)
_NOT_IN_HOST = re.compile(rb"[^%b!$&'()*+,;=:\[\]<>\"]" % _PLAIN)
_NOT_IN_FRAGMENT = re.compile(rb"[^%b$&+,/:;=?@!()*]" % _PLAIN)
_MAY_BE_ENCODED = re.compile(rb"(?:[%b!$&'()*+,;=:@\[\]/?%%])*" % _PLAIN)


def number_text(number: object, type_name: str) -> str | None:
    """Return the text of a time.Month or time.Weekday; None for other types."""
    names = _NAMES.get(type_name)
    if names is None or not isinstance(number, int):
        return None
    name = names[number] if 0 <= number < len(names) else ""
    return name or f"%!{type_name.removeprefix('time.')}({number})"


def string_text(value: Value | None) -> str | None:
    """Return the result of the String method of a pointer or a number; None if it is not known."""
    if isinstance(value, NamedValue):
        return number_text(value.value, value.type)
    target = value.target if isinstance(value, PointerValue) else None
    if not isinstance(target, StructValue):
        return None
    is_url = target.type == "net/url.URL"
    text = _url(dict(target.fields)) if is_url else address_of(target)
    return None if text is None else text.text + ("..." if text.known == text.text else "")


def _url(fields: dict[str, Value]) -> Message:
    """Follow URL.String; a part that is cut ends with dots."""
    text = Message("")
    scheme, host, user = fields.get("Scheme"), fields.get("Host"), fields.get("User")
    path = _escaped(fields, "Path", "RawPath", _NOT_IN_PATH)
    if is_set(scheme):
        text += text_of(scheme) + ":"
    if is_set(fields.get("Opaque")):
        text += text_of(fields["Opaque"])
    else:
        has_no_host = fields.get("OmitHost") is True and not is_set(host) and not is_set(user)
        if (is_set(scheme) or is_set(host) or is_set(user)) and not has_no_host:
            if is_set(host) or is_set(fields.get("Path")) or is_set(user):
                text += "//"
            if is_set(user):
                text += f"{_USER}@"
            if is_set(host):
                text += _percent(host, _NOT_IN_HOST)
        begins = path.text[:1]
        if begins and begins != "/" and is_set(host):
            text += "/"
        if not text.text and ":" in path.text.partition("/")[0]:
            text += "./"
        text += path
    if fields.get("ForceQuery") is True or is_set(fields.get("RawQuery")):
        text += "?" + text_of(fields.get("RawQuery"))
    if is_set(fields.get("Fragment")):
        text += "#" + _escaped(fields, "Fragment", "RawFragment", _NOT_IN_FRAGMENT)
    return text


def _escaped(
    fields: dict[str, Value], name: str, raw_name: str, escaped: re.Pattern[bytes]
) -> Message:
    """Return a part as it was written if that is what it means, else with its bytes escaped."""
    value, raw = fields.get(name), fields.get(raw_name)
    if isinstance(raw, StringValue) and raw.text and _MAY_BE_ENCODED.fullmatch(raw.text):
        from urllib.parse import unquote_to_bytes

        plain = value.text if isinstance(value, StringValue) else b""
        meant = unquote_to_bytes(raw.text)
        if meant == plain or ((raw.is_cut or getattr(value, "is_cut", False)) and plain):
            return text_of(raw)
    if isinstance(value, StringValue) and value.text == b"*":
        return Message("*")
    return _percent(value, escaped)


def _percent(value: Value | None, escaped: re.Pattern[bytes]) -> Message:
    if not isinstance(value, StringValue):
        return text_of(value)
    shown = escaped.sub(lambda found: b"%%%02X" % found[0][0], value.text).decode()
    return Message(shown, shown, value.length) if value.is_cut else Message(shown)
