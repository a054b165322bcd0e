# SPDX-License-Identifier: Apache-2.0
"""Plan the probes of assertions: calls that are counted in the kernel, and those that are traced.

Calls of the whole run are counted, with inlined ones. Those of roots are traced, as a tree needs
them. Tracing sees no inlined calls: so functions that are also inlined are counted beside it, and
what was counted but not traced is not attributed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gotrace.assertions.grammar import BoundScope, CallBound
from gotrace.elf.buildinfo import main_module
from gotrace.errors import NoMatchError, UsageError
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.select import InlinedScope
from gotrace.probes.spec import ProbeSpec
from gotrace.records import dataclass, field, replace
from gotrace.requests.assemble import request_probes
from gotrace.session.choices import ReturnMode
from gotrace.session.count import CountRequest
from gotrace.session.plan import only_inlined
from gotrace.session.request import Asked, Planned
from gotrace.session.trace import TraceOptions, TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.target.target import Target
from gotrace.text import counted, quote

#: Functions of a probe that is traced: of more it is not known where they are inlined.
MAX_FUNCTIONS = 200


@dataclass(frozen=True, slots=True)
class AssertionPlan:
    """The probes of a run that decides assertions.

    All is by the texts of probes. ``specs`` are those of traced ones, and ``roots`` those of roots
    without predicates: each call begins a tree, whether it is asked about or not. ``names`` are
    the functions that are counted, and ``inlined`` those of them that are traced as well, where
    they are not inlined. ``missing`` says why
    a text comes to nothing, ``unseen`` why calls of some of its functions are not seen. Of the
    texts of ``counted`` that is all that assertions on the whole run need. ``module`` is the path
    of the program's main module, None if that is not known.
    """

    assertions: Sequence[CallBound]
    trace: TraceRequest | None
    count: CountRequest | None
    specs: Mapping[str, Sequence[ProbeSpec]]
    roots: Mapping[str, Sequence[ProbeSpec]]
    names: Mapping[str, frozenset[str]]
    inlined: Mapping[str, frozenset[str]]
    missing: Mapping[str, str]
    unseen: Mapping[str, str]
    counted: frozenset[str]
    module: str | None

    def why_missing(self, assertion: CallBound) -> str | None:
        """Return why an assertion is about nothing, None if it is about something."""
        texts = [*assertion.probes, *filter(None, [assertion.root])]
        return next((self.missing[text] for text in texts if text in self.missing), None)


def plan_assertions(
    target: Target,
    assertions: Sequence[CallBound],
    choices: TraceChoices,
    forced: AttachMethod | None = None,
) -> AssertionPlan:
    """Plan a run. Raises GotraceError, UsageError among these, but not if nothing matches."""
    # Calls of one goroutine are nested: no edge is asked for.
    within = all(one.scope is not BoundScope.PER for one in assertions)
    plan = _Planning(target, choices, forced, within)
    specs = {
        text: plan.specs(text)
        for one in assertions
        for text in (*one.probes, *filter(None, [one.root]))
    }
    traced: dict[str, Sequence[ProbeSpec]] = {}
    roots: dict[str, Sequence[ProbeSpec]] = {}
    whole = set()
    for one in assertions:
        if one.root is not None:
            roots.setdefault(one.root, [_plain(spec) for spec in specs[one.root]])
            traced[one.root] = specs[one.root]
        if one.scope is not BoundScope.RUN or not all(map(_is_plain, specs[one.probe])):
            traced.update((text, specs[text]) for text in one.probes)
        else:
            plan.add_counted(one.probe, specs[one.probe])
            whole.add(one.probe)
    trace = plan.trace(traced, roots) if traced else None
    count = plan.count()
    return AssertionPlan(
        *(assertions, trace, count, traced, roots, plan.names, plan.inlined),
        *(plan.missing, plan.unseen, frozenset(whole)),
        main_module(target.binary(None).image),
    )


def _is_plain(spec: ProbeSpec) -> bool:
    return spec.predicate is None and spec.recipe is None


def _plain(spec: ProbeSpec) -> ProbeSpec:
    return spec if spec.predicate is None else replace(spec, predicate=None)


@dataclass(slots=True)
class _Planning:
    """A plan in the making."""

    target: Target
    choices: TraceChoices
    forced: AttachMethod | None
    within: bool
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    inlined: dict[str, frozenset[str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    #: How many functions of a name there are.
    _wanted: Counter[str] = field(default_factory=Counter)

    def specs(self, text: str) -> Sequence[ProbeSpec]:
        """Return the probes that a text stands for. Raises UsageError."""
        _, specs = request_probes(Asked([text]), self.target, 0)
        if any(spec.format is not None and spec.recipe is None for spec in specs):
            raise UsageError(f"{quote(text)}: calls are counted here: leave out the format")
        if any(spec.binary for spec in specs):
            raise UsageError(
                f"{quote(text)}: an assertion is about one program: leave out its name"
            )
        # The values are shown in place of a recipe's format.
        return [replace(spec, format=None, values=()) for spec in specs]

    def _counting(self, patterns: Sequence[str]) -> CountRequest:
        return CountRequest(
            target=self.target,
            asked=Asked(patterns),
            is_strict=False,
            forced=self.forced,
            inlined=InlinedScope.MATCHED,
        )

    def add_counted(self, text: str, specs: Sequence[ProbeSpec]) -> bool:
        """Have calls of a text's functions be counted; return whether there are any."""
        if text in self.names or text in self.missing:
            return text in self.names
        found: Counter[str] = Counter()
        for spec in specs:
            request = self._counting([spec.pattern])
            try:
                plan = request.plan().plan
            except NoMatchError as error:
                self.missing[text] = str(error)
                continue
            only = plan.only_inlined()
            try:
                selected = request.select().selected
            except NoMatchError:  # it exists only inlined
                selected = ()
            found.update(one.binary.functions.names[row] for one in selected for row in one.rows)
            for name in (*(one.name for one in plan.names), *(only.functions if only else ())):
                found[name] = max(found[name], 1)
        if not found:
            return False
        self.missing.pop(text, None)
        self._wanted |= found
        self.names[text] = frozenset(found)
        return True

    def _add_beside(self, text: str, names: Iterable[str]) -> None:
        self.inlined[text] = self.inlined.get(text, frozenset()) | frozenset(names)
        self._wanted |= Counter(set(names))

    def count(self) -> CountRequest | None:
        """Return the request that counts all functions by their names, None if there are none."""
        if not self._wanted:
            return None
        request = self._counting(sorted(self._wanted))
        planned = request.plan()
        have = Counter(one.name for one in planned.plan.names)
        for of_texts in (self.names, self.inlined):
            for text, names in of_texts.items():
                if lacking := [name for name in names if have[name] < self._wanted[name]]:
                    self.unseen[text] = _not_seen(lacking)
        return replace(request, planned=planned)

    def trace(
        self,
        traced: Mapping[str, Sequence[ProbeSpec]],
        roots: Mapping[str, Sequence[ProbeSpec]],
    ) -> TraceRequest | None:
        """Return the request that traces probes, None if none of them matches anything."""
        begin = [spec for specs in roots.values() for spec in specs]
        known = {id(spec) for spec in begin}
        probes = [
            *begin,
            *(spec for specs in traced.values() for spec in specs if id(spec) not in known),
        ]
        request = self._tracing(probes, begin)
        try:
            planned = request.plan()
        except NoMatchError:
            planned = None
        accepted: set[int] = set()
        if planned is not None and planned.traced is not None:
            accepted = {id(spec) for call in planned.traced.calls for spec, _ in call.parts}
            self._check_rows(request, planned, traced)
        for text, specs in traced.items():
            if any(id(spec) in accepted for spec in specs):
                continue
            why = self._why_missing(text, specs)
            if text not in roots and self.add_counted(text, specs):
                self._add_beside(text, self.names[text])
            else:
                self.missing[text] = why
        if planned is None or planned.traced is None:
            return None
        self._add_inlined(planned, traced, probes)
        # Verdicts say what comes to nothing.
        plan = replace(planned.plan, failed=())
        return replace(request, planned=Planned(plan, replace(planned.traced, plan=plan)))

    def _tracing(self, probes: Sequence[ProbeSpec], roots: Sequence[ProbeSpec]) -> TraceRequest:
        return TraceRequest(
            target=self.target,
            asked=Asked([spec.pattern for spec in probes]),
            probes=probes,
            is_strict=False,
            forced=self.forced,
            returns=ReturnMode.RET,
            is_priced=True,
            choices=self.choices,
            options=TraceOptions(roots=roots, within=self.within),
        )

    def _why_missing(self, text: str, specs: Sequence[ProbeSpec]) -> str:
        """Return why a text comes to nothing. Raises GotraceError if that is its predicate."""
        try:
            self._tracing(specs, ()).plan()
        except NoMatchError as error:
            return str(error)
        return f"{quote(text)} comes to nothing"

    def _check_rows(
        self,
        request: TraceRequest,
        planned: Planned,
        traced: Mapping[str, Sequence[ProbeSpec]],
    ) -> None:
        """Note which functions are not traced. Raises UsageError if there are too many."""
        assert planned.traced is not None and request.probes is not None
        have = {(id(call.binary), call.function.function.row) for call in planned.traced.calls}
        for one in request.select().selected:
            spec = request.probes[one.request]
            names = one.binary.functions.names
            lacking = [names[row] for row in one.rows if (id(one.binary), row) not in have]
            for text in _texts_of(spec, traced):
                if len(one.rows) > MAX_FUNCTIONS:
                    functions = counted("{:,} function{s}", len(one.rows))
                    what = f"{quote(text)} is {functions}, and an assertion with a root takes"
                    raise UsageError(f"{what} {MAX_FUNCTIONS}: give a narrower pattern")
                if lacking:
                    self.unseen[text] = _not_seen(lacking)

    def _add_inlined(
        self,
        planned: Planned,
        traced: Mapping[str, Sequence[ProbeSpec]],
        probes: Sequence[ProbeSpec],
    ) -> None:
        """Have functions be counted that are also inlined, of which tracing sees not all calls."""
        assert planned.traced is not None
        names = planned.plan.names
        inlined = {one.function for one in planned.plan.inlined()}
        for call, name in zip(planned.traced.calls, names, strict=True):
            if name.text in inlined:
                for spec, _ in call.parts:
                    for text in _texts_of(spec, traced):
                        self._add_beside(text, [name.name])
        for file in planned.plan.binaries:
            if only := only_inlined([file], {}, InlinedScope.NONE):
                for text in _texts_of(probes[file.request], traced):
                    self._add_beside(text, only.functions)


def _texts_of(spec: ProbeSpec, traced: Mapping[str, Sequence[ProbeSpec]]) -> Iterator[str]:
    """Yield the texts whose probe it is, or is without the predicate."""
    for text, specs in traced.items():
        if any(spec is one or spec == _plain(one) for one in specs):
            yield text


def _not_seen(names: Iterable[str]) -> str:
    found = list(names)
    others = counted(" and {} other{s}", len(found) - 1) if found[1:] else ""
    return f"calls of {found[0]}{others} are not seen"
