# SPDX-License-Identifier: Apache-2.0
"""Capture time.Time and netip.Addr, whose fields mean nothing to a reader as they are."""

from __future__ import annotations

import struct

from gotrace.capture.builder import Builder, PlanNode
from gotrace.capture.nodes import StringNode
from gotrace.capture.ops import Position
from gotrace.capture.payload import REFUSED, PayloadReader, Reader, int_at, word_at
from gotrace.gotypes.types import Kind, PointerType, StructType, basic_type
from gotrace.records import replace
from gotrace.values.model import StringValue, TextValue, TimeValue, UnavailableValue, Value
from gotrace.values.stdlib_text import ipv6_text

_HAS_MONOTONIC = 1 << 63
_NANOSECOND_MASK = (1 << 30) - 1
#: Seconds from the year 1 to 1970, and to 1885, from which times with a monotonic reading count.
_UNIX_TO_INTERNAL = 62135596800
_WALL_TO_INTERNAL = 59453308800
_LAST_SECOND = (1 << 63) - 1

_time = struct.Struct("<QqQ").unpack_from

#: Offsets in time.Location (src/time/zoneinfo.go) since Go 1.15; DWARF's are used where they are.
_LOCATION = {"name": 0, "zone": 16, "cacheStart": 80, "cacheEnd": 88, "cacheZone": 96}
_ZONE_BYTES = 24


def time_of(wall: int, ext: int) -> TimeValue:
    """Return the time of two fields, as in UTC."""
    monotonic = None
    seconds = ext
    if wall & _HAS_MONOTONIC:
        seconds = _WALL_TO_INTERNAL + (wall >> 30 & 0x1FFFFFFFF)
        monotonic = ext
    nanoseconds = wall & _NANOSECOND_MASK
    return TimeValue(seconds - _UNIX_TO_INTERNAL, nanoseconds, monotonic=monotonic)


