# SPDX-License-Identifier: Apache-2.0
"""Types, a function's scope and a call's specials for the tests of expressions."""

from __future__ import annotations

from gotrace.gotypes.types import (
    ArrayType,
    ChanDirection,
    ChanType,
    Field,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    OpaqueType,
    Parameter,
    PointerType,
    Signature,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.probes.evaluate import Specials
from gotrace.probes.scope import Scope, SpecialName
from gotrace.probes.spec import parse_probe
from gotrace.probes.typed import Typed
from gotrace.records import replace


def basic(name: str, kind: Kind | None = None) -> GoType:
    """Return a basic type by its name, or a declared one of a kind."""
    return basic_type(kind, name) if kind else basic_type(Kind[name.upper()])


def pointer_to(of: GoType) -> PointerType:
    return PointerType(f"*{of.name}", Kind.POINTER, 8, 8, Lazy.of(of))


def slice_of(of: GoType, name: str = "") -> SliceType:
    return SliceType(name or f"[]{of.name}", Kind.SLICE, 24, 8, Lazy.of(of))


def struct_of(name: str, *fields: tuple[str, GoType], embedded: tuple[str, ...] = ()) -> StructType:
    """Lay out a struct."""
    laid_out, at = [], 0
    for field, of in fields:
        at = -(-at // of.align) * of.align
        laid_out.append(Field(field, at, of, field in embedded))
        at += of.size
    return StructType(name, Kind.STRUCT, -(-at // 8) * 8, 8, tuple(laid_out))


ERROR = InterfaceType("error", Kind.INTERFACE, 16, 8, False)
READER = InterfaceType("io.Reader", Kind.INTERFACE, 16, 8, False)
URL = struct_of("net/url.URL", ("Scheme", basic("string")), ("Path", basic("string")))
BASE = struct_of("main.Base", ("ID", basic("int64")), ("label", basic("string")))
STRING, INT = Lazy.of(basic("string")), Lazy.of(basic("int"))
COUNTS = MapType("map[string]int", Kind.MAP, 8, 8, STRING, INT)
POINTS = MapType("map[main.Point]int", Kind.MAP, 8, 8, Lazy.of(struct_of("main.Point")), INT)
CHANNEL = ChanType("chan int", Kind.CHAN, 8, 8, ChanDirection.BOTH, INT)
REQUEST: StructType = struct_of(
    "net/http.Request",
    ("Method", basic("string")),
    ("URL", pointer_to(URL)),
    ("Size", basic("int32")),
    ("Ok", basic("bool")),
    ("Small", basic("int8")),
    ("Base", pointer_to(BASE)),
    ("Ports", ArrayType("[3]uint16", Kind.ARRAY, 6, 2, basic("uint16"), 3)),
    ("Header", COUNTS),
    ("Next", PointerType("*net/http.Request", Kind.POINTER, 8, 8, Lazy(lambda: REQUEST))),
    embedded=("Base",),
)

SCOPE = Scope(
    "main.f",
    Signature(
        "main.f",
        (
            Parameter("r", pointer_to(REQUEST)),
            Parameter("n", basic("int")),
            Parameter("u", basic("uint64")),
            Parameter("u8", basic("uint8")),
            Parameter("i8", basic("int8")),
            Parameter("ok", basic("bool")),
            Parameter("key", basic("string")),
            Parameter("kind", basic("main.Kind", Kind.STRING)),
            Parameter("b", slice_of(basic("uint8"))),
            Parameter("tags", slice_of(basic("string"))),
            Parameter("p", pointer_to(basic("int"))),
            Parameter("q", pointer_to(basic("int"))),
            Parameter("f", basic("float64")),
            Parameter("g", basic("float32")),
            Parameter("c", basic("complex128")),
            Parameter("rd", READER),
            Parameter("ch", CHANNEL),
            Parameter("fn", FuncType("func()", Kind.FUNC, 8, 8)),
            Parameter("d", basic("time.Duration", Kind.INT64)),
            Parameter("u32", basic("uint32")),
            Parameter("opaque", OpaqueType("C.thing", Kind.INVALID, 8, 8)),
            Parameter("addr", slice_of(basic("uint8"), "net.IP")),
            Parameter("generic", replace(pointer_to(basic("uint8")), name="go.shape.*uint8")),
            Parameter("raw", basic("unsafe.Pointer", Kind.UNSAFE_POINTER)),
            Parameter("points", POINTS),
            Parameter("_", basic("int")),
        ),
        (Parameter("~r0", basic("int")), Parameter("err", ERROR)),
    ),
    captured=(Parameter("outer", basic("int")), Parameter("n", basic("string"))),
)

SPECIALS: Specials = {
    SpecialName.GOID: 7,
    SpecialName.PID: 100,
    SpecialName.TID: 101,
    SpecialName.DURATION: 12_000_000,
    SpecialName.COMM: "server",
    SpecialName.FUNC: "main.f",
}


def predicate(text: str, scope: Scope = SCOPE) -> Typed:
    """Parse and check a predicate."""
    resolved = parse_probe(f"main.f ({text})").resolve(scope).predicate
    assert resolved is not None
    return resolved
