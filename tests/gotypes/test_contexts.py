# SPDX-License-Identifier: Apache-2.0
"""The types of contexts and spans that a program has, with symbols and without."""

from __future__ import annotations

import pytest

from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.contexts import ContextKind, ContextType
from tests.toolchains import FIXTURES, build, newest, require

#: Those of all releases; the program's own and OpenTelemetry's with what is before their fields.
EXPECTED = {
    "*context.cancelCtx": (ContextKind.PARENT, 0),
    "*context.timerCtx": (ContextKind.PARENT, 0),
    "*context.valueCtx": (ContextKind.VALUE, 0),
    "*os/signal.signalCtx": (ContextKind.PARENT, 0),
    "main.wrapped": (ContextKind.PARENT, 0),
    "*main.wrapped": (ContextKind.PARENT, 0),
    "*main.outer": (ContextKind.PARENT, 24),
    "*main.shy": (ContextKind.PARENT, 0),
    "go.opentelemetry.io/otel/trace.noopSpan": (ContextKind.NO_SPAN, 0),
    "go.opentelemetry.io/otel/trace.nonRecordingSpan": (ContextKind.SPAN, 0),
    "go.opentelemetry.io/otel/sdk/trace.nonRecordingSpan": (ContextKind.SPAN, 8),
}


@pytest.mark.parametrize("minor", ["1.19", None])
def test_types_of_contexts(minor: str | None) -> None:
    toolchain = newest() if minor is None else require(minor)
    flags = ("-ldflags=-s -w", "-buildmode=pie") if minor is None else ()
    path = build(FIXTURES / "live_spans", toolchain, flags=flags)
    with Binary(ElfImage.open(str(path))) as binary:
        contexts, types = binary.contexts, binary.rtypes
        assert contexts is not None and types is not None and binary.has_spans
        by_name: dict[str, ContextType] = {
            types.name(address): known
            for address, known in contexts.items()
            if types.type_of_itab(address) is None
        }
        found = {name: (known.kind, known.at) for name, known in by_name.items()}
        assert EXPECTED.items() <= found.items()
        # The span's own after its parent's, a mutex, a number, a text and two times.
        assert found["*go.opentelemetry.io/otel/sdk/trace.recordingSpan"][0] is ContextKind.SPAN
        assert "main.odd" not in found and "main.oddSpan" not in found
        key = by_name["*context.valueCtx"].key
        assert types.name(key) == "go.opentelemetry.io/otel/trace.traceContextKeyType"
        roots = {"*context.emptyCtx"} if minor == "1.19" else {"context.backgroundCtx"}
        assert roots <= {name for name, (kind, _) in found.items() if kind is ContextKind.ROOT}


def test_programs_without_spans() -> None:
    path = build(FIXTURES / "live_recipes", newest())
    with Binary(ElfImage.open(str(path))) as binary:
        assert binary.rtypes is not None
        assert not binary.has_spans
        assert binary.contexts is not None
        kinds = {known.kind for known in binary.contexts.values()}
        assert kinds <= {ContextKind.ROOT, ContextKind.PARENT, ContextKind.VALUE}
