# SPDX-License-Identifier: Apache-2.0
"""BPF programs in the kernel: maps created, functions loaded, by bpf(2) itself."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import product
from typing import TypeVar
from weakref import WeakSet

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.compiler import LoadError, MapShape, ProgramOrigin, load_error, patched
from gotrace.kernel.features import preempts_at_system_calls
from gotrace.kernel.linked import Linked, linked, load_linked
from gotrace.kernel.missing_features import missing_feature
from gotrace.kernel.program_cache import cached_program, fresh_program
from gotrace.kernel.rings import PastRings, Rings
from gotrace.kernel.threads import at_once
from gotrace.records import dataclass
from gotrace.settings import ProgramSettings

_R = TypeVar("_R", Rings, PastRings)


#: So many entries are read in less time one by one than in a batch.
_FEW = 3


class LackingError(LoadError):
    """A program that no kernel as old as this one can run, however it is attached."""


class AttachKind(Enum):
    """The way to attach a program, which the kernel must know at loading."""

    PERF_EVENT = "perf event"
    UPROBE_MULTI = "uprobe-multi link"


@dataclass(frozen=True, slots=True)
class Map:
    """One BPF map, read and written as bytes.

    ``value_size`` is the size of one CPU's value; ``cpus`` is 0 for maps that are not per CPU.
    """

    fd: int
    key_size: int
    value_size: int
    max_entries: int
    cpus: int

    @property
    def stride(self) -> int:
        """Return how many bytes the kernel writes for one entry."""
        return -(-self.value_size // 8) * 8 * self.cpus if self.cpus else self.value_size

    def update(self, key: bytes, value: bytes) -> None:
        """Store one entry; raises OSError, E2BIG when the map is full."""
        kernel.map_update(self.fd, key, value)

    def update_array(self, start: int, values: Sequence[bytes]) -> None:
        """Store consecutive entries of an array map. Raises OSError."""
        keys = array("I", range(start, start + len(values))).tobytes()
        try:
            if values:
                kernel.map_update_batch(self.fd, keys, b"".join(values), len(values))
        except OSError:  # no batch operation before Linux 5.6
            for index, value in enumerate(values, start):
                self.update(index.to_bytes(4, "little"), value)

    def lookup(self, key: bytes) -> bytes | None:
        """Return one entry's ``stride`` bytes, or None."""
        return kernel.map_lookup(self.fd, key, self.stride)

    def sums(self, count: int | None = None) -> array[int]:
        """Return the 64-bit words of an array map's entries, each added up over all CPUs.

        Of the first ``count`` entries if that is given. That is done by chunks: all values together
        are 92 MB for 90,000 counters of 128 CPUs.
        """
        words, stride = -(-self.value_size // 8), self.stride
        nothing = bytes(stride)
        count = self.max_entries if count is None else count
        sums = array("Q", [0]) * (words * count)
        at = 0
        for values in self._array_chunks(0, count):
            cells = memoryview(values).cast("Q")
            for start in range(0, len(values), stride):
                # Most counters of a large program are zero, which is seen soonest as bytes.
                if values[start : start + stride] != nothing:
                    row = cells[start // 8 : (start + stride) // 8].tolist()
                    for word in range(words):
                        sums[at + word] = sum(row[word::words])
                at += words
        return sums

    def array(self, start: int, count: int) -> bytes:
        """Return the values of ``count`` entries of an array map, ``stride`` bytes each."""
        return b"".join(self._array_chunks(start, count))

    def _array_chunks(self, start: int, count: int) -> Iterator[bytes]:
        """Yield the values of an array map, some at a time."""
        size, end = self.stride, start + count
        if count > _FEW:
            # No batch operation for arrays with a value for each CPU before Linux 5.13.
            with suppress(OSError):
                for _, values in kernel.map_lookup_batch(self.fd, 4, size, count, start):
                    start += len(values) // size
                    yield values
        for index in range(start, end):
            yield self.lookup(index.to_bytes(4, "little")) or bytes(size)

    def array_range(self, start: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Yield index and value, ``stride`` bytes, of ``count`` entries of an array map."""
        size = self.stride
        for values in self._array_chunks(start, count):
            for at in range(0, len(values), size):
                yield start, values[at : at + size]
                start += 1

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a hash map as they are now; others may change it."""
        batches = kernel.map_lookup_batch(self.fd, self.key_size, self.stride, self.max_entries)
        for keys, values in batches:
            for index in range(len(keys) // self.key_size):
                key = keys[index * self.key_size : (index + 1) * self.key_size]
                value = values[index * self.stride : (index + 1) * self.stride]
                yield key, value

    def delete(self, key: bytes) -> bool:
        """Remove one entry of a hash map; return whether it was there."""
        return kernel.map_delete(self.fd, key)

    def push(self, value: bytes) -> None:
        """Put a value into a queue; raises OSError, E2BIG when it is full."""
        kernel.map_push(self.fd, value)

    def pop(self) -> bytes | None:
        """Take the oldest value of a queue, None when it is empty."""
        return kernel.map_pop(self.fd, self.value_size)


class BpfProgram:
    """The program of one source: its maps, and its functions, to be loaded."""

    def __init__(self, settings: ProgramSettings, fresh: bool = False) -> None:
        """Create the maps of the source of these settings, compiled before or, if ``fresh``, now.

        Raises LoadError, and GotraceError where it has to be compiled and BCC cannot be imported.
        """
        self.source = settings.source
        self._compiled = fresh_program(settings) if fresh else cached_program(settings)
        self._values, self._uncalled = settings.values(), settings.uncalled()
        self._maps: list[Map] = []
        self._rings: list[Rings | PastRings] = []
        self._loaded: list[int] = []
        self._links: list[int] = []  # what attaches as long as any process has it open
        _PROGRAMS.add(self)
        sizes, larger = settings.sizes(), settings.larger()
        try:
            for shape in self._compiled.maps:
                entries = sizes.get(shape.name, shape.max_entries)
                self._maps.append(_create_map(shape, entries, larger.get(shape.name, 0)))
        except OSError as error:
            self.close()
            what = f"cannot create the maps of bpf/{self.source}"
            raise load_error(what, str(error), "") from error

    @property
    def origin(self) -> ProgramOrigin:
        """Return where the compiled source comes from."""
        return self._compiled.origin

    def load(self, functions: Iterable[str], kind: AttachKind) -> dict[str, int]:
        """Load functions and return their descriptors, which live as long as the program.

        They are loaded at the same time: the verifier takes most of it. Raises LoadError.
        """
        is_multi = kind is AttachKind.UPROBE_MULTI
        attach_type = kernel.ATTACH_TYPE_UPROBE_MULTI if is_multi else 0

        loaded: dict[str, int] = {}
        failed: list[LoadError] = []

        def load_one(function: str) -> None:
            try:
                loaded[function] = self._load(function, kernel.PROGRAM_KPROBE, attach_type)
            except LoadError as error:
                failed.append(error)

        at_once(load_one, sorted(set(functions)))
        for error in failed:
            raise self._what_is_lacking(functions, error.log) or error from error
        for number, function in enumerate(_BEGIN_AGAIN):
            if function in loaded:
                program = loaded[function].to_bytes(4, "little")
                self.map("again").update(number.to_bytes(4, "little"), program)
        return loaded

    def attach_tracepoint(self, tracepoint: str, functions: Sequence[str]) -> int:
        """Load functions for a tracepoint of the kernel, attach the first that it takes, return it.

        One that reads more arguments than the tracepoint has in this kernel is not taken. It is
        detached when the program is closed. Raises LoadError.
        """
        for function in functions:
            loaded = self._load(function, kernel.PROGRAM_RAW_TRACEPOINT, 0)
            try:
                self._links.append(kernel.open_raw_tracepoint(tracepoint, loaded))
                return loaded
            except OSError as error:
                if error.errno == errno.EINVAL and function != functions[-1]:
                    continue
                what = f"cannot attach to the kernel's tracepoint {tracepoint}"
                raise LoadError(f"{what}: {error.strerror}") from error
        raise AssertionError("no function given")

    def attach_system_calls(self, enter: str, leave: str) -> None:
        """Load functions for the beginning and the end of system calls, and attach them.

        They are those for raw tracepoints, and with ``_undisturbed`` after their names others for
        perf events. A program at a raw tracepoint is passed by on a CPU on which a thread was
        preempted within it, which ``skipped`` counts. If that can be, it is at perf events, which
        run it without being preempted. They are detached when the program is closed. Raises
        LoadError.
        """
        numbers: list[int] = []
        if preempts_at_system_calls():
            with suppress(OSError):  # not permitted
                numbers = [kernel.tracepoint_number(name) for name in _SYSTEM_CALL_EVENTS]
        if not numbers:
            self.attach_tracepoint("sys_exit", [leave])
            self.attach_tracepoint("sys_enter", [enter])
            return
        for number, function in zip(numbers, (leave, enter), strict=True):
            loaded = self._load(f"{function}_undisturbed", kernel.PROGRAM_TRACEPOINT, 0)
            try:
                self._links.append(kernel.open_tracepoint(number))
                kernel.set_perf_event_program(self._links[-1], loaded)
            except OSError as error:
                what = "cannot attach to the kernel's tracepoints of system calls"
                raise LoadError(f"{what}: {error.strerror}") from error

    def attach_events(self, function: str, number: int, *periods: int) -> int:
        """Run a function at software events of each CPU: at every so many of what each counts.

        Return on how many CPUs: those that are online. It is detached when the program is closed.
        Raises LoadError, LackingError among these.
        """
        try:
            loaded = self._load(function, kernel.PROGRAM_PERF_EVENT, 0)
        except LoadError as error:
            raise self._what_is_lacking([function], error.log) or error from error
        cpus = kernel.online_cpus()
        try:
            for cpu, period in product(cpus, periods):
                self._links.append(kernel.open_software_event(cpu, number, period))
                kernel.set_perf_event_program(self._links[-1], loaded)
        except OSError as error:
            what = f"cannot sample {len(cpus)} CPUs every {min(periods) / 1e6:.4g} ms"
            raise LoadError(
                f"{what}: {_CLOCK_CURES.get(error.errno or 0) or error.strerror}"
            ) from error
        return len(cpus)

    def _load(self, function: str, kind: int, attach_type: int) -> int:
        """Load a function and return its descriptor. Raises LoadError."""
        maps = zip(self._compiled.maps, self._maps, strict=True)
        larger = {
            shape.value_size: each.value_size
            for shape, each in maps
            if shape.value_size != each.value_size
        }
        found = linked(function, self._compiled.functions, larger, self._uncalled)
        code = patched(found.code, [each.fd for each in self._maps], self._values)
        arguments = (Linked(code, found.parts), self._compiled.license, kind, attach_type)
        try:
            loaded = load_linked(*arguments)
        except OSError as error:
            what = f"cannot load bpf/{self.source}"
            text = f"Failed to load BPF program {function}: {error.strerror}"
            raise load_error(what, text, _verifier_log(*arguments)) from error
        self._loaded.append(loaded)
        return loaded

    def skipped(self) -> int:
        """Return how often the kernel has passed by a function that it was to run. Raises OSError.

        There is no such count of clocks, and of uprobes none before Linux 6.7; since 6.0 these are
        never passed by.
        """
        return sum(kernel.program_statistics(loaded).skipped for loaded in self._loaded)

    def code(self, function: str) -> bytes:
        """Return a function's instructions as they were compiled."""
        return self._compiled.functions[function]

    def _what_is_lacking(self, functions: Iterable[str], log: str) -> LackingError | None:
        """Return the error for refused functions that need a feature that the kernel lacks."""
        for function in sorted(set(functions)):
            found = missing_feature(linked(function, self._compiled.functions).code)
            if found is not None:
                name, release = found
                tool = _TOOLS.get(self.source, f"bpf/{self.source}")
                return LackingError(
                    f"{tool} needs Linux {release} or newer: this kernel's BPF does not know"
                    f" {name}",
                    log,
                )
        return None

    def map(self, name: str) -> Map:
        """Return the map that the source declares under ``name``."""
        names = [shape.name for shape in self._compiled.maps]
        return self._maps[names.index(name)]

    def open_events(self, name: str, pages: int) -> Rings:
        """Return the buffers of ``BPF_PERF_OUTPUT(name)``, ``pages`` pages for each CPU.

        They are closed with the program. Raises LoadError.
        """
        return self._opened(Rings, name, pages)

    def open_past_events(self, name: str, pages: int) -> PastRings:
        """Return such buffers, in which the latest records overwrite the oldest ones.

        Raises LoadError.
        """
        return self._opened(PastRings, name, pages)

    def _opened(self, kind: type[_R], name: str, pages: int) -> _R:
        events = self.map(name)

        def assign(cpu: int, event: int) -> None:
            events.update(cpu.to_bytes(4, "little"), event.to_bytes(4, "little"))

        what = f"cannot open {pages} pages of event buffer for each CPU"
        try:
            rings = kind(pages, assign)
        except PermissionError as error:
            cure = "run as root or with CAP_IPC_LOCK, or raise ulimit -l"
            raise LoadError(f"{what}: the kernel does not permit it: {cure}") from error
        except OSError as error:
            raise LoadError(f"{what}: {error.strerror}") from error
        self._rings.append(rings)
        return rings

    def close(self) -> None:
        """Unload everything, and close event buffers; attachments must be closed before."""
        while self._rings:
            self._rings.pop().close()
        self._unlink()
        while self._loaded:
            os.close(self._loaded.pop())
        while self._maps:
            os.close(self._maps.pop().fd)

    def _unlink(self) -> None:
        while self._links:
            os.close(self._links.pop())


_PROGRAMS: WeakSet[BpfProgram] = WeakSet()


def _let_go() -> None:
    """Close the attachments in a process that was forked: its end is not that of the run."""
    for program in list(_PROGRAMS):
        program._unlink()


os.register_at_fork(after_in_child=_let_go)


def _create_map(shape: MapShape, max_entries: int, larger: int) -> Map:
    """Create a map whose values have ``larger`` bytes more than its shape says. Raises OSError.

    With no ``max_entries`` it has an entry for each CPU.
    """
    entries = max_entries or kernel.possible_cpus()
    sizes = (shape.key_size, shape.value_size + larger, entries)
    return Map(
        kernel.create_map(shape.type, *sizes, shape.flags, shape.name),
        *sizes,
        kernel.possible_cpus() if shape.type in _PER_CPU_TYPES else 0,
    )


def _verifier_log(program: Linked, license_text: str, kind: int, attach_type: int) -> str:
    for size in _LOG_SIZES:
        log = bytearray(size)
        try:
            os.close(load_linked(program, license_text, kind, attach_type, log))
        except OSError as error:
            if error.errno == errno.ENOSPC and size != _LOG_SIZES[-1]:
                continue
        return log[: log.index(0)].decode(errors="replace")
    return ""


_LOG_SIZES = (1 << 18, 1 << 21, (1 << 24) - 1)  # the last is as much as Linux 5.1 takes
#: Why clocks are refused, by the kernel's answer.
_CLOCK_CURES = {
    errno.EPERM: "the kernel does not permit it: run as root, or with CAP_BPF and CAP_PERFMON",
    errno.EACCES: "the kernel does not permit it: run as root, or with CAP_BPF and CAP_PERFMON",
    errno.EINVAL: "that is more often than sysctl kernel.perf_event_max_sample_rate",
    errno.EMFILE: "too many open files: raise ulimit -n",
}
#: Functions that begin again by a tail call: enum again of bpf/calls.h.
_BEGIN_AGAIN = ("on_recovery", "on_goexit")
_TOOLS = {
    "allocs.c": "goalloc",
    "count.c": "gofunccount",
    "latency.c": "gofunclatency",
    "oncpu.c": "gooncpu",
    "trace.c": "gotrace",
}
_SYSTEM_CALL_EVENTS = ("raw_syscalls/sys_exit", "raw_syscalls/sys_enter")
_PER_CPU_TYPES = {5, 6, 10}  # BPF_MAP_TYPE_PERCPU_HASH, _PERCPU_ARRAY, _LRU_PERCPU_HASH
