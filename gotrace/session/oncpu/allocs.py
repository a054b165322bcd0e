# SPDX-License-Identifier: Apache-2.0
"""Allocations that Go's runtime samples, or that need a new span, added up by stack (bpf/allocs.c).

The runtime draws a number of bytes for each processor, exponentially distributed with the mean of
runtime.MemProfileRate, and samples the allocation that reaches it (nextSample in src/runtime,
releases 1.15 to 1.27). So an object of a size is sampled with the probability ``1 - exp(-size /
rate)``, whatever was sampled before, and stands for as many objects as the inverse of that.

If the runtime samples nothing, an allocation that needs a new span stands for the bytes that its
processor took from the last one (decision 040).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import cached_property
from operator import add

from gotrace.errors import GotraceError, said
from gotrace.goroutines.heap import rate_address
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.memory import ProcessMemory, words_at
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.heap import heap_variables, span_layout
from gotrace.kernel.attach import Attached, ProbeGroup, attach
from gotrace.records import dataclass, replace
from gotrace.results.kinds import SAMPLED
from gotrace.session.budget import counting_hits
from gotrace.session.oncpu.meter import (
    SampledRequest,
    SampleEvent,
    SampleMeter,
    SamplePeriod,
    SampleRow,
    Sampling,
)
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared
from gotrace.session.rates import hits_a_second
from gotrace.session.request import Accept
from gotrace.session.tasks import Tasks, runtime_group
from gotrace.session.why.price import COUNTING, Price
from gotrace.settings import AllocSettings, SampleSettings
from gotrace.sites.sites import Site, function_sites
from gotrace.target.target import TargetBinary

_SAMPLES = "runtime.mProf_Malloc"
_BY_SPANS = {
    "on_refill": "runtime.(*mcache).refill",
    "on_release": "runtime.(*mcache).releaseAll",
    "on_large": "runtime.(*mcache).allocLarge",
}
#: A program whose linker has left the samples on has one of them (src/cmd/link/internal/ld/lib.go).
_PROFILES = ("runtime.MemProfile", "runtime.memProfileInternal")
#: What the runtime's counter may lack at any time: it is written once a span is used up.
_COUNTED_LATE = 4 << 20
#: For how long it is read to know the price of a run, and the cost of a hit.
_COUNTED_SECONDS, _HIT_NS = 0.2, 2000
#: Stacks are kept apart in each part of the run.
_SPAN_ROWS = 1 << 15
_FLUSHED = (1 << 64) - 1  # bpf/allocs.c
#: Since then the first of its arguments is an m.
_HAS_M = (1, 23)


def estimated(found: Sampling) -> tuple[float, float, float]:
    """Return the bytes and the objects that sampled ones stand for, and the bytes' variance.

    These are of one row, whose objects are of about one size.
    """
    if found.part:
        return found.size, found.size / found.object, 0.0
    if not found.samples or not found.rate:
        return found.size, found.samples, 0.0
    size = found.size / found.samples
    seen = -math.expm1(-size / found.rate) if found.rate > 1 else 1.0
    return found.size / seen, found.samples / seen, found.samples * (1 - seen) * (size / seen) ** 2


def with_flushed(
    rows: Iterable[tuple[Sampling, SampleRow]],
) -> tuple[list[tuple[Sampling, SampleRow]], int, int]:
    """Return rows with what the collector has flushed: it is divided as the rest of its size is.

    The numbers are the spans, and the bytes in these, of sizes that have nothing but flushed spans.
    """
    found = list(rows)
    flushed: Counter[int] = Counter()
    used: Counter[int] = Counter()
    for one, _ in found:
        if one.part:
            (flushed if one.part == _FLUSHED else used)[one.object] += one.size
    made, spans, size = [], 0, 0
    for one, row in found:
        if one.part != _FLUSHED:
            if one.part:
                whole = used[one.object] + flushed[one.object]
                one = one._replace(size=round(one.size * whole / used[one.object]))
            made.append((one, row))
        elif not used[one.object]:
            spans, size = spans + one.samples, size + one.size
    return made, spans, size


def _site(binary: Binary, name: str) -> Site:
    """Return the site of a function of the runtime's. Raises GotraceError."""
    for row in binary.functions.rows_named(name):
        function = binary.functions.function(row)
        sites = function_sites(binary.image, function, returns=False, stack=False)
        if sites.entry is not None:
            return sites.entry
    raise GotraceError(f"{binary.image.display}: has no {name} that can be probed")


