# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of the trace program's data to what a C compiler makes."""

from __future__ import annotations

import enum
import re
import struct
from pathlib import Path
from random import Random

import pytest

from gotrace.abi.assign import CLOSURE_CONTEXT
from gotrace.architecture import AMD64, ARM64
from gotrace.capture import ops as capture_ops
from gotrace.capture.ops import (
    MAX_BLOCKS,
    ArithmeticCode,
    ComparisonCode,
    Op,
    OpCode,
    SpanPart,
    SpecialCode,
    Status,
    StringTest,
    WalkResult,
)
from gotrace.gotypes.contexts import ContextKind
from gotrace.histogram import WIDE_BUCKETS, WIDE_ROW_SIZE
from gotrace.kernel.compiler import joined_source
from gotrace.probes import predicate
from gotrace.session import events, keys, trace, trace_plan
from gotrace.session.events import HEADER, CallFlag, parse_call
from tests.bpf import c as compiler
from tests.bpf.c import CLayout, run_c
from tests.capture import reference

PAYLOAD = 256


_SETTINGS = """\
#define _GNU_SOURCE
#include <ucontext.h>
"""


@pytest.fixture
def c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CLayout:
    monkeypatch.setattr(compiler, "_PRELUDE", _SETTINGS + compiler._PRELUDE)
    return CLayout("trace.c", tmp_path)


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CLayout:
    monkeypatch.setattr(compiler, "_PRELUDE", _SETTINGS + compiler._PRELUDE)
    return CLayout("trace.c", tmp_path, {"GOTRACE_KEY": 256})


def enumerators(name: str) -> list[str]:
    """Return the names that an enum of the program lists."""
    found = re.search(rf"^enum {name} \{{(.*?)^\}};", joined_source("trace.c"), re.M | re.S)
    assert found is not None
    return re.findall(r"^\s+(\w+)", re.sub(r"/\*.*?\*/", "", found[1], flags=re.S), re.M)


def test_op(c: CLayout) -> None:
    fields = ("code", "reg", "block", "at", "at2", "size", "limit", "skip", "start", "more")
    row, values = c.fields("op", *fields)
    op = Op(OpCode.DEREF_N, 0xF1, 0xF203, 0xF405, 0xF607, 0xF8090A0B, 0xFC0D0E0F, 0xF011, 0xF213)
    op = op._replace(more=0xF4151617)
    assert len(op.pack()) == len(row)
    assert list(capture_ops._OP.unpack(row)[: len(fields)]) == values
    assert capture_ops._OP.unpack(op.pack()) == tuple(getattr(op, name) for name in fields)


def test_every_op_code(c: CLayout) -> None:
    names = enumerators("op_code")
    assert names == [f"OP_{code.name}" for code in OpCode]
    assert c.constants(*names) == list(OpCode)


def test_every_status(c: CLayout) -> None:
    names = enumerators("block_status")
    assert names == [f"BLOCK_{status.name}" for status in Status]
    assert c.constants(*(f"(u32){name}" for name in names)) == list(Status)


@pytest.mark.parametrize(
    ("name", "prefix", "codes"),
    [
        ("comparison", "COMPARE", ComparisonCode),
        ("arithmetic", "ARITHMETIC", ArithmeticCode),
        ("special", "SPECIAL", SpecialCode),
        ("string_test", "TEST", StringTest),
    ],
)
def test_what_predicates_ask(c: CLayout, name: str, prefix: str, codes: type[enum.IntEnum]) -> None:
    names = enumerators(name)
    assert names == [f"{prefix}_{code.name}" for code in codes]
    assert c.constants(*names) == list(codes)


def test_contexts(c: CLayout) -> None:
    row, values = c.fields("context_type", "kind", "at", "key")
    assert list(trace._CONTEXT_TYPE.unpack(row)) == values
    kinds, parts = enumerators("context_kind"), enumerators("span_part")
    assert kinds == [f"CONTEXT_{kind.name}" for kind in ContextKind]
    assert c.constants(*kinds) == list(ContextKind)
    assert parts == [f"SPAN_{part.name}" for part in SpanPart]
    assert c.constants(*parts) == list(SpanPart)
    results = [name for name in enumerators("walk_result") if name[5:] in WalkResult.__members__]
    assert results == [f"WALK_{result.name}" for result in WalkResult]
    assert c.constants(*results) == [-result for result in WalkResult]
    assert c.constants("MAX_CONTEXTS") == [capture_ops.MAX_CONTEXTS]


