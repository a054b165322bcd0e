# SPDX-License-Identifier: Apache-2.0
"""Add calls up by the stacks that they were made from, for flame graphs and ``go tool pprof``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gotrace.profiles.rows import Line, PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.session.decode import CallDecoder
from gotrace.session.events import function_of
from gotrace.session.symbols import Symbolizer

#: Calls come first: where only entries are seen, durations are 0.
FORM = ProfileForm((ValueType("calls", "count"), ValueType("duration", "nanoseconds")), 0)

#: Different stacks that are kept; calls of further ones are added up without theirs.
_MAX_STACKS = 1 << 16


class _Key(NamedTuple):
    """A function by number, the process, and return addresses from the caller on."""

    function: int
    tgid: int
    stack: tuple[int, ...]
    is_cut: bool


class CallProfile:
    """Calls by function and stack: how many, and how long together."""

    def __init__(self, decoders: Sequence[CallDecoder], symbols: Symbolizer | None) -> None:
        """Take the decoders of each function's records, and the names of addresses."""
        self._decoders = decoders
        self._symbols = symbols
        self._sums: dict[_Key, tuple[int, int]] = {}
        #: Calls whose stacks were too many to be kept.
        self.without_stack = 0

    def add(self, record: bytes) -> bool:
        """Add a record's call; return whether the probe's predicate wants it."""
        function = function_of(record)
        call = self._decoders[function].wanted(record)
        if call is None:
            return False
        key = _Key(function, call.tgid, call.stack or (), call.stack_cut)
        if key not in self._sums and len(self._sums) >= _MAX_STACKS:
            self.without_stack += 1
            key = _Key(function, 0, (), True)
        count, ns = self._sums.get(key, (0, 0))
        self._sums[key] = count + 1, ns + (call.duration_ns or 0)
        return True

    def rows(self) -> list[ProfileRow]:
        """Return all stacks with their calls, each with the called function innermost.

        Where several programs are traced the outermost frame is the program.
        """
        rows = []
        for key, sums in self._sums.items():
            decoder = self._decoders[key.function]
            own = decoder.function
            line = Line(own.name, own.file or "", own.line or 0)
            entry = decoder.traced.function.function.entry
            bias = self._symbols.bias_of(decoder.traced.binary, key.tgid) if self._symbols else 0
            stack = [PprofLocation(entry + (bias or 0), (line,))]
            if self._symbols is not None:
                stack += self._symbols.locations(key.tgid, key.stack)
            else:
                stack += [PprofLocation(pc - 1, (Line(f"{pc:#x}", "", 0),)) for pc in key.stack]
            if key.is_cut:
                stack.append(PprofLocation(0, (Line("...", "", 0),)))
            if own.program is not None:
                stack.append(PprofLocation(0, (Line(own.program, "", 0),)))
            rows.append(ProfileRow(stack, sums))
        return rows