class AllocMeter(SampleMeter):
    """The probe at sampled allocations; a context manager that detaches."""

    #: A stack is followed and hashed, and a label looked for.
    program_ns = 700

    def __init__(self, request: AllocRequest, prepared: Prepared) -> None:
        """Load and attach. Raises AttachError or LoadError."""
        assert prepared.tasks is not None
        file = prepared.tasks.files[0]
        self._prepared, self._file = prepared, file
        #: What is seen: allocations that need a new span, not those that the runtime samples.
        self.by_spans = request.by_spans
        self._opened = ExitStack()
        self._memory: ProcessMemory | None = None
        self._counter: int | None = None
        self._rate = 0  # the latest known
        if request.target.process is not None and request.target.has_started:
            self._memory = ProcessMemory(request.target.process)
            self._opened.callback(self._memory.close)
            self._counter = _counter_of(file)
        try:
            super().__init__(request, request.alloc_settings(prepared.tasks))
        except BaseException:
            self._opened.close()
            raise

    def _attach(self, settings: SampleSettings) -> Attached:
        prepared, file = self._prepared, self._file
        assert prepared.tasks is not None
        kind = prepared.tasks.runtime_kind(file)
        probes = _BY_SPANS if self.by_spans else {"on_sample": _SAMPLES}
        groups: list[ProbeGroup] = [
            runtime_group(program, prepared.target, file, [_site(file, name)], kind)
            for program, name in probes.items()
        ]
        if prepared.counts_hits:
            settings = counting_hits(settings)
        return attach(settings, groups, prepared.forced, self._fill, prepared.announce)

    def _clock(self) -> int | None:
        """Return the bytes of all objects so far by the runtime's counter, None if not known."""
        if self._memory is None or self._counter is None:
            return None
        content = self._memory.read(self._counter + (self._file.find_bias() or 0), 8)
        return int.from_bytes(content, "little") if content else None

    def take(self) -> SamplePeriod:
        """Return the samples since the last take, with the bytes that they stand for.

        The sum is that of the runtime's counter, if it is known well enough, and samples divide it:
        they are random, and it is not.
        """
        counter = self._since()
        found = []
        taken, *flushed = with_flushed(self._taken())
        for sampling, row in taken:
            self._rate = sampling.rate
            part = (sampling.object, sampling.part) if sampling.part else None
            found.append((replace(row, part=part), *estimated(sampling)))
        samples, size = map(add, self._others.take(), flushed)
        others = estimated(Sampling(samples, size, self._rate))[0]
        whole = others + sum(amount for _, amount, _, _ in found)
        scale = 1.0
        if counter is not None and counter > _COUNTED_LATE and whole and not self.by_spans:
            scale = counter / whole
        rows: list[SampleRow] = [
            replace(
                row,
                amount=round(amount * scale),
                objects=round(objects * scale),
                variance=round(variance * scale * scale),
            )
            for row, amount, objects, variance in found
        ]
        method = "spans" if self.by_spans else "samples"
        lost = round(others * scale)
        return SamplePeriod(rows, samples, lost, None, counter, round(whole), method)

    def __exit__(self, *error: object) -> None:
        self._opened.close()
        super().__exit__(*error)


def _counter_of(file: TargetBinary) -> int | None:
    """Return the link-time address of the bytes of all objects, None if it is not known."""
    try:
        known = heap_variables(file)
    except GotraceError:
        return None
    return known.controller + known.layout.allocated


