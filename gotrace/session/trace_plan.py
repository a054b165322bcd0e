# SPDX-License-Identifier: Apache-2.0
"""Decide how the calls of each traced function are captured, from the probe that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Protocol

from gotrace.abi.assign import CallingConvention, FloatReg, Label, Piece, Saved
from gotrace.abi.function_values import FunctionValues
from gotrace.abi.locations import (
    CapturedValue,
    FunctionLocations,
    PlacedValue,
    SignatureSource,
)
from gotrace.capture.factory import NodeFactory
from gotrace.capture.interfaces import is_direct
from gotrace.capture.nodes import OpaqueNode
from gotrace.capture.ops import MAX_RESTS, CaptureLimits, FieldRef, Op, OpCode
from gotrace.capture.paths import PathMark, place_captured, place_value
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.functions import FuncInfo
from gotrace.errors import GotraceError, NoMatchError, UsageError, said
from gotrace.gotypes.from_text import SignatureError
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.runtime import RuntimeLayoutError
from gotrace.gotypes.symbols import NameKind, parse_name
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    InterfaceType,
    Kind,
    Parameter,
    PointerType,
    Signature,
    StructType,
    basic_type,
)
from gotrace.probes.constants import FLOATS, INTEGERS
from gotrace.probes.parser import BinaryOperator
from gotrace.probes.pattern import is_recipe, split_target, whole_probes
from gotrace.probes.predicate import (
    CompiledPredicate,
    StringConstants,
    compile_predicate,
    key_ops,
    measure_ops,
)
from gotrace.probes.scope import Phase, Root, RootKind, Scope, SpecialName
from gotrace.probes.select import Selector
from gotrace.probes.spec import ProbeSpec, ResolvedProbe, parse_probe
from gotrace.probes.tokens import SpecError, TextRange
from gotrace.probes.typed import (
    AccessPath,
    Logic,
    Operand,
    Typed,
    elements_looked_up,
    looks_up,
    operands,
    part_specials,
    phase_of,
    sliced_bytes,
    specials,
    string_bytes_needed,
    texts_needed_whole,
    unit_of,
)
from gotrace.records import dataclass, replace
from gotrace.session.choices import MAX_TEXT_BYTES
from gotrace.session.dynamic_types import DynamicTypes
from gotrace.session.plan import BinaryPlan, BinaryRequest, FunctionKey, ProbePlan, Split, select
from gotrace.sites.machine import machine_code
from gotrace.sites.parameters import InlinedParameters
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import FunctionSites
from gotrace.target.target import Target, TargetBinary
from gotrace.text import counted
from gotrace.values.fit_width import MAX_FIELDS

#: Most steps that the kernel takes for one phase of a call: the verifier looks at each.
MAX_STEPS = 160
#: The same where more is asked for than is usual.
MAX_EXTENDED_STEPS = 640
#: The same where calls are added up by keys: each step can do more.
MAX_KEYED_STEPS = 96
#: Of an entry, and of a return: both, floats and 94 frames fit 8192.
_PHASE_BYTES = 2 * MAX_TEXT_BYTES
_NESTED_STEPS = 24  # allowed for each interface's subplan
_MAX_PREDICATE = 40  # operations of one phase
_CONTAINS = 2  # Op.reg of a STRING_TEST that searches: TEST_CONTAINS of bpf/plan.h
SEARCH_STEPS = 48  # that a search takes at most: SEARCH_STEPS of bpf/plan.h
#: The dictionary of a generic function's call, by which its values get their types.
DICTIONARY = AccessPath(Root(RootKind.DICTIONARY, 0, ".dict"))


@dataclass(frozen=True, slots=True)
class TraceChoices:
    """How much to capture, whether at the entry alone, and whether of float registers.

    ``brief``: of receivers, and of pointers to large structs, nothing but the address, unless the
    probe's own expressions ask for more.
    ``keyed``: calls are added up by the probes' keys. ``decided_later``: predicates of numbers that
    the kernel does not decide are a part of the keys. ``return_if_needed``: at the entry alone
    where the probe's expressions ask for nothing that is known later. ``first_alone``: of several
    probes the first one has a function alone, so that the kernel decides on its predicate.
    """

    limits: CaptureLimits
    entry_only: bool
    floats: bool
    brief: bool = False
    keyed: bool = False
    decided_later: bool = False
    return_if_needed: bool = False
    first_alone: bool = False

    @classmethod
    def of(
        cls,
        string_size: int | None,
        depth: int | None,
        entry_only: bool,
        floats: bool,
        elements: int | None = None,
        brief: bool = False,
    ) -> TraceChoices:
        """Return the choices with the payload that a call has; see ``CaptureLimits``.

        ``elements`` are those of a slice and the entries of a map. None leaves what is usual.
        """
        usual = CaptureLimits(payload=_PHASE_BYTES)
        limits = replace(
            usual,
            string_bytes=usual.string_bytes if string_size is None else string_size,
            depth=usual.depth if depth is None else depth,
            slice_elements=usual.slice_elements if elements is None else elements,
            map_entries=usual.map_entries if elements is None else elements,
        )
        return cls(limits, entry_only, floats, brief)


class Context(Protocol):
    """Facts about a file's dynamic types, wherever a process has it."""

    def at(self, bias: int) -> ReadContext:
        """Return the facts for a process whose addresses are the file's plus ``bias``."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """How one function's calls are captured and which values are shown.

    ``entry`` and ``result`` capture values, in this order: the ``shown`` ones of the phase, then
    the operands of the probe's expressions, which ``paths`` names. ``result`` is None where calls
    are reported at their entry. ``next_pc`` and ``next_sp`` say where the instruction after the
    entry site begins, from the site, and what it adds to SP; where that is not known, or float
    registers are to be left alone, ``entry_floats`` and ``result_floats`` are false. Of a string
    no more than ``text_bytes`` are shown, although a predicate may have more captured.
    ``overwritten`` is the float register that has been overwritten by the time it is read.
    ``parts`` are the probes that want the function and what each wants, and ``probe`` is all of it
    together.
    """

    function: FunctionSites
    places: FunctionLocations
    spec: ProbeSpec
    probe: ResolvedProbe
    entry: PhasePlan
    result: PhasePlan | None
    paths: dict[Phase, tuple[AccessPath, ...]]
    compiled: CompiledPredicate | None
    binary: TargetBinary
    context: Context
    entry_floats: bool
    result_floats: bool
    next_pc: int
    next_sp: int
    text_bytes: int
    overwritten: int | None
    parts: tuple[tuple[ProbeSpec, ResolvedProbe], ...]

    @property
    def reads_results(self) -> bool:
        """Return whether anything is read of the program as a call returns."""
        ops = self.result.ops if self.result is not None else ()
        return any(OpCode.END < op.code < OpCode.PUSH_CONST for op in ops)

    @property
    def has_dictionary(self) -> bool:
        """Return whether values get their types from the dictionary of a call."""
        return DICTIONARY in self.paths[Phase.ENTRY]

    def shown(self, phase: Phase) -> int:
        """Return how many values of a phase are shown as the function's own."""
        if self.spec.format is not None or self.spec.key is not None:
            return 0
        return len(self.places.parameters if phase is Phase.ENTRY else self.places.results)