class TimeNode(PlanNode):
    """A time.Time (src/time/time.go: wall, ext, loc) and its zone.

    The zone is the one that the location keeps at hand, which is that of the present; times of
    another season are given in UTC. A location with a name and without zones is UTC: the local one
    is that if no time zone is configured.
    """

    __slots__ = ("_location",)

    def __init__(self, go_type: StructType) -> None:
        super().__init__(go_type)
        self._location = _location_offsets(go_type)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the location, the zone at hand, and its name."""
        reader = _TimeReader(position, self._location)
        offsets = self._location
        size = offsets["cacheZone"] + 8

        def location() -> None:
            reader.location_block = block = builder.deref(position.plus(16), size)
            if block is None:
                return
            at = Position(block, offsets["cacheZone"], size)
            reader.zone_block = zone = builder.deref(at, _ZONE_BYTES)
            if zone is not None:
                name = StringNode(basic_type(Kind.STRING))
                reader.name = name.plan(builder, Position(zone, 0, _ZONE_BYTES))

        builder.defer(location)
        return reader


def _location_offsets(go_type: StructType) -> dict[str, int]:
    field = go_type.field("loc")
    location = field.type.elem if field and isinstance(field.type, PointerType) else None
    if isinstance(location, StructType):
        found = {part.name: part.offset for part in location.fields if part.name in _LOCATION}
        if len(found) == len(_LOCATION):
            return found
    return _LOCATION


class _TimeReader(Reader):
    __slots__ = ("_offsets", "_position", "location_block", "name", "zone_block")

    def __init__(self, position: Position, offsets: dict[str, int]) -> None:
        self._position = position
        self._offsets = offsets
        self.location_block: int | None = None
        self.zone_block: int | None = None
        self.name: Reader | None = None

    def read(self, payload: PayloadReader) -> Value:
        source, offset, _ = self._position
        if payload.lengths[source] < offset + 24:
            return payload.why(source)
        wall, ext, location = _time(payload.data, payload.starts[source] + offset)
        found = time_of(wall, ext)
        if location == 0:
            return found
        zone, east = self._zone(payload, found.seconds)
        return replace(found, zone=zone, offset=east)

    def _zone(self, payload: PayloadReader, seconds: int) -> tuple[str | None, int]:
        block, zone = self.location_block, self.zone_block
        if block is None or zone is None or self.name is None:
            return None, 0
        named, zones = self._zones(payload, block)
        # The local location has no name before it is first used, and may get zones then.
        if named and zones == 0:
            return "UTC", 0
        start_at, end_at = self._offsets["cacheStart"], self._offsets["cacheEnd"]
        # Either may be cut where a page that could not be read begins.
        if (
            payload.lengths[block] < max(start_at, end_at) + 8
            or payload.lengths[zone] < _ZONE_BYTES
        ):
            return None, 0
        (start,) = int_at(payload.data, payload.starts[block] + start_at)
        (end,) = int_at(payload.data, payload.starts[block] + end_at)
        # Go 1.15 gives a location's only zone an empty period if it has a rule for the future.
        is_in_force = start <= seconds < end or (seconds >= start and end == _LAST_SECOND)
        if zones != 1 and not is_in_force:
            return None, 0
        name = self.name.read(payload)
        (east,) = int_at(payload.data, payload.starts[zone] + 16)
        # Zones are less than a day from UTC; else the copy was made in the middle of a change.
        if not isinstance(name, StringValue) or name.is_cut or abs(east) >= 86400:
            return None, 0
        return name.text.decode("utf-8", "backslashreplace"), east

    def _zones(self, payload: PayloadReader, block: int) -> tuple[bool, int | None]:
        """Return whether the location has a name, and how many zones it has (None: not copied)."""
        start, length = payload.starts[block], payload.lengths[block]
        name, zones = self._offsets["name"] + 8, self._offsets["zone"] + 8
        if length < max(name, zones) + 8:
            return False, None
        (name_bytes,) = int_at(payload.data, start + name)
        (count,) = int_at(payload.data, start + zones)
        return bool(name_bytes), count


class NetipAddrNode(PlanNode):
    """A netip.Addr (src/net/netip/netip.go: addr as two words, z as a pointer).

    Since Go 1.23, z leads to an addrDetail {isV6 bool; zoneV6 string}. Before, it leads to an
    intern.Value that begins with an interface, which holds the zone; where there is none, z is one
    of two variables of the package, and only their addresses distinguish IPv4 from IPv6. These are
    on the heap and not known here: an address that may be IPv4, or the same within IPv6, is
    unavailable.
    """

    __slots__ = ("_has_detail",)

    def __init__(self, go_type: StructType) -> None:
        super().__init__(go_type)
        field = go_type.field("z")
        self._has_detail = field is not None and isinstance(field.type, StructType)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the target of z."""
        reader = _NetipAddrReader(self.type.name, position, self._has_detail)
        name = StringNode(basic_type(Kind.STRING))

        def detail() -> None:
            reader.detail = block = builder.deref(position.plus(16), 24)
            if block is not None:
                reader.zone = name.plan(builder, Position(block, 8, 24))

        def interned() -> None:
            reader.detail = block = builder.deref(position.plus(16), 16)
            if block is None:
                return
            held = builder.deref(Position(block, 8, 16), 16)
            if held is not None:
                reader.zone = name.plan(builder, Position(held, 0, 16))

        builder.defer(detail if self._has_detail else interned)
        return reader


_address = struct.Struct("<QQQ").unpack_from


class _NetipAddrReader(Reader):
    __slots__ = ("_has_detail", "_name", "_position", "detail", "zone")

    def __init__(self, name: str, position: Position, has_detail: bool) -> None:
        self._name = name
        self._position = position
        self._has_detail = has_detail
        self.detail: int | None = None
        self.zone: Reader | None = None

    def read(self, payload: PayloadReader) -> Value:
        source, offset, _ = self._position
        if payload.lengths[source] < offset + 24:
            return payload.why(source)
        high, low, z = _address(payload.data, payload.starts[source] + offset)
        if z == 0:
            return TextValue(self._name, "invalid IP")
        if self.detail is None:
            return REFUSED
        if payload.lengths[self.detail] < (1 if self._has_detail else 8):
            return payload.why(self.detail)
        data = struct.pack(">QQ", high, low)
        v4 = ".".join(map(str, data[12:]))
        maybe_v4 = data[:12] == b"\0" * 10 + b"\xff\xff"
        start = payload.starts[self.detail]
        if self._has_detail and not payload.data[start]:
            return TextValue(self._name, v4)
        zone = ""
        if not self._has_detail and not word_at(payload.data, start)[0]:
            if maybe_v4:
                return UnavailableValue(f"{v4} or ::ffff:{v4}")
        else:
            # Without its zone it would be another address.
            found = self.zone.read(payload) if self.zone is not None else REFUSED
            if not isinstance(found, StringValue):
                return found
            zone = _zone_text(found)
        shown = f"::ffff:{v4}" if maybe_v4 else ipv6_text(data)
        return TextValue(self._name, shown + zone)


def _zone_text(zone: StringValue) -> str:
    if not zone.length:
        return ""
    return "%" + zone.text.decode("utf-8", "backslashreplace") + ("..." if zone.is_cut else "")
