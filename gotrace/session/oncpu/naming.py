# SPDX-License-Identifier: Apache-2.0
"""The meaning of sampled stacks, the choice of them, and their sums."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import add, mul
from typing import TYPE_CHECKING

from gotrace.goroutines.groups import stacks_with
from gotrace.goroutines.interrupted import InterruptedStacks, WorkKind, work_of
from gotrace.goroutines.model import Frame, Stack
from gotrace.goroutines.program import CodeNames
from gotrace.kernel.kallsyms import KernelSymbols
from gotrace.kernel.kept_stacks import MAX_FRAMES
from gotrace.profiles.rows import (
    CodeMapping,
    Line,
    PprofLocation,
    ProfileForm,
    ProfileRow,
    ValueType,
)
from gotrace.records import dataclass
from gotrace.results.rows import Row
from gotrace.session.oncpu.meter import SampleEvent, SampleMeter, SamplePeriod, SampleRow
from gotrace.session.row_cells import RowBy, RowStack

if TYPE_CHECKING:
    from gotrace.values.model import Value

    _Alike = tuple[int, int, Stack, Stack, Value | None]

#: pprof's words for units of amounts.
_UNITS = {"ns": "nanoseconds", "bytes": "bytes"}
_KERNEL = "[kernel]"
#: From fewer no error is known but its bound.
_LEAST_PARTS = 8
#: The parts of a run, as in bpf/allocs.c. Later ones are of spans that were not empty, by how many
#: objects they had.
_PARTS = 16
_NOT_EMPTY = range(1 + _PARTS, 1 + 2 * _PARTS)
#: If a share is more than three times this by so many random samples, one of them has it: the odds
#: are a hundred to one.
_UNSEEN = 1.5
#: How many times the variance by chance means that samples are in step with the program.
_IN_STEP = 2
_RUNTIME = ("runtime.", "internal/runtime/")
#: The maker of the main goroutine: runtime.rt0_go, since Go 1.17 through a wrapper.
_STARTS = frozenset({"runtime.rt0_go", "runtime.newproc"})
#: Makers of the collector's goroutines: marking, sweeping, scavenging, and starting a cycle.
_OF_COLLECTOR = ("runtime.gcBgMarkStartWorkers", "runtime.gcenable", "runtime.init")


@dataclass(frozen=True, slots=True)
class NamedSamples:
    """Samples that are alike.

    ``group`` is whose they are: a go statement's goroutines, the main goroutine, or what the
    runtime works for. ``frames`` are the logical ones, innermost first, the kernel's included;
    ``locations`` the physical ones; ``is_cut``: there are more than could be kept. ``created_by``,
    ``status`` and what follows it are as in rows, but that the runtime's work has no empty label.
    ``parts`` are the amounts of parts, and ``spans`` their samples.
    """

    work: WorkKind
    group: str
    created_by: int
    status: int
    frames: tuple[Frame, ...]
    locations: tuple[PprofLocation, ...]
    is_cut: bool
    samples: int
    amount: int
    label: Value | None = None
    objects: int = 0
    variance: int = 0
    parts: Mapping[tuple[int, int], int] | None = None
    spans: Mapping[tuple[int, int], int] | None = None

    def labelled(self) -> str:
        """Return the label's value, quoted, or the group of those that can have none."""
        if self.label is None:
            return self.group
        from gotrace.values.go_syntax import by_text

        return by_text(self.label)

    def label_text(self) -> str:
        """Return the label's value, empty if there is none or it is not known."""
        text = getattr(self.label, "text", b"")
        return str(text, "utf-8", "surrogateescape")

    def row(self, of: SampleEvent, by: str | None) -> Row:
        """Return the row of samples of an event, ``by`` the expression of their label."""
        return {
            "kind": f"{of.rows.name}_stack",
            "work": self.work.value,
            "group": self.group,
            **({} if by is None else {"by": RowBy({by: self.label})}),
            "samples": self.samples,
            of.rows.amount: self.amount,
            **({"objects": self.objects} if of.rows.is_estimate else {}),
            "stack": RowStack(self.frames, self.is_cut),
        }


