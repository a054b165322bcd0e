# SPDX-License-Identifier: Apache-2.0
"""Leave out of values what is not to leave the host.

Errors are their types unless their texts are asked for: texts have paths, names and queries of
users. Fields, keys and names that say that a secret is in them are not read out. A value may be
exported as its hash instead.
"""

from __future__ import annotations

import re
from enum import Enum
from hashlib import blake2b
from secrets import token_bytes

from gotrace.records import dataclass, replace
from gotrace.values.model import (
    ErrorValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    Value,
)

#: Words in names of what is not exported; they count without -, _ and case.
DENIED = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "cookie"),
    *("credential", "apikey", "privatekey", "accesskey", "session", "bearer", "signature"),
    *("creditcard", "cardnumber", "cvv", "ssn", "iban"),
)
#: The text in place of a value that is not exported.
_LEFT_OUT = "redacted"
_MAX_DEPTH = 16
_NAME = re.compile(r"[^\W\d][\w-]*")
#: Who a URL is asked as.
_USER = re.compile(r"[^/\s]+@")
_HASH_BYTES = 8
_RANDOM = token_bytes(32)


class Errors(Enum):
    """The part of an error that is exported."""

    OFF = "off"
    TYPE = "type"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Privacy:
    """The values that are exported: ``denied`` are words, and ``key`` is that of hashes.

    Without a key hashes are of a random one, and are others after a restart.
    """

    errors: Errors = Errors.TYPE
    denied: tuple[str, ...] = DENIED
    key: bytes | None = None

    def denied_name(self, text: str) -> str | None:
        """Return the first name in an expression that is denied, None if there is no such name."""
        return next((name for name in _NAME.findall(text) if self._is_denied(name)), None)

    def _is_denied(self, name: str) -> bool:
        bare = name.replace("_", "").replace("-", "").lower()
        return any(word in bare for word in self.denied)

    def hashed(self, text: str) -> str:
        """Return a hash in place of a text: the same for the same text, and nothing of it."""
        key = _RANDOM if self.key is None else self.key
        data = text.encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=_HASH_BYTES, key=key[:64]).hexdigest()

    def filtered(self, value: Value, depth: int = 0) -> Value:
        """Return a value without what is not exported: texts of errors, and denied fields."""
        if isinstance(value, ErrorValue):
            if self.errors is Errors.TEXT:
                return value
            return TextValue(value.type, value.type if self.errors is Errors.TYPE else "error")
        if depth > _MAX_DEPTH:
            return TextValue("", _LEFT_OUT)
        below = depth + 1
        if isinstance(value, StructValue):
            fields = ((name, self.named(name, one, below)) for name, one in value.fields)
            return replace(value, fields=tuple(fields))
        if isinstance(value, MapValue):
            entries = (
                (self.filtered(key, below), self.named(_text(key), one, below))
                for key, one in value.entries
            )
            return replace(value, entries=tuple(entries))
        if isinstance(value, SequenceValue):
            elements = tuple(self.filtered(one, below) for one in value.elements)
            return replace(value, elements=elements)
        if isinstance(value, NamedValue):
            return replace(value, value=self.filtered(value.value, below))
        if isinstance(value, PointerValue) and value.target is not None:
            return replace(value, target=self.filtered(value.target, below))
        if isinstance(value, InterfaceValue) and value.value is not None:
            return replace(value, value=self.filtered(value.value, below))
        return value

    def named(self, name: str, value: Value, depth: int = 0) -> Value:
        """Return the same of a value that is called so: nothing if the name is denied."""
        if self._is_denied(name):
            return TextValue("", _LEFT_OUT)
        return self.filtered(value, depth)


def without_users(text: str) -> str:
    """Return a URL, or a text that has one, without the user and password in it.

    >>> without_users("http://user:hunter2@127.0.0.1:4318")
    'http://***@127.0.0.1:4318'
    """
    return _USER.sub("***@", text)


def _text(key: Value) -> str:
    if isinstance(key, NamedValue | InterfaceValue) and key.value is not None:
        return _text(key.value)
    return key.text.decode("utf-8", "replace") if isinstance(key, StringValue) else ""


def hashed_form(text: str) -> tuple[bool, str]:
    """Return whether an expression is to be hashed, and the one that the kernel captures.

    >>> hashed_form("hash: user.Name"), hashed_form("length:token")
    ((True, 'user.Name'), (False, 'len(token)'))
    """
    kind, colon, rest = text.partition(":")
    if colon and kind.strip() == "hash":
        return True, rest.strip()
    if colon and kind.strip() == "length":
        return False, f"len({rest.strip()})"
    return False, text
