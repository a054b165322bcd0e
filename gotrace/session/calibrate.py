"""Measure what the probes themselves add to a measured call."""

from __future__ import annotations

import ctypes
import mmap
import os

from gotrace.histogram import Histogram
from gotrace.probes.sites import Site, SiteForm, SiteKind
from gotrace.session.attach import Point, ProbeGroup, Rung, attach
from gotrace.session.callers import Callers
from gotrace.session.cookie import cookie
from gotrace.session.histograms import HistogramRows
from gotrace.session.process import Process
from gotrace.session.target import Target

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
    fd = os.memfd_create("gotrace-calibration", os.MFD_CLOEXEC)
    try:
        os.write(fd, code.ljust(mmap.PAGESIZE, b"\xcc"))
        with mmap.mmap(
            fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
        ) as text:
            return _measure(fd, _address(text), ret, form, rung)
    finally:
        os.close(fd)


def _address(text: mmap.mmap) -> int:
    """Return where a read-only mapping lies, which ctypes gives for writable ones only."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(text), ctypes.byref(buffer), 0)
    address: int | None = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert address is not None
    return address


class _PyBuffer(ctypes.Structure):
    """The head of CPython's Py_buffer (Include/cpython/object.h), with room for the rest."""

    _fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_char * 128)]


def _measure(fd: int, text: int, ret: int, form: SiteForm, rung: Rung) -> int:
    entry = Site(0, SiteKind.ENTRY, form, 0)
    leave = Site(ret, SiteKind.RET, SiteForm.RET, 0)
    target = Target(process=Process(os.getpid()))
    path = f"/proc/self/fd/{fd}"
    groups = [
        ProbeGroup(
            program,
            path,
            "calibration",
            [Point(site.address, site.address, cookie(0, site))],
            text,
            target.pid,
        )
        for program, site in (("on_return", leave), ("on_entry", entry))
    ]
    defines = {**Callers(None, None).defines(), **target.defines()}
    sizes = {"ROWS": 1, "HALVES": 1, "STRIPES": 1, "STACKS": 8, "FRAMES": 8}
    attached = attach("latency.c", {**defines, **sizes}, groups, rung)
    try:
        empty = ctypes.CFUNCTYPE(None)(text)
        for _ in range(_CALLS):
            empty()
        program = attached.program
        rows = HistogramRows(program.map("histograms"), program.map("generation"), 1, 1, 1)
        return rows.read(0).get(0, Histogram()).percentile(0.5)
    finally:
        attached.close()
