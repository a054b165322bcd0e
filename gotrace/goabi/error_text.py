"""Write the parts of error messages, with what is not known of them told apart."""

from __future__ import annotations

import dataclasses
import os

from gotrace.goabi.nodes_text import address_text
from gotrace.goabi.values import (
    BytesValue,
    ErrorValue,
    InterfaceValue,
    NamedValue,
    Nil,
    PointerValue,
    StringValue,
    StructValue,
    TextValue,
    Unavailable,
    Value,
)
from gotrace.goabi.verb_scalars import quoted

__all__ = [
    "Message",
    "behind",
    "go_errno_text",
    "is_set",
    "missing_text",
    "quoted_text",
    "text_of",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Hold a message, or a part of one; ``known`` and ``length`` as in ErrorValue."""

    text: str
    known: str | None = None
    length: int | None = None

    def __add__(self, other: Message | str) -> Message:
        part = Message(other) if isinstance(other, str) else other
        if self.known is None:
            known = None if part.known is None else self.text + part.known
            return Message(self.text + part.text, known, _sum(self, part))
        # What was cut says so within a message, and what stands in for something does already.
        gap = "..." if self.known == self.text and part.text else ""
        return Message(self.text + gap + part.text, self.known, _sum(self, part))

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
    """Return what syscall.Errno says: the C library's words, their first letter in lower case.

    Done as mkerrors.sh in src/syscall did when it made Go's table, which ends with 132.
    """
    text = os.strerror(number) if 0 < number < 133 else ""
    if not text or text.startswith("Unknown error"):
        return f"errno {number}"
    if text[:1].isupper() and text[1:2].islower():
        text = text[0].lower() + text[1:]
    return text


def text_of(value: Value | None) -> Message:
    """Return what a part contributes to a message."""
    if isinstance(value, NamedValue):
        return text_of(value.value)
    if isinstance(value, StringValue):
        data = _whole_characters(value)
        text = data.decode("utf-8", "surrogateescape")
        return Message(text, text, value.length) if value.is_cut else Message(text)
    if isinstance(value, ErrorValue):
        return Message(value.message, value.known, value.length)
    if isinstance(value, TextValue):
        return Message(value.text)
    if isinstance(value, InterfaceValue):
        if isinstance(value.value, Unavailable):
            return text_of(value.value)
        return _address(value.value) or missing_text(f"<{value.dynamic or 'error'}>")
    if isinstance(value, Unavailable):
        return missing_text(f"<unavailable: {value.why}>")
    if isinstance(value, Nil):
        return Message("<nil>")
    if value is None or isinstance(value, bool | int | float | complex):
        return Message("" if value is None else str(value))
    return missing_text(f"<{getattr(value, 'type', 'error')}>")


def missing_text(text: str) -> Message:
    """Return what stands in a message for what is not known of it."""
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


def _address(value: Value | None) -> Message | None:
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
        text += behind("%", zone)
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


def behind(mark: str, value: Value | None) -> Message:
    """Return a part that is set with its mark, of which neither is certain if it is not known."""
    if isinstance(value, Unavailable):
        return missing_text(mark + text_of(value).text)
    return mark + text_of(value)
