# SPDX-License-Identifier: Apache-2.0
"""Make lines of raw records of functions whose values are all plain, without decoding by type.

For each function a Python function is generated once that knows where in the record its values are.
Its lines are those of text_line and json_line byte for byte; whatever it does not expect in a
record (a string that was cut, is not UTF-8 or could not be read, an error, a stack) it leaves to
them. Closures in place of generated source deliver fewer calls without loss: docs/performance.md
has the figures.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from itertools import takewhile
from json.encoder import encode_basestring_ascii
from typing import cast

from gotrace.capture.interfaces import InterfaceNode
from gotrace.capture.ops import OpCode
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, read_phase
from gotrace.gotypes.types import Kind
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, replace
from gotrace.report.calls import (
    DURATION_WIDTH,
    NO_DURATION,
    PLAIN,
    Clock,
    LineStyle,
    json_line,
    name_of,
    place_of,
    text_line,
)
from gotrace.report.durations import duration
from gotrace.session.decode import CallDecoder, TracedFunction
from gotrace.session.events import FLAGS, HEADER, cpu_of
from gotrace.text import printable
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import NamedValue, Nil, PointerValue, StringValue, Value
from gotrace.values.to_json import to_json

#: Makes a line of a raw record.
Line = Callable[[bytes], str]


def line_of(
    decoder: CallDecoder,
    clock: Clock,
    as_json: bool,
    style: LineStyle = PLAIN,
    is_counted: bool = True,
) -> Line:
    """Return a function that makes a call's line of its record, without decoding it if it can.

    It makes nothing of a call that the probe's predicate does not want. JSON has what the probes
    cost, where the decoder knows it; text has ``style``. Calls of which a predicate cannot be
    decided are counted if this ``is_counted``: one line of a call does it.
    """

    def decoded(record: bytes) -> str:
        calls = [call for _, call in decoder.calls(record, is_counted=is_counted)]
        if style.columns.cpu:
            calls = [replace(call, cpu=cpu_of(record)) for call in calls]
        if as_json:
            return "".join([json_line(call, clock) for call in calls])
        return "".join([text_line(call, clock, style) for call in calls])

    traced = decoder.traced
    compiled = traced.compiled
    # A predicate that the kernel has decided by registers alone adds nothing to the record.
    if compiled is not None and (compiled.rest is not None or any(traced.paths.values())):
        return decoded
    is_asked = traced.spec.format is not None or style.columns.cpu
    is_asked = is_asked or traced.function.at is not None
    if traced.has_dictionary or is_asked or len(traced.parts) > 1:
        return decoded
    entry = plain_phase(traced.entry, addresses=not as_json)
    result = plain_phase(traced.result, addresses=not as_json) if traced.result else None
    if entry is None or (traced.result is not None and result is None):
        return decoded
    function = decoder.function
    if as_json:
        return fast_json_line(function, entry, result, HEADER, clock, decoded, decoder.cost)
    return fast_text_line(function, entry, result, HEADER, clock, decoded, style)


_CODES = {
    Kind.BOOL: "?",
    Kind.INT: "q",
    Kind.INT8: "b",
    Kind.INT16: "h",
    Kind.INT32: "i",
    Kind.INT64: "q",
    Kind.UINT: "Q",
    Kind.UINT8: "B",
    Kind.UINT16: "H",
    Kind.UINT32: "I",
    Kind.UINT64: "Q",
    Kind.STRING: "Q",  # its length
    Kind.INTERFACE: "Q",  # its type word
    Kind.POINTER: "Q",
}


#: Takes the place of a pointer's address in the text that a template is made of.
_ADDRESS = 0x5AFE


@dataclass(frozen=True, slots=True)
class PlainValue:
    """The field at an offset of a phase's image, and its decoded value when that is zero.

    For a string that is its length; for an interface its type word: it is plain only while nil. A
    pointer is one that is not followed, and plain only while it is not nil.
    """

    kind: Kind
    offset: int
    zero: Value


@dataclass(frozen=True, slots=True)
class PlainPhase:
    """The values of an entry or a return, in order, which is that of their offsets.

    ``blocks`` are the indexes of those that have a block, in the order of the blocks, which begin
    at the next multiple of 8 after the ``image_size`` bytes of the image.
    """

    values: tuple[PlainValue, ...]
    blocks: tuple[int, ...]
    image_size: int


def plain_phase(plan: PhasePlan, addresses: bool = False) -> PlainPhase | None:
    """Return where the values of a plan are, None unless all are plain.

    Plain are bool, string and all integers but uintptr, and types declared as one of these, when
    captured directly; and interfaces, which errors are, for they are nil most of the time; with
    ``addresses`` pointers that are not followed, which receivers are.
    """
    values = []
    blocks: dict[int | None, int] = {}
    # Values to which there is more than usual are not plain.
    usual = list(takewhile(lambda step: step.code is not OpCode.ROOM, plan.steps))
    interfaces = {step.at: step.number for step in usual if step.code is OpCode.IFACE}
    zeros = read_phase(plan, bytes(plan.image_size), ReadContext())
    for index, ((_, at, node), reader) in enumerate(zip(plan.root, plan.readers, strict=True)):
        zero, kind, location = zeros[index], node.type.kind, reader.location()
        if isinstance(node, InterfaceNode) and isinstance(zero, Nil):
            values.append(PlainValue(kind, at, zero))
            if at in interfaces:
                blocks[interfaces[at]] = index
            continue
        if kind is Kind.POINTER:
            if not addresses or location is None or node.flat is None:
                return None
            values.append(PlainValue(kind, location.offset, PointerValue(node.type.name, _ADDRESS)))
            continue
        if kind not in _CODES or not _is_plain(zero) or location is None:
            return None
        values.append(PlainValue(kind, location.offset, zero))
        if kind is Kind.STRING:
            blocks[location.bytes_block] = index
    # A pointer that is followed is not plain: each block is a string's or an interface's.
    order = tuple(blocks[step.number] for step in usual)
    return PlainPhase(tuple(values), order, plan.image_size)


def _bare(value: Value) -> Value:
    return value.value if isinstance(value, NamedValue) else value


def _is_plain(value: Value) -> bool:
    return isinstance(_bare(value), int | StringValue)


def fast_json_line(
    function: TracedFunction,
    entry: PlainPhase,
    result: PlainPhase | None,
    header: struct.Struct,
    clock: Clock,
    slow: Line,
    cost: ProbeCost | None = None,
) -> Line:
    """Return a function that makes json_line's line of a record.

    ``result`` is None for functions that are seen at their entry only. A record begins with
    ``header``: end, start, goid, tgid, tid, function, length of the entry's payload, that of the
    return's, flags, hits of probes, ns that their programs took. ``slow`` makes a line of any
    record by decoding it. ``cost`` is that of the probes, None where it is not known.
    """
    args = _members(function.parameter_labels, entry)
    results = _members(function.result_labels, result) if result else "null"
    template = (
        '{"kind":"call","ts_ns":%d,"pid":%d,"tid":%d,"goid":%d,'
        f'"func":{_json(function.name)},"args":{args},"results":{results},'
        f'"duration_ns":{"%d" if result else "null"},'
        f'"file":{_json(function.file)},"line":{_json(function.line)},'
        f'"probe_hits":{"%d" if result else "null"},'
        f'"probe_ns":{"%d" if result and cost else "null"}'
    )
    if function.program is not None:
        template += f',"program":{_json(function.program)}'
    template += "}\n"
    took = ["end - begun", "hits"] if result else []
    if result and cost:
        took.append("TRACING(end - begun, 1, hits, hits_ns)")
    shown = [*_shown("a", entry), *_shown("r", result)]
    filled = ["end - EPOCH", "tgid", "tid", "goid", *shown, *took]
    source = _source(entry, result, header.size, "utf-8", filled)
    names = {
        **_structs(entry, result, header),
        "TEMPLATE": template,
        "SLOW": slow,
        "QUOTE": encode_basestring_ascii,
        "EPOCH": clock.epoch,
        "TRACING": cost.within if cost else None,
    }
    return _compile(source, names)


def fast_text_line(
    function: TracedFunction,
    entry: PlainPhase,
    result: PlainPhase | None,
    header: struct.Struct,
    clock: Clock,
    slow: Line,
    style: LineStyle = PLAIN,
) -> Line:
    """Return a function that makes text_line's line of a record; parameters as for fast_json_line.

    A line that is longer than the style's row or width is left to ``slow``, which shortens it.
    """
    arguments, results = (
        _holes(phase, lambda value: _text(go_syntax(value))) for phase in (entry, result)
    )
    pairs = zip(map(_text, function.parameter_labels), arguments, strict=True)
    name = name_of(function, style).replace("%", "%%")
    took = "DURATION(end - begun)" if result else repr(NO_DURATION)
    hole = f"%-{DURATION_WIDTH}s"
    if style.colour:
        took, hole = "DURATION(end - begun)" if result else "DURATION(None)", "%s"
    template = f"{style.columns.template}{hole} {name}({', '.join(f'{k}={v}' for k, v in pairs)})"
    if results:
        template += f" = {function.shown_results(results)}"
    template += _text(place_of(function)) + "\n"
    numbers = [*["tgid"] * style.columns.pid, *["tid"] * style.columns.tid, "goid"]
    filled = ["TIME(end)", *numbers, took, *_shown("a", entry), *_shown("r", result)]
    most = style.row or style.width
    source = _source(entry, result, header.size, "ascii", filled, most is not None)
    names = {
        **_structs(entry, result, header),
        "TEMPLATE": template,
        "SLOW": slow,
        "QUOTE": _quoted,
        "TIME": clock.text,
        "DURATION": style.duration if style.colour else duration,
        "WIDTH": (most or 0) + 1,  # with the newline
    }
    return _compile(source, names)


def _json(value: object) -> str:
    """Return a constant part of a JSON template."""
    return json.dumps(value).replace("%", "%%")


def _text(text: str) -> str:
    """Return a constant part of a text template."""
    return printable(text).replace("%", "%%")


def _members(labels: Sequence[str], phase: PlainPhase) -> str:
    holes = _holes(phase, lambda value: _json(to_json(value)))
    return "{" + ",".join(f"{_json(k)}:{hole}" for k, hole in zip(labels, holes, strict=True)) + "}"


def _holes(phase: PlainPhase | None, show: Callable[[Value], str]) -> list[str]:
    """Return the part of a template for each value: the text around it, and its hole."""
    holes = []
    for value in phase.values if phase else ():
        shown = show(value.zero)
        if value.kind is Kind.POINTER:
            shown = shown.replace(f"{_ADDRESS:#x}", "%#x")
        elif value.kind is not Kind.INTERFACE:
            before, _, after = shown.rpartition(show(_bare(value.zero)))
            hole = "%s" if value.kind in (Kind.BOOL, Kind.STRING) else "%d"
            shown = before + hole + after
        holes.append(shown)
    return holes


def _quoted(text: str) -> str:
    """Quote a text that Go quotes without a backslash; raise ValueError for others."""
    if not text.isprintable() or '"' in text or "\\" in text:
        raise ValueError
    return f'"{text}"'


def _shown(prefix: str, phase: PlainPhase | None) -> list[str]:
    """Return the expressions that fill the holes for a phase's values."""
    if phase is None:
        return []
    return [
        f"BOOLS[{prefix}{i}]" if value.kind is Kind.BOOL else f"{prefix}{i}"
        for i, value in enumerate(phase.values)
        if value.kind is not Kind.INTERFACE
    ]