@dataclass(frozen=True, slots=True)
class TracePlan:
    """All that is to be traced; ``calls`` go with the plan's functions."""

    plan: ProbePlan
    calls: tuple[TracedCall, ...]
    contexts: tuple[DynamicTypes, ...]
    constants: StringConstants

    @property
    def unit(self) -> str | None:
        """Return the unit of the value that histograms are of, None where it is a plain number."""
        units = {unit_of(call.probe.of) for call in self.calls if call.probe.of is not None}
        return units.pop() if len(units) == 1 else None

    @property
    def reads_parts(self) -> bool:
        """Return whether any probe reads the parts of a call's time."""
        return any(
            part_specials(expression)
            for call in self.calls
            for expression in call.probe.expressions
        )


def _taken(name: str, spec: ProbeSpec, earlier: ProbeSpec) -> str:
    """Return a message about a function that an earlier probe has; raise UsageError for conditions.

    Calls that are added up have one key and one predicate: a second one would be ignored.
    """
    if spec.key is not None and (spec.predicate is not None or earlier.predicate is not None):
        raise _two_conditions(name)
    return f"{name} is traced by an earlier probe"


def _two_conditions(name: str) -> UsageError:
    return UsageError(
        f"two probes are for {name}, and one condition decides on its calls: give one probe,"
        " with conditions joined by ||"
    )


def parse_probes(
    texts: Iterable[str],
    regexp: bool = False,
    formats: bool = True,
    split: Split = split_target,
    lines: bool = False,
) -> tuple[list[ProbeSpec], list[GotraceError]]:
    """Return the probes, and the errors of texts whose file is not there.

    Raise the first of these errors if no text is a probe, and SpecError for any text that cannot be
    understood: nothing is started that was not asked for. ``formats``: recipes come with theirs.
    ``lines`` of the source are taken, too.
    """
    specs: list[ProbeSpec] = []
    failed: list[GotraceError] = []
    for text in whole_probes(texts, regexp=regexp):
        try:
            if is_recipe(text):
                specs += _from_recipe(text, formats)
                continue
            specs.append(parse_probe(text, regex=regexp, split=split, lines=lines))
        except SpecError:
            raise
        except UsageError as error:
            failed.append(error)
    if not specs:
        raise failed[0]
    return specs, failed


def _from_recipe(text: str, formats: bool) -> Iterator[ProbeSpec]:
    """Yield the probes of a recipe. Raises UsageError."""
    from gotrace.probes.recipes import find_recipe, split_recipe

    binary, name, predicate = split_recipe(text)
    for probe in find_recipe(name).wanted(formats):
        spec = parse_probe(probe.text(None, predicate, formats))
        described = tuple(f"{probe.function}{text}" for text in probe.signatures)
        yield replace(
            spec,
            binary=binary,
            described=described,
            recipe=text,
            names=probe.names,
            unless=probe.unless,
            at_entry=formats and probe.at_entry,
        )


def probe_requests(
    specs: Sequence[ProbeSpec],
    exclude: Iterable[str] = (),
    regexp: bool = False,
    file: str | None = None,
) -> list[BinaryRequest]:
    """Return a request for each probe; ``file`` is what those are of that name none."""
    excluded = list(exclude)
    return [
        BinaryRequest(
            spec.binary or file,
            Selector([spec.pattern], excluded, regex=regexp, unless=spec.unless),
            spec.recipe,
        )
        if spec.line is None
        else BinaryRequest(spec.binary or file, Selector(()), lines=(spec.line,))
        for spec in specs
    ]


def has_recipe(target: Target, name: str) -> bool:
    """Return whether a target has any function of a recipe."""
    try:
        select(target, probe_requests(parse_probes([f"@{name}"])[0]), "")
    except GotraceError:
        return False
    return True


def make_trace_plan(
    plan: ProbePlan, specs: Sequence[ProbeSpec], choices: TraceChoices
) -> TracePlan:
    """Plan the functions of each file as the probe of ``specs`` that selects them there asks.

    Functions that a probe's expressions do not fit are left out where others of it remain, with
    the reason among the plan's problems. A probe of several that fits none is among its ``failed``.
    Raises SpecError, SignatureError, NoMatchError where that leaves nothing.
    """
    assembly = _Assembly(plan, specs, choices)
    for file_plan in plan.binaries:
        assembly.add(file_plan)
    return assembly.plan()


class _NotCertainError(UsageError):
    """Report that a probe asks for a value of an inlined call that is not certain."""


