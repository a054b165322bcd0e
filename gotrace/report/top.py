# SPDX-License-Identifier: Apache-2.0
"""Write snapshots of a live program: lines of a width, for a screen and for batches, and as JSON.

JSON: an object of kind ``program`` for each snapshot, then one of kind ``group`` for each group of
goroutines. Waits and calls have the objects of gooffcpu and gofunclatency. Requests have one of
kind ``requests`` for each root, then those of gotrace tree for the slowest that are new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gotrace.goroutines.model import Frame
from gotrace.live.model import (
    DeclaredRows,
    FunctionRow,
    GroupRow,
    Head,
    RequestRow,
    StackView,
    WaitGroupRow,
)
from gotrace.records import dataclass
from gotrace.report.durations import duration, size
from gotrace.report.goroutines import awaited_text, span, spoken, where
from gotrace.report.output import JsonOutput
from gotrace.report.table import LEAST, fitted, narrowed, without_middle
from gotrace.results.kinds import KINDS
from gotrace.results.rows import Json, RowKind
from gotrace.text import counted, printable

#: The heads of columns, and the lines below them.
Table = tuple[str, list["ScreenLine"]]

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_TREND, _SHORT = 10, 6
#: Columns of a goroutine's numbers.
_OF_GOROUTINE = 21
#: The mark of groups that leak.
LEAK = "!"
#: Of requests that are not shown: as ``gotrace tree`` says it.
LOST_REQUESTS = "{:,} request{s} not shown: not all of their calls are known"


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """A line of text; ``is_marked``: the reader should see it first."""

    text: str
    is_marked: bool = False


def spark(history: Sequence[int], width: int, is_ascii: bool = False) -> str:
    """Return the latest numbers as bars, from the least of them to the largest.

    >>> spark([1, 1, 2, 3], 5)
    ' ▁▁▄█'
    """
    bars = _ASCII_BARS if is_ascii else _BARS
    latest = list(history[-width:])
    if not latest:
        return " " * width
    least, most = min(latest), max(latest)
    span = most - least
    last = len(bars) - 1
    drawn = "".join(bars[(number - least) * last // span if span else 0] for number in latest)
    return drawn.rjust(width)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def head_lines(head: Head) -> list[str]:
    """Return five lines on the program as a whole."""
    version = head.go_version or "an unknown Go"
    up = span(round(head.uptime_s * 1e9))
    quota = f" of {head.quota:g}" if head.quota is not None else ""
    procs = f", GOMAXPROCS {head.heap.procs}" if head.heap is not None else ""
    return [
        f"{printable(head.program)} (process {head.pid}), {version}, up {up}",
        f"CPU {head.cpu:.2f}{quota}{procs}, {counted('{:,} thread{s}', head.threads)},"
        f" memory {size(head.rss)}",
        _goroutines_line(head),
        _heap_line(head),
        _attached_line(head),
    ]


def _goroutines_line(head: Head) -> str:
    if head.goroutines is None:
        return ""  # they are being read, as the last line says
    states = sorted(head.states.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count:,} {state}" for state, count in states)
    number = counted("{:,} goroutine{s}", head.goroutines)
    return f"{number}{f': {listed}' if listed else ''}; {head.system:,} more of the runtime"


def _heap_line(head: Head) -> str:
    heap = head.heap
    if heap is None:
        return f"GC and heap: left out: {head.heap_problem}"
    rate = f"GC {counted('{:,} cycle{s}', heap.cycles)}"
    if head.cycles_s is not None:
        share, pause = _percent(head.gc_share or 0.0), _percent(head.pause_share or 0.0)
        rate = f"GC {head.cycles_s:.2g}/s, {share} of its CPUs, stopped {pause}"
    goal = size(heap.goal) if heap.goal is not None else "off"
    limit = f", limit {size(heap.limit)}" if heap.limit is not None else ""
    return f"{rate}; heap {size(heap.in_use)}, goal {goal}{limit}"


def _attached_line(head: Head) -> str:
    if not head.attached:
        return "nothing is attached"
    each = (f"{one.what} (about {_percent(one.share)} of one CPU)" for one in head.attached)
    return f"attached: {', '.join(map(printable, each))}"


#: The orders of rows, the default first.
GROUP_ORDERS: Mapping[str, Callable[[GroupRow], object]] = {
    "count": lambda row: (-row.count, row.number),
    "growth": lambda row: (-row.growth, -row.count),
    "waiting": lambda row: (-(row.waiting_ns or (0, -1))[1], -row.count),
    "leaks": lambda row: (not row.leaks, -row.growth, -row.count),
}
WAIT_ORDERS: Mapping[str, Callable[[WaitGroupRow], object]] = {
    "use": lambda row: row.rank,
    "time": lambda row: (-row.ns, -sum(row.history)),
    "count": lambda row: (-row.count, -row.ns),
    "each": lambda row: -(row.ns / row.count) if row.count else 0.0,
}
FUNCTION_ORDERS: Mapping[str, Callable[[FunctionRow], object]] = {
    "time": lambda row: (-row.times.sum, row.name),
    "calls": lambda row: (-row.times.count, row.name),
    "p99": lambda row: (-row.times.percentile(0.99), row.name),
    "errors": lambda row: (-(row.errors or 0), row.name),
}
REQUEST_ORDERS: Mapping[str, Callable[[RequestRow], object]] = {
    "slowest": lambda row: (-row.times.maximum, row.name),
    "count": lambda row: (-row.times.count, row.name),
    "p99": lambda row: (-row.times.percentile(0.99), row.name),
}


def declared_orders(kind: RowKind) -> Mapping[str, Callable[[Json], object]]:
    """Return the orders of rows of a kind: by each number that it is ordered by."""
    names = [name.removeprefix("-") for name in kind.order]

    def by(name: str) -> Callable[[Json], object]:
        return lambda row: -next(row[one] for one in row if one.rsplit("_", 1)[0] == name)

    return {name.rsplit("_", 1)[0]: by(name.rsplit("_", 1)[0]) for name in names}


def declared_lines(found: DeclaredRows, rows: Sequence[Json], width: int) -> Table:
    """Return the heads of columns, and a line for each row of a kind: sums a second, then keys."""
    kind = KINDS[found.kind]
    sums = [(field.name, *field.name.rsplit("_", 1)) for field in kind.sums]
    keys = [field.name for field in kind.keys]
    head = "".join(f"{f'{what.upper()}/S':>10} " for _, what, _ in sums)
    lines = []
    for row in rows:
        texts = [_amount(row[name] / found.seconds, unit) for name, _, unit in sums]
        text = "".join(f"{text:>10} " for text in texts) + " "
        names = ", ".join(printable(spoken(str(row[name]))) for name in keys)
        lines.append(ScreenLine(text + fitted(names, max(LEAST, width - len(text)))))
    return f"{head} {', '.join(keys).upper()}", lines


def _amount(number: float, unit: str) -> str:
    if unit == "bytes":
        return size(round(number))
    return duration(number) if unit == "ns" else f"{number:,.4g}"


def _named(frames: Sequence[Frame], room: int | None = None) -> str:
    return fitted(where(frames) or "(no stack)", room)


def group_lines(
    rows: Sequence[GroupRow], is_ascii: bool, width: int | None = None
) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each group, of that ``width`` at most."""
    head = f"{'COUNT':>8} {'GROWTH':>8}   {'TREND':<{_TREND}} {'WAITING':>8}  {'STATE':<16} WHERE"
    lines = []
    for row in rows:
        growth = f"{row.growth:+,}" if row.growth else ""
        waiting = span(row.waiting_ns[1]) if row.waiting_ns else ""
        mark = LEAK if row.leaks else " "
        trend = spark(row.history, _TREND, is_ascii)
        text = f"{row.count:>8,} {growth:>8} {mark} {trend} {waiting:>8}  {row.status:<16} "
        room = None if width is None else max(LEAST, width - len(text))
        lines.append(ScreenLine(text + _named(row.frames, room), row.leaks))
    return head, lines


