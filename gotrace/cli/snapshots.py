# SPDX-License-Identifier: Apache-2.0
"""Runs of gotop: snapshots of programs, on a screen or as batches."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gotrace.cli.run import make_output
from gotrace.cli.top_options import GotopOptions
from gotrace.errors import GotraceError, UsageError
from gotrace.live.model import Snapshot
from gotrace.live.monitor import Monitor
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.report.top import (
    LOST_REQUESTS,
    function_lines,
    group_lines,
    head_lines,
    root_lines,
    wait_lines,
    write_requests_json,
    write_snapshot_json,
)
from gotrace.target.process import ProcessError, process_numbers
from gotrace.target.target import Target
from gotrace.target.wait import Reason, SignalWaiter
from gotrace.text import counted

if TYPE_CHECKING:
    from gotrace.live.attached import AcceptPrice, AttachPrice

#: Rows of each table in a batch, if the number is not given.
_TOP = 20
_WIDTH = 120
#: Programs that are watched at once: what the processes of a name can be.
_MAX_PROCESSES = 8


def show(options: GotopOptions) -> int:
    """Show snapshots until the end and return the exit status."""
    if not options.processes:
        raise UsageError("which process? Type gotop -p PID")
    pids = process_numbers(options.processes)
    if len(pids) > _MAX_PROCESSES:
        raise UsageError(
            f"gotop watches up to {_MAX_PROCESSES} processes, and there are {len(pids)}"
        )
    if not options.batch:
        from gotrace.screen.terminal import check_terminal

        check_terminal()
    with ExitStack() as opened:
        waiter = opened.enter_context(SignalWaiter())
        monitors = [_monitor(pid, opened) for pid in pids]
        if options.batch:
            _batch(options, monitors, waiter)
            return 0
        from gotrace.screen.view import watch

        accept = _accepting(options, None)
        ended = watch(
            monitors, waiter, options.interval, lambda monitor: _attach(options, monitor, accept)
        )
    for pid in ended:
        print(f"process {pid} has ended", file=sys.stderr)
    return 0


def _monitor(pid: int, opened: ExitStack) -> Monitor:
    target = Target.of(pid, None)
    opened.callback(target.close)
    return opened.enter_context(Monitor(target))


def _attach(options: GotopOptions, monitor: Monitor, accept: AcceptPrice) -> None:
    """Attach the probes that the options ask for. Raises GotraceError."""
    if options.waits:
        monitor.attach_waits(accept)
    if options.functions:
        monitor.attach_functions(options.functions, accept)
    if options.requests is not None:
        monitor.attach_requests(options.requests, accept, brief=not options.batch)


def _accepting(options: GotopOptions, output: Output | None) -> AcceptPrice:
    """Return a function that prints a price, if there is an output, and refuses one too high."""

    def accept(price: AttachPrice) -> None:
        from gotrace.session.why.price import MAX_SHARE

        if price.share > MAX_SHARE and not options.force:
            raise GotraceError(f"{price.text}: --force accepts it")
        if output is not None:
            fields = {"what": "price", "share": price.share}
            output.notice(Notice(NoticeKind.WARNING, price.text, fields))

    return accept


def _batch(options: GotopOptions, monitors: Sequence[Monitor], waiter: SignalWaiter) -> None:
    output = make_output(options)
    accept = _accepting(options, output)
    waiter.on_first = _interrupted
    for monitor in monitors:
        _attach(options, monitor, accept)
    is_attached = bool(options.waits or options.functions or options.requests is not None)
    if is_attached:
        for monitor in monitors:
            output.notice(_attached(options, monitor))
    waiter.on_first = None
    alive = list(monitors)
    tick = time.monotonic()
    left = options.number
    if is_attached:  # of the first there is nothing yet
        tick += options.interval
        waiter.wait(tick)
    while alive:
        is_last = waiter.asked is not None or left == 1
        for monitor in list(alive):
            try:
                if is_last:
                    monitor.finish()
                snapshot = monitor.snapshot()
            except ProcessError:
                alive.remove(monitor)
                text = f"process {monitor.pid} has ended"
                output.notice(Notice(NoticeKind.EXITED, text, {"pid": monitor.pid}))
                continue
            _write(options, monitor, snapshot, output)
        if left is not None:
            left -= 1
        if waiter.asked is not None or left == 0:
            return
        tick = max(tick + options.interval, time.monotonic())
        # Attached probes have something to say of the time up to the end.
        if alive and waiter.wait(tick) is Reason.ASKED and not is_attached:
            return


def _attached(options: GotopOptions, monitor: Monitor) -> Notice:
    what = ["waits"] if options.waits else []
    if options.functions:
        what.append(f"calls of {', '.join(options.functions)}")
    if options.requests is not None:
        what.append(f"requests of {options.requests}")
    text = f"Tracing {' and '.join(what)} of process {monitor.pid}... Hit Ctrl-C to end."
    fields = {
        "pid": monitor.pid,
        "waits": options.waits,
        "patterns": options.functions,
        "requests": options.requests,
        "ts": time.time(),
    }
    return Notice(NoticeKind.ATTACHED, text, fields)


def _interrupted() -> None:
    raise KeyboardInterrupt


def _write(options: GotopOptions, monitor: Monitor, snapshot: Snapshot, output: Output) -> None:
    groups = snapshot.groups[: options.top] if options.top else snapshot.groups
    if isinstance(output, JsonOutput):
        write_snapshot_json(output, snapshot.ts, snapshot.head, groups)
        _write_attached_json(options, monitor, snapshot, output)
        return
    top = options.top or _TOP
    width = shutil.get_terminal_size((_WIDTH, 0)).columns if output.out.isatty() else None
    lines = [f"{time.strftime('%H:%M:%S')} {line}" for line in head_lines(snapshot.head)[:1]]
    lines += head_lines(snapshot.head)[1:]
    tables = [(*group_lines(snapshot.groups[:top], False, width), len(snapshot.groups))]
    if snapshot.waits is not None:
        waits = [row for row in snapshot.waits if row.count]
        tables.append((*wait_lines(waits[:top], False, width or _WIDTH), len(waits)))
    if snapshot.functions is not None:
        rows = [row for row in snapshot.functions if row.times.count]
        tables.append((*function_lines(rows[:top], False, width), len(rows)))
    if snapshot.requests is not None:
        roots = [row for row in snapshot.requests if row.times.count]
        tables.append((*root_lines(roots[:top], False, width), len(roots)))
    for heading, rows_shown, count in tables:
        lines += ["", heading, *(line.text for line in rows_shown)]
        if count > top:
            lines.append(f"and {count - top:,} more")
    if snapshot.requests_lost:
        lines.append(counted(LOST_REQUESTS, snapshot.requests_lost))
    output.out.write("\n".join(line[:width] for line in lines) + "\n\n")
    output.out.flush()


def _write_attached_json(
    options: GotopOptions, monitor: Monitor, snapshot: Snapshot, output: JsonOutput
) -> None:
    """Write waits, calls and requests as gooffcpu, gofunclatency and gotrace tree do."""
    if monitor.waits is not None:
        from gotrace.session.waits.naming import waits_head

        waits = monitor.waits
        fields = {"pid": monitor.pid, "ts": round(snapshot.ts, 6), "seconds": waits.seconds}
        head = waits_head(waits.latest, waits.others, fields)
        output.rows([head, *waits.latest[: options.top]])
    functions = monitor.functions
    if functions is not None and functions.latest is not None:
        from gotrace.report.latencies import write_latencies
        from gotrace.session.latency import Measurement
        from gotrace.session.latency_rows import Interval, LatencyChoice, interval_of, key_groups
        from gotrace.session.order import ordered

        when = (snapshot.ts, functions.seconds, 1)
        plan, latest = functions.run.plan, functions.latest
        if isinstance(latest, Measurement):
            choice = LatencyChoice(by_function=True, top=options.top)
            interval = interval_of(choice, plan, latest, None, when, None)
        else:
            groups = key_groups(plan.names, functions.key.texts, latest.rows, None)
            groups = ordered(groups, options.top, lambda group: group.times.sum)
            interval = Interval(groups, [], *when, False, {})
        write_latencies(output, interval, False)
        for row in snapshot.functions or ():
            if row.errors is not None:
                output.write("errors", {"pid": monitor.pid, "func": row.name, "count": row.errors})
        output.out.flush()
    if snapshot.requests is not None:
        lost = snapshot.requests_lost
        write_requests_json(output, monitor.pid, snapshot.requests, lost, options.top)