class _Assembly:
    """A trace plan in the making, of which each function is planned once."""

    def __init__(self, plan: ProbePlan, specs: Sequence[ProbeSpec], choices: TraceChoices) -> None:
        self._plan = plan
        self._specs = specs
        self._choices = choices
        #: The probes that want each function, in their order.
        self._wanted_by: dict[FunctionKey, list[ProbeSpec]] = {}
        for file_plan in plan.binaries:
            for sites in file_plan.functions:
                wanted = self._wanted_by.setdefault(file_plan.key(sites), [])
                wanted.append(specs[file_plan.request])
        self._planned: set[FunctionKey] = set()
        self._files: dict[tuple[int, int], _FileTypes] = {}
        self._constants = StringConstants()
        self._binaries: list[BinaryPlan] = []
        self._calls: list[TracedCall] = []
        self._problems = list(plan.problems)
        #: Probes that fit no function of a file, by number, and why; those that fit one.
        self._refused: list[tuple[int, GotraceError]] = []
        self._accepted: set[int] = set()

    def add(self, file_plan: BinaryPlan) -> None:
        """Plan the functions of a file that a probe selects, but those that are planned."""
        binary, spec = file_plan.binary, self._specs[file_plan.request]
        identity = binary.image.identity
        at = (identity.device, identity.inode)
        file = self._files.setdefault(at, _FileTypes(binary, self._choices))
        planner = _Planner(binary, spec, self._choices, self._constants, file)
        planned: list[TracedCall] = []
        refused: list[UsageError] = []
        unseen: dict[str, list[str]] = {}  # where a function is inlined, why it is not seen there
        is_shared = False  # with an earlier probe
        for sites in file_plan.functions:
            key = file_plan.key(sites)
            if key in self._planned:
                is_shared = self._is_shared(spec, key, sites.function.name) or is_shared
                continue
            try:
                planned.append(planner.plan(sites, self._later(spec, key)))
                self._planned.add(key)
            except (SpecError, SignatureError, _NotCertainError) as error:
                if sites.at is None:
                    refused.append(error)
                else:
                    unseen.setdefault(sites.function.name, []).append(str(error))
        for name, reasons in unseen.items():
            places = counted("{} place{s}", len(reasons))
            done = "counted" if self._choices.keyed else "shown"
            text = f"{name} is inlined in {places}: not {done} there: {reasons[0]}"
            refused.append(UsageError(text))
        if not planned and refused and not is_shared:
            self._refused.append((file_plan.request, refused[0]))
        else:
            self._problems += map(str, refused)
            self._accepted.add(file_plan.request)
        self._problems += planner.problems
        kept = tuple(call.function for call in planned)
        self._binaries.append(replace(file_plan, functions=kept))
        self._calls += planned

    def _is_shared(self, spec: ProbeSpec, key: FunctionKey, name: str) -> bool:
        """Return whether a function is planned for this probe with an earlier one.

        If it is not, the earlier one has it alone, and that is among the problems. Raises
        UsageError if this probe's predicate would be decided by nobody.
        """
        earlier = self._wanted_by[key][0]
        if spec.recipe is not None and spec.recipe == earlier.recipe:
            return True
        if self._choices.first_alone and spec.predicate is not None:
            raise _two_conditions(name)
        if spec.key is not None or spec.signature not in (None, earlier.signature):
            self._problems.append(_taken(name, spec, earlier))
            return False
        return True

    def _later(self, spec: ProbeSpec, key: FunctionKey) -> list[ProbeSpec]:
        """Return the later probes that want a function and can share it."""
        wanted = self._wanted_by[key]
        later = wanted[wanted.index(spec) + 1 :]
        if self._choices.first_alone:  # with the other paragraphs of its recipe
            later = [other for other in later if spec.recipe and other.recipe == spec.recipe]
        return [
            other
            for other in later
            if other.key is None and other.signature in (None, spec.signature)
        ]

    def plan(self) -> TracePlan:
        """Return the plan. Raises GotraceError if there is nothing in it."""
        recipes = {self._specs[number].recipe for number in self._accepted} - {None}
        # Of several programs a probe need not fit all, and of a recipe not all probes.
        problems = [str(error) for number, error in self._refused if number in self._accepted]
        failed = [
            error
            for number, error in self._refused
            if number not in self._accepted and self._specs[number].recipe not in recipes
        ]
        problems = list(dict.fromkeys([*self._problems, *problems]))
        failed = [*self._plan.failed, *failed]
        if not self._calls:
            why = problems[0] if problems else "no function is left"
            raise failed[0] if failed else NoMatchError(f"nothing to trace: {why}")
        plan = replace(
            self._plan,
            binaries=tuple(self._binaries),
            problems=tuple(problems),
            failed=tuple(failed),
        )
        contexts = tuple(file.context for file in self._files.values())
        return TracePlan(plan, tuple(self._calls), contexts, self._constants)


def _together(parts: Sequence[tuple[ProbeSpec, ResolvedProbe]]) -> tuple[ProbeSpec, ResolvedProbe]:
    """Return the probe that wants the calls of several, and all of their values."""
    predicate: Typed | None = None
    for number, (_, probe) in enumerate(parts):
        if probe.predicate is None or (number and predicate is None):
            predicate = None
            break
        predicate = (
            probe.predicate
            if predicate is None
            else Logic(BinaryOperator.OR, predicate, probe.predicate)
        )
    values = tuple(
        value for _, probe in parts for value in (*probe.values, *filter(None, probe.extras))
    )
    if predicate is None:
        # Values that the others' predicates look at are captured with the values.
        values += tuple(probe.predicate for _, probe in parts if probe.predicate is not None)
    first = parts[0][0]
    is_plain = any(spec.format is None for spec, _ in parts)
    spec = replace(first, format=None) if is_plain and first.format is not None else first
    return spec, ResolvedProbe(predicate, values)