def wait_lines(
    rows: Sequence[WaitGroupRow], is_ascii: bool, width: int
) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each stack of waits.

    Functions have what is left of the ``width`` of lines.
    """
    wide = max(20, (width - 51) // 2)
    head = (
        f"{'WAITS/S':>7} {'TIME/S':>7} {'EACH':>7} {'TREND':<{_SHORT}}  {'REASON':<15}"
        f" {'WHERE':<{wide}} WOKEN BY"
    )
    lines = []
    for row in rows:
        rate = f"{row.count / row.seconds:,.4g}"
        took = duration(row.ns / row.seconds) if row.ns else ""
        each = duration(row.ns / row.count) if row.count else ""
        waker = fitted(printable(spoken(row.waker)), wide) if row.waker else ""
        trend = spark(row.history, _SHORT, is_ascii)
        text = (
            f"{rate:>7} {took:>7} {each:>7} {trend}  {row.reason:<15.15}"
            f" {_named(row.frames, wide):<{wide}} {waker}"
        )
        lines.append(ScreenLine(text.rstrip()))
    return head, lines


def function_lines(
    rows: Sequence[FunctionRow], is_ascii: bool, width: int | None = None
) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each function, of that ``width`` at most."""
    head = f"{'CALLS/S':>8} {'P50':>8} {'P99':>8} {'ERRORS/S':>8} {'TREND':<{_TREND}}  FUNCTION"
    lines = []
    for row in rows:
        times = row.times
        p50, p99 = (
            (duration(times.percentile(part)) for part in (0.5, 0.99)) if times.count else ("", "")
        )
        errors = "-" if row.errors is None else f"{row.errors / row.seconds:.4g}"
        trend = spark(row.history, _TREND, is_ascii)
        rate = times.count / row.seconds
        text = f"{rate:>8,.4g} {p50:>8} {p99:>8} {errors:>8} {trend}  "
        room = None if width is None else max(LEAST, width - len(text))
        lines.append(ScreenLine(text + fitted(printable(spoken(row.name)), room), bool(row.errors)))
    return head, lines


