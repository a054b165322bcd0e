# SPDX-License-Identifier: Apache-2.0
"""Stacks in rows of results: with all that text and profiles need, and as JSON has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gotrace.goroutines.model import Frame, Stack
from gotrace.goroutines.program import CodeNames
from gotrace.kernel.kept_stacks import MAX_FRAMES
from gotrace.results.rows import Json

__all__ = ["RowStack", "RowStacks"]


@dataclass(frozen=True, slots=True)
class RowStack:
    """The frames of a stack without those that are elided, innermost first, and its addresses.

    ``is_cut``: there may be more than could be kept.
    """

    frames: tuple[Frame, ...]
    is_cut: bool
    addresses: Stack = ()

    @classmethod
    def of_json(cls, frames: Iterable[Json]) -> RowStack:
        """Return a stack of a recording, whose addresses are not known."""
        found = tuple(map(Frame.of_json, frames))
        return cls(found, len(found) == MAX_FRAMES)

    def shown(self, system: bool) -> Sequence[Frame]:
        """Return the frames that Go's own dumps show, all of them with ``system``, or if none."""
        return [one for one in self.frames if system or one.is_shown] or self.frames

    def to_json(self) -> list[dict[str, object]]:
        """Return all frames."""
        return [{**frame.to_json(), "inlined": frame.is_inlined} for frame in self.frames]


class RowStacks(dict[Stack, RowStack]):
    """The stacks of a program by their addresses, each named once."""

    def __init__(self, program: CodeNames) -> None:
        super().__init__()
        self._program = program

    def __missing__(self, addresses: Stack) -> RowStack:
        frames = self._program.frames(addresses)
        every = tuple(frame for frame in frames if not frame.is_elided) or tuple(frames)
        found = self[addresses] = RowStack(every, len(addresses) == MAX_FRAMES, addresses)
        return found