class SampleNames:
    """The names of addresses in a meter's rows."""

    def __init__(self, meter: SampleMeter) -> None:
        self._meter = meter
        self._stacks: InterruptedStacks | None = None
        self._kernel = KernelSymbols()

    @property
    def program(self) -> CodeNames:
        """Return the names of Go's addresses: of a command, once it runs. Raises GotraceError."""
        return self._meter.files.program

    def mappings(self) -> list[CodeMapping]:
        """Return where the code is, for profiles."""
        return self.program.mappings()

    def form(self) -> ProfileForm:
        """Return the types of a profile: of CPU time those of runtime/pprof's."""
        of = self._meter.event.rows
        estimated = "alloc_objects", "alloc_space"  # those of runtime/pprof
        names = estimated if of.is_estimate else ("samples", of.name)
        unit = _UNITS.get(of.unit, "count")
        return ProfileForm((ValueType(names[0], "count"), ValueType(names[1], unit)))

    def named(self, rows: Iterable[SampleRow], inside: Sequence[str] = ()) -> list[NamedSamples]:
        """Return samples by their names, the most frequent first.

        Only those that have a function on their stack which a pattern of ``inside`` matches. Raises
        UsageError for a bad pattern.
        """
        if self._stacks is None:
            self._stacks = InterruptedStacks(self.program, self._meter.files.code_name)
        made = [(row, self._stacks.stack(row.stack)) for row in rows]
        if inside:
            wanted = stacks_with(self.program, {stack for _, stack in made}, inside)
            made = [(row, stack) for row, stack in made if stack in wanted]
        sums: dict[_Alike, list[int]] = {}
        parts: defaultdict[_Alike, Counter[tuple[int, int]]] = defaultdict(Counter)
        spans: defaultdict[_Alike, Counter[tuple[int, int]]] = defaultdict(Counter)
        for row, stack in made:
            key = row.created_by, row.status, stack, row.kernel, row.label
            figures = row.samples, row.amount, row.objects, row.variance
            sums[key] = list(map(add, sums.get(key, [0] * len(figures)), figures))
            if row.part is not None:
                parts[key][row.part] += row.amount
                spans[key][row.part] += row.samples
        named = [
            self._name(*key, figures, self._stacks, parts.get(key), spans.get(key))
            for key, figures in sums.items()
        ]
        return sorted(
            named, key=lambda one: (-one.amount, one.group, one.locations, repr(one.label))
        )

    def _name(
        self,
        created_by: int,
        status: int,
        stack: Stack,
        kernel: Stack,
        label: Value | None,
        figures: Sequence[int],
        stacks: InterruptedStacks,
        parts: Mapping[tuple[int, int], int] | None,
        spans: Mapping[tuple[int, int], int] | None,
    ) -> NamedSamples:
        samples, amount, objects, variance = figures
        names = [(pc, self._kernel.name(pc)) for pc in kernel]
        inner = [Frame(name, _KERNEL, 0, None, False, False, True) for _, name in names]
        located = [PprofLocation(pc, (Line(name, _KERNEL, 0),)) for pc, name in names]
        frames, locations = stacks.frames(stack), stacks.profiled(stack)
        if self._meter.event.rows.is_estimate:
            frames, locations = of_callers(frames, locations)
        work = work_of([frame.function for frame in frames])
        if work is not WorkKind.PROGRAM and not getattr(label, "text", b"?"):
            label = None  # the runtime's own time is not that of goroutines without the label
        return NamedSamples(
            work,
            self.group(work, created_by),
            created_by,
            status,
            (*inner, *frames),
            (*located, *locations),
            len(stack) >= MAX_FRAMES - 1,
            samples,
            amount,
            label,
            objects,
            variance,
            parts,
            spans,
        )

    def group(self, work: WorkKind, created_by: int) -> str:
        """Return whose samples they are."""
        return self.goroutines(created_by) if work is WorkKind.PROGRAM else str(work.value)

    def goroutines(self, created_by: int) -> str:
        """Return a name for the goroutines of a go statement."""
        creation = self.program.creation(created_by) if created_by else None
        if creation is None:
            return "outside of goroutines" if not created_by else "goroutines of unknown origin"
        if creation.function in _STARTS:
            return "main goroutine"
        if creation.function.startswith(_OF_COLLECTOR):
            return str(WorkKind.COLLECTOR.value)
        return f"{creation.function} {creation.file.rpartition('/')[2]}:{creation.line}"

    def profile_rows(self, samples: Iterable[NamedSamples]) -> list[ProfileRow]:
        """Return samples for a profile."""
        key, of, rows = self._meter.label, self._meter.event.rows, []
        for one in samples:
            labels, note = {"group": one.group}, ""
            if key is not None:
                note = f"[{one.labelled()}]"
                labels |= {key: text} if (text := one.label_text()) else {}
            values = one.objects if of.is_estimate else one.samples, one.amount
            rows.append(ProfileRow(one.locations, values, labels, note))
        return rows


