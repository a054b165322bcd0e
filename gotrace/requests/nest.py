# SPDX-License-Identifier: Apache-2.0
"""Which call of a request is within which, and below which one a goroutine's work is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from gotrace.requests.belonging import Contexts, Span


class Timed(Protocol):
    """A call that has ended: when it was entered and when it has ended, in ns."""

    start: int
    end: int


C = TypeVar("C", bound=Timed)


class Nest(Generic[C]):
    """The calls of a request, by the span that they were begun in."""

    def __init__(self, calls: Mapping[Span, Sequence[C]]) -> None:
        #: Of each span: when calls were entered, the calls, and the number of each one's parent.
        self._nested: dict[Span, tuple[list[int], list[C], list[int | None]]] = {
            span: _nested(found) for span, found in calls.items()
        }

    def within(self) -> Iterator[tuple[Span, C, C | None]]:
        """Yield each call with its span, and with the one around it in its goroutine."""
        for span, (_, calls, parents) in self._nested.items():
            for call, parent in zip(calls, parents, strict=True):
                yield span, call, None if parent is None else calls[parent]

    def above(self, span: Span) -> C | None:
        """Return the innermost call that was open where a span's work comes from, if any was."""
        while span.above is not None:
            found = self.open_at(span.above, span.begin)
            if found is not None:
                return found
            span = span.above
        return None

    def open_at(self, span: Span, moment: int, to: int = 0) -> C | None:
        """Return the innermost call that was open at a moment, and up to another one."""
        last = max(moment, to)
        nested = self._nested.get(span)
        if nested is None:
            return None
        starts, calls, parents = nested
        row: int | None = bisect_right(starts, moment) - 1
        if row == -1:
            return None
        while row is not None and calls[row].end < last:
            row = parents[row]
        return None if row is None else calls[row]


def _nested(calls: Sequence[C]) -> tuple[list[int], list[C], list[int | None]]:
    """Return calls of one goroutine in order, with the number of the one that each is within."""
    ordered = sorted(calls, key=lambda each: (each.start, -each.end))
    parents: list[int | None] = []
    around: list[int] = []
    for number, call in enumerate(ordered):
        while around and ordered[around[-1]].end < call.end:
            around.pop()
        parents.append(around[-1] if around else None)
        around.append(number)
    return [each.start for each in ordered], ordered, parents


def drop_wrong(calls: dict[Span, list[C]], contexts: Contexts) -> int:
    """Drop those of a request's calls that have turned out to be of nobody; return how many."""
    dropped = sum(len(calls.pop(span)) for span in wrong_spans(calls, contexts))
    for span, found in calls.items():
        if span.told is not None:
            calls[span] = [call for call in found if not span.is_told(call.start)]
            dropped += len(found) - len(calls[span])
    return dropped


def wrong_spans(spans: Collection[Span], contexts: Contexts) -> list[Span]:
    """Return a request's spans that have turned out to be of nobody from their beginnings on."""
    known: dict[Span, bool] = {}
    for span in spans:
        way: list[Span] = []
        each: Span | None = span
        while each is not None and each not in known and not _is_doubted(each):
            way.append(each)
            each = each.above
        is_wrong = each is not None and known.get(each, True)
        known.update(dict.fromkeys(way, is_wrong))
        if _is_doubted(span) or (span.context and contexts.is_wrong(span)):
            known[span] = True
    return [span for span in spans if known[span]]


def _is_doubted(span: Span) -> bool:
    return span.is_doubted or (span.above is not None and span.above.is_told(span.begin))
