"""Format decoded values by Go's verbs, as fmt.Printf does: ``%s %-5d %+v``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gotrace.errors import UsageError
from gotrace.goabi.types import GoType, Kind
from gotrace.goabi.values import Value
from gotrace.goabi.verb_scalars import Directive
from gotrace.goabi.verb_values import Printer

__all__ = ["Directive", "Format", "FormatError", "format_values", "parse_format", "verb_problem"]

_VERBS = "vTtbcdoOqxXUeEfFgGsp"
_DIRECTIVE = re.compile(
    rf"%(?P<flags>[-+# 0]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>[{_VERBS}])"
)
_WIDEST = 1000


class FormatError(UsageError):
    """Report what is wrong in a format, and at which characters of it (from 0)."""

    def __init__(self, content: str, start: int, end: int, reason: str) -> None:
        """Take the format, the place and the reason."""
        super().__init__(f"format {content!r}, column {start + 1}: {reason}")
        self.start = start
        self.end = end
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Format:
    """A format in pieces: plain text, and a directive for each value."""

    text: str
    pieces: tuple[str | Directive, ...]

    @property
    def directives(self) -> tuple[Directive, ...]:
        """Return the directives, one for each value, in order."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Directive))


def parse_format(content: str) -> Format:
    """Parse a format such as ``%s %-5d %+v``; raises FormatError."""
    pieces: list[str | Directive] = []
    at = 0
    while at < len(content):
        percent = content.find("%", at)
        if percent < 0:
            pieces.append(content[at:])
            break
        if percent > at:
            pieces.append(content[at:percent])
        if content.startswith("%%", percent):
            pieces.append("%")
            at = percent + 2
            continue
        directive = _directive(content, percent)
        pieces.append(directive)
        at = directive.end
    return Format(content, tuple(pieces))


def _directive(content: str, start: int) -> Directive:
    match = _DIRECTIVE.match(content, start)
    if match is None:
        raise _bad_directive(content, start)
    width, precision = match["width"], match["precision"]
    if len(width) > 4 or len(precision or "") > 4 or int(width or 0) > _WIDEST:
        reason = f"widths and precisions are at most {_WIDEST}"
        raise FormatError(content, start, match.end(), reason)
    return Directive(
        match["verb"],
        frozenset(match["flags"]),
        int(width) if width else None,
        None if precision is None else min(int(precision or 0), _WIDEST),
        start,
        match.end(),
        match[0],
    )


def _bad_directive(content: str, start: int) -> FormatError:
    flags = re.compile(r"%[-+# 0-9.]*").match(content, start)
    end = flags.end() if flags else start + 1
    if end >= len(content):
        return FormatError(content, start, end, "a verb is missing behind %; %% is a percent sign")
    char = content[end]
    reason = f"there is no verb %{char}: use one of %{' %'.join(_VERBS)}, or %% for a percent sign"
    if char == "*":
        reason = "write the width as a number"
    elif char == "[":
        reason = "values are taken in order: leave the index out"
    elif char in "iul":
        reason = f"Go has no %{char}: integers are %d, anything is %v"
    return FormatError(content, start, end + 1, reason)


_INTEGERS = frozenset(kind for kind in Kind if Kind.INT.value <= kind.value <= Kind.UINTPTR.value)
_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})
_SUITABLE = {
    Kind.BOOL: "vTt",
    Kind.STRING: "vTsqxX",
    **dict.fromkeys(_INTEGERS, "vTdboOcqxXU"),
    **dict.fromkeys(_FLOATS, "vTeEfFgG"),
}
_BETTER = {Kind.BOOL: "%t", Kind.STRING: "%s or %q"}
_WITH_TEXT = frozenset({"time.Duration"})


def verb_problem(directive: Directive, of: GoType) -> str | None:
    """Say why a verb cannot print values of a type, None when it can or nobody knows beforehand."""
    verbs = _SUITABLE.get(of.kind)
    if of.name in _WITH_TEXT:
        verbs = "vTdboOcqxXUs"
    if verbs is None or directive.verb in verbs:
        return None
    better = "%g" if of.kind in _FLOATS else _BETTER.get(of.kind, "%d")
    return f"%{directive.verb} does not print {of.name} values: use {better}, or %v"


def format_values(
    template: Format, values: Sequence[Value], types: Sequence[GoType | None] = ()
) -> str:
    """Fill a format with values, one for each directive.

    ``types`` are the values' static types where known: they tell uint8 from int for %T and %#v,
    and a float32.
    """
    parts = []
    index = 0
    for piece in template.pieces:
        if isinstance(piece, str):
            parts.append(piece)
            continue
        if index < len(values):
            of = types[index] if index < len(types) else None
            parts.append(Printer(piece).value(values[index], of))
        else:
            parts.append(f"%!{piece.verb}(MISSING)")
        index += 1
    return "".join(parts)