def test_digits_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_PRELUDE", _SETTINGS + compiler._PRELUDE)
    random = Random(8)
    words = [random.getrandbits(32).to_bytes(4, "little") for _ in range(200)]
    words += [bytes([byte, 0xFF - byte, byte, 0x9A]) for byte in range(256)]
    numbers = ",".join(str(int.from_bytes(word, "little")) for word in words)
    body = f"""u32 words[] = {{{numbers}}};
        for (int i = 0; i < {len(words)}; i++)
            printf("%016llx ", (unsigned long long)hexadecimal(words[i]));"""
    lines = run_c("trace.c", ["hexadecimal"], body, tmp_path).split()
    assert [bytes.fromhex(line)[::-1].decode() for line in lines] == [word.hex() for word in words]


def test_bounds_and_marks(c: CLayout) -> None:
    marks = ("OTHER_PHASE", "BLOCK_CUT", "SIGNED_OPERAND")
    names = (
        "MAX_BLOCKS",
        "MAX_RESTS",
        "MORE_ELEMENTS",
        "MAX_NESTING",
        "MEMORY_PAGE",
        "PREDICATE_STACK",
        *marks,
    )
    assert c.constants(*names) == [getattr(capture_ops, name) for name in names]
    assert c.constants("CLOSURE_CONTEXT") == [CLOSURE_CONTEXT.index]
    searches = ("SEARCHED_BYTES", "SEARCH_STRIDE", "SEARCH_STEPS")
    own = [reference._SEARCHED, reference._STRIDE, reference.SEARCH_STEPS]
    assert c.constants(*searches) == own
    assert trace_plan.SEARCH_STEPS == reference.SEARCH_STEPS
    # Behind Go's registers is the closure's context.
    assert c.constants("REGISTERS - GO_INT_REGISTERS") == [1]


def test_all_registers_are_read() -> None:
    """Those of amd64 come first; arm64 has more."""
    source = joined_source("trace.c")
    read = re.findall(r"w->regs\[(\d+)\] = GO_REGISTER\(ctx, (\d+)\);", source)
    more = source.index(f"#if GO_INT_REGISTERS > {len(AMD64.int_registers)}")
    assert source.index("w->regs[8]") < more < source.index("w->regs[9]")
    assert read == [(str(n), str(n)) for n in range(len(ARM64.int_registers))]
    assert "w->regs[REGISTERS - 1] = registers_closure(ctx);" in source


def test_constant(c: CLayout) -> None:
    ends = ("words[0]", "words[CONSTANT_WORDS - 1]", "masks[0]", "masks[CONSTANT_WORDS - 1]")
    row, values = c.fields("constant", "length", *ends)
    words = struct.unpack("<17Q", row)
    assert [words[0], words[1], words[8], words[9], words[16]] == values
    assert len(row) == 8 + 2 * predicate.CONSTANT_BYTES
    constants = predicate.StringConstants()
    constants.number(b"needle")
    (packed,) = constants.packed()
    assert len(packed) == len(row)
    assert packed[:14] == struct.pack("<Q", 6) + b"needle"
    assert packed[72:80] == b"\xff" * 6 + b"\0\0"


def test_site_plan(c: CLayout) -> None:
    row, values = c.fields(
        "site_plan",
        "site",
        "entry",
        "result",
        "flags",
        "entry_leaves",
        "next_pc",
        "next_sp",
        "return_leaves",
    )
    assert [field % (1 << 64) for field in trace._SITE_PLAN.unpack(row)] == values


def test_event(c: CLayout) -> None:
    fields = ("end", "start", "goid", "tgid", "tid", "function", "args_length", "results_length")
    row, values = c.fields("event", *fields, "flags", "hits", "hits_ns")
    assert list(HEADER.unpack(row)) == values
    assert len(row) == HEADER.size
    assert events.function_of(row) == values[5]


