# SPDX-License-Identifier: Apache-2.0
"""The types of contexts and spans that a program has, and the ways in them to a trace's id.

Sources: ``context/context.go`` (emptyCtx, backgroundCtx, todoCtx, cancelCtx, timerCtx, valueCtx,
afterFuncCtx, stopCtx, withoutCancelCtx) and ``os/signal/signal.go`` (signalCtx) of Go 1.15 to 1.27;
of OpenTelemetry 1.1 to 1.46 ``trace/context.go`` (traceContextKeyType), ``trace/trace.go``
(SpanContext), ``trace/noop.go`` and ``trace/noop/noop.go``, ``sdk/trace/span.go``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from gotrace.gotypes.from_rtype import Itab, Rtypes
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.types import GoType, Kind, PointerType, StructType
from gotrace.records import dataclass

#: The interface's name.
CONTEXT = "context.Context"
_CONTEXT_METHODS = frozenset({"Deadline", "Done", "Err", "Value"})
_SPAN_METHODS = frozenset({"End", "IsRecording", "SpanContext"})
_API = "go.opentelemetry.io/otel/trace"
#: The type of one constant, 0: the key of the span.
_SPAN_KEY = f"{_API}.traceContextKeyType"
_SPAN_CONTEXT = f"{_API}.SpanContext"
#: The names of a span's own context; a recordingSpan has its parent's as well.
_OWN = ("spanContext", "sc")
_PARENT = "parent"
#: Spans that belong to no trace.
_NONE = frozenset({f"{_API}.noopSpan", f"{_API}/noop.Span"})
#: Spans of OpenTelemetry's own. A context holds them in an any, which takes no itab: where the
#: compiler sees no other conversion, nothing but their names leads to them.
_KNOWN = (
    *(f"{_API}.nonRecordingSpan", f"*{_API}.autoSpan", *sorted(_NONE)),
    *("*go.opentelemetry.io/otel/sdk/trace.recordingSpan", "*go.opentelemetry.io/auto/sdk.span"),
    "go.opentelemetry.io/otel/sdk/trace.nonRecordingSpan",
    "go.opentelemetry.io/otel/internal/global.nonRecordingSpan",
)
#: Contexts that have no parent: pointers up to Go 1.20, structs since.
_ROOTS = frozenset({"context.emptyCtx", "context.backgroundCtx", "context.todoCtx"})
_VALUE = "context.valueCtx"
_VALUE_FIELDS = {"Context": 0, "key": 16, "val": 32}
#: Contexts that look values up in one that is not embedded, and what they call that.
_NAMED_PARENT = {"context.withoutCancelCtx": "c", "net.onlyValuesCtx": "lookupValues"}
_IDS = {"traceID": 0, "spanID": 16, "traceFlags": 24}
_MAX_NESTING = 8


class ContextKind(enum.IntEnum):
    """The role of a type on the way to a span: enum context_kind of bpf/context.h."""

    ROOT = 1
    PARENT = 2
    VALUE = 3
    SPAN = 4
    NO_SPAN = 5


@dataclass(frozen=True, slots=True)
class ContextType:
    """A type of contexts or spans; ``at`` is where its parent is, or its trace.SpanContext.

    ``key`` is, for a VALUE, the address of the type of keys of spans.
    """

    kind: ContextKind
    at: int = 0
    key: int = 0


def has_spans(descriptors: Rtypes) -> bool:
    """Return whether a program knows OpenTelemetry's spans. Raises RtypeError."""
    return descriptors.basic(_SPAN_KEY) is not None


def context_types(descriptors: Rtypes) -> dict[int, ContextType]:
    """Return types by the link-time addresses of their descriptors and itabs.

    Those that the program converts to the interfaces concerned, as its itabs say, and the spans of
    OpenTelemetry itself. Types that cannot be read are left out. Raises RtypeError if lists of
    types are damaged.
    """
    key = descriptors.basic(_SPAN_KEY) or 0
    found: dict[int, ContextType] = {}
    for itab, is_span in _itabs(descriptors):
        if itab.type not in found:
            known = _known(descriptors, itab.type, None if is_span else key)
            if known is None:
                continue
            found[itab.type] = known
        if not is_span:
            found[itab.address] = found[itab.type]
    for name in _KNOWN:
        address = descriptors.basic(name)
        if address is not None and address not in found:
            known = _known(descriptors, address, None)
            if known is not None:
                found[address] = known
    return found


def _known(descriptors: Rtypes, address: int, key: int | None) -> ContextType | None:
    """Return a context's type, or a span's if ``key`` is None; None if it is not known."""
    try:
        go_type = descriptors.type_at(address)
        return _span(go_type) if key is None else _context(go_type, key)
    except RtypeError:
        return None


def _itabs(descriptors: Rtypes) -> Iterator[tuple[Itab, bool]]:
    """Yield the itabs of contexts, and those of spans; with each whether it is a span's."""
    is_span: dict[int, bool | None] = {}
    for itab in descriptors.itabs():
        if itab.interface not in is_span:
            methods = descriptors.methods(itab.interface)
            wanted = methods >= _CONTEXT_METHODS or methods >= _SPAN_METHODS
            is_span[itab.interface] = methods >= _SPAN_METHODS if wanted else None
        which = is_span[itab.interface]
        if which is not None:
            yield itab, which


def _struct(go_type: GoType) -> GoType:
    """Return the type of the data that an interface's data word points to."""
    return go_type.elem if isinstance(go_type, PointerType) else go_type


def _context(go_type: GoType, key: int) -> ContextType | None:
    target = _struct(go_type)
    if target.name in _ROOTS:
        return ContextType(ContextKind.ROOT)
    if not isinstance(target, StructType):
        return None
    if target.name == _VALUE:
        offsets = {field.name: field.offset for field in target.fields}
        return ContextType(ContextKind.VALUE, 0, key) if offsets == _VALUE_FIELDS else None
    if target.name in _NAMED_PARENT:
        field = target.field(_NAMED_PARENT[target.name])
        return None if field is None else ContextType(ContextKind.PARENT, field.offset)
    at = _embedded(target)
    return None if at is None else ContextType(ContextKind.PARENT, at)


def _embedded(struct: StructType) -> int | None:
    """Return where a struct, or one embedded in it, embeds a context first of all."""
    at = 0
    for _ in range(_MAX_NESTING):
        field = next((one for one in struct.fields if one.embedded), None)
        if field is None:
            return None
        at += field.offset
        if field.type.kind is Kind.INTERFACE:
            return at if field.type.name == CONTEXT else None
        if not isinstance(field.type, StructType):
            return None
        struct = field.type
    return None


def _span(go_type: GoType) -> ContextType | None:
    target = _struct(go_type)
    if not isinstance(target, StructType):
        return None
    fields = [
        field
        for field in target.fields
        if field.type.name == _SPAN_CONTEXT and field.name != _PARENT
    ]
    own = [field for field in fields if field.name in _OWN]
    if len(own or fields) != 1:
        is_none = not fields and target.name in _NONE
        return ContextType(ContextKind.NO_SPAN) if is_none else None
    [field] = own or fields
    if not isinstance(field.type, StructType):
        return None
    offsets = {part.name: part.offset for part in field.type.fields}
    if {name: offsets.get(name) for name in _IDS} != _IDS:
        return None
    return ContextType(ContextKind.SPAN, field.offset)