def _fitting(specs: Sequence[ProbeSpec], scope: Scope) -> list[tuple[ProbeSpec, ResolvedProbe]]:
    """Return the probes whose expressions fit a function: all, but of a recipe some are enough.

    Raises SpecError.
    """
    parts: list[tuple[ProbeSpec, ResolvedProbe]] = []
    refused: dict[str, SpecError] = {}
    for spec in specs:
        try:
            # A recipe may name types that a release lacks.
            own = scope
            if spec.recipe is not None:
                own = replace(scope, notes=None, replaced=tuple(name for name, _ in spec.names))
            parts.append((spec, spec.resolve(own)))
        except SpecError as error:
            if spec.recipe is None:
                raise
            refused.setdefault(spec.recipe, error)
    fitting = {spec.recipe for spec, _ in parts}
    for recipe, reason in refused.items():
        if recipe not in fitting:
            raise reason
    return parts


class _FileTypes:
    """Types that all probes of a file share: a dynamic type that one has met is known to all."""

    def __init__(self, binary: TargetBinary, choices: TraceChoices) -> None:
        version = binary.go_version
        release = version.release if version else None
        self.factory = NodeFactory(choices.limits, release, keyed=choices.keyed)
        self.shallow = NodeFactory(replace(choices.limits, depth=0), release)
        self.context = DynamicTypes(binary, self.factory)
        self.values = FunctionValues(binary)
        self.inlined = InlinedParameters(binary)
        self._choices = choices
        self._release = release
        self._looking_up: dict[int, NodeFactory] = {}
        self._limits = choices.limits
        self._phases: dict[tuple[PlacedNode, ...], PhasePlan] = {}

    def looking_up(self, elements: int) -> NodeFactory:
        """Return the factory for nodes of maps that need so many elements of their entries."""
        if elements not in self._looking_up:
            choices = self._choices
            self._looking_up[elements] = NodeFactory(
                choices.limits, self._release, keyed=choices.keyed, elements_within=elements
            )
        return self._looking_up[elements]

    def phase(self, values: Sequence[PlacedNode]) -> PhasePlan:
        """Return the plan of some values, which functions of one signature share."""
        key = tuple(values)
        if key not in self._phases:
            self._phases[key] = plan_phase(key, self._limits)
        return self._phases[key]


