# SPDX-License-Identifier: Apache-2.0
"""Make the nodes that capture values, by type."""

from __future__ import annotations

from collections.abc import Callable

from gotrace.capture.builder import PlanNode
from gotrace.capture.interfaces import ERROR_INTERFACES, InterfaceNode, is_direct, make_subplan
from gotrace.capture.maps import MAX_INLINE, ChanNode, IndirectNode, MapNode, map_layout
from gotrace.capture.nodes import (
    MAX_ELEMENTS,
    AddressNode,
    ArrayNode,
    ByteArrayNode,
    BytesNode,
    FuncNode,
    OpaqueNode,
    PointerNode,
    ScalarNode,
    ShapeNode,
    SliceNode,
    StringNode,
    StructNode,
    UnreadNode,
    may_be_text,
)
from gotrace.capture.ops import CaptureLimits
from gotrace.capture.payload import Subplan
from gotrace.capture.stdlib import NetipAddrNode, TimeNode
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    SliceType,
    StructType,
    UnknownType,
)
from gotrace.records import replace
from gotrace.values.error_messages import KEY_FIELDS

_POINTER_SHAPE = "go.shape.*"
#: Slices and maps within one another whose contents are looked at.
_MAX_NESTING = 3
#: Types nested by value, which only damaged debug information does without end.
_MAX_PARTS = 40

#: Interfaces that are followed at any depth: messages of errors are made of them.
_ALWAYS_FOLLOWED = ERROR_INTERFACES | {"net.Addr"}


