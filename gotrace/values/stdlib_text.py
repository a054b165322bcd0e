# SPDX-License-Identifier: Apache-2.0
"""The output of the standard library's String methods: durations, times, addresses.

Sources: src/time/time.go and format.go, src/net/ip.go and mac.go.
"""

from __future__ import annotations

import datetime
import ipaddress
import struct

from gotrace.values.model import TimeValue

#: The time zone database's name for a zone that is not known.
UNKNOWN_ZONE = "-00"
_UNITS = ((1_000_000, "ms"), (1_000, "\u00b5s"), (1, "ns"))
_SECOND = 1_000_000_000
_DAY = 86_400
# Days from 1 January of year 0 to 1970, in the proleptic Gregorian calendar, and in 400 years.
_DAYS_TO_1970 = 719_528
_DAYS_OF_400_YEARS = 146_097
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def duration_text(nanoseconds: int) -> str:
    """Return a time.Duration as its String method does: ``1h2m0.5s``, ``31.2\u00b5s``, ``0s``."""
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left == 0:
        return "0s"
    if left < _SECOND:
        unit, name = next(pair for pair in _UNITS if left >= pair[0])
        return f"{sign}{_decimal(left, unit)}{name}"
    minutes, left = divmod(left, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    shown = f"{hours}h" if hours else ""
    shown += f"{minutes}m" if hours or minutes else ""
    return f"{sign}{shown}{_decimal(left, _SECOND)}s"


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = f"{part:0{len(str(unit)) - 1}d}".rstrip("0") if unit > 1 else ""
    return f"{whole}.{digits}" if digits else str(whole)


def time_text(value: TimeValue) -> str:
    """Return a time.Time as its String method does, monotonic clock reading included.

    Where the zone is not known, it is the same moment in UTC.
    """
    days, seconds = divmod(value.seconds + value.offset, _DAY)
    date = _date(days)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    part = f".{value.nanoseconds:09d}".rstrip("0").rstrip(".")
    shown = f"{date} {hour:02d}:{minute:02d}:{second:02d}{part} {_offset(value.offset)}"
    shown += f" {value.zone or ('UTC' if not value.offset else _offset(value.offset))}"
    if value.monotonic is not None:
        sign = "-" if value.monotonic < 0 else "+"
        whole, nanoseconds = divmod(abs(value.monotonic), _SECOND)
        shown += f" m={sign}{whole}.{nanoseconds:09d}"
    return shown


def time_syntax(value: TimeValue) -> str:
    """Return a time.Time in UTC as its GoString method does; another one as ``time_text``."""
    if value.zone != "UTC" or value.offset:
        return time_text(value)
    days, seconds = divmod(value.seconds, _DAY)
    year, month, day = _date(days).rsplit("-", 2)
    minutes, second = divmod(seconds, 60)
    parts = (int(year), f"time.{MONTHS[int(month) - 1]}", int(day), *divmod(minutes, 60), second)
    return f"time.Date({', '.join(map(str, parts))}, {value.nanoseconds}, time.UTC)"


def _date(days: int) -> str:
    """Return the date that many days after 1970-01-01, in any year."""
    cycles, day = divmod(days + _DAYS_TO_1970, _DAYS_OF_400_YEARS)
    # Python knows the years 1 to 9999: take the day in the cycle that begins with year 400.
    date = datetime.date(400, 1, 1) + datetime.timedelta(days=day)
    year = date.year - 400 + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04d}-{date.month:02d}-{date.day:02d}"


def _offset(seconds: int) -> str:
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}{minutes % 60:02d}"


def address_text(data: bytes) -> str | None:
    """Return an IP address of 4 or 16 bytes as net.IP.String does; None for other lengths.

    An IPv4 address within IPv6 prints as IPv4 (src/net/ip.go).
    """
    if len(data) == 16 and data[:12] == b"\0" * 10 + b"\xff\xff":
        data = data[12:]
    if len(data) not in (4, 16):
        return None
    return ipv6_text(data) if len(data) == 16 else str(ipaddress.IPv4Address(data))


def ipv6_text(data: bytes) -> str:
    """Return 16 bytes as Go prints an IPv6 address: the longest run of zero words is ``::``.

    Done here because Python's ipaddress prints IPv4-mapped addresses otherwise since 3.13.
    """
    words = struct.unpack(">8H", data)
    best, at = (0, 0), 0
    while at < 8:
        end = at
        while end < 8 and words[end] == 0:
            end += 1
        if end - at > best[1] - best[0]:
            best = (at, end)
        at = end + 1
    if best[1] - best[0] < 2:
        return ":".join(f"{word:x}" for word in words)
    head = ":".join(f"{word:x}" for word in words[: best[0]])
    tail = ":".join(f"{word:x}" for word in words[best[1] :])
    return f"{head}::{tail}"


def hardware_address_text(data: bytes) -> str | None:
    """Return a hardware address as net.HardwareAddr.String does; None when it is empty."""
    return data.hex(":") if data else None