def of_callers(
    frames: list[Frame], locations: list[PprofLocation]
) -> tuple[list[Frame], list[PprofLocation]]:
    """Return a stack without the runtime's own functions at its inner end, as runtime/pprof does.

    If it has no others, all of it.
    """
    inner = 0
    while inner < len(frames) and frames[inner].function.startswith(_RUNTIME):
        inner += 1
    if inner == len(frames):
        return frames, locations
    lines = [(place, line) for place, one in enumerate(locations) for line in one.lines]
    kept: list[PprofLocation] = []
    for place, line in lines[inner:]:
        if place and kept and kept[-1].address == locations[place].address:
            kept[-1] = PprofLocation(kept[-1].address, (*kept[-1].lines, line))
        else:
            kept.append(PprofLocation(locations[place].address, (line,)))
    return frames[inner:], kept


class _Sum:
    """The amounts of a function, and what their error follows from."""

    __slots__ = ("amount", "parts", "spans", "variance")

    def __init__(self) -> None:
        self.amount = self.variance = 0
        self.parts: Counter[tuple[int, int]] = Counter()
        self.spans: Counter[tuple[int, int]] = Counter()

    def add(self, one: NamedSamples) -> None:
        self.amount += one.amount
        self.variance += one.variance
        self.parts.update(one.parts or {})
        self.spans.update(one.spans or {})

    def error(self, whole: _Sum) -> int:
        """Return the standard error of the amount as a part of the whole, which is known."""
        if whole.parts:
            return self._error_of_parts(whole)
        share = self.amount / whole.amount if whole.amount else 0.0
        rest = whole.variance - self.variance
        return round(math.sqrt(self.variance * (1 - share) ** 2 + rest * share**2))

    def _error_of_parts(self, whole: _Sum) -> int:
        """Return the error that follows from how much the parts of the run differ.

        The bytes of each size are known in each part: only the function's share in them is not. If
        the parts differ by more than samples that come by chance would, samples are in step with
        the program between two flushes. Then chance does not even them out, and three errors are
        all that the samples leave open.
        """
        parts = {part for _, part in whole.parts}
        off: defaultdict[int, float] = defaultdict(float)
        by_chance = unseen = bound = 0.0
        for size in {size for size, _ in self.parts}:
            own, of_all = ([one.parts[size, part] for part in parts] for one in (self, whole))
            spans, amount = sum(whole.spans[size, part] for part in parts), sum(of_all)
            share, objects = sum(own) / amount, amount / size / spans
            #: The part of objects of which it is not known whose they are: one of a span is known.
            hidden = max(0.0, 1 - 1 / objects)
            chance = hidden * sum(own) * (1 - share) * amount / spans
            differ = {
                part: (one - share * of_part) * math.sqrt(hidden)
                for part, one, of_part in zip(parts, own, of_all, strict=True)
            }
            random, count = self._random_share(whole, size, objects)
            lack = min(1 / 3, _UNSEEN / count) if count else 1 / 3
            if len(parts) < _LEAST_PARTS or _squares(differ.values()) > _IN_STEP * chance:
                if count:
                    lack += abs(share - random) + math.sqrt(random * (1 - random) / count)
                bound += amount * hidden * min(1 / 3, lack)
                continue
            by_chance += chance
            unseen += (amount * hidden * lack) ** 2
            for part, one in differ.items():
                off[part] += one
        return round(math.sqrt(max(_squares(off.values()), by_chance) + unseen) + bound)

    def _random_share(self, whole: _Sum, size: int, objects: float) -> tuple[float, float]:
        """Return the share in used up spans that are random samples, and how many these are.

        A function that allocates in a fixed rhythm may never use up a span: spans of a size have
        the same number of objects, and the collector may change nothing about that. But spans that
        were not empty when they were taken had any number. If some numbers are more frequent than
        others, these are of a rhythm, too.
        """
        kinds = max(1, min(_PARTS, round(objects - 1)))
        found = [(self.spans[size, part], whole.spans[size, part]) for part in _NOT_EMPTY]
        most = sorted((count for _, count in found), reverse=True)[kinds // 2]
        weights = [min(1.0, most / count) if count else 0.0 for _, count in found]
        own, of_all = (sum(map(mul, weights, column)) for column in zip(*found, strict=True))
        return (own / of_all, of_all) if of_all else (0.0, 0.0)


def _squares(differ: Collection[float]) -> float:
    """Return the variance of a sum by how much its parts differ."""
    return sum(one * one for one in differ) * len(differ) / max(1, len(differ) - 1)


def function_rows(
    samples: Iterable[NamedSamples], of: SampleEvent, patterns: Sequence[str] = ()
) -> list[Row]:
    """Return the functions on any stack, those with the most samples of their own first.

    Only those that a pattern matches, if there are any. Raises UsageError for a bad pattern.
    """
    own: defaultdict[str, _Sum] = defaultdict(_Sum)
    total: defaultdict[str, _Sum] = defaultdict(_Sum)
    whole = _Sum()
    for one in samples:
        whole.add(one)
        names = [frame.function for frame in one.frames]
        for name in names[:1]:
            own[name].add(one)
        for name in set(names):
            total[name].add(one)
    wanted: Iterable[str] = total
    if patterns:
        from gotrace.probes.pattern import NameList, Pattern

        listed = NameList(found := list(total))
        wanted = {found[row] for text in patterns for row in Pattern(text).match(listed).rows}
    ranked = sorted(wanted, key=lambda name: (-own[name].amount, -total[name].amount, name))
    rows = []
    for name in ranked:
        row: Row = {
            "kind": f"{of.rows.name}_function",
            "func": name,
            of.rows.field("self"): own[name].amount,
            of.rows.field("total"): total[name].amount,
        }
        if of.rows.is_estimate:
            row |= {"self_error": own[name].error(whole), "total_error": total[name].error(whole)}
        rows.append(row)
    return rows


def samples_head(
    samples: Sequence[NamedSamples],
    period: SamplePeriod,
    of: SampleEvent,
    inside: bool,
    fields: Mapping[str, object],
) -> Row:
    """Return the sums of a reading, with ``fields``.

    ``inside``: it is of some functions only, and what the target says is of all.
    """
    rows = of.rows
    head: Row = {
        "kind": rows.name,
        **fields,
        **({} if rows.is_estimate else {rows.field("period"): of.period}),
        "samples": period.others + sum(one.samples for one in samples),
        rows.amount: period.others_amount + sum(one.amount for one in samples),
    }
    if rows.unit == "ns":
        head["clock_ns"] = None if inside else period.clock_ns
    if rows.is_estimate:
        head["method"] = period.method
        head["sampled_bytes"] = None if inside else period.sampled
        head["counter_bytes"] = None if inside else period.counter
        head["others_bytes"] = period.others_amount
    return {**head, "others": period.others}
