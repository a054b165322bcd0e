# SPDX-License-Identifier: Apache-2.0
"""Rows of goroutines, one for each, as recordings have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gotrace.goroutines.details import NO_DETAILS, WaitsByG
from gotrace.goroutines.labels import NO_LABELS, Labels
from gotrace.goroutines.model import DumpedGoroutine, Stack
from gotrace.goroutines.program import CodeNames
from gotrace.results.rows import Row
from gotrace.text import encodable


class DumpRows:
    """The rows of goroutines; all names are looked up when it is made."""

    def __init__(
        self,
        program: CodeNames,
        goroutines: Iterable[DumpedGoroutine],
        labels: Mapping[int, Labels],
        waits: WaitsByG,
    ) -> None:
        self._goroutines = list(goroutines)
        self._labels = labels
        self._waits = waits
        #: The frames of each stack, the runtime's included, innermost first.
        self.stacks: dict[Stack, list[Row]] = {}
        self._creations: dict[int, Row | None] = {}
        for one in self._goroutines:
            if one.stack not in self.stacks:
                self.stacks[one.stack] = [
                    {**frame.to_json(), "inlined": frame.is_inlined}
                    for frame in program.frames(one.stack)
                    if not frame.is_elided
                ]
            if one.created_by not in self._creations:
                # the main goroutine is made in assembly, by no go statement
                creation = program.creation(one.created_by) if one.goid != 1 else None
                found = None if creation is None else creation.to_json()
                self._creations[one.created_by] = found

    def rows(self, ts: float | None) -> Iterator[tuple[DumpedGoroutine, Row]]:
        """Yield each goroutine with its row, but for the stack; ``ts`` is when (s since 1970)."""
        for one in self._goroutines:
            labels = self._labels.get(one.labels, NO_LABELS)
            details = self._waits.get(one.g, NO_DETAILS)
            yield (
                one,
                {
                    "kind": "goroutine",
                    "goid": one.goid,
                    "state": one.state.value,
                    "reason": one.reason or None,
                    "waiting_ns": one.waiting_ns,
                    "awaits": one.awaited.type if one.awaited else None,
                    "address": f"{one.awaited.address:#x}" if one.awaited else None,
                    "lock": details.lock or None,
                    "channels": [channel.to_json() for channel in details.channels],
                    "created_by": self._creations[one.created_by],
                    "parent": one.parent or None,
                    "locked_to_thread": one.is_locked_to_thread,
                    "labels": {encodable(name): encodable(value) for name, value in labels},
                    "system": one.is_system,
                    "moved": one.has_moved,
                    "whole": one.is_whole,
                    "ts": ts,
                },
            )
