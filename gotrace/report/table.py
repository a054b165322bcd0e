# SPDX-License-Identifier: Apache-2.0
"""Lay out tables: those that are printed whole, and the width of all on a terminal.

Other tables have a layout of their own, where they are written. Those of calls may have 100,000
rows, for which tabulate takes a second more, in the second that there is for writing after the end
of a run. Those of functions and of checks are written as they are found.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from typing import TextIO

from gotrace.errors import GotraceError
from gotrace.gotypes.symbols import short_name

#: Columns that a text is left with, however narrow the terminal is.
LEAST = 12
_MARK = "..."
#: A number with its unit is never shortened.
_NUMBER = re.compile(r"[-+~]?[\d.,]+[\w%/]{0,4}")


def columns_of(out: TextIO) -> int | None:
    """Return the columns of the terminal that a stream goes to, None if it goes to none."""
    return shutil.get_terminal_size((80, 0)).columns if out.isatty() else None


def fitted(name: str, room: int | None) -> str:
    """Return a function's name in so many columns, of which the end says most; None is any."""
    if room is None or len(name) <= room:
        return name
    name = short_name(name)
    return name if len(name) <= room else f"..{name[2 - room :]}" if room > 2 else name[:room]


def ending(before: str, name: str, columns: int | None) -> str:
    """Return a line that a function's name ends, which has what is left of the columns."""
    room = None if columns is None else max(LEAST, columns - len(before))
    return before + fitted(name, room)


def shortened(text: str, room: int) -> str:
    """Return a text in so many columns: the middle of a longer one is left out.

    One of several words is a message, whose beginning says most: its end is left out.
    """
    kept = room - len(_MARK)
    if len(text) > room and kept >= 2 and " " in text:
        return text[:kept] + _MARK
    return without_middle(text, room)


def without_middle(text: str, room: int) -> str:
    """Return a text in so many columns, with its beginning and its end."""
    kept = room - len(_MARK)
    if len(text) <= room or kept < 2 or _NUMBER.fullmatch(text):
        return text
    return f"{text[: kept - kept // 2]}{_MARK}{text[-(kept // 2) :]}"


def hanging(before: str, text: str, columns: int | None) -> str:
    """Return a text after the beginning of its line, with more lines below it if need be."""
    room = None if columns is None else max(LEAST, columns - len(before))
    if room is None or len(text) <= room:
        return before + text
    from textwrap import wrap

    lines = wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return before + f"\n{' ' * len(before)}".join(lines)


def narrowed(widths: Sequence[int], room: int | None) -> list[int]:
    """Return the widths of columns of text so that they have ``room``: the widest lose most."""
    left = list(widths)
    while room is not None and sum(left) > room and max(left) > LEAST:
        left[left.index(max(left))] -= 1
    return left


def parts_lines(parts: Sequence[str], columns: int | None) -> Iterator[str]:
    """Yield parts of a line with commas between them, in lines of so many columns."""
    line = ""
    for part in parts:
        if line and columns is not None and len(line) + len(part) + 2 > columns:
            yield f"{line},"
            line = part
        else:
            line += f", {part}" if line else part
    yield line


def table_lines(
    rows: Sequence[Sequence[str]], right: int = 0, columns: int | None = None
) -> list[str]:
    """Return the lines of a table, in which the last ``right`` columns are aligned to the right.

    Heads of columns are the first row: tabulate adds two spaces to what it knows for heads. Texts
    are shortened if the lines would not fit ``columns``.
    """
    try:
        from tabulate import tabulate  # takes 15 ms, which no start is to take
    except ImportError as missing:
        raise GotraceError(
            f"cannot lay out a table: tabulate cannot be imported ({missing}): install"
            " python3-tabulate (Debian, Ubuntu, Fedora), or pip install 'tabulate>=0.8.9'"
        ) from missing
    texts = len(rows[0]) - right
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = None if columns is None else columns - sum(widths[texts:]) - 2 * (len(widths) - 1)
    fit = narrowed(widths[:texts], room)
    rows = [
        [*(shortened(cell, width) for cell, width in zip(row, fit, strict=False)), *row[texts:]]
        for row in rows
    ]
    align = ["left"] * texts + ["right"] * right
    return tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True).splitlines()
