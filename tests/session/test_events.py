# SPDX-License-Identifier: Apache-2.0
"""Records from the kernel: taken apart, put in order, and counted when they are lost."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.errors import GotraceError
from gotrace.session.events import (
    HEADER,
    CallFlag,
    CallRecord,
    OrderWindow,
    RecordError,
    Unwinding,
    function_of,
    parse_call,
)

MS = 1_000_000


def record(end: int, function: int = 0, payload: bytes = b"") -> bytes:
    return HEADER.pack(end, 1, 7, 100, 101, function, len(payload), 0, 0, 0, 0) + payload


def ends(records: list[bytes]) -> list[int]:
    return [parse_call(one).end_ns for one in records]


def test_a_record_is_taken_apart_byte_by_byte() -> None:
    raw = bytes.fromhex(
        "0807060504030201"  # end
        "0707060504030201"  # start
        "2a00000000000000"  # goid
        "01020000"  # tgid 513
        "02020000"  # tid 514
        "03000000"  # function
        "0300"  # three bytes of arguments
        "0200"  # two of results
        "0f00000000000000"  # all blocks, undecided
        "0300000000000000"  # hits
        "0401000000000000"  # ns of theirs
        "616263"
        "7879"
        "0200000000000000"  # two frames
        "1000000000000000"
        "ffffffffffffffff"
        "0500000000000000"  # registers 0 and 2
        "000000000000f03f"
        "0000000000000040"
        "0000008000000000"  # register 31
        "6162636465666768"
        "000000"  # the perf buffer's padding
    )
    assert parse_call(raw) == CallRecord(
        end_ns=0x0102030405060708,
        start_ns=0x0102030405060707,
        goid=42,
        tgid=513,
        tid=514,
        function=3,
        args=b"abc",
        results=b"xy",
        stack=(16, (1 << 64) - 1),
        entry_floats={0: struct.pack("<d", 1.0), 2: struct.pack("<d", 2.0)},
        return_floats={31: b"abcdefgh"},
        undecided=True,
        hits=3,
        hits_ns=260,
    )
    assert parse_call(raw).duration_ns == 1
    assert function_of(raw) == 3


def test_a_record_without_a_start_has_no_duration_and_no_blocks() -> None:
    call = parse_call(HEADER.pack(9, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0))
    assert call.duration_ns is None
    assert (call.args, call.results) == (b"", b"")
    assert (call.stack, call.entry_floats, call.return_floats) == (None, None, None)
    assert not call.undecided


def test_a_record_says_what_ended_a_call_that_did_not_return() -> None:
    flags = {CallFlag.PANIC: Unwinding.PANIC, CallFlag.GOEXIT: Unwinding.GOEXIT, 0: None}
    for flag, unwound in flags.items():
        assert parse_call(HEADER.pack(9, 5, 1, 2, 3, 4, 0, 0, flag, 0, 0)).unwound is unwound


def test_a_stack_that_is_cut_says_so() -> None:
    for more in (0, 1):
        block = struct.pack("<IIQ", 1, more, 16)
        call = parse_call(HEADER.pack(9, 5, 1, 2, 3, 4, 0, 0, CallFlag.STACK, 0, 0) + block)
        assert (call.stack, call.stack_cut) == ((16,), bool(more))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0)[:-1],
        HEADER.pack(1, 1, 1, 1, 1, 1, 4, 4, 0, 0, 0) + b"1234567",
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, 64, 0, 0),
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, CallFlag.STACK, 0, 0) + bytes(7),
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, CallFlag.STACK, 0, 0) + struct.pack("<IIQ", 2, 0, 1),
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, CallFlag.STACK, 0, 0) + struct.pack("<II", 1 << 31, 0),
        HEADER.pack(1, 1, 1, 1, 1, 1, 0, 0, CallFlag.ENTRY_FLOATS, 0, 0)
        + struct.pack("<IIQ", 3, 0, 1),
    ],
)
def test_a_record_that_is_cut_short_or_unknown_is_refused(raw: bytes) -> None:
    with pytest.raises(RecordError, match=f"a record of {len(raw)} bytes"):
        parse_call(raw)


#: Flags that a block follows.
BLOCKS = CallFlag.STACK | CallFlag.ENTRY_FLOATS | CallFlag.RETURN_FLOATS | CallFlag.WHY


@given(st.binary(max_size=200), st.integers(0, int(sum(CallFlag))))
def test_any_bytes_give_a_call_or_an_error(tail: bytes, flags: int) -> None:
    with contextlib.suppress(GotraceError):
        parse_call(tail)
    entry, back = len(tail) % 9, min(3, len(tail) // 9)
    raw = HEADER.pack(1, 1, 1, 1, 1, 1, entry, back, flags, 0, 0) + tail
    try:
        assert parse_call(raw).undecided is bool(flags & CallFlag.UNDECIDED)
    except GotraceError:
        # Without blocks it is what its header says, whatever else it holds.
        assert flags & BLOCKS or entry + back > len(tail)


def test_records_of_two_cpus_come_out_by_time_once_they_are_old_enough() -> None:
    window = OrderWindow(window_ns=50 * MS)
    for end in (10, 30, 50):
        window.push(0, [record(end * MS)])
    for end in (20, 40, 60):
        window.push(1, [record(end * MS)])
    assert ends(window.pop_ready(80 * MS)) == [10 * MS, 20 * MS, 30 * MS]
    assert ends(window.pop_ready(100 * MS)) == [40 * MS, 50 * MS]
    assert ends(window.flush()) == [60 * MS]
    assert window.late == 0
    assert window.losses.total() == 0


def test_up_to_when_all_records_were_released_is_known() -> None:
    window = OrderWindow(window_ns=50 * MS)
    window.pop_ready(80 * MS)
    assert window.complete == 30 * MS
    window.push(0, [record(40 * MS)])
    assert window.pop_ready(120 * MS) and window.complete == 70 * MS
    window.push(0, [record(72 * MS)])
    assert not window.pop_ready(125 * MS) and window.complete == 70 * MS  # it does not sort yet


def test_a_lone_record_waits_for_the_window_and_not_much_longer() -> None:
    window = OrderWindow()
    window.push(0, [record(1000 * MS)])
    shown = None
    for now in range(1000, 1300):
        if window.pop_ready(now * MS):
            shown = now
            break
    assert shown is not None
    assert 1050 <= shown <= 1100


def test_a_record_that_comes_too_late_is_released_and_counted() -> None:
    window = OrderWindow(window_ns=10 * MS)
    window.push(0, [record(100 * MS)])
    assert ends(window.pop_ready(200 * MS)) == [100 * MS]
    window.push(1, [record(90 * MS)])
    window.push(1, [record(100 * MS)])
    window.push(1, [record(300 * MS)])
    assert ends(window.pop_ready(305 * MS)) == [90 * MS, 100 * MS]
    assert window.late == 1
    assert ends(window.flush()) == [300 * MS]
    assert window.late == 1


def test_records_of_one_time_keep_the_order_they_came_in() -> None:
    window = OrderWindow()
    for function in (3, 1, 2):
        window.push(0, [record(5, function)])
    assert [function_of(one) for one in window.flush()] == [3, 1, 2]


def test_a_crowd_is_released_early_oldest_first() -> None:
    window = OrderWindow(window_ns=1000 * MS, most_records=10)
    for end in (5, 3, 1, 2, 4, 6):
        window.push(0, [record(end)])
    assert ends(window.pop_ready(10)) == [1, 2, 3]
    assert window.pop_ready(11) == []
    assert window.losses.total() == 0
    assert ends(window.flush()) == [4, 5, 6]


def test_a_crowd_is_known_by_its_bytes_as_well() -> None:
    window = OrderWindow(window_ns=1000 * MS, most_bytes=1000)
    window.push(0, [record(2, payload=bytes(300))])
    assert window.pop_ready(10) == []
    window.push(0, [record(1, payload=bytes(300))])
    assert ends(window.pop_ready(10)) == [1]


def test_what_does_not_fit_is_dropped_and_counted_by_cpu() -> None:
    window = OrderWindow(most_records=3)
    for cpu in (0, 1, 1, 0, 1, 1):
        window.push(cpu, [record(1)])
    assert window.losses == {0: 1, 1: 2}
    assert len(window.flush()) == 3
    window.push(0, [record(2)])
    assert len(window.flush()) == 1


def test_bytes_held_are_bounded_and_freed_by_a_release() -> None:
    window = OrderWindow(most_bytes=1000)
    for _ in range(5):
        window.push(0, [record(1, payload=bytes(400 - HEADER.size))])
    assert window.losses == {0: 3}
    assert len(window.flush()) == 2
    for _ in range(3):
        window.push(1, [record(1, payload=bytes(400 - HEADER.size))])
    assert window.losses == {0: 3, 1: 1}


def test_a_record_without_a_whole_header_is_counted_as_lost() -> None:
    window = OrderWindow()
    window.push(4, [bytes(HEADER.size - 1)])
    assert window.losses == {4: 1}
    assert window.flush() == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 400), max_size=20)), max_size=12),
    st.integers(0, 100),
)
def test_nothing_is_lost_or_doubled_and_order_holds_unless_it_is_said(
    reads: list[tuple[int, list[int]]], window_ms: int
) -> None:
    window = OrderWindow(window_ns=window_ms * MS, most_records=1000)
    pushed: list[bytes] = []
    popped: list[bytes] = []
    for turn, (cpu, times) in enumerate(reads):
        for end in times:
            one = record(end * MS, function=len(pushed))
            pushed.append(one)
            window.push(cpu, [one])
        popped += window.pop_ready(turn * 40 * MS)
    popped += window.flush()
    assert sorted(popped) == sorted(pushed)
    highest, behind = -1, 0
    for end in ends(popped):
        behind += end < highest
        highest = max(highest, end)
    # Every record behind its place is counted; none of the others is.
    assert behind == window.late


def test_order_holds_for_cpus_that_are_read_in_turn_within_the_window() -> None:
    chance = random.Random(7)
    queues: list[list[bytes]] = [[], [], []]
    window = OrderWindow(window_ns=50 * MS)
    popped: list[bytes] = []
    total = 0
    for now in range(1000, 2000):
        for queue in queues:
            for _ in range(chance.randrange(4)):
                queue.append(record(now * MS + chance.randrange(MS)))
                total += 1
            queue.sort()
        if now % 17 == 0:
            for cpu, queue in enumerate(queues):
                for one in queue:
                    window.push(cpu, [one])
                queue.clear()
            popped += window.pop_ready(now * MS)
    for cpu, queue in enumerate(queues):
        for one in queue:
            window.push(cpu, [one])
    popped += window.flush()
    assert len(popped) == total
    assert ends(popped) == sorted(ends(popped))
    assert window.late == 0
