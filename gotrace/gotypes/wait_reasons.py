# SPDX-License-Identifier: Apache-2.0
"""Why goroutines wait: the texts of ``g.waitreason`` by number, of a binary, and their meanings.

The numbers differ by release and the texts as well, so both come from the binary itself: from
``runtime.waitReasonStrings`` (src/runtime/runtime2.go), an array of strings that every release from
1.11 to 1.27 begins with "", "GC assist marking" and "IO wait". It is found by these, since stripped
programs have no symbol for it: three string headers in a row that lead to nothing and to the two
texts. In position-independent programs the headers' addresses may exist as relocations only.

A text means the same in all releases that have it. Within a bubble of testing/synctest some have an
ending: `` (synctest)`` in Go 1.24, `` (durable)`` since. It changes nothing of what is waited for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Set
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

from gotrace.elf import ElfError
from gotrace.elf.image import PT_LOAD, ElfImage
from gotrace.elf.scan import find_all

#: The texts of ``g.waitreason`` by number.
WaitReasons = tuple[str, ...]


class WaitFor(Enum):
    """The event that a goroutine waits for."""

    RECEIVE = auto()
    SEND = auto()
    SELECT = auto()
    COND = auto()
    NOTHING = auto()  # it waits for ever
    LOCK = auto()
    JOIN = auto()
    #: A semaphore of any lock (up to Go 1.19) or WaitGroup (1.23), or of another package.
    SEMAPHORE = auto()
    SLEEP = auto()
    NETWORK = auto()
    COROUTINE = auto()
    COLLECTOR = auto()
    SUSPENDED = auto()  # it is put aside and could run
    RUNTIME = auto()
    UNKNOWN = auto()


#: Waits for other goroutines: those of Go's block profile.
BLOCKING = frozenset(list(WaitFor)[: list(WaitFor).index(WaitFor.SLEEP)])


class Lock(NamedTuple):
    """A type of src/sync, and how far in it its semaphore is: Go 1.15 to 1.27."""

    type: str
    offset: int


MUTEX = Lock("sync.Mutex", 4)
READ_LOCK, WRITE_LOCK = Lock("sync.RWMutex", 12), Lock("sync.RWMutex", 8)
WAIT_GROUP = Lock("sync.WaitGroup", 8)


class Meaning(NamedTuple):
    """The meaning of a wait reason; ``in_traces`` is Go's word in execution traces.

    ``lock`` is what has the semaphore that is waited for, None if the reason does not say it.
    """

    wait_for: WaitFor
    in_traces: str
    lock: Lock | None = None


_SYSTEM, _FOREVER, _ASSIST = "system goroutine wait", "forever", "GC mark assist wait for work"
#: The text of a goroutine that has another one run in its place.
COROUTINE = "coroutine"
#: Words are those of src/runtime/traceruntime.go that the calls of gopark give. A text is its own
#: word where Go has the same one, or its traces have no such wait.
_KNOWN = {
    "chan receive": Meaning(WaitFor.RECEIVE, "chan receive"),
    "chan send": Meaning(WaitFor.SEND, "chan send"),
    "select": Meaning(WaitFor.SELECT, "select"),
    "sync.Cond.Wait": Meaning(WaitFor.COND, "sync.(*Cond).Wait"),
    "chan receive (nil chan)": Meaning(WaitFor.NOTHING, _FOREVER),
    "chan send (nil chan)": Meaning(WaitFor.NOTHING, _FOREVER),
    "select (no cases)": Meaning(WaitFor.NOTHING, _FOREVER),
    "sync.Mutex.Lock": Meaning(WaitFor.LOCK, "sync", MUTEX),
    "sync.RWMutex.RLock": Meaning(WaitFor.LOCK, "sync", READ_LOCK),
    "sync.RWMutex.Lock": Meaning(WaitFor.LOCK, "sync", WRITE_LOCK),
    "sync.WaitGroup.Wait": Meaning(WaitFor.JOIN, "sync", WAIT_GROUP),
    "semacquire": Meaning(WaitFor.SEMAPHORE, "sync"),
    "sleep": Meaning(WaitFor.SLEEP, "sleep"),
    "IO wait": Meaning(WaitFor.NETWORK, "network"),
    COROUTINE: Meaning(WaitFor.COROUTINE, ""),
    "GC assist marking": Meaning(WaitFor.COLLECTOR, _ASSIST),
    "GC assist wait": Meaning(WaitFor.COLLECTOR, _ASSIST),
    "GC scavenge wait": Meaning(WaitFor.COLLECTOR, _SYSTEM),
    "GC sweep wait": Meaning(WaitFor.COLLECTOR, "GC background sweeper wait"),
    "GC worker (idle)": Meaning(WaitFor.COLLECTOR, _SYSTEM),
    "force gc (idle)": Meaning(WaitFor.COLLECTOR, _SYSTEM),
    "wait for GC cycle": Meaning(WaitFor.COLLECTOR, "wait until GC ends"),
    "preempted": Meaning(WaitFor.SUSPENDED, "preempted"),
    "GOMAXPROCS updater (idle)": Meaning(WaitFor.RUNTIME, _SYSTEM),
    "cleanup wait": Meaning(WaitFor.RUNTIME, _SYSTEM),
    "debug call": Meaning(WaitFor.RUNTIME, "wait for debug call"),
    "finalizer wait": Meaning(WaitFor.RUNTIME, _SYSTEM),
    "panicwait": Meaning(WaitFor.RUNTIME, _FOREVER),
    "synctest.Run": Meaning(WaitFor.RUNTIME, "synctest"),
    "synctest.Wait": Meaning(WaitFor.RUNTIME, "synctest"),
    "timer goroutine (idle)": Meaning(WaitFor.RUNTIME, _SYSTEM),
    "trace reader (blocked)": Meaning(WaitFor.RUNTIME, _SYSTEM),
}
for _what, _texts in {
    WaitFor.COLLECTOR: "GC mark termination/GC weak to strong wait/GC worker (active)/"
    "flushing proc caches/garbage collection/garbage collection scan/stopping the world",
    WaitFor.RUNTIME: "dumping heap/page trace flush/trace goroutine status/trace proc status",
}.items():
    _KNOWN |= {text: Meaning(_what, text) for text in _texts.split("/")}


@cache
def meaning_of(text: str) -> Meaning:
    """Return the meaning of a reason's text. Without a known meaning the text is its own word."""
    plain = text.removesuffix(" (durable)").removesuffix(" (synctest)")
    return _KNOWN.get(plain, Meaning(WaitFor.UNKNOWN, text))