class NodeFactory:
    """The nodes and subplans of one binary, each made once."""

    def __init__(
        self,
        limits: CaptureLimits,
        release: tuple[int, int] | None = None,
        *,
        keyed: bool = False,
        elements_within: int | None = None,
    ) -> None:
        """Take the limits, and the Go release (major, minor) for facts that DWARF lacks.

        ``keyed``: interfaces' values may be parts of keys. ``elements_within``: how many elements
        to look at of slices within maps or slices, if fewer than of others.
        """
        self.limits = limits
        self._depth = limits.usual.depth
        self._keyed = keyed
        self._elements_within = elements_within
        self._release = release
        self._nodes: dict[tuple[int, int, int], PlanNode] = {}
        # Keys are identities of types, which therefore must live as long.
        self._types: list[GoType] = []

    def node(self, go_type: GoType) -> PlanNode:
        """Return the node that captures values of a type; raise errors of its lazy references."""
        return self._node(go_type, self._depth, 0, 0)

    def subplan_for(self, go_type: GoType, direct: bool | None = None) -> Subplan:
        """Return how an interface's value is captured when its dynamic type is a given one.

        ``direct``: what the type's descriptor says of where its values are, None where none is at
        hand. The session installs the operations under the addresses of the type and of its itabs.
        """
        if direct is None:
            direct = is_direct(go_type, self._release)
        return make_subplan(go_type, self.node(go_type), self.limits, direct, self._keyed)

    def _node(self, go_type: GoType, depth: int, nesting: int, parts: int) -> PlanNode:
        key = (id(go_type), depth, nesting)
        node = self._nodes.get(key)
        if node is None:
            if parts > _MAX_PARTS:
                return UnreadNode(go_type, "its type has too many parts")
            node = self._nodes[key] = self._make(go_type, depth, nesting, parts + 1)
            self._types.append(go_type)
        return node

    def _make(self, go_type: GoType, depth: int, nesting: int, parts: int) -> PlanNode:
        special = _SPECIAL.get(go_type.name)
        if special is not None and (found := special(go_type)) is not None:
            return found
        if isinstance(go_type, StructType):
            if self._keyed and (kept := KEY_FIELDS.get(go_type.name)):
                fields = tuple(field for field in go_type.fields if field.name in kept)
                go_type = replace(go_type, fields=fields)
            nodes = [self._node(field.type, depth, nesting, parts) for field in go_type.fields]
            if may_be_text(go_type):
                return ShapeNode(go_type)
            return StructNode(go_type, nodes)
        if isinstance(go_type, ArrayType):
            if go_type.elem.kind is Kind.UINT8:
                return ByteArrayNode(go_type, self.limits.text_bytes)
            elem = self._node(go_type.elem, depth, nesting, parts)
            return ArrayNode(go_type, elem, min(self.limits.slice_elements, MAX_ELEMENTS))
        if isinstance(go_type, PointerType):
            return self._pointer(go_type, depth, nesting)
        if isinstance(go_type, SliceType):
            return self._slice(go_type, depth, nesting)
        if isinstance(go_type, MapType):
            return self._map(go_type, depth, nesting)
        if go_type.kind is Kind.INTERFACE:
            followed = depth > 0 or go_type.name in _ALWAYS_FOLLOWED
            rank = 0 if followed else self._rank(depth)
            return InterfaceNode(go_type, followed or self._goes_on(depth), rank)
        if go_type.kind is Kind.CHAN:
            return ChanNode(go_type)
        if go_type.kind is Kind.FUNC:
            return FuncNode(go_type)
        if go_type.kind is Kind.STRING:
            return StringNode(go_type)
        if isinstance(go_type, UnknownType):
            return UnreadNode(go_type, go_type.name)
        if go_type.kind is Kind.INVALID:
            return OpaqueNode(go_type)
        return ScalarNode(go_type)

    def _pointer(self, go_type: PointerType, depth: int, nesting: int) -> PlanNode:
        # All pointers have one shape, that of *uint8, whatever they point to.
        if not self._goes_on(depth) or go_type.name.startswith(_POINTER_SHAPE):
            return PointerNode(go_type)
        elem = go_type.elem
        if elem.kind is Kind.INVALID and elem.size == 0:
            return PointerNode(go_type)
        rank = self._rank(depth)
        if not rank:
            target = self._node(elem, depth - 1, nesting, 0)
            return PointerNode(go_type, lambda: target)
        # Made when its turn comes: there is no end of them.
        return PointerNode(go_type, lambda: self._node(elem, depth - 1, nesting, 0), rank)

    def _goes_on(self, depth: int) -> bool:
        """Return whether a pointer that is below so many more is followed, if there is room.

        ``depth`` is 0 and less below as many as usual. Of the first of these it is to be known
        that they are there, whatever else is asked for.
        """
        more = self.limits.depth - self._depth
        if self.limits != self.limits.usual:
            more = max(more, 1)
        return depth > -more

    def _rank(self, depth: int) -> int:
        """Return how many pointers more than usual are followed with one below so many."""
        return max(1 - depth, 0)

    def _slice(self, go_type: SliceType, depth: int, nesting: int) -> PlanNode:
        elem = go_type.elem
        if elem.kind is Kind.UINT8:
            return BytesNode(go_type)
        if nesting >= _MAX_NESTING:
            return SliceNode(go_type)
        most = self._elements_within if nesting else None
        return SliceNode(go_type, self._node(elem, depth, nesting + 1, 0), most)

    def _map(self, go_type: MapType, depth: int, nesting: int) -> PlanNode:
        layout = map_layout(go_type, self._release)
        if layout is None or nesting >= _MAX_NESTING - 1:
            return MapNode(go_type)
        key, elem = (self._entry(part, depth, nesting + 1) for part in (go_type.key, go_type.elem))
        return MapNode(go_type, layout, key, elem, self._rank(depth))

    def _entry(self, go_type: GoType, depth: int, nesting: int) -> PlanNode:
        """Return the node of a map's key or value as it is in the bucket."""
        node = self._node(go_type, depth, nesting, 0)
        if go_type.size <= MAX_INLINE:
            return node
        pointer = PointerType(f"*{go_type.name}", Kind.POINTER, 8, 8, Lazy.of(go_type))
        self._types.append(pointer)
        return IndirectNode(PointerNode(pointer, lambda: node))


def _time(go_type: GoType) -> PlanNode | None:
    named = ("wall", "ext", "loc")
    if isinstance(go_type, StructType) and go_type.size == 24:
        return TimeNode(go_type) if all(map(go_type.field, named)) else None
    return None


def _netip_addr(go_type: GoType) -> PlanNode | None:
    if isinstance(go_type, StructType) and go_type.size == 24:
        return NetipAddrNode(go_type) if all(map(go_type.field, ("addr", "z"))) else None
    return None


def _byte_slice(go_type: GoType) -> PlanNode | None:
    if isinstance(go_type, SliceType) and go_type.elem.kind is Kind.UINT8:
        return AddressNode(go_type)
    return None


#: Types that print otherwise than what they are made of.
_SPECIAL: dict[str, Callable[[GoType], PlanNode | None]] = {
    "time.Time": _time,
    "net/netip.Addr": _netip_addr,
    "net.IP": _byte_slice,
    "net.HardwareAddr": _byte_slice,
}
