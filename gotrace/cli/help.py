# SPDX-License-Identifier: Apache-2.0
"""Fit the texts of a command's help into the 80 columns of a small terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

WIDTH = 80
#: The widest command, or other term, that has its note on the same line.
_TERM = 34
_NOTED = re.compile(r"  (\S.*?)  +(\S.*)")


def fit_help(text: str) -> str:
    """Return a text of help with no line that is too long, notes of one list below each other.

    Lines that begin with a blank are a list, of terms with notes apart by two blanks. A command
    without a note remains as it is, so that it can be copied.
    """
    lines: list[str] = []
    for is_list, group in groupby(text.split("\n"), lambda line: line.startswith(" ")):
        given = list(group)
        if max(map(len, given)) <= WIDTH:
            lines += given
        elif is_list:
            lines += _list(given)
        else:
            for is_blank, paragraph in groupby(given, lambda line: not line):
                text = "\n".join(paragraph)
                lines += text.split("\n") if is_blank else textwrap.wrap(text, WIDTH)
    return "\n".join(lines)


def _list(lines: list[str]) -> Iterator[str]:
    """Yield a list whose notes begin in one column, on the next line after a long term."""
    found = [(match[1], match[2]) if (match := _NOTED.match(line)) else None for line in lines]
    short = [len(pair[0]) for pair in found if pair and len(pair[0]) <= _TERM]
    indent = 4 + max(short, default=_TERM)
    for line, pair in zip(lines, found, strict=True):
        if pair is None:
            yield line
            continue
        term, note = pair
        notes = textwrap.wrap(note, WIDTH - indent)
        yield f"  {term:<{indent - 2}}{notes.pop(0)}" if len(term) + 4 <= indent else f"  {term}"
        yield from (" " * indent + other for other in notes)
