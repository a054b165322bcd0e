# SPDX-License-Identifier: Apache-2.0
"""Count what assertions are about, and say of each number what it may be at most.

A call that no request has at the end may have been made for any root that had begun before it, but
for those of its own goroutine: what that does in a root's call is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from gotrace.assertions.grammar import BoundScope, CallBound
from gotrace.assertions.plan import AssertionPlan
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict, Seen, decide
from gotrace.errors import said
from gotrace.overhead import ProbeCost
from gotrace.probes.spec import ProbeSpec
from gotrace.records import dataclass, field, replace
from gotrace.requests.assemble import Assembler
from gotrace.requests.edges import FIRST
from gotrace.requests.model import Node, Request
from gotrace.session.count import CallCounter
from gotrace.session.decode import CallDecoder, DecodedCall
from gotrace.session.events import HEADER, CallFlag
from gotrace.session.reading import Missing
from gotrace.session.run import End, Run
from gotrace.session.trace import CallTracer
from gotrace.text import counted

_UNWANTED = CallFlag.UNWANTED.value
#: Calls that are kept until a request has them; the number of older ones is known.
_MAX_PENDING = 1 << 18
#: Roots of an assertion.
_MAX_ROOTS = 1 << 20

#: A call: its process, goroutine, beginning, and its function's name.
_Key = tuple[int, int, int, str]


class _OfRoot(NamedTuple):
    """The calls that count for a root, its beginning, and its goroutine.

    If these are to lack an earlier call, of ``unordered`` it is not known. It ``is_partial`` if
    goroutines still worked for the root.
    """

    calls: int
    began: int
    goid: int
    is_partial: bool
    unordered: int = 0


@dataclass(slots=True)
class _Asked:
    """An assertion on a root's calls, and what was seen of it.

    ``calls``, ``wanted`` and ``earlier`` are the bits of the probes of what is counted, of the root
    with its predicate, and of those that are to be earlier. ``calls_seen`` is how many of the first
    were made for roots.
    """

    assertion: CallBound
    calls: int
    wanted: int
    earlier: int
    found: list[_OfRoot] = field(default_factory=list)
    calls_seen: int = 0
    beyond: int = 0
    excess: int = 0
    worst: tuple[_OfRoot, Request[DecodedCall]] | None = None


def _is_ordered(asked: _Asked) -> bool:
    """Return whether it is about the order of calls of several goroutines."""
    one = asked.assertion
    return one.earlier is not None and one.scope is BoundScope.PER


class RootCalls:
    """The calls of a root, each with what was made for it."""

    def __init__(self, assembler: Assembler, asked: Sequence[_Asked]) -> None:
        self.assembler = assembler
        self.asked = asked
        self._bits = 0
        for one in asked:
            self._bits |= one.calls | one.wanted | one.earlier
        self._pending: OrderedDict[_Key, int] = OrderedDict()
        #: Calls that are known of no goroutine or time, by their bits: these were too many, or
        #: do not return, and are seen at their entry alone.
        self._unplaced: Counter[int] = Counter()
        #: Calls of the root that had not ended at the end.
        self.open = 0

    def add(self, record: bytes, header: tuple[int, ...], key: _Key | None, bits: int) -> None:
        """Take the next record; ``key`` and ``bits`` are those of a call. Raises RecordError."""
        self.assembler.add_read(record, header)
        if key is None or not bits & self._bits:
            return
        if key in self._pending or not header[1]:
            self._unplaced[bits] += 1
            return
        self._pending[key] = bits
        if len(self._pending) > _MAX_PENDING:
            self._unplaced[self._pending.popitem(last=False)[1]] += 1

    def take(self, now: float) -> None:
        """Take the requests that are whole by now."""
        for request in self.assembler.take(now):
            self._judge(request, request.unfinished > 0)

    def end(self, now: float, names: Sequence[str], has_exited: bool) -> None:
        """Take the rest; ``has_exited``: no goroutine works any more.

        Else requests that still go on are not judged. Calls that were made for them are known.
        """
        for calls in self.assembler.unended():
            self.open += 1
            for (tgid, goid), start, function in calls:
                self._pending.pop((tgid, goid, start, names[function]), None)
        for request in self.assembler.take(now, True):
            if request.unfinished and not has_exited:
                self.open += 1
                self._bits_of(request)
            else:
                self._judge(request, False)

    def _bits_of(self, request: Request[DecodedCall]) -> list[tuple[Node[DecodedCall], int]]:
        """Return a request's nodes with their bits, the root first."""
        call = request.root.call
        began = call.end_ns - request.duration_ns
        return [
            (
                node,
                self._pending.pop(
                    (call.pid, node.goid, began + node.start_ns, node.call.function.name), 0
                ),
            )
            for node in request.nodes()
        ]

    def _judge(self, request: Request[DecodedCall], is_partial: bool) -> None:
        (root, root_bits), *others = self._bits_of(request)
        began = root.call.end_ns - request.duration_ns
        within = [
            (node, bits)
            for node, bits in others
            if node.goid == root.goid and node.start_ns <= request.duration_ns
        ]
        for one in self.asked:
            if not root_bits & one.wanted:
                continue
            is_in = one.assertion.scope is BoundScope.IN
            nodes = within if is_in else others
            of_it, unordered = [node for node, bits in nodes if bits & one.calls], 0
            one.calls_seen += len(of_it)
            earlier = [node for node, bits in nodes if bits & one.earlier]
            if one.earlier:
                of_it, unordered = _without(of_it, earlier)
            of_root = _OfRoot(len(of_it), began, root.goid, is_partial and not is_in, unordered)
            if len(one.found) < _MAX_ROOTS:
                one.found.append(of_root)
            else:
                one.beyond += 1
            if (excess := one.assertion.excess(len(of_it))) > one.excess:
                one.excess = excess
                one.worst = of_root, pruned(request, [*of_it, *earlier])

    def loose(self, calls: int) -> _Loose:
        """Return the calls of these bits that were made for no request."""
        return _Loose(
            (start, goid) for (_, goid, start, _), one in self._pending.items() if one & calls
        )

    def unplaced(self, calls: int) -> int:
        """Return how many calls of these bits there were that any request may have."""
        return sum(count for bits, count in self._unplaced.items() if bits & calls)


