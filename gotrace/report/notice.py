"""Carry what a run has to say beside its results, on a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TextIO

from gotrace.text import printable

__all__ = ["JsonOutput", "Notice", "NoticeKind", "Output", "TextOutput"]


class NoticeKind(Enum):
    """Name the kinds of notices; the values are the ``kind`` of their JSON objects."""

    ATTACHED = "attached"
    WARNING = "warning"
    LOST = "lost"
    SUMMARY = "summary"
    EXITED = "exited"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True)
class Notice:
    """Say one thing in words, with the same in ``fields`` for programs."""

    kind: NoticeKind
    message: str
    fields: Mapping[str, object] = field(default_factory=dict)


class TextOutput:
    """Write results and the frame around them to ``out``, everything else to ``err``."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.out = out
        self._err = err

    def notice(self, notice: Notice) -> None:
        """Write a notice as a line."""
        framing = notice.kind in (NoticeKind.ATTACHED, NoticeKind.DETACHED)
        stream = self.out if framing else self._err
        print(printable(notice.message), file=stream, flush=True)


class JsonOutput:
    """Write one JSON object a line to ``out``, each with its ``kind``."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def write(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write one object."""
        self.out.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")

    def notice(self, notice: Notice) -> None:
        """Write a notice as an object of its own kind."""
        self.write(notice.kind.value, {"message": notice.message, **notice.fields})
        self.out.flush()


Output = TextOutput | JsonOutput