class _Planner:
    """A planner of the functions that one probe selects in one file."""

    def __init__(
        self,
        binary: TargetBinary,
        spec: ProbeSpec,
        choices: TraceChoices,
        constants: StringConstants,
        file: _FileTypes,
    ) -> None:
        self._binary = binary
        self._spec = spec
        self._choices = choices
        self._constants = constants
        self._values = file.values
        #: Functions whose words alone are shown, by the reason, and those by their shape.
        self._bare: dict[str, list[str]] = {}
        self._shaped: dict[str, list[str]] = {}
        self._notes: dict[str, str] = {}
        self._file = file
        self._factory = file.factory
        self._shallow = file.shallow
        self._elements: Mapping[AccessPath, int] = {}
        self._context = file.context

    @property
    def problems(self) -> list[str]:
        """Return the faults of the file's debugging information, and its gaps."""
        problems = [self._values.problem] if self._values.problem else []
        problems += self._notes.values()
        for why, bare in self._bare.items():
            more = counted(" and {} more function{s}", len(bare) - 1) if len(bare) > 1 else ""
            problems.append(
                f"{bare[0]}{more}: no debug information says what they take, {why}: registers"
                f" and stack words are shown; give a signature, as in '{bare[0]}(x int) error'"
            )
        for why, shaped in self._shaped.items():
            more = counted(" and {} more function{s}", len(shaped) - 1) if len(shaped) > 1 else ""
            problems.append(
                f"{shaped[0]}{more}: arguments are shown by their shape, results as registers,"
                f" since {why}; give a signature, as in '{shaped[0]}(x int) error'"
            )
        return problems

    def _note_bare(self, places: FunctionLocations, function: FuncInfo) -> None:
        """Note down that no types of a function's values are known, and why."""
        why = self._values.why_unknown(function)
        if places.source is SignatureSource.NOTHING:
            why = f"{why}, and {self._values.why_bare(function)}"
            self._bare.setdefault(why, []).append(function.name)
        elif not self._choices.brief:
            self._shaped.setdefault(why, []).append(function.name)

    def plan(self, sites: FunctionSites, more: Sequence[ProbeSpec] = ()) -> TracedCall:
        """Plan a function's calls, which ``more`` probes than this planner's want as well."""
        specs = (self._spec, *more)
        places = self._values_at(sites)
        if places.is_bare or places.source is SignatureSource.METHOD_TABLE:
            places = self._as_described(sites.function, specs) or places
        if places.is_bare and any(spec.format is None for spec in specs):
            self._note_bare(places, sites.function)
        scope = replace(
            _scope(places, self._type, self._hashes, self._no_spans, self._no_labels),
            declared=self._declared,
            notes=self._notes,
        )
        parts = _fitting(specs, scope)
        if self._at_entry(sites):
            parts = [(spec, probe.at_entry()) for spec, probe in parts]
        of_all = copy(self)  # which notes down with this one what it leaves out
        of_all._spec, probe = _together(parts) if len(parts) > 1 else parts[0]
        of_all._elements = elements_looked_up(probe.expressions)
        return of_all._planned(sites, places, probe, parts)

    def _values_at(self, sites: FunctionSites) -> FunctionLocations:
        """Return a function's values, of an inlined call those that are certain."""
        if sites.at is None:
            return self._values.of(sites.function, self._spec.signature)
        name = sites.function.name
        found = None
        if self._spec.line is None:
            with suppress(DwarfError):
                found = self._file.inlined.of(name, sites.places[0])
        return found or FunctionLocations(name, CallingConvention.ABI_INTERNAL, (), ())

    def _at_entry(self, sites: FunctionSites) -> bool:
        """Return whether a function's calls are reported at their entry alone."""
        return self._choices.entry_only or self._spec.at_entry or not sites.returns

    def _as_described(
        self, function: FuncInfo, specs: Sequence[ProbeSpec]
    ) -> FunctionLocations | None:
        """Return the values by the first of the probes' own signatures that fits the function.

        None where they have none. Raises SignatureError.
        """
        refused = None
        for text in dict.fromkeys(text for spec in specs for text in spec.described):
            try:
                return self._values.of(function, text, is_recipe=True)
            except SignatureError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return None

    def _planned(
        self,
        sites: FunctionSites,
        places: FunctionLocations,
        probe: ResolvedProbe,
        parts: Sequence[tuple[ProbeSpec, ResolvedProbe]],
    ) -> TracedCall:
        text_bytes = self._text_bytes(probe)
        paths = _paths(probe, places, self._spec.key is not None)
        if sites.at is not None:
            self._check_inlined(places, paths[Phase.ENTRY])
        self._check_specials(probe)
        at_entry = self._at_entry(sites)
        if self._choices.return_if_needed and not _needs_return(probe):
            at_entry = True
        if at_entry and _needs_return(probe):
            out = f"leave {said('--entry', 'entry=True')} out"
            remedy = out if self._choices.entry_only else "it is never seen to do so"
            raise self._spec.source.error(
                TextRange(0, len(self._spec.source.text)),
                f"it uses values that are only known when {sites.function.name} returns: {remedy}",
            )
        entry = self._phase(places, places.parameters, paths[Phase.ENTRY], text_bytes)
        result = None
        if not at_entry:
            saved = _saved_at(paths[Phase.ENTRY], entry)
            result = self._phase(places, places.results, paths[Phase.RETURN], text_bytes, saved)
        compiled = self._predicate(probe, paths, entry, result)
        if compiled is not None:
            entry = entry.with_predicate(compiled.entry)
            result = result.with_predicate(compiled.result) if result else None
        if self._spec.key is not None:
            rest = self._decided_later(compiled, len(parts) == 1)
            entry, result = self._keyed(probe, rest, paths, entry, result)
        code = self._code_at_entry(sites)
        is_branch = sites.entry is not None and sites.entry.form is SiteForm.BRANCH
        machine = machine_code(self._binary.image.arch)
        step = machine.step_over(code, is_branch)
        overwritten = machine.float_written(code)
        readable = set(entry.float_registers) - {overwritten}
        floats = self._choices.floats and places.convention.reads_floats
        return TracedCall(
            sites,
            places,
            self._spec,
            probe,
            entry,
            result,
            paths,
            compiled,
            self._binary,
            self._context,
            entry_floats=floats and step is not None and bool(readable),
            result_floats=floats and result is not None and bool(result.float_registers),
            next_pc=step[0] if step else 0,
            next_sp=step[1] if step else 0,
            text_bytes=self._choices.limits.text_bytes,
            overwritten=overwritten,
            parts=tuple(parts),
        )

    def _type(self, text: str) -> tuple[GoType, bool]:
        """Return the type that a user names, and whether interfaces hold its values themselves."""
        found = self._values.type(text)
        version = self._binary.go_version
        return found, is_direct(found, version.release if version else None)

    def _hashes(self, name: str) -> Collection[int]:
        """Return the hashes of the types of a linker's name. Raises SignatureError."""
        try:
            return self._binary.rtypes.hashes(name) if self._binary.rtypes else ()
        except RtypeError as error:
            raise SignatureError(str(error)) from error

    def _declared(self) -> Iterable[str]:
        return self._binary.rtypes.declared() if self._binary.rtypes else ()

    def _no_spans(self) -> str | None:
        """Return why contexts of the program hold no spans that are known."""
        binary = self._binary
        if binary.has_spans:
            return None
        if binary.rtypes is None or binary.rtypes_problem is not None:
            why = binary.rtypes_problem or "nothing in it describes its types"
            return f"spans of contexts are not found in {binary.image.display}: {why}"
        return (
            f"{binary.image.display} has no types of go.opentelemetry.io/otel/trace: its contexts"
            " hold no spans"
        )

    def _no_labels(self) -> str | None:
        """Return why labels of the program's goroutines cannot be read."""
        if not self._binary.functions.has_pclntab:
            return f"{self._binary.image.display} is of gccgo: its goroutines' labels are not known"
        try:
            return None if self._binary.runtime.g_labels else "where labels are is not known"
        except RuntimeLayoutError as error:
            return str(error)

    def _label(self, key: str) -> PlacedValue:
        number = self._constants.number(key.encode("utf-8", "surrogateescape"))
        runtime = self._binary.runtime
        place = Label(0, number, runtime.g_labels, runtime.labels_are_map)
        text = basic_type(Kind.STRING)
        return PlacedValue(key, text, (Piece(0, text.size, place),))

    def _check_inlined(self, places: FunctionLocations, paths: Iterable[AccessPath]) -> None:
        """Raise _NotCertainError for values of an inlined call that are not certain at its site."""
        for path in paths:
            root = path.root
            value = places.parameters[root.index] if root.kind is RootKind.PARAMETER else None
            problem = value.problem if value is not None else None
            if any(step is PathMark.DEREF or isinstance(step, int) for step in path.steps):
                problem = "what it leads to may have been changed by the call"
            if problem is not None:
                raise _NotCertainError(f"{root.name}: {problem}")

    def _check_specials(self, probe: ResolvedProbe) -> None:
        """Raise SpecError for names that only keys know, as who made a call, or only records."""
        by = said(
            "is for --by of gofunccount and gofunclatency: see also -U",
            "is for by of count() and latency(): see also stacks=True",
        )
        reasons = {SpecialName.CALLER: by, SpecialName.STACK: by}
        if self._spec.key is not None:
            why = "calls are added up where they return, and a panic is no return"
            reasons = {SpecialName.PANICKED: f"is for {said('gotrace', 'trace()')}: {why}"}
        for expression in probe.expressions:
            for special in specials(expression):
                if special.special in reasons:
                    source = self._spec.source
                    if self._spec.key is not None and expression is not probe.predicate:
                        source = self._spec.key.source
                    name, reason = special.special.value, reasons[special.special]
                    raise source.error(special.span, f"${name} {reason}")

    def _text_bytes(self, probe: ResolvedProbe) -> dict[AccessPath, int]:
        """Return how much to capture of each string that the predicate looks at.

        Those that it may look at to their end share half of their phase's payload. Slices of texts
        need as much as they have to be shown. Raise SpecError where a constant is longer than
        anything that is captured.
        """
        limits = self._choices.limits
        sliced: dict[AccessPath, int] = {}
        for expression in probe.expressions:
            for path, count in sliced_bytes(expression, limits.text_bytes).items():
                sliced[path] = max(min(count, limits.most_text_bytes), sliced.get(path, 0))
        if probe.predicate is None:
            return sliced
        needed = string_bytes_needed(probe.predicate)
        problem = string_problem(max(needed.values(), default=0), limits)
        if problem is not None:
            raise self._spec.source.error(TextRange(0, len(self._spec.source.text)), problem)
        whole = texts_needed_whole(probe.predicate)
        for phase in Phase:
            paths = [path for path in whole if path.root.phase is phase]
            for path in paths:
                share = limits.most_text_bytes // len(paths)
                needed[path] = max(share, needed.get(path, 0))
        needed |= {path: max(count, needed.get(path, 0)) for path, count in sliced.items()}
        return {path: max(count, limits.usual.text_bytes) for path, count in needed.items()}

    def _phase(
        self,
        places: FunctionLocations,
        shown: Sequence[PlacedValue],
        paths: Sequence[AccessPath],
        text_bytes: Mapping[AccessPath, int],
        saved: Mapping[int, int] | None = None,
    ) -> PhasePlan:
        """Plan a phase; ``saved`` is where the entry's image has parameters, by their numbers."""
        values = []
        if self._spec.format is None and self._spec.key is None:
            is_method = shown is places.parameters and _has_pointer_receiver(places.name)
            values = [
                self._whole(value, is_method and not n, places.is_inlined)
                for n, value in enumerate(shown)
            ]
        values += [self._operand(places, path, text_bytes.get(path), saved or {}) for path in paths]
        return self._file.phase(values)

    def _whole(self, value: PlacedValue, is_receiver: bool, is_inlined: bool) -> PlacedNode:
        try:
            is_short = self._choices.brief and (is_receiver or _leads_to_large(value.type))
            # The call may have stored by a pointer before its site is reached.
            factory = self._shallow if is_short or is_inlined else self._factory
            if value.within is not None:
                return place_value(factory, value.name, value)._replace(first=False)
            node = factory.node(value.type)
        except DwarfError as error:
            raise GotraceError(f"{value.name}: {error}") from error
        return PlacedNode(value.name, node, value.pieces, value.problem)

    def _operand(
        self,
        places: FunctionLocations,
        path: AccessPath,
        text_bytes: int | None,
        saved: Mapping[int, int],
    ) -> PlacedNode:
        steps = path.steps
        root = path.root
        elements = self._elements.get(path)
        factory = self._factory if elements is None else self._file.looking_up(elements)
        if root.kind in (RootKind.SAVED, RootKind.EXIT):
            value = places.parameters[root.index]
            if value.within is not None or _in_floats(value):
                value = replace(value, pieces=None, problem="not kept for the return")
            if root.kind is RootKind.SAVED:
                image = OpaqueNode(value.type)
                return PlacedNode(root.name, image, value.pieces, value.problem, first=True)
            if value.pieces is not None:
                pieces = (Piece(0, value.type.size, Saved(saved[root.index])),)
                value = replace(value, pieces=pieces)
            return place_value(factory, root.name, value, steps, text_bytes)
        if root.kind is RootKind.DICTIONARY:
            return _dictionary_of(factory, places)
        if root.kind is RootKind.LABEL:
            return place_value(factory, root.name, self._label(root.name), steps, text_bytes)
        if root.kind is RootKind.CAPTURED:
            captured: CapturedValue = places.captured[root.index]
            return place_captured(factory, captured, steps, text_bytes)
        values = places.parameters if root.kind is RootKind.PARAMETER else places.results
        value = values[root.index]
        return place_value(factory, root.name, value, steps, text_bytes)

    def _predicate(
        self,
        probe: ResolvedProbe,
        paths: dict[Phase, tuple[AccessPath, ...]],
        entry: PhasePlan,
        result: PhasePlan | None,
    ) -> CompiledPredicate | None:
        if probe.predicate is None:
            return None
        locate = _located(paths, entry, result)
        room = {Phase.ENTRY: _MAX_PREDICATE, Phase.RETURN: _MAX_PREDICATE if result else 0}
        compiled = self._compiled(probe.predicate, locate, room)
        # A search that takes all steps would leave none for what is captured after it.
        if _takes_too_long(compiled.entry, entry, self._choices.keyed):
            room[Phase.ENTRY] = 0
        if result and _takes_too_long(compiled.result, result, self._choices.keyed):
            room[Phase.RETURN] = 0
        return self._compiled(probe.predicate, locate, room)

    def _decided_later(self, compiled: CompiledPredicate | None, is_alone: bool) -> Typed | None:
        """Return the part of a predicate that a key has; raise SpecError if it cannot have it."""
        rest = compiled.rest if compiled is not None else None
        can_be_later = self._choices.decided_later and is_alone
        if rest is not None and not (can_be_later and _is_of_numbers(rest)):
            raise self._not_in_kernel(rest)
        return rest

    def _keyed(
        self,
        probe: ResolvedProbe,
        rest: Typed | None,
        paths: Mapping[Phase, Sequence[AccessPath]],
        entry: PhasePlan,
        result: PhasePlan | None,
    ) -> tuple[PhasePlan, PhasePlan | None]:
        """Return the plans with operations for a call's key; raise SpecError if there is none.

        The ``rest`` of a predicate, which the kernel does not decide, is a part of the key: so
        calls of a row are all wanted, or none.
        """
        assert self._spec.key is not None
        key: dict[Phase, list[Op]] = {Phase.ENTRY: [], Phase.RETURN: []}
        locate = _located(paths, entry, result)
        for value, expression in zip(probe.values, self._spec.key.expressions, strict=True):
            phase = phase_of(value)
            ops: Sequence[Op] | None
            if isinstance(value, Operand):
                plan = entry if phase is Phase.ENTRY else result
                assert plan is not None
                ops = plan.readers[paths[phase].index(value.path)].key()
            else:
                ops = key_ops(value, locate, self._constants)
            if ops is None:
                ops = self._keys_of_operands(value, paths, entry, result)
            if ops is None:
                raise self._no_key(value, expression.span)
            key[phase] += ops
        if rest is not None:
            ops = self._keys_of_operands(rest, paths, entry, result)
            if ops is None:
                raise self._not_in_kernel(rest)
            key[phase_of(rest)] += ops
        if DICTIONARY in paths[Phase.ENTRY]:
            # The values of instances are rows of their own, since their types are.
            types = entry.readers[paths[Phase.ENTRY].index(DICTIONARY)].key()
            key[Phase.ENTRY] += types or ()
        if probe.of is not None:
            assert self._spec.of is not None
            taken = measure_ops(probe.of, locate, self._constants)
            if taken is None:
                raise self._spec.of.source.error(
                    self._spec.of.expressions[0].span,
                    "histograms are made in the kernel, which cannot read this"
                    f" {probe.of.type.name}",
                )
            key[phase_of(probe.of)] += taken
        entry = entry.with_key(key[Phase.ENTRY])
        return entry, result.with_key(key[Phase.RETURN]) if result else None

    def _no_key(self, value: Typed, span: TextRange) -> SpecError:
        """Return the error for an expression by which calls cannot be added up."""
        assert self._spec.key is not None
        source = self._spec.key.source

        def text(of: TextRange) -> str:
            return source.text[of.start : of.end]

        parts = operands(value)
        why = f"a {value.type.name}: give a number, a text, or fields of it"
        if isinstance(value, Operand) and value.type.kind in INTEGERS | FLOATS:
            why = "which is in a float register, and the kernel reads none of these"
        elif not isinstance(value, Operand) and len({one.path.root.phase for one in parts}) > 1:
            given = ",".join(dict.fromkeys(text(one.span) for one in parts))
            why = (
                "of which a part is known at the call and the rest at the return: "
                f"give the parts, as in {said('--by', 'by=')} '{given}'"
            )
        if looks_up(value):
            why = "an entry of a map, or an element, which the kernel does not look up"
        shown = text(span)
        return source.error(
            span, f"calls of {self._spec.pattern} cannot be added up by {shown}, {why}"
        )

    def _keys_of_operands(
        self,
        value: Typed,
        paths: Mapping[Phase, Sequence[AccessPath]],
        entry: PhasePlan,
        result: PhasePlan | None,
    ) -> list[Op] | None:
        """Return operations that append all parts of an expression, None if that is not possible.

        Then keys are finer than the expression's values, which are made in user space.
        """
        plans = {Phase.ENTRY: entry, Phase.RETURN: result}
        late = phase_of(value) is Phase.RETURN
        ops: list[Op] = []
        for operand in operands(value):
            phase = operand.path.root.phase
            plan = plans[phase]
            key = plan.readers[paths[phase].index(operand.path)].key() if plan else None
            if key is None or (late and phase is Phase.ENTRY) or specials(value):
                return None
            ops += key
        return ops or None

    def _not_in_kernel(self, predicate: Typed) -> SpecError:
        why = "the kernel cannot decide this, and calls are added up there"
        if looks_up(predicate):
            tool = said("gotrace", "trace()")
            why = f"calls are added up in the kernel, which looks at no elements: type {tool}"
        return self._spec.source.error(predicate.span, why)

    def _compiled(
        self,
        predicate: Typed,
        locate: Callable[[AccessPath], FieldRef | None],
        room: Mapping[Phase, int],
    ) -> CompiledPredicate:
        return compile_predicate(
            predicate,
            locate,
            self._constants,
            entry_room=room[Phase.ENTRY],
            result_room=room[Phase.RETURN],
        )

    def _code_at_entry(self, sites: FunctionSites) -> bytes:
        """Return a function's code from its entry site on.

        A signal sent at the site comes after the first instruction of it.
        """
        entry = sites.entry
        if entry is None or sites.at is not None:
            return b""
        return self._binary.image.read(entry.address, sites.function.end - entry.address)