def test_event_flags(c: CLayout) -> None:
    names = ("EVENT_STACK", "EVENT_ENTRY_FLOATS", "EVENT_RETURN_FLOATS", "EVENT_UNDECIDED")
    more = ("EVENT_PANIC", "EVENT_GOEXIT", "EVENT_WHY", "EVENT_NESTED")
    begun = ("EVENT_BEGUN", "EVENT_UNWANTED")
    assert c.constants(*names, *more, *begun) == list(CallFlag)


def test_plan_flags(c: CLayout) -> None:
    names = ("PLAN_ENTRY_ONLY", "PLAN_ENTRY_FLOATS", "PLAN_RETURN_FLOATS", "PLAN_LEAVES")
    flags = [trace._ENTRY_ONLY, trace._ENTRY_FLOATS, trace._FLOATS, trace._LEAVES]
    assert c.constants(*names) == flags


def test_call(c: CLayout) -> None:
    """Its payload comes last, of a size that only its run has."""
    offsets = c.constants(
        "offsetof(struct call, event)",
        "offsetof(struct call, payload)",
        "sizeof(struct call)",
        "offsetof(struct call, length)",
    )
    head = trace._CALL_HEAD.size
    assert offsets == [head, head + HEADER.size, head + HEADER.size, head - 8]
    assert HEADER.size + trace._CALL_HEAD.size < trace._CALL_OVERHEAD


def test_wait_and_waiting(c: CLayout) -> None:
    row, values = c.fields("wait", "pc", "sp", "at_entry", "flag")
    pc, sp, key, at_entry, flag = trace._WAIT.unpack(row)
    assert [pc, sp, at_entry, flag] == values
    assert len(key) == c.constants("sizeof(struct call_key)")[0]
    offsets = c.constants("offsetof(struct waiting, wait)", "offsetof(struct waiting, call)")
    assert offsets == [0, trace._WAIT.size]
    # A struct waiting is copied out of a struct work.
    wait, call = c.constants("offsetof(struct work, wait)", "offsetof(struct work, call)")
    assert call - wait == trace._WAIT.size


def test_record_that_waits_is_found() -> None:
    event = HEADER.pack(9, 8, 7, 6, 5, 4, 16, 0, 0, 0, 0)
    payload = bytes(range(16))

    def value(at_entry: int) -> bytes:
        wait = trace._WAIT.pack(1, 2, bytes(16), at_entry, 0)
        head = trace._CALL_HEAD.pack(*[0] * (15 + MAX_BLOCKS), len(payload), 0)
        return wait + head + event + payload + bytes(PAYLOAD - 16)

    record = trace._waiting_record(value(0))
    assert record is not None
    assert parse_call(record).args == payload
    assert trace._waiting_record(value(1)) is None


def test_block_of_floats(c: CLayout) -> None:
    (floats,) = c.constants("8 + 8 * GO_FLOAT_REGISTERS")
    assert floats == trace._FLOAT_BLOCK


def test_signal_frame(c: CLayout) -> None:
    """The C library's headers tell where a signal frame has what the program reads."""
    context = "offsetof(ucontext_t, uc_mcontext.{})"
    true = [context.format(name) for name in ("gregs[REG_RSP]", "gregs[REG_RIP]", "fpregs")]
    true.append("offsetof(struct _libc_fpstate, _xmm)")
    names = ("UCONTEXT_SP", "UCONTEXT_PC", "UCONTEXT_FPSTATE", "FIRST_FLOAT")
    assert c.constants(*names) == c.constants(*true)


def test_a_sample_is_a_record(keyed: CLayout) -> None:
    assert keyed.constants("offsetof(struct sample, event)") == [0]
    places = keyed.constants("offsetof(struct sample, payload)", "sizeof(struct sample)")
    assert places == [HEADER.size, HEADER.size]


def test_histograms_of_values(c: CLayout, tmp_path: Path) -> None:
    wide = CLayout("trace.c", tmp_path, {"GOTRACE_WIDE": 1})
    found = wide.constants("BUCKETS", "sizeof(struct histogram)")
    assert found == [WIDE_BUCKETS, WIDE_ROW_SIZE]


def test_keys(keyed: CLayout) -> None:
    assert keyed.constants("KEY_TEXT_BYTES") == [capture_ops.MAX_KEY_TEXT]
    assert keyed.constants("ROW_OF_OTHERS") == [keys._OTHERS]
