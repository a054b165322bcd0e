# SPDX-License-Identifier: Apache-2.0
"""Make text that comes from a target fit to be shown."""

from __future__ import annotations

import re

#: A lone surrogate, which UTF-8 cannot have. Those from U+DC80 to U+DCFF stand for a byte that is
#: not UTF-8 in text from the system (PEP 383).
_LONE = re.compile("[\ud800-\udfff]")


def counted(template: str, count: int) -> str:
    """Return a text of a number of things; ``{s}`` is where a plural has its s.

    >>> counted("{} call{s} lost", 1)
    '1 call lost'
    """
    return template.format(count, s="" if count == 1 else "s")


def in_program(program: str | None, name: str) -> str:
    """Return a function's name with its program's, as patterns have it, where there is one.

    >>> in_program("shop", "main.f")
    'shop:main.f'
    """
    return name if program is None else f"{program}:{name}"


def printable(text: str) -> str:
    """Return ``text`` with all that could steer a terminal written as backslash escapes.

    That is whatever Unicode does not call printable: controls, format characters that reorder or
    hide text, separators of lines, and lone surrogates; those that stand for a byte that is no
    UTF-8 become ``\\xff`` or the like.
    """
    if text.isprintable():
        return text
    text = encodable(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encodable(text: str) -> str:
    """Return ``text`` with bytes that are no UTF-8 as ``\\xff`` or the like, and all else as it is.

    Other lone surrogates become ``\\ud800`` or the like. Without that JSON would have escapes of
    lone surrogates, which many parsers refuse, and UTF-8 could not encode the text.
    """
    return text if text.isascii() else _LONE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def quote(text: str) -> str:
    """Put a name or pattern in single quotes, printable."""
    return f"'{printable(text)}'"