def _in_floats(value: PlacedValue) -> bool:
    return any(isinstance(piece.place, FloatReg) for piece in value.pieces or ())


def has_type(places: FunctionLocations, path: AccessPath) -> bool:
    """Return whether an operand is a value, or a part of one, with a type in the dictionary."""
    own = {RootKind.PARAMETER: places.parameters, RootKind.RESULT: places.results}
    values = own.get(path.root.kind)
    return values is not None and values[path.root.index].dictionary_word is not None


def _dictionary_of(factory: NodeFactory, places: FunctionLocations) -> PlacedNode:
    """Return the dictionary of a call, which is copied before its values."""
    dictionary = places.dictionary
    if isinstance(dictionary, CapturedValue):
        return place_captured(factory, dictionary)
    assert dictionary is not None
    return place_value(factory, dictionary.name, dictionary)


def _saved_at(paths: Sequence[AccessPath], entry: PhasePlan) -> dict[int, int]:
    """Return where the entry's image has values kept for the return, by parameters' numbers."""
    first = len(entry.root) - len(paths)
    return {
        path.root.index: entry.root[first + number][1]
        for number, path in enumerate(paths)
        if path.root.kind is RootKind.SAVED
    }


def _located(
    paths: Mapping[Phase, Sequence[AccessPath]], entry: PhasePlan, result: PhasePlan | None
) -> Callable[[AccessPath], FieldRef | None]:
    """Return a function that finds operands, which come last among a phase's values."""
    plans = {Phase.ENTRY: entry, Phase.RETURN: result}

    def locate(path: AccessPath) -> FieldRef | None:
        plan = plans[path.root.phase]
        if plan is None or path not in paths[path.root.phase]:
            return None
        at = paths[path.root.phase].index(path)
        return plan.location(len(plan.root) - len(paths[path.root.phase]) + at)

    return locate


