"""Describe what map and channel values point to, as DWARF does where there is some.

DWARF has structs for each type of map and channel, which the linker makes from the runtime's own.
Descriptors have the part that depends on the types, a map's buckets or groups; the rest is the
same for all and is laid out here. Sources: ``runtime/map.go`` (hmap, bmap) up to Go 1.25;
``internal/runtime/maps`` (Map, table, groupsReference) of Go 1.24 to 1.27; ``runtime/chan.go``
(hchan); ``cmd/link/internal/ld/dwarf.go`` (synthesizemaptypes, synthesizechantypes) for the names.
"""

from __future__ import annotations

from collections.abc import Callable

from gotrace.goabi.descriptor_names import DescriptorNames
from gotrace.goabi.descriptor_table import DescriptorTable
from gotrace.goabi.types import (
    Field,
    GoType,
    Kind,
    Lazy,
    PointerType,
    StructType,
    basic_type,
)

__all__ = ["DescriptorHeaders"]

_INT = basic_type(Kind.INT)
_UINT8 = basic_type(Kind.UINT8)
_UINT16 = basic_type(Kind.UINT16)
_UINT32 = basic_type(Kind.UINT32)
_UINT64 = basic_type(Kind.UINT64)
_UINTPTR = basic_type(Kind.UINTPTR)
_POINTER = basic_type(Kind.UNSAFE_POINTER)

#: What a bucket's fields are called in its descriptor and in DWARF.
_BUCKET_FIELDS = {"topbits": "tophash", "elems": "values"}

#: Words of a map type's descriptor: key, element, and bucket (Go <= 1.23) or group.
_MAP_PARTS = 48


class DescriptorHeaders:
    """Give the header types of the maps and channels of one binary."""

    def __init__(
        self,
        table: DescriptorTable,
        names: DescriptorNames,
        type_at: Callable[[int], GoType],
    ) -> None:
        """Take the table, its names, and what makes a type of a descriptor's address."""
        self._table = table
        self._names = names
        self._type_at = type_at

    def of_map(self, address: int) -> StructType:
        """Return the header of the map type at an address, as MapType.header describes it."""
        parts = self._table.words(address + _MAP_PARTS, 3)
        key, elem = self._names.of(parts[0]), self._names.of(parts[1])
        slots, names = parts[2], f"<{key},{elem}>"
        if not self._table.has_swiss_map(address):
            return self._classic(names, slots)
        group = f"noalg.map.group[{key}]{elem}"
        return self._swiss(names, lambda: self._group(group, slots))

    def of_chan(self, address: int) -> StructType:
        """Return the beginning of the header of the channel type at an address.

        Up to ``closed`` (32 bytes) it is the same in all releases; the rest is left out.
        """
        (elem,) = self._table.words(address + 48, 1)
        fields = (
            Field("qcount", 0, basic_type(Kind.UINT)),
            Field("dataqsiz", 8, basic_type(Kind.UINT)),
            Field("buf", 16, _POINTER),
            Field("elemsize", 24, _UINT16),
            Field("closed", 28, _UINT32),
        )
        return StructType(f"hchan<{self._names.of(elem)}>", Kind.STRUCT, 32, 8, fields)

    def _classic(self, names: str, bucket: int) -> StructType:
        buckets = _pointer(f"*bucket{names}", lambda: self._bucket(f"bucket{names}", bucket))
        fields = [
            Field("count", 0, _INT),
            Field("flags", 8, _UINT8),
            Field("B", 9, _UINT8),
            Field("noverflow", 10, _UINT16),
            Field("hash0", 12, _UINT32),
            Field("buckets", 16, buckets),
            Field("oldbuckets", 24, buckets),
            Field("nevacuate", 32, _UINTPTR),
        ]
        size = 40
        if self._table.has_map_clear_sequence:
            fields.append(Field("clearSeq", size, _UINT64))
            size += 8
        fields.append(Field("extra", size, _POINTER))
        return StructType(f"hash{names}", Kind.STRUCT, size + 8, 8, tuple(fields))

    def _bucket(self, name: str, address: int) -> StructType:
        found = self._struct_at(address)
        fields = []
        for field in found.fields:
            target = field.type
            if field.name == "overflow":
                # A plain address in the descriptor, so that the collector does not follow it.
                target = _pointer(f"*{name}", lambda: self._bucket(name, address))
            label = _BUCKET_FIELDS.get(field.name, field.name)
            fields.append(Field(label, field.offset, target))
        return StructType(name, Kind.STRUCT, found.size, found.align, tuple(fields))

    def _swiss(self, names: str, group: Callable[[], StructType]) -> StructType:
        table = _pointer(f"*table{names}", lambda: self._swiss_table(names, group))
        fields = (
            Field("used", 0, _UINT64),
            Field("seed", 8, _UINTPTR),
            Field("dirPtr", 16, _pointer(f"**table{names}", lambda: table)),
            Field("dirLen", 24, _INT),
            Field("globalDepth", 32, _UINT8),
            Field("globalShift", 33, _UINT8),
            Field("writing", 34, _UINT8),
            Field("clearSeq", 40, _UINT64),
        )
        return StructType(f"map{names}", Kind.STRUCT, 48, 8, fields)

    def _swiss_table(self, names: str, group: Callable[[], StructType]) -> StructType:
        data = _pointer(f"*{group().name}", group)
        groups = (Field("data", 0, data), Field("lengthMask", 8, _UINT64))
        reference = StructType(f"groupReference{names}", Kind.STRUCT, 16, 8, groups)
        fields = (
            Field("used", 0, _UINT16),
            Field("capacity", 2, _UINT16),
            Field("growthLeft", 4, _UINT16),
            Field("localDepth", 6, _UINT8),
            Field("index", 8, _INT),
            Field("groups", 16, reference),
        )
        return StructType(f"table{names}", Kind.STRUCT, 32, 8, fields)

    def _group(self, name: str, address: int) -> StructType:
        found = self._struct_at(address)
        return StructType(name, Kind.STRUCT, found.size, found.align, found.fields)

    def _struct_at(self, address: int) -> StructType:
        found = self._type_at(address)
        if not isinstance(found, StructType):
            raise self._table.damaged(address, "is no struct of a map's slots")
        return found


def _pointer(name: str, target: Callable[[], GoType]) -> PointerType:
    return PointerType(name, Kind.POINTER, 8, 8, Lazy(target))
