# SPDX-License-Identifier: Apache-2.0
"""TLS and authentication of the endpoint, by the file of Prometheus's exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md has the format.
``bearer_tokens`` is gotraced's own. Keys that Python's ssl cannot follow are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import bcrypt
import jsonschema

from gotrace.fleet.trusted import read_trusted
from gotrace.fleet.yaml_lines import Document, read_yaml
from gotrace.records import dataclass, field, replace

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
_TEXT = {"type": "string", "minLength": 1}
_HASHES = {"type": "object", "additionalProperties": _TEXT}
_SCHEMA = {
    "type": "object",
    "properties": {
        "tls_server_config": {
            "type": "object",
            "properties": {
                "cert_file": _TEXT,
                "key_file": _TEXT,
                "client_auth_type": {"enum": list(_CLIENTS)},
                "client_ca_file": _TEXT,
                "client_allowed_sans": {"type": "array", "items": _TEXT},
                "min_version": {"enum": list(_VERSIONS)},
                "max_version": {"enum": list(_VERSIONS)},
                "prefer_server_cipher_suites": {"type": "boolean"},
            },
            "required": ["cert_file", "key_file"],
            "additionalProperties": False,
        },
        "http_server_config": {
            "type": "object",
            "properties": {
                "http2": {"type": "boolean"},
                "headers": {
                    "type": "object",
                    "properties": {key: {"type": "string"} for key in _HEADERS},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
        "basic_auth_users": _HASHES,
        "bearer_tokens": _HASHES,
    },
    "additionalProperties": False,
}
_MAX_KNOWN, _MAX_WRONG = 64, 1024
#: Compared with where there is no such user, so that how long it takes does not tell.
_NOBODY = b"$2b$10$QHTjvZ6TOJD0LxkV6h2Mj.0yCZyVF6Y1LHSsTI5nKwmNLUHJFxCWq"


@dataclass
class WebConfig:
    """The contents of a web configuration. Threads may ask it."""

    users: Mapping[str, str]
    tokens: Mapping[str, str]
    headers: Mapping[str, str]
    sans: frozenset[str]
    tls: ssl.SSLContext | None
    #: Files that it was made of, and their states then.
    files: Mapping[str, tuple[int, int] | None]
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    #: Whether what was sent before was right, by its digest; wrong ones push out no right ones.
    _right: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _wrong: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def asks(self) -> str:
        """Return the kinds of credentials for WWW-Authenticate; "" if no credentials are asked."""
        kinds = ["Basic"] * bool(self.users) + ["Bearer"] * bool(self.tokens)
        return ", ".join(kinds)

    def is_stale(self) -> bool:
        """Return whether a file has changed since."""
        return any(_state(path) != state for path, state in self.files.items())

    def seen(self) -> WebConfig:
        """Return the same, as of the files as they are now."""
        return replace(self, files={path: _state(path) for path in self.files})

    def known(self, authorization: bytes) -> bool | None:
        """Return whether a request with this header may be answered, None if that is not known.

        An answer holds until the file changes: bcrypt is slow by design.
        """
        if not self.users and not self.tokens:
            return True
        digest = self._digest(authorization)
        return True if digest in self._right else False if digest in self._wrong else None

    def lets_in(self, authorization: bytes) -> bool:
        """Return whether a request with this header may be answered; takes a tenth of a second."""
        if (known := self.known(authorization)) is not None:
            return known
        is_right = self._is_right(authorization)
        kept, most = (self._right, _MAX_KNOWN) if is_right else (self._wrong, _MAX_WRONG)
        kept[self._digest(authorization)] = None
        if len(kept) > most:
            kept.popitem(last=False)
        return is_right

    def _digest(self, authorization: bytes) -> bytes:
        return hashlib.blake2b(authorization, key=self._salt).digest()

    def _is_right(self, authorization: bytes) -> bool:
        kind, _, given = authorization.partition(b" ")
        if kind.lower() == b"bearer":
            return any(_matches(given.strip(), text.encode()) for text in self.tokens.values())
        if kind.lower() != b"basic":
            return False
        try:
            user, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        except binascii.Error:
            return False
        found = self.users.get(user.decode("utf-8", "replace"))
        return _matches(password, found.encode() if found else _NOBODY) and found is not None

    def may_connect(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client's certificate, as ``getpeercert`` has it, has a name of these."""
        if not self.sans:
            return True
        names = (certificate or {}).get("subjectAltName", ())
        return any(str(name) in self.sans for _, name in names)


def _matches(secret: bytes, hashed: bytes) -> bool:
    try:
        return bcrypt.checkpw(secret[:72], hashed)
    except ValueError:
        return False


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def load_web_config(path: str) -> WebConfig:
    """Read a web configuration. Raises UsageError with the line that is wrong."""
    text = read_trusted(path, "web configuration")
    document = read_yaml(path, text) if text.strip() else Document(path, {})
    for error in jsonschema.Draft202012Validator(_SCHEMA).iter_errors(document.data):
        raise document.error(tuple(error.absolute_path), error.message[:200])
    data: Mapping[str, Any] = document.data
    files = {path: _state(path)}
    for key in ("basic_auth_users", "bearer_tokens"):
        for name, hashed in data.get(key, {}).items():
            try:
                bcrypt.checkpw(b"", hashed.encode())
            except ValueError as error:
                reason = "this is not a bcrypt hash: htpasswd -nBC 10 '' | tr -d ':\\n' makes one"
                raise document.error((key, name), reason) from error
    tls = None
    asked = data.get("tls_server_config")
    if asked is not None:
        place = os.path.dirname(path)
        named = {key: os.path.join(place, asked[key]) for key in asked if key.endswith("_file")}
        files |= {name: _state(name) for name in named.values()}
        tls = _context(document, asked, named)
    return WebConfig(
        data.get("basic_auth_users", {}),
        data.get("bearer_tokens", {}),
        data.get("http_server_config", {}).get("headers", {}),
        frozenset((asked or {}).get("client_allowed_sans", ())),
        tls,
        files,
    )


def _context(
    document: Document, asked: Mapping[str, Any], files: Mapping[str, str]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[asked.get("min_version", "TLS12")]
    if "max_version" in asked:
        context.maximum_version = _VERSIONS[asked["max_version"]]
    at: tuple[str, ...] = ("tls_server_config", "cert_file")
    try:
        context.load_cert_chain(files["cert_file"], files["key_file"])
        at = ("tls_server_config", "client_ca_file")
        if "client_ca_file" in files:
            context.load_verify_locations(files["client_ca_file"])
    except (OSError, ssl.SSLError) as error:
        raise document.error(at, f"{error.strerror or error}") from error
    usual = "RequireAndVerifyClientCert" if "client_ca_file" in files else "NoClientCert"
    context.verify_mode = _CLIENTS[asked.get("client_auth_type", usual)]
    if context.verify_mode is not ssl.CERT_NONE and "client_ca_file" not in files:
        raise document.error(at[:1], "clients' certificates need a client_ca_file")
    if asked.get("client_allowed_sans") and context.verify_mode is not ssl.CERT_REQUIRED:
        at = ("tls_server_config", "client_allowed_sans")
        raise document.error(at, "this needs client_auth_type: RequireAndVerifyClientCert")
    return context


def empty() -> WebConfig:
    """Return the configuration without a file, which asks nothing."""
    return WebConfig({}, {}, {}, frozenset(), None, {})
