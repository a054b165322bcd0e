# SPDX-License-Identifier: Apache-2.0
"""Times, sizes, shares and rates as users write them: one grammar for commands and configurations.

Everything raises ValueError for what it cannot read, and for what is out of any use.
"""

from __future__ import annotations

import re

_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?(ns|us|ms|s|m|h)", re.ASCII)
_NUMBER = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+", re.ASCII)
_SIZE = re.compile(r"([0-9]+) ?(?:([KMGkmg])(?:iB)?)?", re.ASCII)
_SHARE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?%?", re.ASCII)
_RATE = re.compile(r"([0-9]+\.?[0-9]*) ?/ ?([smh])", re.ASCII)
_MAX_TEXT = 100  # characters
_SCALE: int = 10**_MAX_TEXT  # no number here has more decimal places


def _scaled(text: str) -> int:
    """Return a time in ns, times ``_SCALE``, so that nothing is rounded."""
    text = text.replace("\u00b5", "u").replace("\u03bc", "u")  # micro sign, Greek letter
    at, total = 0, 0
    while at < len(text) <= _MAX_TEXT:
        part = _PART.match(text, at)
        if part is None:
            break
        whole, _, decimals = part[1].partition(".")
        scale: int = 10 ** (_MAX_TEXT - len(decimals))
        total += int(whole + decimals) * _NS[part[2]] * scale
        at = part.end()
    if not text or at < len(text):
        raise ValueError(text)
    return total


def whole_nanoseconds(text: str) -> int | None:
    """Return a time with units, ``1h30m``, in ns; None if that is not a whole number of them."""
    value, rest = divmod(_scaled(text), _SCALE)
    return None if rest else value


def nanoseconds(text: str) -> int:
    """Return a time in ns, rounded: as Go writes it, ``1h30m``, or a number of seconds.

    >>> nanoseconds("1.5ms"), nanoseconds("2")
    (1500000, 2000000000)
    """
    if _NUMBER.fullmatch(text):
        text += "s"
    value = (_scaled(text) * 2 + _SCALE) // (2 * _SCALE)
    if value >> 63:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """Return a duration of ``nanoseconds``' syntax in seconds. It is longer than 0."""
    value = nanoseconds(text) / 1e9
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def size(text: str) -> int:
    """Return a number of bytes above 0: 512K, 64M, 64MiB or 1G, in powers of 1024.

    >>> size("64MiB")
    67108864
    """
    found = _SIZE.fullmatch(text[: _MAX_TEXT + 1])
    if found is None or not int(found[1]):
        raise ValueError(text)
    return int(found[1]) << 10 * " KMG".index((found[2] or " ").upper())


def share(text: str) -> float:
    """Return a percentage above 0, 2% or 2, as a part: 0.02."""
    found = _SHARE.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= 10_000:
        raise ValueError(text)
    return float(found[1]) / 100


def per_second(text: str) -> float:
    """Return a rate above 0, ``10/s`` or ``600/m``, in events a second."""
    found = _RATE.fullmatch(text)
    if found is None or not 0 < float(found[1]) < 1e9:
        raise ValueError(text)
    return float(found[1]) / (_NS[found[2]] / 1e9)