class _Loose:
    """Calls of no request: when each was made, and in which goroutine."""

    def __init__(self, calls: Iterable[tuple[int, int]] = ()) -> None:
        self.starts: list[int] = []
        self._by_goroutine: dict[int, list[int]] = {}
        for start, goid in sorted(calls):
            self.starts.append(start)
            self._by_goroutine.setdefault(goid, []).append(start)

    def may_be_of(self, root: _OfRoot) -> int:
        """Return how many may have been made for a root: later ones of other goroutines."""
        own = self._by_goroutine.get(root.goid, [])
        later = len(self.starts) - bisect_left(self.starts, root.began)
        return later - len(own) + bisect_left(own, root.began)


def _without(
    nodes: Sequence[Node[DecodedCall]], earlier: Sequence[Node[DecodedCall]]
) -> tuple[list[Node[DecodedCall]], int]:
    """Return the calls before which no earlier one had ended, and of how many it is not known."""
    ends: dict[int, int] = {}
    for node in earlier:
        end = node.start_ns + node.duration_ns
        ends[node.goid] = min(end, ends.get(node.goid, end))
    first, lacking, unordered = min(ends.values(), default=None), [], 0
    for node in nodes:
        if first is None or first > node.start_ns:
            lacking.append(node)
        elif not any(
            goid in ends and ends[goid] <= until
            for goid, until in ((node.goid, node.start_ns), *node.handed)
        ):
            unordered += 1
    return lacking, unordered


def pruned(
    request: Request[DecodedCall], kept: Collection[Node[DecodedCall]]
) -> Request[DecodedCall]:
    """Return a request with some of its nodes, and those above them, alone."""
    ids = {id(node) for node in kept}
    made: dict[int, Node[DecodedCall] | None] = {}
    for node in reversed(list(request.nodes())):
        below = tuple(one for child in node.children if (one := made.pop(id(child))) is not None)
        is_kept = below or id(node) in ids or node is request.root
        made[id(node)] = Node(node.call, node.edge, node.start_ns, below) if is_kept else None
    root = made[id(request.root)]
    assert root is not None
    return Request(root, request.unfinished)


