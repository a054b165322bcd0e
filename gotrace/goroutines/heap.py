# SPDX-License-Identifier: Apache-2.0
"""The memory that a program has in use, by the profile that its runtime keeps of it.

The runtime has a bucket for each stack and size of sampled allocations, in one list
(``runtime.mbuckets`` in src/runtime/mprof.go of Go 1.15 to 1.27). What a collection has found free
counts once the next one begins, and what was allocated since then too: such figures are kept apart
by cycle until then. ``runtime.MemProfile`` and /debug/pprof/heap add them up as it is done here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from operator import add

from gotrace.elf.symtab import symbol_value
from gotrace.errors import GotraceError
from gotrace.goroutines.memory import Memory, words_at
from gotrace.goroutines.model import Stack
from gotrace.goroutines.program import Module, is_writable
from gotrace.gotypes.binary import Binary
from gotrace.records import dataclass
from gotrace.sites.machine import machine_code

#: Of runtime.bucket: next, allnext, typ, hash, size and nstk, before the stack.
_BUCKET = struct.Struct("<6Q")
_MEMORY = 1  # its typ
#: Of runtime.memRecordCycle: allocs, frees, and up to Go 1.26 their bytes. Of runtime.memRecord:
#: the one that is published, and one for each of three cycles.
_WORDS, _WORDS_1_27, _CYCLES = 4, 2, 3
#: Frames of a stack (maxProfStackDepth), and buckets: programs at hand have some thousand.
_MAX_FRAMES, _MAX_BUCKETS = 1024, 1 << 20
#: Since then runtime.mProfCycle has a bit below the number of the cycle.
_HAS_FLUSHED = (1, 19)
_FEWER_WORDS = (1, 27)


@dataclass(frozen=True, slots=True)
class HeapBucket:
    """Allocations of one stack and ``size``, sampled ones and what these stand for.

    The stack is of return addresses, the innermost first: one for each call, be it inlined or not.
    ``objects`` and ``bytes`` are in use,
    ``alloc_objects`` and ``alloc_bytes`` are all since the program began; ``sampled`` are the
    objects in use that the runtime has seen.
    """

    stack: Stack
    size: int
    sampled: int
    objects: int
    bytes: int
    alloc_objects: int
    alloc_bytes: int


@dataclass(frozen=True, slots=True)
class HeapProfile:
    """All buckets, and in how many bytes one allocation is sampled on average."""

    rate: int
    buckets: tuple[HeapBucket, ...]


def read_profile(module: Module, memory: Memory) -> HeapProfile:
    """Return the profile of a program. Raises GotraceError if it has none, or it is not found."""
    binary, bias = module.binary, module.bias
    version = binary.go_version
    release = version.release if version is not None else _FEWER_WORDS
    (rate,) = words_at(memory, rate_address(binary) + bias, 1)
    if not rate:  # there may be a bucket of the runtime's start
        raise GotraceError(_OFF)
    (head,) = words_at(memory, _buckets_address(binary) + bias, 1)
    cycle = words_at(memory, _cycle_address(binary) + bias, 1)[0] & 0xFFFFFFFF
    cycle = (cycle >> 1 if release >= _HAS_FLUSHED else cycle) % _CYCLES
    wide = _WORDS_1_27 if release >= _FEWER_WORDS else _WORDS
    found = list(_records(memory, head, wide))
    # Before the first collection nothing is published: then all cycles are, as in MemProfile.
    flushed = {0, 1 + cycle}
    if not any(any(records[number][:2]) for _, _, records in found for number in flushed):
        flushed = set(range(1 + _CYCLES))
    buckets = []
    for stack, size, records in found:
        sums = [0] * wide
        for number in flushed:
            sums = list(map(add, sums, records[number]))
        allocs, frees = sums[:2]
        buckets.append(
            HeapBucket(
                stack,
                size,
                allocs - frees,
                *_stand_for(allocs - frees, size, rate),
                *_stand_for(allocs, size, rate),
            )
        )
    return HeapProfile(rate, tuple(buckets))


def _records(
    memory: Memory, at: int, wide: int
) -> Iterator[tuple[Stack, int, list[tuple[int, ...]]]]:
    """Yield the stack, the size of objects and the records of each bucket."""
    record = struct.Struct(f"<{wide}Q")
    for _ in range(_MAX_BUCKETS):
        if not at:
            return
        head = memory.read(at, _BUCKET.size)
        _, following, kind, _, size, frames = _BUCKET.unpack(head) if head else (0,) * 6
        length = 8 * frames + record.size * (1 + _CYCLES)
        rest = memory.read(at + _BUCKET.size, length) if frames <= _MAX_FRAMES else None
        if kind & 0xFF != _MEMORY or rest is None:
            break
        stack = struct.unpack_from(f"<{frames}Q", rest)
        yield stack, size, list(record.iter_unpack(rest[8 * frames :]))
        at = following
    raise GotraceError("the heap's profile cannot be read: it is not as in Go 1.15 to 1.27")


def _stand_for(count: int, size: int, rate: int) -> tuple[int, int]:
    """Return objects and bytes that sampled ones stand for (scaleHeapSample in runtime/pprof)."""
    if not count or not size or rate <= 1:
        return count, count * size
    scale = 1 / (1 - math.exp(-size / rate))
    return int(count * scale), int(count * size * scale)


def rate_address(binary: Binary) -> int:
    """Return the link-time address of ``runtime.MemProfileRate``.

    By its symbol, or in stripped programs from code: it is the one variable that both
    ``runtime.profilealloc`` and ``runtime.allocmcache`` read, to know the next sample
    (src/runtime/malloc.go and mcache.go of Go 1.15 to 1.27). Raises GotraceError where it is not
    found.
    """
    what = "how often allocations are sampled (runtime.MemProfileRate)"
    return _address(binary, ("MemProfileRate",), what, ("profilealloc", "allocmcache"))


def _buckets_address(binary: Binary) -> int:
    """Return the link-time address of ``runtime.mbuckets``, or raise GotraceError."""
    what = "the heap's profile (runtime.mbuckets)"
    return _address(binary, ("mbuckets",), what, ("stkbucket", "mProf_FlushLocked"))


def _cycle_address(binary: Binary) -> int:
    """Return the link-time address of the number of the collector's cycle, or raise GotraceError.

    It is runtime.mProfCycle, before Go 1.19 the first word of runtime.mProf.
    """
    users = ("mProf_Malloc", "mProf_Free", "mProf_PostSweep", "gcMarkTermination")
    before = ("mProf_FlushLocked", "mProf_NextCycle")
    what = "the cycle of the heap's profile (runtime.mProfCycle)"
    return _address(binary, ("mProfCycle", "mProf"), what, users, before)


def _address(binary: Binary, names: tuple[str, ...], what: str, *users: tuple[str, ...]) -> int:
    """Return the address of a variable: by symbols, or as the one that functions all access."""
    for name in names:
        symbol = symbol_value(binary.image, f"runtime.{name}")
        if symbol is not None:
            return symbol
    for functions in users:
        found = set.intersection(*(set(_variables(binary, name)) for name in functions))
        if len(found) == 1:
            return found.pop()
    raise GotraceError(
        f"{binary.image.display}: cannot find {what}: the program has no symbol for it, and"
        f" runtime.{users[0][0]} is not as in Go 1.15 to 1.27"
    )


def _variables(binary: Binary, name: str) -> Iterator[int]:
    """Yield the addresses of words that a function's code may access, as far as it can write."""
    for row in binary.functions.rows_named(f"runtime.{name}"):
        function = binary.functions.function(row)
        code = binary.image.read(function.entry, function.end - function.entry)
        for address in machine_code(binary.image.arch).addressed(code, function.entry):
            if address % 4 == 0 and is_writable(binary, address):
                yield address


_OFF = (
    "the program has no profile of its heap: its MemProfileRate is 0. Go's linker sets that in"
    " programs that do not use runtime.MemProfile: import net/http/pprof, and build it again."
    " As it is, goalloc can show who allocates"
)
