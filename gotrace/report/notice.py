"""Carry what a run has to say beside its results, on a terminal and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TextIO

__all__ = ["JsonOutput", "Notice", "NoticeKind", "Output", "TextOutput", "printable"]

# What could steer a terminal, reorder or hide text: Unicode's categories Cc (controls), Cf (format
# characters), Zl and Zp (separators of lines and paragraphs), and Cs (lone surrogates, which stand
# for bytes that are no UTF-8).
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def printable(text: str) -> str:
    """Return ``text`` with all that could steer a terminal written as backslash escapes."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


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
