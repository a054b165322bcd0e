"""Make text that comes from a target fit to be shown."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Return ``text`` with all that could steer a terminal written as backslash escapes.

    That is whatever Unicode does not call printable: controls, format characters that reorder or
    hide text, separators of lines, and lone surrogates, which stand for bytes that are no UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
