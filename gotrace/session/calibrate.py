"""Measure what the probes themselves add to a measured call."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import NoReturn

from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.kernel.attach import Point, ProbeGroup, Rung, attach
from gotrace.kernel.cookie import cookie
from gotrace.kernel.keeper import let_go
from gotrace.kernel.own_function import OwnFunction, own_function
from gotrace.session.histograms import HistogramRows
from gotrace.session.tasks import Callers
from gotrace.sites.sites import Site, SiteForm, SiteKind
from gotrace.target.process import Process, fork
from gotrace.target.target import Target

__all__ = ["probe_cost"]

_CALLS = 200
# A function that does nothing, in the two forms that an entry can have: the kernel emulates
# `push %rbp` and single-steps `mov %eax,%eax`. Each is followed by its RET.
_CODE = {
    SiteForm.EMULATED: (b"\x55\x5d\xc3", 2),  # push %rbp; pop %rbp; ret
    SiteForm.FIRST: (b"\x89\xc0\xc3", 2),  # mov %eax,%eax; ret
}


def probe_cost(form: SiteForm, rung: Rung, until: float) -> int:
    """Return the median time in ns that is measured for an empty function of this process.

    ``form`` is the entry's. It is the part of the probes' cost that lies between the two clock
    readings, and so in every measured call. It is measured in a child process, which is given up at
    ``until`` (``time.monotonic``): the compiler takes seconds on a machine that is busy. Raises
    GotraceError.
    """
    ours, theirs = socket.socketpair()
    pid = fork("that measures what a probe costs")
    if pid == 0:
        _send_cost(theirs, form, rung)
    theirs.close()
    with ours:
        ours.settimeout(max(0.001, until - time.monotonic()))
        try:
            answer = ours.recv(_ANSWER_BYTES)
        except TimeoutError:
            answer = b"0 there was no time left for it"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    cost, _, failure = answer.decode(errors="replace").partition(" ")
    if failure or not cost:
        raise GotraceError(failure or "the process that was to do it was killed")
    return int(cost)


def _send_cost(channel: socket.socket, form: SiteForm, rung: Rung) -> NoReturn:
    """Measure and answer: the cost, or 0 and why it is not known (runs in the child)."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        let_go(channel)
        try:
            answer = str(_own_cost(form, rung))
        except (GotraceError, OSError, RuntimeError) as error:  # RuntimeError: no further thread
            answer = f"0 {(error.strerror if isinstance(error, OSError) else None) or error}"
        channel.sendall(answer.encode()[:_ANSWER_BYTES])
    finally:
        os._exit(0)


_ANSWER_BYTES = 4096


def _own_cost(form: SiteForm, rung: Rung) -> int:
    code, ret = _CODE[SiteForm.FIRST if form is SiteForm.FIRST else SiteForm.EMULATED]
    with own_function(code) as function:
        return _measure(function, ret, form, rung)


def _measure(function: OwnFunction, ret: int, form: SiteForm, rung: Rung) -> int:
    entry = Site(0, SiteKind.ENTRY, form, 0)
    leave = Site(ret, SiteKind.RET, SiteForm.RET, 0)
    target = Target(process=Process(os.getpid()))
    groups = [
        ProbeGroup(
            program,
            function.path,
            "calibration",
            [Point(site.address, site.address, cookie(0, site))],
            function.address,
            target.pid,
        )
        for program, site in (("on_return", leave), ("on_entry", entry))
    ]
    defines = {**Callers((), None).defines(), **target.defines()}
    sizes = {"ROWS": 1, "HALVES": 1, "STRIPES": 1, "STACKS": 8, "FRAMES": 8}
    attached = attach("latency.c", {**defines, **sizes}, groups, rung)
    try:
        for _ in range(_CALLS):
            function.call()
        program = attached.program
        rows = HistogramRows(program.map("histograms"), program.map("generation"), 1, 1, 1)
        return rows.take(0).get(0, Histogram()).percentile(0.5)
    finally:
        attached.close()