def _has_pointer_receiver(name: str) -> bool:
    parsed = parse_name(name)
    return parsed.kind is NameKind.METHOD and parsed.pointer


def _leads_to_large(go_type: GoType) -> bool:
    """Return whether a type points to a struct of many fields, those of structs in it included."""
    if not isinstance(go_type, PointerType) or not isinstance(go_type.elem, StructType):
        return False
    count, waiting = 0, [go_type.elem]
    while waiting and count <= MAX_FIELDS:
        for field in waiting.pop().fields:
            if isinstance(field.type, StructType) and field.type.fields:
                waiting.append(field.type)
            else:
                count += 1
    return count > MAX_FIELDS


def string_problem(needed: int, limits: CaptureLimits) -> str | None:
    """Return why a predicate cannot look at ``needed`` bytes of a string, and what to do."""
    bound = limits.most_text_bytes
    if needed <= bound:
        return None
    return (
        f"its predicate looks at {needed:,} bytes of a string, and no more than {bound:,} are"
        " copied: use a shorter constant"
    )


def _takes_too_long(predicate: tuple[Op, ...], plan: PhasePlan, keyed: bool) -> bool:
    ops = (*predicate, *plan.ops)
    return any(map(_is_search, predicate)) and steps_of(ops) > most_steps(ops, keyed)