def root_lines(
    rows: Sequence[RequestRow], is_ascii: bool, width: int | None = None
) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each root, of that ``width`` at most."""
    head = (
        f"{'COUNT':>7} {'RATE/S':>7} {'P50':>7} {'P99':>7} {'SLOWEST':>7} {'AT':<8}"
        f" {'TREND':<{_SHORT}}  ROOT"
    )
    lines = []
    for row in rows:
        times = row.times
        p50, p99, most = (
            duration(ns) if times.count else ""
            for ns in (times.percentile(0.5), times.percentile(0.99), times.maximum)
        )
        at = time.strftime("%H:%M:%S", time.localtime(row.slowest[0].ended)) if row.slowest else ""
        rate = times.count / row.seconds
        trend = spark(row.history, _SHORT, is_ascii)
        text = f"{times.count:>7,} {rate:>7,.4g} {p50:>7} {p99:>7} {most:>7} {at:<8} {trend}  "
        room = None if width is None else max(LEAST, width - len(text))
        lines.append(ScreenLine(text + fitted(printable(spoken(row.name)), room)))
    return head, lines


def goroutine_lines(rows: Sequence[StackView], width: int) -> tuple[str, list[ScreenLine]]:
    """Return the heads of columns, and a line for each goroutine, in ``width`` if that suffices."""
    texts = [("STATE", "FOR", "CREATED BY")]
    for row in rows:
        parent = f" in {row.goroutine.parent}" if row.goroutine.parent else ""
        created = f"{_frame(row.created_by)}{parent}" if row.created_by else ""
        texts.append((row.goroutine.status, awaited_text(row.goroutine, row.waits), created))
    state, *widths = (max(map(len, column)) for column in zip(*texts, strict=True))
    wide, by = narrowed(widths, width - _OF_GOROUTINE - state - 2)
    numbers = [f"{'GOROUTINE':>10} {'WAITING':>8}  "]
    for row in rows:
        waiting = span(row.waiting_ns) if row.waiting_ns is not None else ""
        numbers.append(f"{row.goroutine.goid:>10} {waiting:>8}  ")
    head, *lines = (
        f"{before}{status:<{state}} {without_middle(awaited, wide):<{wide}} {fitted(created, by)}"
        for before, (status, awaited, created) in zip(numbers, texts, strict=True)
    )
    return head, [ScreenLine(line.rstrip()) for line in lines]


def _frame(frame: Frame) -> str:
    return printable(spoken(frame.function))


def stack_lines(
    frames: Sequence[Frame], created_by: Frame | None, width: int, awaited: str = ""
) -> list[ScreenLine]:
    """Return a stack as Go's own dumps have it, two lines a frame, of that ``width`` at most.

    The object that the goroutine waits for is above it.
    """
    lines = [ScreenLine(f"waits for {awaited}")] if awaited else []
    for frame in frames:
        lines += [ScreenLine(f"{_frame(frame)}(...)"), ScreenLine(_place(frame, width))]
    if created_by is not None:
        lines += [
            ScreenLine(f"created by {_frame(created_by)}"),
            ScreenLine(_place(created_by, width)),
        ]
    return lines or [ScreenLine("stack unavailable")]


def _place(frame: Frame, width: int) -> str:
    """Return a line with a file's name and the number in it, which are the end of its path."""
    text, room = f"{printable(frame.file)}:{frame.line}", max(LEAST, width - 4)
    return f"    {text if len(text) <= room else f'..{text[2 - room :]}'}"