class Ledger:
    """All that is counted of a run's traced calls, and the verdicts at its end."""

    def __init__(
        self,
        plan: AssertionPlan,
        decoders: Sequence[CallDecoder],
        matching: Sequence[CallDecoder],
    ) -> None:
        """Take the decoders of functions by number, twice.

        By those of ``matching`` it is found out which probes want a call: they count the calls of
        which that cannot be decided.
        """
        self._plan = plan
        self._matching = matching
        self._bits: dict[int, int] = {}
        of_text = {text: self._number(specs) for text, specs in plan.specs.items()}
        #: The bits of all probes of a function's calls, None if each call has to be looked at.
        self._always = [self._constant(decoder) for decoder in matching]
        self._names = [decoder.function.name for decoder in matching]
        self._seen: Counter[str] = Counter()  # calls, by function
        #: Calls of the whole run that are traced since they have a predicate.
        self._whole: dict[str, int] = {}
        self._totals: Counter[str] = Counter()
        by_root: dict[str, list[_Asked]] = {}
        for one in plan.assertions:
            if plan.why_missing(one) is not None:
                continue
            if one.root is not None:
                calls, root = of_text.get(one.probe, 0), of_text[one.root]
                earlier = of_text.get(one.earlier or "", 0)
                by_root.setdefault(one.root, []).append(_Asked(one, calls, root, earlier))
            elif one.probe not in plan.counted:
                self._whole[one.probe] = of_text[one.probe]
        self._roots = {
            root: RootCalls(
                Assembler(decoders, plan.roots[root], (), any(map(_is_ordered, asked))), asked
            )
            for root, asked in by_root.items()
        }

    def _number(self, specs: Sequence[ProbeSpec]) -> int:
        bits = 0
        for spec in specs:
            bits |= self._bits.setdefault(id(spec), 1 << len(self._bits))
        return bits

    def _constant(self, decoder: CallDecoder) -> int | None:
        parts = decoder.traced.parts
        if any(probe.predicate is not None for _, probe in parts):
            return None
        return sum(self._bits.get(id(spec), 0) for spec, _ in parts)

    def add(self, record: bytes) -> None:
        """Take the next record. Raises RecordError."""
        header = HEADER.unpack_from(record)
        end, start, goid, tgid, _, function, _, _, flags, _, _ = header
        key, bits = None, 0
        if function < FIRST:
            name = self._names[function]
            self._seen[name] += 1
            always = self._always[function]
            if always is None and not flags & _UNWANTED:
                calls = self._matching[function].calls(record)
                bits = sum(self._bits.get(id(spec), 0) for spec, _ in calls)
            else:
                bits = always or 0
            key = (tgid, goid, start or end, name)
            for text, whole in self._whole.items():
                self._totals[text] += bool(bits & whole)
        for root in self._roots.values():
            root.add(record, header, key, bits)

    def missing(self, missing: Missing) -> None:
        """Note how much is missing by now."""
        for root in self._roots.values():
            root.assembler.missing(missing)

    def take(self, now: float) -> None:
        """Take what is whole by now (``time.monotonic``)."""
        for root in self._roots.values():
            root.take(now)

    @property
    def is_empty(self) -> bool:
        """Return whether no request waits."""
        return all(root.assembler.is_empty for root in self._roots.values())

    def end(
        self, run: Run[CallTracer, ProbeCost], missing: Missing, undecided: int, now: float
    ) -> list[str]:
        """Take the rest of a run that is over, and return why calls may be missing."""
        has_exited = run.end is End.EXIT
        for root in self._roots.values():
            root.end(now, self._names, has_exited)
        lost = max(
            (root.assembler.tally.lost - root.open for root in self._roots.values()), default=0
        )
        numbers = [
            (missing.calls, "{:,} record{s} of calls lost"),
            (missing.late, "{:,} record{s} that came too late"),
            (missing.skipped, "{:,} hit{s} not seen"),
            (undecided, "{:,} call{s} of which the predicate could not be decided"),
            (lost, "{:,} call{s} of roots whose calls are not all known"),
        ]
        found = [counted(words, number) for number, words in numbers if number]
        return [*found, *_refused(run)]

    def verdicts(
        self,
        run: Run[CallTracer, ProbeCost],
        counts: FunctionCounts,
        unknown: Sequence[str],
        lax: bool,
    ) -> Iterator[BoundVerdict]:
        """Yield the verdicts on what was traced; ``lax``: calls of no request count for none."""
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(self._names):
            numbers.setdefault(name, []).append(number)
        missed = {text: self._missed(text, counts, run, numbers) for text in self._plan.specs}
        for one in self._plan.assertions:
            if one.root is None and one.probe in self._whole:
                doubts = missed[one.probe]
                still_open = run.meter.open_calls(self._functions(one.probe))
                doubts = doubts.plus(still_open, _OPEN.format(one.probe))
                seen = Seen(self._totals[one.probe], doubts.most_of(self._totals[one.probe]))
                hidden = self._hidden(one.probe, unknown)
                yield decide(one, [seen], hidden, doubts.texts, place=self._place(one.probe))
        for text, root in self._roots.items():
            for asked in root.asked:
                yield self._rooted(run, text, root, asked, missed, unknown, lax)

    def _rooted(
        self,
        run: Run[CallTracer, ProbeCost],
        text: str,
        root: RootCalls,
        asked: _Asked,
        missed: Mapping[str, _Doubts],
        unknown: Sequence[str],
        lax: bool,
    ) -> BoundVerdict:
        one, has_exited = asked.assertion, run.end is End.EXIT
        hidden = [*self._hidden(one.probe, unknown), *self._hidden(text, ())]
        hidden += missed[text].texts
        if asked.beyond:
            hidden.append(_calls(asked.beyond, f"of {text} too many"))
        if has_exited and root.open:
            hidden.append(_calls(root.open, _OPEN.format(text)))
        if not asked.found:
            more = counted(", and {:,} had not", root.open) if root.open else ""
            why = f"no call of {text} has ended{more}"
            outcome = BoundOutcome.UNDECIDED if unknown else BoundOutcome.MISSING
            return BoundVerdict(one, outcome, why=(why, *unknown))
        unplaced = root.unplaced(asked.calls)
        doubts = missed[one.probe].plus(unplaced, _UNPLACED.format(one.probe))
        first, firsts, loose = _Doubts(), _Loose(), _Loose()
        if one.earlier is not None:
            first = missed[one.earlier].plus(
                root.unplaced(asked.earlier), _UNPLACED.format(one.earlier)
            )
            first = replace(first, texts=(*first.texts, *self._hidden(one.earlier, unknown)))
        if one.scope is BoundScope.PER:
            doubts = doubts.plus(self._open_of(one.probe, text, run), _OPEN.format(one.probe))
            loose = root.loose(asked.calls)
            firsts = firsts if lax else root.loose(asked.earlier)
        seen, texts = [], dict.fromkeys((*doubts.texts, *first.texts))
        apart = _LACKING if lax else f": {said('--allow-unattributed', 'lax')} leaves them out"
        for one_root in asked.found:
            others, ahead = loose.may_be_of(one_root), firsts.may_be_of(one_root)
            count, unordered = one_root.calls, one_root.unordered
            most = None if one_root.is_partial else doubts.most_of(count + unordered)
            most = None if most is None else most + others * (not lax)
            seen.append(Seen(count, most, bool(ahead or first.texts), others * lax))
            for calls, number, probe in (
                (loose, others, one.probe),
                (firsts, ahead * count, one.earlier),
            ):
                if number:
                    texts[_calls(len(calls.starts), _LOOSE.format(probe, apart))] = None
            if one_root.is_partial:
                texts[f"some work for {text} had not ended 10 s after it"] = None
        if unordered := sum(one_root.unordered for one_root in asked.found):
            texts[_calls(unordered, _UNORDERED.format(one.probe, one.earlier))] = None
        worst = None
        if asked.worst is not None and not firsts.may_be_of(asked.worst[0]):
            worst = asked.worst[1]
        verdict = decide(one, seen, hidden, list(texts), worst, self._place(text))
        if one.earlier and not asked.calls_seen and verdict.outcome is BoundOutcome.HOLDS:
            why = f"no call of {one.probe} was made for one of {text}"
            return BoundVerdict(one, BoundOutcome.MISSING, why=(why,))
        return verdict

    def _hidden(self, text: str, unknown: Sequence[str]) -> list[str]:
        found = self._plan.unseen.get(text)
        return [*unknown, *([found] if found else [])]

    def _functions(self, text: str) -> set[int]:
        """Return the numbers of the functions that a text is about."""
        bits = self._number(self._plan.specs.get(text, ()))
        return {
            number
            for number, decoder in enumerate(self._matching)
            if any(self._bits.get(id(spec), 0) & bits for spec, _ in decoder.traced.parts)
        }

    def _place(self, text: str) -> tuple[str, int] | None:
        for number in sorted(self._functions(text)):
            function = self._matching[number].function
            if function.file is not None:
                return function.file, function.line or 0
        return None

    def _open_of(self, text: str, root: str, run: Run[CallTracer, ProbeCost]) -> int:
        """Return how many calls are open at the end that an ended root's may have been made for."""
        functions, roots = self._functions(text), self._functions(root)
        if run.end is End.EXIT:
            return run.meter.open_calls(functions)
        found = 0
        for calls in run.meter.open_by_task():
            outer = takewhile(lambda one: one not in roots, calls)
            found += sum(one in functions for one in outer)
        return found

    def _missed(
        self,
        text: str,
        counts: FunctionCounts,
        run: Run[CallTracer, ProbeCost],
        numbers: Mapping[str, Collection[int]],
    ) -> _Doubts:
        """Return which calls of a text's functions were counted and not traced: inlined ones."""
        doubts = _Doubts()
        for name in sorted(self._plan.inlined.get(text, ())):
            if counts.unknown or name in counts.uncounted:
                words = f"calls of {name} that are inlined cannot be counted"
                doubts = _Doubts(None, (*doubts.texts, words))
                continue
            traced = self._seen[name]
            if name in numbers:
                traced += run.meter.open_calls(numbers[name])
            doubts = doubts.plus(counts.calls[name] - traced, _INLINED.format(name))
        return doubts


