# SPDX-License-Identifier: Apache-2.0
"""Cells whose form in JSON is not that in rows of results: stacks, and values of calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.goroutines.model import Frame, Stack
from gotrace.goroutines.program import CodeNames
from gotrace.kernel.kept_stacks import MAX_FRAMES
from gotrace.records import dataclass
from gotrace.results.rows import Json

if TYPE_CHECKING:
    from gotrace.values.model import Value


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


@dataclass(frozen=True, slots=True)
class RowBy:
    """The values that all calls of a row have, by expression; none of those that found no room."""

    values: Mapping[str, Value | None]

    @classmethod
    def of_json(cls, values: Json | None) -> RowBy:
        """Return the values of a recording."""
        found = (values or {}).items()
        return cls({text: (_stack if text == "$stack" else _value)(one) for text, one in found})

    def to_json(self) -> dict[str, object] | None:
        """Return the values, None if there are none."""
        from gotrace.values.to_json import to_json

        found = {t: None if one is None else to_json(one) for t, one in self.values.items()}
        return found or None


# The modules of values are imported if there are any, so that other runs start soon.
def _value(value: object) -> Value:
    """Return a value for text; one with parts is shown as JSON has it."""
    from gotrace.gotypes.types import SHAPE
    from gotrace.values.model import (
        AlikeValue,
        ErrorValue,
        Nil,
        StringValue,
        StructValue,
        TextValue,
        UnavailableValue,
    )

    if value is None:
        return Nil("")
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return StringValue(value.encode(), len(value.encode()))
    if isinstance(value, dict):
        if "$unavailable" in value:
            return UnavailableValue(str(value["$unavailable"]))
        if "$error" in value and isinstance(value["$error"], str):
            name, known = str(value.get("$type")), "" if "$cut" in value else None
            error = ErrorValue(name, value["$error"], Nil(""), known, guessed="$guessed" in value)
            return AlikeValue(name, str(value["$kind"]), error) if "$kind" in value else error
        if isinstance(guess := value.get("$guess"), str):
            text = StringValue(guess.encode(), len(guess.encode()))
            return StructValue(SHAPE, (), text)
        if "$string" in value:
            return StringValue(str(value["$string"]).encode(), value.get("$len"))
    return TextValue("", json.dumps(value, ensure_ascii=False))


def _stack(value: object) -> Value:
    from gotrace.probes.scope import STACK_TYPE
    from gotrace.values.model import SequenceValue, StructValue

    if not isinstance(value, list):
        return _value(value)
    names = ("func", "file", "line")
    frames = [
        StructValue("", tuple((name, _value(frame.get(name))) for name in names)) for frame in value
    ]
    return SequenceValue(STACK_TYPE, tuple(frames), len(frames))
