# SPDX-License-Identifier: Apache-2.0
"""Tables on a narrow terminal: they fit it with all their numbers, and a pipe gets all of them."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

import pytest

from gotrace.doctor.finding import CheckState, Finding
from gotrace.doctor.report import write_findings
from gotrace.goroutines.details import WaitDetails
from gotrace.goroutines.model import Awaited, DumpedGoroutine, Frame, State
from gotrace.histogram import Histogram
from gotrace.live.model import StackView
from gotrace.report.counts import write_counts
from gotrace.report.latencies import write_latencies
from gotrace.report.output import TextOutput
from gotrace.report.samples import write_samples
from gotrace.report.table import narrowed, shortened
from gotrace.report.top import goroutine_lines
from gotrace.report.wall import write_wall
from gotrace.session.call_rows import count_rows
from gotrace.session.latency_rows import Interval, LatencyGroup
from gotrace.session.row_cells import RowBy
from gotrace.session.why.parts import PartSums, PartTotals
from gotrace.values.model import ErrorValue, Nil, StringValue
from tests.report.test_colour import Terminal

_NAME = "example.org/shop/internal/warehouse/reservations.(*ReservationStore).ReserveForCheckout"
_PATH = b"/api/v2/warehouses/north-east/reservations/00000000123/confirmations"


def _counts(out: TextIO) -> None:
    by = RowBy({"method": StringValue(b"GET", 3), "path": StringValue(_PATH, len(_PATH))})
    rows = count_rows([(None, _NAME, 123456789, by), (None, "main.a", 1, by)], (0.0, 2.0))
    write_counts(TextOutput(out, out), rows, False, {}, ("method", "path"))


def _rates(out: TextIO) -> None:
    rows = count_rows([("warehouse", _NAME, 123456789, None)], (0.0, 2.0), rates=True)
    write_counts(TextOutput(out, out), rows, False, {}, rates=True)


def _latencies(out: TextIO) -> None:
    times = Histogram(3, 1_234_567_890, 1_234_567, 987_654_321, Counter({10: 2, 12: 1}))
    parts = {
        "running": PartTotals(4_500, 3),
        "blocked: chan receive of reservations that time out soon": PartTotals(1_500, 12345678),
    }
    group = LatencyGroup("main.f", times, why={10: PartSums(parts), 12: PartSums(parts)})
    interval = Interval([group], [], 1.0, 1.0, 1, total=10**12, rates=True)
    write_latencies(TextOutput(out, out), interval, False)


def _samples(out: TextIO) -> None:
    head = {"kind": "cpu", "cpu_ns": 10**9, "seconds": 1.0, "samples": 99, "others": 0}
    function = {"func": _NAME, "self_ns": 123_456_789, "total_ns": 987_654_321}
    sample = {"cpu_ns": 10**9, "work": "program", "group": _NAME, "samples": 99}
    write_samples(out, head, [function], [sample], "process 1", None)
    write_samples(out, head, [function], [sample], "process 1", None, by="group")


def _wall(out: TextIO) -> None:
    head = {"seconds": 1.0, "others": {"count": 0}, "wall_ns": 10**9}
    states = ("wall", "running", "runnable", "syscall", "waiting")
    group = {"group": _NAME, **{f"{state}_ns": 123_456_789 for state in states}}
    write_wall(out, head, [group], "process 1", None)


def _findings(out: TextIO) -> None:
    found = "RLIMIT_MEMLOCK 8192 kB, may be raised to 8192 kB; perf_event_mlock_kb 516 for each CPU"
    write_findings(TextOutput(out, out), [Finding("locked memory", CheckState.OK, found)])


_WRITERS = [_counts, _rates, _latencies, _samples, _wall, _findings]


def _numbers(text: str) -> Sequence[str]:
    """Return the numbers that stand by themselves, as those of names do not."""
    return re.findall(r"(?<!\S)[\d.,]+[%\w]{0,2}(?=[\s,;])", text)


@pytest.mark.parametrize("write", _WRITERS)
def test_a_table_fits_a_terminal_with_all_its_numbers(
    write: Callable[[TextIO], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow, pipe = Terminal(), io.StringIO()
    write(narrow)
    write(pipe)
    assert max(map(len, narrow.getvalue().splitlines())) <= 80
    assert max(map(len, pipe.getvalue().splitlines())) > 80
    assert _numbers(narrow.getvalue()) == _numbers(pipe.getvalue())
    monkeypatch.setenv("COLUMNS", "300")
    wide = Terminal()
    write(wide)
    assert wide.getvalue() == pipe.getvalue()


def test_a_message_has_the_columns_that_names_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    message = "load of the record failed: the storage device had gone away"
    by = RowBy({"$err": ErrorValue("*errors.errorString", message, Nil(""))})
    out = Terminal()
    rows = count_rows([(None, "main.(*diskStore).Load", 12, by)], (0.0, 2.0))
    write_counts(TextOutput(out, out), rows, False, {}, ("$err",))
    head, row = out.getvalue().splitlines()[-2:]
    assert row == (
        'main.(*diskStore).Load "load of the record failed: the storag...       12 100.0%'
    )
    assert len(head) == len(row) == 80


def test_only_texts_are_shortened() -> None:
    assert shortened("/users/1234567890/orders", 12) == "/user...ders"
    assert shortened('like "no user 17" (*errors.errorString)', 20) == 'like "no user 17"...'
    assert shortened("1234567890.123456789us", 12) == "1234567890.123456789us"
    assert narrowed([40, 6, 30], 50) == [22, 6, 22]
    assert narrowed([40, 6, 30], 5) == [12, 6, 12]
    assert narrowed([40, 6], None) == [40, 6]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "sync.Mute...ledgerMu) ..Server).Serve in 77"),
        (120, "sync.Mutex 0xacd598 (main.Ledger.ledgerMu) net/http.(*Server).Serve in 77"),
    ],
)
def test_a_long_lock_leaves_room_for_who_created_its_waiter(width: int, shown: str) -> None:
    lock = Awaited("sync.Mutex", 0xACD598)
    flags = False, False, False, True
    one = DumpedGoroutine(
        123456, State.WAITING, "sync.Mutex.Lock", None, lock, *flags, 1, 77, 1, 1, 0, ()
    )
    creator = Frame("net/http.(*Server).Serve", "server.go", 1, 0, False, False, True)
    view = StackView(one, (), creator, 0, WaitDetails(lock="main.Ledger.ledgerMu"))
    head, (line,) = goroutine_lines([view], width)
    assert line.text == f"    123456       0s  sync.Mutex.Lock {shown}"
    assert len(line.text) <= width and len(head) <= width
