# SPDX-License-Identifier: Apache-2.0
"""Settings of the BPF programs for one run: one record for each source in bpf/.

The setting ``tgid`` is ``GOTRACE_TGID`` in C. A shape that is None is 0 there. For other settings
None means that C does not have it, or that it has a value that says so: then the verifier takes out
what asks for it. A compiled program is kept for the next runs, so only what the compiler has to
know is compiled into it. The rest is put in when it is loaded:

- a *shape* decides which code there is, or how large a struct is;
- a *value* is a constant in instructions, and can make maps' values larger. Code that it makes
  impossible the verifier takes out: a choice is a shape only where it decides what a struct has, or
  which maps there are. Where C may not have a value, that belongs to the shape;
- a *size* is how many entries maps have; likewise.

``tests/bpf/test_settings.py`` holds the C sources to these records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any, ClassVar, TypeVar

from gotrace.records import MISSING, Field, dataclass, field, fields, replace


class Role(Enum):
    """When a setting is put into a program."""

    SHAPE = "when it is compiled"
    VALUE = "when it is loaded, in its instructions"
    SIZE = "when it is loaded, in its maps"


#: Kinds of hits that a row has: enum hit of bpf/site.h.
HIT_KINDS = 11

_NONE: Any = MISSING


def _shape(default: Any = _NONE, usual: Sequence[int | None] = ()) -> Any:
    """Return a field that is a shape; C is given 0 for None.

    For ``usual`` see ``_Settings.usual``.
    """
    return field(default=default, metadata={"role": Role.SHAPE, "absent": 0, "usual": usual})


def _value(
    default: Any = _NONE,
    absent: int | None = None,
    usual: Sequence[int | None] = (),
    calls: Sequence[str] = (),
    **larger: int,
) -> Any:
    """Return a field that is a value; ``absent`` is what C is given for None, if anything.

    Functions that are called only where it is not 0 are its ``calls``. Values of maps are
    ``larger`` by it, times a number, than the compiler knows.
    """
    metadata = {"role": Role.VALUE, "absent": absent, "usual": usual}
    return field(default=default, metadata={**metadata, "calls": calls, "larger": larger})


def _size(default: Any = _NONE, usual: Sequence[int | None] = (), **maps: int) -> Any:
    """Return a field that is the size of maps, by name, each so many times as large."""
    return field(default=default, metadata={"role": Role.SIZE, "maps": maps, "usual": usual})


def _part(record: type[_Settings]) -> dict[str, Any]:
    """Return the metadata of a field that holds further settings, or None."""
    return {"record": record}


_T = TypeVar("_T", bound="_Settings")


class _Settings:
    """Settings of one file in bpf/, and of those that are given with it."""

    @classmethod
    def fields(cls) -> Iterator[Field[Any]]:
        """Yield all settings that there can be, in a fixed order."""
        for each in fields(cls):  # type: ignore[arg-type]
            if "record" in each.metadata:
                yield from each.metadata["record"].fields()
            else:
                yield each

    @classmethod
    def usual(cls: type[_T]) -> Iterator[_T]:
        """Yield settings of each shape that most runs load; values and sizes are any.

        A field says which of its own are usual, else it is left as it is by default, or is 1.
        """
        chosen: dict[str, Sequence[Any]] = {}
        for each in fields(cls):  # type: ignore[arg-type]
            if usual := each.metadata.get("usual"):
                chosen[each.name] = usual
            elif each.default is _NONE and each.default_factory is _NONE:
                record = each.metadata.get("record")
                chosen[each.name] = list(record.usual()) if record else (1,)
        for values in product(*chosen.values()):
            yield cls(**dict(zip(chosen, values, strict=True)))

    def given(self) -> dict[str, int]:
        """Return the settings that are there, by name, and shapes that are not there as 0."""
        found: dict[str, int] = {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, _Settings):
                found |= value.given()
                continue
            if value is None and "record" in each.metadata:
                parts = each.metadata["record"].fields()
                found |= {part.name: 0 for part in parts if part.metadata["role"] is Role.SHAPE}
                continue
            if value is None:
                value = each.metadata.get("absent")
            if value is not None:
                found[each.name] = int(value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings(_Settings):
    """Which hits count: bpf/site.h describes each."""

    tgid: int | None = _value(None, absent=0)
    tgid_1: int | None = _value(None)
    tgid_2: int | None = _value(None)
    tgid_3: int | None = _value(None)
    tgid_4: int | None = _value(None)
    tgid_5: int | None = _value(None)
    tgid_6: int | None = _value(None)
    tgid_7: int | None = _value(None)
    tgid_8: int | None = _value(None)
    pidns_dev: int | None = _value(None)
    pidns_ino: int | None = _value(None)
    seen_tgid: int | None = _value(None)
    uid: int | None = _value(None, absent=(1 << 64) - 1)
    cgroup: int | None = _value(None, absent=0)
    budget: int | None = _value(None, absent=0)
    hit_rows: int = _size(1, hits=HIT_KINDS, counted=1)
    file_rows: int | None = _value(None, absent=0)
    site_by_ip: int | None = _size(None, site_by_ip=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings(_Settings):
    """Offsets in the target's runtime and in the kernel's task_struct: bpf/goroutine.h, calls.h."""

    g_stack_hi: int = _value(0)
    g_m: int = _value(0)
    g_goid: int = _value(0)
    g_sched_sp: int = _value(0)
    g_startpc: int = _value(0)
    g_gopc: int = _value(0)
    m_curg: int = _value(0)
    g_waitreason: int = _value(0)
    task_fsbase: int | None = _value(None, absent=0)
    tls_g: int | None = _value(None, absent=0)
    layouts: int | None = _size(None, layouts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedSettings(_Settings):
    """Settings of bpf/interrupted.h: where a program's code is, and what the runtime saves."""

    text_start: int = _value(0)
    text_end: int = _value(0)
    morestack: int = _value(0)
    morestack_size: int = _value(0)
    morestack_mask: int = _value(0)
    sched_bp: int = _value(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedSettings(_Settings):
    """Where the kernel counts how long a task has waited for a CPU: bpf/why.h."""

    task_run_delay: int = _value()
    task_last_queued: int = _value()
    cfs_rq_rq: int = _value()
    rq_clock: int = _value()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySettings(_Settings):
    """Settings of bpf/why.h, which finds where time goes, and of parts.h, which adds that up."""

    why: int = _shape(1)
    why_parts: int = _shape()
    why_unnamed: bool = _value()
    why_callers: bool = _value()
    why_classes: bool = _value(False)
    why_rows: int = _size(why_rows=1, reports=1)
    why_saved: int = _size(why_saved=1)
    why_threads: int = _size(why_threads=1)
    why_sites: int = _size(why_sites=1)
    why_bands: int | None = _size(None, why_bands=1)
    g_status: int = _value()
    g_syscallpc: int = _value()
    g_sched_pc: int = _value()
    g_sched_bp: int = _value()
    g_coroarg: int | None = _value(None, absent=0)
    task_pid: int = _value()
    task_state: int = _value()
    task_throttled: int | None = _value(None, absent=0)
    task_cfs_rq: int | None = _value(None, absent=0)
    cfs_rq_throttled: int | None = _value(None, absent=0)
    waited: WaitedSettings | None = field(default=None, metadata=_part(WaitedSettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings(_Settings):
    """Settings of bpf/edges.h, which sees work go from goroutine to goroutine."""

    edges: int = _shape(1)
    edge_states: bool = _value(False)
    edge_sched_bp: int = _value()
    edge_sched_ctxt: int = _value()
    edge_sudog_elem: int = _value()
    edge_coroarg: int | None = _value(None, absent=0)
    edge_receive: int = _value()
    edge_select: int = _value()
    edge_work: int = _value()
    edge_rest: int = _value()
    edge_join: int = _value()
    edge_semaphore: int | None = _value(None, absent=0)
    edge_join_at: int | None = _value(None, absent=0)
    edge_join_size: int | None = _value(None, absent=0)
    edge_own_at: int | None = _value(None, absent=0)
    edge_own_size: int | None = _value(None, absent=0)
    flight: bool | None = _shape(None)
    flight_signal: int | None = _value(None, absent=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSettings(_Settings):
    """Histograms: bpf/histogram.h."""

    rows: int = _value()
    stripes: int = _value()
    unit: int = _value(1)
    wide: int | None = _shape(None)
    histograms: int = _size(histograms=1)
    histogram_rows: int = _size(folded=1, why_rest=1)

    @classmethod
    def of(
        cls, rows: int, halves: int, stripes: int, unit: int = 1, wide: bool = False
    ) -> HistogramSettings:
        """Return the settings for ``rows`` histograms, ``halves`` 2 where intervals are kept apart.

        ``stripes`` is how many copies of each there are, ``unit`` the display unit in ns. ``wide``:
        they are not of times.
        """
        return cls(
            rows=rows,
            stripes=stripes,
            unit=unit,
            wide=1 if wide else None,
            histograms=halves * rows * stripes,
            histogram_rows=halves * rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings(_Settings):
    """Calls are added up by key: bpf/key.h and rows.h."""

    key: int = _shape()
    times: bool = _shape()
    of: int | None = _shape(None)
    stack_key: int | None = _shape(None)
    durations: HistogramSettings = field(metadata=_part(HistogramSettings))
    key_rows: int = _value()
    keys: int = _size(rows=1, free_rows=1, samples=1, row_calls=1, row_unmeasured=1, row_own=1)

    def given(self) -> dict[str, int]:
        """Return the settings that are there: those of histograms only where rows have these."""
        found = _Settings.given(self)
        if not self.times:
            found = {name: found[name] for name in found if name not in self.durations.given()}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSettings(_Settings):
    """Float registers are read by a signal: bpf/floats.h."""

    waiting: int = _size(1, waiting=1)
    task_blocked: int | None = _value(None, absent=0)


_S = TypeVar("_S", bound="ProgramSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings(_Settings):
    """All settings of one source."""

    source: ClassVar[str]

    site: SiteSettings = field(default_factory=SiteSettings, metadata=_part(SiteSettings))

    def with_hits(self: _S, rows: int, files: int = 0) -> _S:
        """Return these settings for a run whose hits are counted in so many rows.

        After them come those of so many files, for the hits that belong to no function.
        """
        first = rows if files else None
        site = replace(self.site, budget=rows, hit_rows=rows + files, file_rows=first)
        return replace(self, site=site)

    def by_address(self: _S, sites: int) -> _S:
        """Return these settings for ``sites`` sites that have no cookies."""
        return replace(self, site=replace(self.site, site_by_ip=sites))

    def _by_role(self, role: Role) -> Iterator[tuple[Field[Any], int]]:
        given = self.given()
        for each in self.fields():
            if each.metadata["role"] is role and each.name in given:
                yield each, given[each.name]

    def definitions(self) -> list[str]:
        """Return the compiler's definitions, ``NAME=TEXT``, without those that differ by run."""
        numbers = self.numbers()
        shapes = {each.name: str(value) for each, value in self._by_role(Role.SHAPE)}
        sizes = {each.name: "1" for each, _ in self._by_role(Role.SIZE)}
        values = {
            each.name: f"SETTING({numbers[each.name]:04x})" for each, _ in self._by_role(Role.VALUE)
        }
        return [
            f"GOTRACE_{name.upper()}={text}" for name, text in (shapes | sizes | values).items()
        ]

    @classmethod
    def numbers(cls) -> Mapping[str, int]:
        """Return the number that stands for each value in compiled instructions."""
        values = [each.name for each in cls.fields() if each.metadata["role"] is Role.VALUE]
        return {name: number for number, name in enumerate(values)}

    def values(self) -> dict[int, int]:
        """Return the values that are given, by those numbers."""
        numbers = self.numbers()
        return {numbers[each.name]: value for each, value in self._by_role(Role.VALUE)}

    def sizes(self) -> dict[str, int]:
        """Return how many entries maps have, by their names; those of other maps are in C."""
        return {
            name: value * factor
            for each, value in self._by_role(Role.SIZE)
            for name, factor in each.metadata["maps"].items()
        }

    def uncalled(self) -> set[str]:
        """Return the functions that the code calls, and never does with these values."""
        return {
            name
            for each, value in self._by_role(Role.VALUE)
            for name in each.metadata["calls"]
            if not value
        }

    def larger(self) -> dict[str, int]:
        """Return how many bytes maps' values have beside those that are in C, by their names."""
        return {
            name: value * factor
            for each, value in self._by_role(Role.VALUE)
            for name, factor in each.metadata["larger"].items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSettings(ProgramSettings):
    """Settings of bpf/count.c."""

    source: ClassVar[str] = "count.c"

    counters: int = _size(counts=1)
    faults: int = _size(1, faults=1)  # on arm64


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairingSettings(ProgramSettings):
    """Settings of the pairing of entries and returns: bpf/calls.h."""

    tasks: TaskSettings = field(default_factory=TaskSettings, metadata=_part(TaskSettings))
    stacks: int = _size(stacks=1)
    outer_calls: int = _size(outer_calls=1)
    ways: int = _size(1, ways=1, entered=1)
    landings: int = _size(1, landings=1)
    passes: int = _size(1, passes=1)
    why: WhySettings | None = field(default=None, metadata=_part(WhySettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings(_PairingSettings):
    """Settings of bpf/latency.c."""

    source: ClassVar[str] = "latency.c"

    times: HistogramSettings = field(metadata=_part(HistogramSettings))
    goroutines: int | None = _size(None, (None, 1), by_goroutine=1, named=4)
    outermost: bool = _value(False)
    by_file: bool = _value(False)
    slower: int | None = _value(None, usual=(None, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings(_PairingSettings):
    """Settings of bpf/trace.c."""

    source: ClassVar[str] = "trace.c"

    #: Bytes that there can be for a call's values; a per-CPU value has at most 32 KB.
    PAYLOADS: ClassVar = (256, 512, 1024, 2048, 4096, 8192)

    payload: int = _value(works=2, saved_calls=1, waiting=1, samples=1)
    returns: bool = _value()
    floats: bool = _value(False)
    interfaces: bool = _value()
    predicates: bool = _value()
    arithmetic: bool = _value(False)
    saved_words: bool = _value(False)
    saved_blocks: bool = _value(False)
    labels: bool = _value(False, calls=("find_label",))
    spans: bool = _value(False, calls=("find_span", "find_contexts"))
    contexts: int = _size(1, context_types=1)
    nested: int | None = _shape(None)
    edges: EdgeSettings | None = field(default=None, metadata=_part(EdgeSettings))
    user_stack: int = _value(0)
    steps: int = _value()
    functions: int = _size(plans=1)
    saved: int = _size(saved_calls=1)
    ops: int = _size(ops=1)
    types: int = _size(types=1)
    constants: int = _size(constants=1)
    signals: SignalSettings = field(default_factory=SignalSettings, metadata=_part(SignalSettings))
    by: KeySettings | None = field(default=None, metadata=_part(KeySettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings(ProgramSettings):
    """Settings of bpf/waits.c."""

    source: ClassVar[str] = "waits.c"

    tasks: TaskSettings = field(default_factory=TaskSettings, metadata=_part(TaskSettings))
    state: int = _value()
    followed: int = _size(followed=1)
    stacks: int = _size(kept_stacks=1)
    rows: int = _size(wait_rows=1)
    interrupted: InterruptedSettings = field(
        default_factory=InterruptedSettings, metadata=_part(InterruptedSettings)
    )
    g_coroarg: int | None = _value(None, absent=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings(ProgramSettings):
    """Settings of bpf/samples.h."""

    tasks: TaskSettings = field(default_factory=TaskSettings, metadata=_part(TaskSettings))
    rows: int = _size(sample_rows=1)
    label_rows: int = _size(1, label_values=1)
    stacks: int = _size(kept_stacks=1)
    interrupted: InterruptedSettings = field(
        default_factory=InterruptedSettings, metadata=_part(InterruptedSettings)
    )
    g_status: int = _value()
    labels: bool = _value(False, calls=("find_label",))
    g_labels: int = _value(0)
    labels_are_map: bool = _value(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCpuSettings(SampleSettings):
    """Settings of bpf/oncpu.c."""

    source: ClassVar[str] = "oncpu.c"

    kernel: bool = _value()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocSettings(SampleSettings):
    """Settings of bpf/allocs.c."""

    source: ClassVar[str] = "allocs.c"

    size_argument: int = _value()
    arguments_on_stack: bool = _value(False)
    rate_distance: int = _value()
    mcache_alloc: int = _value(0)
    mcache_flush_gen: int = _value(0)
    mspan_alloc_count: int = _value(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings(ProgramSettings):
    """Settings of bpf/states.c; without those of the kernel's tasks no quotas are looked at."""

    source: ClassVar[str] = "states.c"

    tasks: TaskSettings = field(default_factory=TaskSettings, metadata=_part(TaskSettings))
    states: int = _size(open_states=1)
    processes: int = _size(processes=1)
    quota_threads: int = _size(off_quota=1)
    g_coroarg: int | None = _value(None, absent=0)
    task_pid: int | None = _value(None)
    task_state: int | None = _value(None)
    task_throttled: int | None = _value(None, absent=0)
    task_cfs_rq: int | None = _value(None, absent=0)
    cfs_rq_throttled: int | None = _value(None, absent=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings(ProgramSettings):
    """Settings of bpf/executions.c."""

    source: ClassVar[str] = "executions.c"

    executed_names: int = _size(executed_names=1, missed=1)
    traced_files: int = _size(traced_files=1)
    executions: int = _size(executions=1)
    bprm_file: int = _value()
    file_inode: int = _value()
    inode_number: int = _value()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyscallSettings(ProgramSettings):
    """Settings of bpf/syscalls.c."""

    source: ClassVar[str] = "syscalls.c"

    tasks: TaskSettings = field(default_factory=TaskSettings, metadata=_part(TaskSettings))
    times: HistogramSettings = field(metadata=_part(HistogramSettings))
    calls: int = _size(syscalls_open=1)
    errors: int = _size(syscall_errors=1)
    stack_rows: int = _size(syscall_rows=1)
    stacks: int = _size(kept_stacks=1)
    interrupted: InterruptedSettings = field(
        default_factory=InterruptedSettings, metadata=_part(InterruptedSettings)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings(ProgramSettings):
    """Settings of bpf/doctor.c."""

    source: ClassVar[str] = "doctor.c"

    fetch: int | None = _shape(None)
    signal: int | None = _shape(None)
