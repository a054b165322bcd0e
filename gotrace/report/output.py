# SPDX-License-Identifier: Apache-2.0
"""Carry what a run has to say beside its results, on a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TextIO

from gotrace.text import encodable, printable

__all__ = [
    "JsonOutput",
    "Notice",
    "NoticeKind",
    "Output",
    "TextOutput",
]


class NoticeKind(Enum):
    """The kinds of notices; the values are the ``kind`` of their JSON objects."""

    ATTACHED = "attached"
    WARNING = "warning"
    LOST = "lost"
    SUMMARY = "summary"
    EXITED = "exited"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing in words, with the same in ``fields`` for programs."""

    kind: NoticeKind
    message: str
    fields: Mapping[str, object] = field(default_factory=dict)


class TextOutput:
    """Results and the lines around them to ``out``, everything else to ``err``."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.out = out
        self._err = err

    def notice(self, notice: Notice) -> None:
        """Write a notice as a line."""
        framing = notice.kind in (NoticeKind.ATTACHED, NoticeKind.DETACHED)
        stream = self.out if framing else self._err
        print(printable(notice.message), file=stream, flush=True)


class JsonOutput:
    """One JSON object a line to ``out``, each with its ``kind``."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def write(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write one object."""
        row = {"kind": kind, **fields}
        line = json.dumps(row, separators=(",", ":"))
        if _SURROGATE in line:
            line = json.dumps(_encodable(row), separators=(",", ":"))
        self.out.write(line + "\n")

    def notice(self, notice: Notice) -> None:
        """Write a notice as an object of its own kind."""
        self.write(notice.kind.value, {"message": notice.message, **notice.fields})
        self.out.flush()


_SURROGATE = "\\udc"  # also in what encodes two surrogates that belong together


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {key: _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return value


Output = TextOutput | JsonOutput
