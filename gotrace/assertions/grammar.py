# SPDX-License-Identifier: Apache-2.0
"""Parse assertions: ``PROBE <= N``, ``PROBE <= N per ROOT``, ``PROBE <= N in ROOT``.

PROBE and ROOT are functions or patterns, each perhaps with a predicate; ``==`` and ``>=`` are the
other bounds. ``FIRST before PROBE per ROOT`` is a bound as well: no call of PROBE lacks one of
FIRST that had ended before it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from gotrace.errors import GotraceError, UsageError, said
from gotrace.probes.pattern import CLOSING, QUOTES, closing
from gotrace.records import dataclass, replace
from gotrace.text import quote

_EXAMPLE = "as in 'main.query <= 3 per main.handle'"
_OPERATOR = re.compile(r"[<>=!]+(?!-)")
_BOUND = re.compile(r"\s*(\d+)(?!\S)\s*(?:(per|in)(?!\S)\s*(.*))?", re.DOTALL)
_WORD = re.compile(r"(?<!\S)(before|per|in)(?!\S)")


class Operator(Enum):
    """The relation of a number of calls to the bound."""

    EQUAL = "=="
    AT_MOST = "<="
    AT_LEAST = ">="

    def holds(self, count: int, number: int) -> bool:
        """Return whether a number of calls is as it is asserted."""
        compare: Callable[[int, int], bool] = _COMPARE[self]
        return compare(count, number)


_COMPARE = {
    Operator.EQUAL: operator.eq,
    Operator.AT_MOST: operator.le,
    Operator.AT_LEAST: operator.ge,
}


class BoundScope(Enum):
    """The calls that are counted together."""

    RUN = ""  # all of the run
    PER = "per"  # those made for a call of the root, in any goroutine
    IN = "in"  # those made within a call of the root, in its goroutine


@dataclass(frozen=True, slots=True)
class CallBound:
    """An assertion in parts; ``root`` is None if it is of the whole run.

    If there is an ``earlier`` probe, the calls are counted that none of it had ended before. If it
    ``is_open``, the number is the most that will have been seen.
    """

    text: str
    probe: str
    operator: Operator
    number: int
    scope: BoundScope = BoundScope.RUN
    root: str | None = None
    earlier: str | None = None
    is_open: bool = False

    def closed(self, number: int) -> CallBound:
        """Return the same with a number, of one that is open."""
        of_root = "" if self.root is None else f" {self.scope.value} {self.root}"
        text = f"{self.probe} {self.operator.value} {number}{of_root}"
        return replace(self, text=text, number=number, is_open=False)

    @property
    def probes(self) -> Sequence[str]:
        """Return all functions and patterns that it is about, but for the root."""
        return (self.probe,) if self.earlier is None else (self.probe, self.earlier)

    def holds(self, count: int) -> bool:
        """Return whether a number of calls is as it is asserted."""
        return self.operator.holds(count, self.number)

    def can_hold(self, least: int, most: int | None) -> bool:
        """Return whether any number of calls from ``least`` on, up to ``most``, would hold."""
        if self.operator is Operator.AT_LEAST:
            return most is None or most >= self.number
        if self.operator is Operator.AT_MOST:
            return least <= self.number
        return least <= self.number and (most is None or most >= self.number)

    def must_hold(self, least: int, most: int | None) -> bool:
        """Return whether all numbers of calls from ``least`` on, up to ``most``, would hold."""
        if self.operator is Operator.AT_LEAST:
            return least >= self.number
        return most is not None and self.holds(least) and self.holds(most)

    def excess(self, count: int) -> int:
        """Return how far a number of calls is from what is asserted, 0 if it holds."""
        return 0 if self.is_open or self.holds(count) else abs(count - self.number)


def parse_assertion(text: str) -> CallBound:
    """Parse an assertion. Raises UsageError."""
    words = text.strip()
    at = next(_found(_OPERATOR, words), None)
    if at is None:
        if (ordered := _ordered(words)) is not None:
            return ordered
        what = f"give a bound, {_EXAMPLE}{said(', or find it with --record FILE', '')}"
        raise UsageError(f"{quote(words)} asserts nothing: {what}")
    found = _OPERATOR.match(words, at)
    assert found is not None
    probe, relation = words[:at].strip(), found[0]
    if not probe:
        raise UsageError(f"{quote(words)}: the function is missing before {relation}, {_EXAMPLE}")
    by_text = {one.value: one for one in Operator}
    if relation not in by_text:
        raise UsageError(f"{quote(words)}: there is no {relation} here: give ==, <= or >=")
    bound = _BOUND.fullmatch(words, found.end())
    if bound is None:
        what = "a number of calls, then perhaps 'per ROOT' or 'in ROOT'"
        raise UsageError(f"{quote(words)}: after {relation} there is {what}, {_EXAMPLE}")
    number, scope, root = int(bound[1]), BoundScope(bound[2] or ""), bound[3]
    if scope is not BoundScope.RUN and not root:
        raise UsageError(f"{quote(words)}: the root is missing after {scope.value}, {_EXAMPLE}")
    if root and next(_found(_OPERATOR, root), None) is not None:
        raise UsageError(f"{quote(words)} has two bounds: give an assertion for each")
    if by_text[relation] is Operator.AT_LEAST and number == 0:
        raise UsageError(f"{quote(words)} always holds: give a bound above 0")
    return CallBound(words, probe, by_text[relation], number, scope, root or None)


def parse_open(text: str) -> CallBound:
    """Parse an assertion whose bound is to be found: ``PROBE per ROOT``. Raises UsageError."""
    words = text.strip()
    scopes = [(at, word[0]) for at in _found(_WORD, words) if (word := _WORD.match(words, at))]
    has_bound = next(_found(_OPERATOR, words), None) is not None
    if has_bound or len(scopes) > 1 or "before" in [word for _, word in scopes]:
        what = "the bound is to be found: give a function alone, as in 'main.query per main.handle'"
        raise UsageError(f"{quote(words)}: {what}")
    at, scope = scopes[0] if scopes else (len(words), "")
    probe, root = words[:at].strip(), words[at + len(scope) :].strip()
    if not probe or (scope and not root):
        raise UsageError(f"{quote(words)}: a function is missing: 'main.query per main.handle'")
    return CallBound(
        words, probe, Operator.AT_MOST, 0, BoundScope(scope), root or None, is_open=True
    )


def read_assertions(
    path: str, parse: Callable[[str], CallBound] = parse_assertion
) -> list[CallBound]:
    """Return the assertions of a file, of which each has a line. Raises GotraceError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise GotraceError(f"cannot read {path}: {why}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(parse(line))
            except UsageError as error:
                raise UsageError(f"{path}:{number}: {error}") from error
    if not found:
        raise UsageError(f"{path} has no assertion, as in 'main.query <= 3 per main.handle'")
    return found


def _ordered(text: str) -> CallBound | None:
    """Return ``FIRST before PROBE per ROOT`` in parts, None if it is not one."""
    words = [(at, word[0]) for at in _found(_WORD, text) if (word := _WORD.match(text, at))]
    if "before" not in [word for _, word in words]:
        return None
    example = "as in 'main.(*Cache).Get before main.load per main.handle'"
    if [word for _, word in words] not in (["before", "per"], ["before", "in"]):
        what = "give two functions, and the root in which that is their order"
        raise UsageError(f"{quote(text)}: {what}, {example}")
    (first, _), (second, scope) = words
    parts = text[:first], text[first + len("before") : second], text[second + len(scope) :]
    earlier, probe, root = (part.strip() for part in parts)
    if not (earlier and probe and root):
        raise UsageError(f"{quote(text)}: a function is missing, {example}")
    return CallBound(text, probe, Operator.AT_MOST, 0, BoundScope(scope), root, earlier)


def _found(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Yield where a pattern is found that is in no bracket and no string."""
    at = 0
    while at < len(text):
        character = text[at]
        if character in CLOSING:
            end = closing(text, at)
            at = at if end < 0 else end
        elif character in QUOTES:
            end = text.find(character, at + 1)
            at = at if end < 0 else end
        elif found := pattern.match(text, at):
            yield at
            at = found.end() - 1
        at += 1
