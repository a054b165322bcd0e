# SPDX-License-Identifier: Apache-2.0
"""Capture maps and channels, which are pointers to structs of the runtime."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

from gotrace.capture.builder import Builder, Extra, PlanNode, plan_flat
from gotrace.capture.ops import Position
from gotrace.capture.payload import (
    BEYOND,
    REFUSED,
    PayloadReader,
    PointedReader,
    Reader,
    int_at,
    word_at,
)
from gotrace.gotypes.releases import SWISS_MAPS
from gotrace.gotypes.types import GoType, MapType, PointerType, StructType
from gotrace.records import dataclass
from gotrace.values.model import ChanValue, MapValue, PointerValue, UnavailableValue, Value

#: Larger keys and values are kept as pointers (internal/abi.MapMaxKeyBytes and before that
#: runtime.maxKeySize; all releases).
MAX_INLINE = 128

_SLOTS = 8
#: Most groups to look at: of eight slots each, almost all maps fill one in four.
_GROUPS = 4


@dataclass(frozen=True, slots=True)
class MapLayout:
    """How a map type keeps its entries.

    Classic maps (runtime.hmap and bmap, src/runtime/map.go up to Go 1.23) and swiss ones
    (internal/runtime/maps, since 1.24) both keep eight entries in one stretch of memory, a bucket
    or group, that begins with a byte for each which says whether it is there. Key number i is at
    ``keys`` + i * ``key_stride`` from there, its value at ``elems`` + i * ``elem_stride``. Groups
    are side by side; a bucket has the address of the next one that overflowed after it.
    """

    is_swiss: bool
    keys: int
    key_stride: int
    elems: int
    elem_stride: int
    size: int

    @property
    def distance(self) -> int:
        """Return how far it is from one bucket or group to the next."""
        return self.size if self.is_swiss else self.size + 8

    def present(self, control: int) -> bool:
        """Return whether a control byte is that of an entry.

        Classic: tophash, from 5 (minTopHash) on; swiss: the high bit marks empty and deleted.
        """
        return control < 0x80 if self.is_swiss else control >= 5


def map_layout(go_type: MapType, release: tuple[int, int] | None) -> MapLayout | None:
    """Return how a map keeps its entries; None when that is not known.

    The header's type in DWARF decides; without, the Go ``release`` does. Since 1.27 an experiment
    (mapsplitgroup) separates keys from values: seen only in DWARF.
    """
    header = go_type.header
    if isinstance(header, StructType) and header.fields:
        is_swiss = header.field("dirPtr") is not None
        if not is_swiss and header.field("buckets") is None:
            return None
    elif release is None:
        return None
    else:
        is_swiss = release >= SWISS_MAPS
    key = min(go_type.key.size, 8 if go_type.key.size > MAX_INLINE else MAX_INLINE)
    elem = min(go_type.elem.size, 8 if go_type.elem.size > MAX_INLINE else MAX_INLINE)
    if not is_swiss:
        return MapLayout(False, 8, key, 8 + _SLOTS * key, elem, 8 + _SLOTS * (key + elem))
    group = _group(header)
    key_align = 8 if go_type.key.size > MAX_INLINE else go_type.key.align
    elem_align = 8 if go_type.elem.size > MAX_INLINE else go_type.elem.align
    if group is not None and group.field("elems") is not None:
        elems = _aligned(8 + _SLOTS * key, elem_align)
        return MapLayout(True, 8, key, elems, elem, elems + _SLOTS * elem)
    elem_offset = _aligned(key, elem_align)
    # A value without size at the end of the slot takes a byte, as in any struct.
    slot = elem_offset + (elem or (1 if key else 0))
    stride = _aligned(slot, max(key_align, elem_align))
    return MapLayout(True, 8, stride, 8 + elem_offset, stride, 8 + _SLOTS * stride)


def _group(header: GoType | None) -> StructType | None:
    """Return the type of a swiss map's groups, found through Map.dirPtr and table.groups."""
    found: GoType | None = header
    for name, hops in (("dirPtr", 2), ("groups", 0), ("data", 1)):
        field = found.field(name) if isinstance(found, StructType) else None
        if field is None:
            return None
        found = field.type
        for _ in range(hops):
            found = found.elem if isinstance(found, PointerType) else None
    return found if isinstance(found, StructType) else None


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // max(alignment, 1)) * max(alignment, 1)