def write_snapshot_json(
    output: JsonOutput, ts: float, head: Head, groups: Sequence[GroupRow]
) -> None:
    """Write an object for the program, then one for each group."""
    heap = head.heap
    fields: dict[str, object] = {
        "pid": head.pid,
        "ts": round(ts, 6),
        "program": head.program,
        "go": head.go_version,
        "uptime_s": round(head.uptime_s, 3),
        "cpu": round(head.cpu, 4),
        "quota": head.quota,
        "threads": head.threads,
        "rss": head.rss,
        "goroutines": head.goroutines,
        "system": head.system,
        "states": dict(head.states),
        "heap": None,
        "attached": [{"what": one.what, "share": one.share} for one in head.attached],
    }
    if heap is not None:
        fields["heap"] = {
            "in_use": heap.in_use,
            "goal": heap.goal,
            "limit": heap.limit,
            "gomaxprocs": heap.procs,
            "cycles": heap.cycles,
            "gc_ns": heap.gc_ns,
            "pause_ns": heap.pause_ns,
            "cycles_s": head.cycles_s,
            "gc_share": head.gc_share,
            "pause_share": head.pause_share,
        }
    else:
        fields["heap_problem"] = head.heap_problem
    output.write("program", fields)
    for row in groups:
        output.write(
            "group",
            {
                "pid": head.pid,
                "group": row.number,
                "state": row.state.value,
                "reason": row.reason or None,
                "count": row.count,
                "growth": row.growth,
                "leaks": row.leaks,
                "waiting_ns": list(row.waiting_ns) if row.waiting_ns else None,
                "created_by": row.created_by.to_json() if row.created_by else None,
                "stack": [frame.to_json() for frame in row.frames],
            },
        )
    output.out.flush()


def write_requests_json(
    output: JsonOutput, pid: int, rows: Sequence[RequestRow], lost: int, most: int | None
) -> None:
    """Write an object for each root, then its slowest requests, at most so many."""
    for row in rows:
        times = row.times
        new = [one for one in row.new if not one.is_cut]
        output.write(
            "requests",
            {
                "pid": pid,
                "func": row.name,
                "seconds": row.seconds,
                "count": times.count,
                "p50_ns": times.percentile(0.5) if times.count else None,
                "p99_ns": times.percentile(0.99) if times.count else None,
                "max_ns": times.maximum if times.count else None,
                "cut": len(row.new) - len(new),
                "lost": lost,
            },
        )
        output.out.writelines(one.request.to_json() for one in new[:most])
    output.out.flush()
