# SPDX-License-Identifier: Apache-2.0
"""The memory that a program has in use, by function and by stack, by its runtime's profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gotrace.goroutines.groups import stacks_with
from gotrace.goroutines.heap import HeapBucket, HeapProfile
from gotrace.goroutines.interrupted import WorkKind
from gotrace.goroutines.program import CodeNames
from gotrace.profiles.rows import PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.records import dataclass
from gotrace.results.kinds import HEAP
from gotrace.results.rows import Row
from gotrace.session.oncpu.meter import SampleEvent
from gotrace.session.oncpu.naming import NamedSamples, function_rows, of_callers
from gotrace.session.row_cells import RowStack

#: The types of /debug/pprof/heap.
HEAP_FORM = ProfileForm(
    (
        ValueType("alloc_objects", "count"),
        ValueType("alloc_space", "bytes"),
        ValueType("inuse_objects", "count"),
        ValueType("inuse_space", "bytes"),
    )
)
_OUTERMOST = "runtime.goexit"


@dataclass(frozen=True, slots=True)
class NamedBucket:
    """Allocations of a stack and a size, with the names of its functions."""

    bucket: HeapBucket
    named: NamedSamples

    def row(self) -> Row:
        bucket = self.bucket
        return {
            "kind": "heap_stack",
            "size": bucket.size,
            **_sums([self]),
            "stack": RowStack(self.named.frames, False),
        }

    def profile_row(self) -> ProfileRow:
        """Return the row of a profile, with the label that runtime/pprof gives it."""
        one = self.bucket
        values = one.alloc_objects, one.alloc_bytes, one.objects, one.bytes
        labels = {"bytes": one.size} if one.alloc_objects else {}
        return ProfileRow(self.named.locations, values, labels)


def named_buckets(
    program: CodeNames, profile: HeapProfile, inside: Sequence[str] = ()
) -> list[NamedBucket]:
    """Return buckets by their names, those with most in use first.

    Only those that have a function on their stack which a pattern of ``inside`` matches. Raises
    UsageError for a bad pattern.
    """
    buckets = profile.buckets
    if inside:
        wanted = stacks_with(program, {one.stack for one in buckets}, inside)
        buckets = tuple(one for one in buckets if one.stack in wanted)
    made = []
    for one in buckets:
        stack = one.stack
        if stack and program.function_name(stack[-1]) == _OUTERMOST:
            stack = stack[:-1]  # as runtime/pprof does
        frames = [frame for pc in stack for frame in program.frames((pc,))[:1]]
        located = [
            PprofLocation(location.address, location.lines[:1])
            for pc in stack
            for location in program.profiled((pc,))
        ]
        frames, locations = of_callers(frames, located)
        named = NamedSamples(
            work=WorkKind.PROGRAM,
            group="",
            created_by=0,
            status=0,
            frames=tuple(frames),
            locations=tuple(locations),
            is_cut=False,
            samples=one.sampled,
            amount=one.bytes,
        )
        made.append(NamedBucket(one, named))
    return sorted(
        made, key=lambda one: (-one.bucket.bytes, -one.bucket.alloc_bytes, one.bucket.size)
    )


def heap_rows(
    buckets: Sequence[NamedBucket], rate: int, fields: Mapping[str, object], patterns: Sequence[str]
) -> tuple[Row, list[Row], list[Row]]:
    """Return the sums, the functions and the stacks.

    Only functions that a pattern matches, if there are any. Raises UsageError for a bad pattern.
    """
    head: Row = {"kind": HEAP.name, **fields, "profile_rate": rate, **_sums(buckets)}
    functions = function_rows([one.named for one in buckets], SampleEvent(HEAP, 0, 0), patterns)
    return head, functions, [one.row() for one in buckets]


def _sums(buckets: Iterable[NamedBucket]) -> Row:
    sums = dict.fromkeys(("samples", "heap_bytes", "objects", "alloc_bytes", "alloc_objects"), 0)
    for one in (each.bucket for each in buckets):
        values = one.sampled, one.bytes, one.objects, one.alloc_bytes, one.alloc_objects
        sums = {name: sums[name] + value for name, value in zip(sums, values, strict=True)}
    return dict(sums)