_OPEN = "of {} had not ended"
_LOOSE = "of {} of no request that is known{}"
_LACKING = ", which may be what is lacking"
_UNORDERED = "of {}: one of {} had ended before, in a goroutine from which no edge leads there"
_UNPLACED = "of {} that do not return, or were too many"
_INLINED = "of {} where it is inlined: it is not seen for which root"


def _calls(number: int, words: str) -> str:
    """Return so many calls in words; names may have braces."""
    return f"{counted('{:,} call{s}', number)} {words}"


@dataclass(frozen=True, slots=True)
class _Doubts:
    """The number of calls that there may be beside those seen, None for any, and why."""

    more: int | None = 0
    texts: tuple[str, ...] = ()

    def plus(self, calls: int, words: str) -> _Doubts:
        """Return the same with further calls, and what these are in words after their number."""
        if calls <= 0:
            return self
        more = None if self.more is None else self.more + calls
        return _Doubts(more, (*self.texts, _calls(calls, words)))

    def most_of(self, count: int) -> int | None:
        return None if self.more is None else count + self.more


@dataclass(frozen=True, slots=True)
class FunctionCounts:
    """The calls that the kernel has counted, by function.

    ``uncounted`` are functions of which some calls are not: they are inlined where no place is
    proven. ``unknown`` says why calls of any may be missing. ``places`` is where functions are
    declared.
    """

    calls: Counter[str] = field(default_factory=Counter)
    uncounted: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run[CallCounter, Any]) -> FunctionCounts:
        """Return the counts of a run that has been stopped. Raises OSError."""
        calls: Counter[str] = Counter()
        places: dict[str, tuple[str, int]] = {}
        names = [name.name for name in run.plan.names]
        for name, count in zip(names, run.meter.take(), strict=True):
            calls[name] += count
        for _, file, sites in run.plan.numbered():
            at = file.binary.functions.declared_at(sites.function.row)
            if at is not None and sites.function.name not in places:
                places[sites.function.name] = at.file, at.line
        uncounted = frozenset(
            name.name for name, inlined in run.plan.places.items() if inlined.uncounted
        )
        unknown = _refused(run)
        if skipped := run.meter.skipped():
            unknown = (*unknown, counted("{:,} hit{s} not seen", skipped))
        return cls(calls, uncounted, unknown, places)

    def verdicts(self, plan: AssertionPlan, unknown: Sequence[str]) -> Iterator[BoundVerdict]:
        """Yield the verdicts on assertions of the whole run whose calls are only counted."""
        for one in plan.assertions:
            if one.root is not None or one.probe not in plan.counted:
                continue
            if plan.why_missing(one) is not None:
                continue
            names = plan.names[one.probe]
            count = sum(self.calls[name] for name in names)
            inlined = sorted(names & self.uncounted)
            texts = [f"calls of {name} that are inlined cannot be counted" for name in inlined]
            hidden = [*unknown, *self.unknown, *filter(None, [plan.unseen.get(one.probe)])]
            seen = Seen(count, None if inlined else count)
            called = sorted(names, key=lambda name: -self.calls[name])
            place = next((self.places[name] for name in called if name in self.places), None)
            yield decide(one, [seen], hidden, texts, place=place)


def _refused(run: Run[Any, Any]) -> tuple[str, ...]:
    refused = run.plan.refused(run.attached.failed)
    return (counted("{:,} probe{s} refused by the kernel", len(refused)),) if refused else ()