def _variables(prefix: str, phase: PlainPhase) -> list[str]:
    """Return the variables that _format unpacks, a string's for its length."""
    names = [f"{prefix}{index}" for index in range(len(phase.values))]
    return names + ["held"] * bool(phase.blocks)


def _format(phase: PlainPhase) -> str:
    """Return the struct format of an image and, if there is one, of the first block's header."""
    layout, at = "", 0
    for value in phase.values:
        code = _CODES[value.kind]
        layout += f"{value.offset - at}x{code}"
        at = value.offset + struct.calcsize("<" + code)
    layout += f"{phase.image_size - at}x"
    return layout + f"{-phase.image_size % 8 + 4}xI" * bool(phase.blocks)


def _structs(
    entry: PlainPhase, result: PlainPhase | None, header: struct.Struct
) -> dict[str, object]:
    names: dict[str, object] = {
        "ENTRY": struct.Struct(header.format + _format(entry)).unpack_from,
        "WORD": struct.Struct("<I").unpack_from,
        "BOOLS": ("false", "true"),
        "UNEXPECTED": (struct.error, ValueError),
    }
    if result:
        names["RESULT"] = struct.Struct("<" + _format(result)).unpack_from
    return names


def _source(
    entry: PlainPhase,
    result: PlainPhase | None,
    header_size: int,
    encoding: str,
    filled: Sequence[str],
    bounded: bool = False,
) -> str:
    """Return the source of the function: of numbers and of names made here, and of nothing else.

    With ``bounded`` it leaves lines that are longer than WIDTH to SLOW.
    """
    head = ["end", "begun", "goid", "tgid", "tid", "_", "args", "results", "flags"]
    head += ["hits", "hits_ns"]
    body = [
        f"{', '.join([*head, *_variables('a', entry)])} = ENTRY(record)",
        f"back = {header_size} + args",
        f"if flags & {FLAGS} or {'not ' if result else ''}begun or back + results > len(record):",
        "    return SLOW(record)",
        *_blocks("a", entry, str(header_size), "back", encoding),
    ]
    if result:
        unpacked = "".join(f"{name}, " for name in _variables("r", result))
        body += [f"{unpacked}= RESULT(record, back)"] if unpacked else []
        body += _blocks("r", result, "back", "back + results", encoding)
    body.append(f"text = TEMPLATE % ({', '.join(filled)})")
    body.append("return SLOW(record) if len(text) > WIDTH else text" if bounded else "return text")
    lines = ["def line(record):", "    try:", *("        " + line for line in body)]
    return "\n".join([*lines, "    except UNEXPECTED:", "        return SLOW(record)", ""])