def most_steps(ops: Sequence[Op], keyed: bool) -> int:
    """Return how many steps a phase's operations may take."""
    if keyed:
        return MAX_KEYED_STEPS
    return MAX_EXTENDED_STEPS if any(op.code is OpCode.ROOM for op in ops) else MAX_STEPS


def steps_of(ops: Sequence[Op]) -> int:
    """Return how many steps a phase's operations take at most."""
    nested = sum(op.code is OpCode.IFACE for op in ops) * _NESTED_STEPS
    rests = sum(op.code is OpCode.MORE for op in ops) * MAX_RESTS
    return len(ops) + nested + rests + sum(map(_is_search, ops)) * SEARCH_STEPS


def _is_search(op: Op) -> bool:
    return op.code is OpCode.STRING_TEST and op.reg == _CONTAINS


def _scope(
    places: FunctionLocations,
    types: Callable[[str], tuple[GoType, bool]],
    hashes: Callable[[str], Collection[int]],
    spans: Callable[[], str | None],
    labels: Callable[[], str | None],
) -> Scope:
    signature = Signature(
        places.name,
        tuple(Parameter(value.name, value.type) for value in places.parameters),
        tuple(Parameter(value.name, value.type) for value in places.results),
    )
    captured = tuple(Parameter(value.name, value.type) for value in places.captured)
    unordered = {
        RootKind.PARAMETER: not places.parameters_ordered,
        RootKind.RESULT: not places.results_ordered,
    }
    kinds = frozenset(kind for kind, is_unordered in unordered.items() if is_unordered)
    return Scope(
        places.name,
        signature,
        captured,
        types,
        spans,
        kinds,
        labels,
        hashes,
        recipes=_recipes_of if places.is_bare else None,
    )


def _is_of_numbers(predicate: Typed) -> bool:
    """Return whether a predicate looks at values only that a key has whole."""
    numbers = INTEGERS | {Kind.BOOL}
    types = [one.type for one in operands(predicate)]
    return all((of.elem if isinstance(of, ArrayType) else of).kind in numbers for of in types)


def _recipes_of(function: str) -> list[str]:
    from gotrace.probes.recipes import recipes_of  # few runs need it

    return recipes_of(function)


def _paths(
    probe: ResolvedProbe, places: FunctionLocations, is_keyed: bool
) -> dict[Phase, tuple[AccessPath, ...]]:
    """Return the operands of a probe's expressions by phase, each once.

    And the dictionary, if values have types in it: all that are shown, or those of a key.
    """
    found = dict.fromkeys(
        operand.path for expression in probe.expressions for operand in operands(expression)
    )
    for root in {path.root: None for path in found if path.root.kind is RootKind.EXIT}:
        found[AccessPath(replace(root, kind=RootKind.SAVED))] = None
    is_shown = not is_keyed or any(has_type(places, path) for path in found)
    if places.dictionary is not None and is_shown:
        found[DICTIONARY] = None
    return {phase: tuple(path for path in found if path.root.phase is phase) for phase in Phase}


def _needs_return(probe: ResolvedProbe) -> bool:
    return any(phase_of(expression) is Phase.RETURN for expression in probe.expressions)


def interfaces_in(calls: Iterable[TracedCall]) -> list[InterfaceType]:
    """Return the types of the interfaces whose values calls capture."""
    plans = [plan for call in calls for plan in (call.entry, call.result) if plan is not None]
    found = {interface.name: interface for plan in plans for interface in plan.interfaces}
    return list(found.values())