class MapNode(PlanNode):
    """A map: its length and, with nodes for them, entries of its first groups.

    Of several groups where entries need nothing but their own bytes, else of one.
    """

    __slots__ = ("_elem", "_key", "_layout", "_rank")

    def __init__(
        self,
        go_type: GoType,
        layout: MapLayout | None = None,
        key: PlanNode | None = None,
        elem: PlanNode | None = None,
        rank: int = 0,
    ) -> None:
        """Take the map's type, its layout, and nodes of keys and values as they are in memory.

        ``rank``: how many pointers more than usual are followed with those in keys and values.
        """
        super().__init__(go_type)
        self._rank = rank
        self._layout = layout if key is not None and elem is not None else None
        self._key = key
        self._elem = elem

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the header, then the group."""
        reader = _MapReader(self.type.name, position, self._layout)
        if self._key is not None and self._elem is not None and self._key.flat and self._elem.flat:
            reader.flat = (self._key.flat, self._elem.flat)
            reader.most = builder.limits.map_entries
        size = 8 if self._layout is None else 48 if self._layout.is_swiss else 24

        def header() -> None:
            reader.block = block = builder.deref(position, size)
            if block is not None and self._layout is not None:
                builder.defer(lambda: self._plan_group(builder, reader, block))

        builder.defer(header)
        return reader

    def _plan_group(self, builder: Builder, reader: _MapReader, header: int) -> None:
        layout = self._layout
        assert layout is not None
        size = min(layout.size, builder.limits.struct_bytes)
        if not layout.is_swiss:
            block = builder.deref(Position(header, 16, 24), size)
            several = min(_GROUPS * layout.distance, builder.limits.struct_bytes)
            if reader.flat and several >= layout.distance:
                # Buckets hold less than eight entries on average, so that many are there.
                reader.several = builder.deref_n(
                    Position(header, 16, 24),
                    Position(header, 0, 24),
                    layout.distance // _SLOTS,
                    several,
                )
        else:
            block = self._swiss_group(builder, reader, header, size)
        reader.group = block
        if block is None:
            return
        count = min(_SLOTS, builder.limits.map_entries)
        plan = functools.partial(self._plan_slots, builder, reader, block, count, size)
        if not reader.flat:
            builder.defer(plan)
            return
        self._plan_slots(builder, reader, block, count, size, plan_flat)
        if self.leads_on:
            builder.extra(Extra.POINTERS, self._rank, plan)

    @property
    def leads_on(self) -> bool:
        """Return whether more can be asked for than keys and values have in place."""
        return any(part is not None and part.extends for part in (self._key, self._elem))

    @property
    def _size(self) -> int:
        assert self._layout is not None
        return self._layout.size

    def _swiss_group(
        self, builder: Builder, reader: _MapReader, header: int, size: int
    ) -> int | None:
        """Copy the only group of a small map, or the first ones of a large one's first table.

        ``dirPtr`` points to the group where ``dirLen`` is 0, else to pointers to tables; then the
        copy that was made first is replaced.
        """
        block = builder.deref(Position(header, 16, 48), size)
        if block is None:
            return None
        directory = builder.deref_n(
            Position(header, 16, 48), Position(header, 24, 48), 8, 8, skip=2
        )
        if directory is not None:
            table = builder.deref(Position(directory, 0, 8), 32, skip=1)
            several = size
            if reader.flat and size == self._size:
                several = min(_GROUPS * size, builder.limits.struct_bytes)
            # Tables have two groups and more. Their number less one is a mask after the address.
            if table is not None and builder.deref_n(
                Position(table, 16, 32), Position(table, 24, 32), self._size, several, number=block
            ):
                reader.table = table
        return block

    def _plan_slots(
        self,
        builder: Builder,
        reader: _MapReader,
        block: int,
        count: int,
        size: int,
        flatly: Callable[[PlanNode, Position], Reader] | None = None,
    ) -> None:
        layout, key, elem = self._layout, self._key, self._elem
        assert layout is not None and key is not None and elem is not None
        reader.is_flat = flatly is not None
        plan = flatly or (lambda node, position: node.plan(builder, position))
        reader.slots = [
            (
                plan(key, Position(block, layout.keys + index * layout.key_stride, size)),
                plan(elem, Position(block, layout.elems + index * layout.elem_stride, size)),
            )
            for index in range(count)
        ]


class _MapReader(PointedReader):
    __slots__ = (
        "_layout",
        "flat",
        "group",
        "is_flat",
        "most",
        "several",
        "slots",
        "table",
    )

    def __init__(self, name: str, position: Position, layout: MapLayout | None) -> None:
        super().__init__(name, position)
        self._layout = layout
        self.group: int | None = None
        self.table: int | None = None
        self.slots: list[tuple[Reader, Reader]] = []
        self.several: int | None = None
        self.flat: tuple[Callable[[bytes, int], Value], Callable[[bytes, int], Value]] | None = None
        self.is_flat = True
        self.most = 0

    def found(self, payload: PayloadReader, address: int, block: int) -> Value:
        (length,) = int_at(payload.data, payload.starts[block])
        if self._layout is None or self.group is None or length <= 0:
            return MapValue(self._name, (), length)
        missing = self._missing(payload, block, self._layout, self.group)
        if missing is not None:
            return MapValue(self._name, (), length, missing)
        return MapValue(
            self._name, self._entries(payload, self._layout, self.group, length), length
        )

    def _missing(
        self, payload: PayloadReader, header: int, layout: MapLayout, group: int
    ) -> UnavailableValue | None:
        """Return why there is no group, None where there is one."""
        if layout.is_swiss:
            if payload.lengths[header] < 32:
                return BEYOND
            (tables,) = word_at(payload.data, payload.starts[header] + 24)
            if tables and self.table is None:
                return REFUSED
            if tables and self.table is not None and payload.lengths[self.table] < 32:
                return payload.why(self.table)
        return payload.why(group) if payload.lengths[group] < _SLOTS else None

    def _entries(
        self, payload: PayloadReader, layout: MapLayout, group: int, length: int
    ) -> tuple[tuple[Value, Value], ...]:
        start = payload.starts[group]
        if self.flat is not None and payload.lengths[group] >= layout.size:
            return self._of_groups(payload, layout, *self.flat)[:length]
        control = payload.data[start : start + _SLOTS]
        entries = [
            (key.read(payload), elem.read(payload))
            for present, (key, elem) in zip(control, self.slots, strict=False)
            if layout.present(present)
        ]
        return tuple(entries[:length])

    def _of_groups(
        self,
        payload: PayloadReader,
        layout: MapLayout,
        key: Callable[[bytes, int], Value],
        elem: Callable[[bytes, int], Value],
    ) -> tuple[tuple[Value, Value], ...]:
        """Return the first entries of as many groups as there are."""
        block = self.group
        if self.several is not None and payload.lengths[self.several] >= layout.distance:
            block = self.several
        assert block is not None
        data, start, size = payload.data, payload.starts[block], payload.lengths[block]
        entries: list[tuple[Value, Value]] = []
        for at in range(start, start + max(size - layout.size, 0) + 1, layout.distance):
            for slot, control in enumerate(data[at : at + _SLOTS]):
                if len(entries) == self.most:
                    break
                if not layout.present(control):
                    continue
                if not self.is_flat and at == start and slot < len(self.slots):
                    key_reader, elem_reader = self.slots[slot]
                    entries.append((key_reader.read(payload), elem_reader.read(payload)))
                else:
                    key_at = at + layout.keys + slot * layout.key_stride
                    elem_at = at + layout.elems + slot * layout.elem_stride
                    entries.append((key(data, key_at), elem(data, elem_at)))
        return tuple(entries)


class IndirectNode(PlanNode):
    """A key or value that is too large to be kept in place: a pointer to it is."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: PlanNode) -> None:
        super().__init__(pointer.type)
        self._pointer = pointer

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        return _IndirectReader(self._pointer.plan(builder, position))


class _IndirectReader(Reader):
    __slots__ = ("_pointer",)

    def __init__(self, pointer: Reader) -> None:
        self._pointer = pointer

    def read(self, payload: PayloadReader) -> Value:
        value = self._pointer.read(payload)
        if isinstance(value, PointerValue) and value.target is not None:
            return value.target
        return value


class ChanNode(PlanNode):
    """A channel: how full it is, and whether it is closed.

    Offsets in runtime.hchan (src/runtime/chan.go), the same in all releases from 1.15 to 1.27:
    qcount 0, dataqsiz 8, closed 28.
    """

    __slots__ = ()

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the beginning of the channel's header."""
        reader = _ChanReader(self.type.name, position)

        def follow() -> None:
            reader.block = builder.deref(position, 32)

        builder.defer(follow)
        return reader


_hchan = struct.Struct("<qq12xI").unpack_from


class _ChanReader(PointedReader):
    __slots__ = ()

    least = 32

    def found(self, payload: PayloadReader, address: int, block: int) -> Value:
        length, capacity, closed = _hchan(payload.data, payload.starts[block])
        return ChanValue(self._name, address, length, capacity, closed != 0)