def reason_numbers(reasons: Iterable[str], wanted: Set[WaitFor]) -> list[int]:
    """Return the numbers of the reasons of goroutines that wait for something."""
    return [n for n, text in enumerate(reasons) if meaning_of(text).wait_for in wanted]


_SECOND, _THIRD = b"GC assist marking", b"IO wait"
_HEADER = struct.Struct("<QQ")

#: A waitreason is a byte; Go 1.27 has 47.
_MAX_REASONS = 256
#: The longest, "sync.WaitGroup.Wait (durable)", has 29 bytes.
_MAX_REASON = 64
#: A linker stores equal texts once, and other texts hardly contain this one: what has it more often
#: was made to waste time.
_MAX_PLACES = 64


def find_wait_reasons(image: ElfImage) -> WaitReasons | None:
    """Return the texts by number; None where the array is not found, or more than one is.

    The number of texts is not known: what follows them in memory, where it looks like texts as
    well, is returned too. No goroutine has such a reason.
    """
    try:
        arrays = set(_arrays(image))
    except ElfError:  # relocations that cannot be read
        return None
    return _read(image, arrays.pop()) if len(arrays) == 1 else None


def _arrays(image: ElfImage) -> Iterator[int]:
    """Yield the addresses of arrays that begin with the first three texts."""
    for text in _text_addresses(image, _SECOND):
        for second in _words(image, text):
            first = second - _HEADER.size
            try:
                headers = image.read_relocated(first, 3 * _HEADER.size)
                (_, none), (_, size), (third, third_size) = _HEADER.iter_unpack(headers)
                sizes = (none, size, third_size)
                if sizes == (0, len(_SECOND), len(_THIRD)) and image.read(third, 7) == _THIRD:
                    yield first
            except ElfError:
                continue  # not in the file


def _text_addresses(image: ElfImage, text: bytes) -> list[int]:
    found: list[int] = []
    for offset in find_all(image.data, text):
        try:
            found.append(image.address_of(offset))
        except ElfError:
            continue  # debugging information
        if len(found) == _MAX_PLACES:
            break
    return found


def _words(image: ElfImage, value: int) -> list[int]:
    """Return where a word of a value is in memory, or will be once it is relocated."""
    needle = struct.pack("<Q", value)
    found: list[int] = []
    for segment in image.segments:
        if segment.type == PT_LOAD:
            end = segment.offset + segment.file_size
            for at in find_all(image.data, needle, segment.offset, end):
                found.append(at - segment.offset + segment.address)
                if len(found) == _MAX_PLACES:
                    return found
    return found + image.relocations.places_of(value)[:_MAX_PLACES]


def _read(image: ElfImage, address: int) -> WaitReasons:
    reasons: list[str] = []
    while len(reasons) < _MAX_REASONS:
        try:
            header = image.read_relocated(address + len(reasons) * _HEADER.size, _HEADER.size)
            text, size = _HEADER.unpack(header)
            if size > _MAX_REASON or (size == 0 and reasons):
                break
            content = image.read(text, size) if size else b""
        except ElfError:
            break
        if not (content.isascii() and content.decode("ascii").isprintable()):
            break
        reasons.append(content.decode("ascii"))
    return tuple(reasons)
