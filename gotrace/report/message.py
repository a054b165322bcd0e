# SPDX-License-Identifier: Apache-2.0
"""Lay messages out on a terminal: what happened first, then what can be done on lines of its own.

Every message is one line, of clauses with colons between them. In files and pipes it stays that.
"""

from __future__ import annotations

import re

_INDENT = "  "
#: A text in quotes, which is not broken: it is what is to be typed.
_QUOTED = r"""(?<![\w)\]}])'[^']*'(?!\w)|(?<!\w)"(?:[^"\\]|\\.)*"(?!\w)"""
_WORD = rf"(?:{_QUOTED}|\S)+"
#: The verbs that begin a clause that says what to do.
_VERBS = (
    "Hit add ask build chmod chown compare did end give import install leave look make merge mount"
    " objcopy print put raise read record reinstall run say see set start trace try type uninstall"
    " use write"
).replace(" ", "|")
#: The beginnings of such a clause: if none has a verb, it has a command or an option.
_BEGINNINGS = (rf"(?:{_VERBS}|to [^:;]+, type)\b", r"-{1,2}[a-z]|go[a-z]+ [-'a-z]")


def laid_out(text: str, columns: int | None, before: str = "") -> str:
    """Return a message in lines of so many columns, None if it goes to no terminal.

    ``before`` is who says it, at the beginning of the first line.

    >>> print(laid_out("no process 7: it has ended: type -p with another number", 40))
    no process 7: it has ended:
      type -p with another number
    """
    if columns is None or len(before) + len(text) <= columns:
        return before + text
    at = len(text)
    for beginning in _BEGINNINGS:
        clauses = re.finditer(rf"{_QUOTED}|(?P<end>(?:[:;]|\.\.\.) )(?={beginning})", text)
        if ends := [found.end() for found in clauses if found["end"]]:
            at = ends[0]
            break
    lines = [*_wrapped(before + text[:at], "", columns), *_wrapped(text[at:], _INDENT, columns)]
    return "\n".join(lines)


def _wrapped(text: str, first: str, columns: int) -> list[str]:
    """Return words in lines; those in quotes stay together, and may be longer than a line."""
    lines: list[str] = []
    first += " " * (len(text) - len(text.lstrip()))
    for word in re.findall(_WORD, text):
        if lines and len(lines[-1]) + 1 + len(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append((_INDENT if lines else first) + word)
    return lines
