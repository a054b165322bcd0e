# SPDX-License-Identifier: Apache-2.0
"""The names of the metrics of Go's runtime: client_golang's, and OpenTelemetry's (``go.*``).

client_golang has those of runtime.MemStats (``go_memstats_...``), and makes others of the names of
runtime/metrics: ``/gc/heap/live:bytes`` is ``go_gc_heap_live_bytes``. OpenTelemetry's are those of
https://opentelemetry.io/docs/specs/semconv/runtime/go-metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from gotrace.live.heap import HeapFigures
from gotrace.live.runtime import Activity, RuntimeFigures
from gotrace.records import dataclass

#: As the runtime has them where there is none.
_NO_LIMIT, _NO_GOAL = (1 << 63) - 1, (1 << 64) - 1

Read = Callable[[RuntimeFigures], float | None]


class MetricKind(Enum):
    """The type of a metric of the runtime."""

    COUNTER = "counter"
    GAUGE = "gauge"
    #: A sum and a count, without quantiles.
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class RuntimeFamily:
    """A metric of client_golang's, its name without ``_total``.

    ``value`` returns that of a process, None if that is not known; of summaries the sum.
    """

    name: str
    help: str
    kind: MetricKind
    value: Read


@dataclass(frozen=True, slots=True)
class OtelFamily:
    """A metric of OpenTelemetry's: a sum, whose points are by their attributes."""

    name: str
    help: str
    unit: str
    values: Sequence[tuple[Mapping[str, str], Read]]
    is_rising: bool = False


def _heap(read: Callable[[HeapFigures], float | None]) -> Read:
    return lambda found: None if found.heap is None else read(found.heap)


def _doing(activity: Activity) -> Read:
    return lambda found: found.activities.get(activity)


def _gauge(name: str, text: str, read: Callable[[HeapFigures], float]) -> RuntimeFamily:
    return RuntimeFamily(name, text, MetricKind.GAUGE, _heap(read))


def _otel(name: str, text: str, unit: str, read: Read, is_rising: bool = False) -> OtelFamily:
    return OtelFamily(name, text, unit, [({}, read)], is_rising)


FAMILIES: Final = (
    RuntimeFamily(
        *("go_goroutines", "Goroutines of the program's own", MetricKind.GAUGE),
        lambda found: found.goroutines,
    ),
    *(
        RuntimeFamily(
            f"go_sched_goroutines_{one.value.replace('-', '_')}_goroutines",
            f"Goroutines that are {one.value}, with those of the runtime",
            *(MetricKind.GAUGE, _doing(one)),
        )
        for one in Activity
    ),
    _gauge("go_sched_gomaxprocs_threads", "GOMAXPROCS", lambda heap: heap.procs),
    _gauge("go_gc_gogc_percent", "GOGC", lambda heap: heap.percent % (1 << 64)),
    _gauge("go_gc_gomemlimit_bytes", "GOMEMLIMIT", lambda heap: heap.limit or _NO_LIMIT),
    RuntimeFamily(
        *("go_gc_duration_seconds", "Collections, and how long they have stopped the program"),
        *(MetricKind.SUMMARY, _heap(lambda heap: heap.pause_ns / 1e9)),
    ),
    RuntimeFamily(
        *("go_cpu_classes_gc_total_cpu_seconds", "Time of processors in the collector"),
        *(MetricKind.COUNTER, _heap(lambda heap: heap.gc_ns / 1e9)),
    ),
    _gauge("go_gc_heap_live_bytes", "What the latest collection has left", lambda heap: heap.live),
    _gauge(
        *("go_memstats_next_gc_bytes", "The heap's size at the end of the next collection"),
        lambda heap: heap.goal or _NO_GOAL,
    ),
    RuntimeFamily(
        *("go_memstats_alloc_bytes", "Bytes of all objects that were ever allocated"),
        *(MetricKind.COUNTER, _heap(lambda heap: heap.allocated)),
    ),
    _gauge("go_memstats_sys_bytes", "Memory that the runtime has mapped", lambda heap: heap.mapped),
    _gauge("go_memstats_heap_alloc_bytes", "Bytes of objects", lambda heap: heap.in_use),
    _gauge("go_memstats_heap_inuse_bytes", "Memory in use for objects", lambda heap: heap.spans),
    _gauge(
        *("go_memstats_heap_idle_bytes", "Memory of the heap that is not in use"),
        lambda heap: heap.free + heap.released,
    ),
    _gauge(
        *("go_memstats_heap_released_bytes", "Memory that was given back to the system"),
        lambda heap: heap.released,
    ),
    _gauge("go_memstats_stack_inuse_bytes", "Stacks of goroutines", lambda heap: heap.stacks),
)

OTEL_FAMILIES: Final = (
    _otel(
        *("go.goroutine.count", "Goroutines of the program's own", "{goroutine}"),
        lambda found: found.goroutines,
    ),
    _otel("go.processor.limit", "GOMAXPROCS", "{thread}", _heap(lambda heap: heap.procs)),
    _otel(
        *("go.config.gogc", "GOGC", "%"),
        _heap(lambda heap: heap.percent if heap.percent >= 0 else None),
    ),
    _otel("go.memory.limit", "GOMEMLIMIT", "By", _heap(lambda heap: heap.limit)),
    _otel(
        *("go.memory.gc.goal", "The heap's size at the end of the next collection", "By"),
        _heap(lambda heap: heap.goal),
    ),
    _otel(
        *("go.memory.allocated", "Bytes of all objects that were ever allocated", "By"),
        *(_heap(lambda heap: heap.allocated), True),
    ),
    OtelFamily(
        *("go.memory.used", "Memory that the runtime has mapped, and not given back", "By"),
        [
            ({"go.memory.type": "stack"}, _heap(lambda heap: heap.stacks)),
            (
                {"go.memory.type": "other"},
                _heap(lambda heap: heap.mapped - heap.released - heap.stacks),
            ),
        ],
    ),
)