def _blocks(prefix: str, phase: PlainPhase, base: str, limit: str, encoding: str) -> list[str]:
    """Return the lines that replace each string's length by its quoted text.

    They walk over the blocks, ``at`` being where the bytes of one begin and ``size`` their number.
    """
    refuse = "    return SLOW(record)"
    words = [f"{prefix}{i}" for i, v in enumerate(phase.values) if v.kind is Kind.INTERFACE]
    lines = [f"if {' or '.join(words)}:", refuse] if words else []
    pointers = [f"{prefix}{i}" for i, v in enumerate(phase.values) if v.kind is Kind.POINTER]
    lines += [f"if not ({' and '.join(pointers)}):", refuse] if pointers else []
    if not phase.blocks:
        return [*lines, f"if {base} + {phase.image_size} > {limit}:", refuse]
    lines += [f"at = {base} + {-(-phase.image_size // 8) * 8 + 8}"]
    for position, index in enumerate(phase.blocks):
        if position:
            lines.append("at += (size + 7 & -8) + 8")
        if phase.values[index].kind is Kind.INTERFACE:
            lines += ["size = 0", f"if at > {limit}:", refuse]
            continue
        name = f"{prefix}{index}"
        lines += ["held = WORD(record, at - 4)[0]"] if position else []
        lines += [
            f"size = {name}",
            f"if held != size or at + size > {limit}:",
            refuse,
            f'{name} = QUOTE(str(record[at : at + size], "{encoding}"))',
        ]
    return lines


def _compile(source: str, names: dict[str, object]) -> Line:
    exec(compile(source, "<line of a plain call>", "exec"), names)
    return cast(Line, names["line"])
