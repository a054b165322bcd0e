"""Measure what the probes themselves add to a measured call."""

from __future__ import annotations

import os

from gotrace.histogram import Histogram
from gotrace.kernel.attach import Point, ProbeGroup, Rung, attach
from gotrace.kernel.cookie import cookie
from gotrace.kernel.own_function import OwnFunction, own_function
from gotrace.session.histograms import HistogramRows
from gotrace.session.tasks import Callers
from gotrace.sites.sites import Site, SiteForm, SiteKind
from gotrace.target.process import Process
from gotrace.target.target import Target

__all__ = ["probe_cost"]

_CALLS = 200
# A function that does nothing, in the two forms that an entry can have: the kernel emulates
# `push %rbp` and single-steps `mov %eax,%eax`. Each is followed by its RET.
_CODE = {
    SiteForm.EMULATED: (b"\x55\x5d\xc3", 2),  # push %rbp; pop %rbp; ret
    SiteForm.FIRST: (b"\x89\xc0\xc3", 2),  # mov %eax,%eax; ret
}


def probe_cost(form: SiteForm, rung: Rung) -> int:
    """Return the median time in ns that is measured for an empty function of this process.

    ``form`` is the entry's. It is the part of the probes' cost that lies between the two clock
    readings, and so in every measured call. Raises AttachError or LoadError.
    """
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