@dataclass(frozen=True, kw_only=True)
class AllocRequest(SampledRequest[AllocMeter]):
    """Add up which functions of one process allocate memory.

    ``spans``: by the spans that they use up, also if the runtime samples.
    """

    spans: bool = False

    @property
    def event(self) -> SampleEvent:
        return SampleEvent(SAMPLED["alloc"], 0, 0)

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Find the runtime, and whether it samples. Raises GotraceError, UsageError among these."""
        tasks, problems = self.find_tasks()
        if self.by_spans:
            if span_layout(tasks.files[0]) is None:
                what = said("--spans", "spans=True")
                why = f"{what} is {_UNKNOWN}" if self.spans else f"process {self.target.pid} {_OFF}"
                raise GotraceError(why)
            problems = (*problems, f"{_SPANS if self.spans else _OFF_HERE}: {_IN_STEP}")
        return self.prepared(ProbePlan((), tuple(problems)), announce, tasks)

    @cached_property
    def by_spans(self) -> bool:
        """Return whether spans are seen. Raises GotraceError."""
        if self.spans:
            return True
        file = GoFiles(self.target).runtime()
        if self.target.has_started:
            return not self._rate(file)
        version = file.go_version
        known = version is not None and span_layout(file) is not None
        return known and not any(map(file.functions.rows_named, _PROFILES))

    def _rate(self, file: TargetBinary) -> int:
        """Return in how many bytes one allocation is sampled on average, 0 if none is."""
        assert self.target.process is not None
        with closing(ProcessMemory(self.target.process)) as memory:
            address = rate_address(file) + GoFiles(self.target).module(file).bias
            return words_at(memory, address, 1)[0]

    @property
    def counted(self) -> str:
        """Return words for a price, after "this program", with room for its number."""
        if self.by_spans:
            return "uses up {} spans a second"
        return "has {} allocations sampled a second"

    def price(self) -> Price | None:
        """Return the cost of the probe, None if it is not known. Raises GotraceError."""
        process = self.target.process
        if process is None or not self.target.has_started:
            return None
        file = GoFiles(self.target).runtime()
        if self.by_spans:
            return self._price_of_spans(file)
        counter, rate = _counter_of(file), self._rate(file)
        if counter is None:
            return None
        address = counter + GoFiles(self.target).module(file).bias
        with closing(ProcessMemory(process)) as memory:
            before, began = words_at(memory, address, 1)[0], time.monotonic()
            time.sleep(_COUNTED_SECONDS)
            passed = time.monotonic() - began
            return Price((words_at(memory, address, 1)[0] - before) / passed / rate, _HIT_NS)

    def _price_of_spans(self, file: TargetBinary) -> Price | None:
        """Count the spans that are used up. The runtime's counter is too late for that."""
        if span_layout(file) is None:
            return None
        kind = self.find_tasks()[0].runtime_kind(file)
        site = _site(file, _BY_SPANS["on_refill"])
        group = runtime_group("on_entry", self.target, file, [site], kind)
        hits = hits_a_second(self.target, [group], self.forced, COUNTING)
        return Price(sum(hits), _HIT_NS)

    def attach(self, prepared: Prepared) -> AllocMeter:
        """Attach. Raises AttachError or LoadError."""
        return AllocMeter(self, prepared)

    def alloc_settings(self, tasks: Tasks) -> AllocSettings:
        """Return the settings of bpf/allocs.c."""
        file = tasks.files[0]
        if self.by_spans:
            spans = span_layout(file)
            assert spans is not None
            found = self.settings(
                AllocSettings,
                tasks,
                size_argument=0,
                rate_distance=0,
                mcache_alloc=spans.alloc,
                mcache_flush_gen=spans.flush_gen,
                mspan_alloc_count=spans.alloc_count,
            )
            return replace(found, rows=_SPAN_ROWS)
        version = file.go_version
        release = version.release if version is not None else _HAS_M
        return self.settings(
            AllocSettings,
            tasks,
            size_argument=2 if release >= _HAS_M else 1,
            arguments_on_stack=release < file.image.arch.register_abi,
            rate_distance=(rate_address(file) - _site(file, _SAMPLES).address) % (1 << 64),
        )


_OFF = (
    "samples no allocations: its MemProfileRate is 0. Go's linker sets that in programs that do not"
    " use runtime.MemProfile: import net/http/pprof, and build it again. None are"
    " needed of Go 1.19 to 1.27"
)
_SPANS = "by spans"
_OFF_HERE = f"{_SPANS}, since the program samples no allocations (MemProfileRate is 0)"
_IN_STEP = "shares and errors of what it allocates in a fixed rhythm may be wrong"
_UNKNOWN = "for programs of Go 1.19 and 1.21 to 1.27: leave it out"
