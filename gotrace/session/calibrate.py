# SPDX-License-Identifier: Apache-2.0
"""Measure the time that probes themselves add to measured calls."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from gotrace.architecture import HOST
from gotrace.closing import Closing
from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.kernel.attach import Attached, Point, ProbeGroup, attach
from gotrace.kernel.children import Child
from gotrace.kernel.cookie import TaskKind, cookie, landing_cookie
from gotrace.kernel.histograms import HistogramRows
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.own_function import CALLS, OwnFunction, own_code, own_function
from gotrace.overhead import ProbeCost
from gotrace.records import replace
from gotrace.session.landings import place_landing
from gotrace.session.open_calls import OpenCalls
from gotrace.settings import (
    CountSettings,
    HistogramSettings,
    LatencySettings,
    ProgramSettings,
    SiteSettings,
)
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind
from gotrace.target.process import Process
from gotrace.target.target import Target

_T = TypeVar("_T")

_BATCHES = 15
_STACKS = 64  # few tasks; some of their rows may rest


def probe_cost(form: SiteForm, method: AttachMethod | None) -> ProbeCost:
    """Return the cost of gofunclatency's probes for a call of an empty function of this process.

    ``form`` is the dearest of the entries'; without a ``method`` it is the best. Raises AttachError
    or LoadError.

    If calls can be seen returning in their callers, what they cost then is measured as well.
    """
    found = _call_cost(SiteForm.EMULATED, method)
    return replace(found, first=_call_cost(form, method)) if form is SiteForm.FIRST else found


def _call_cost(form: SiteForm, method: AttachMethod | None) -> ProbeCost:
    """Return the same of an entry of one form."""
    with _empty_function(form) as (function, entry, leave):
        bare = _batch_time(function)
        at_ret = _group(function, "on_return", leave)
        settings = LatencySettings(
            site=_here(),
            stacks=_STACKS,
            outer_calls=_STACKS,
            times=HistogramSettings.of(1, 1, 1),
        )
        groups = [at_ret, _group(function, "on_entry", entry)]
        with _attached(settings.with_hits(2), groups, method) as attached:
            OpenCalls(attached.program)  # rows rest, as in the run

            def cost() -> ProbeCost:
                probed = _batch_time(function)
                return ProbeCost(_measured(attached), _each(probed - bare, 2 * CALLS))

            found = cost()
            if attached.method is AttachMethod.MULTI and _sees_landings():
                code = own_code()
                at = landing_cookie(code.landing - code.after_call, TaskKind.THREAD)
                point = Point(code.landing, code.landing, at)
                attached.change([replace(at_ret, points=[point])], [at_ret])
                place_landing(attached.program, entry.address, code.after_call, code.landing)
                found = replace(found, landed=cost())
    return found


def _sees_landings() -> bool:
    """Return whether calls can be worth seeing return in their callers."""
    return HOST is not None and HOST.steps_rets


def trap_cost(form: SiteForm, method: AttachMethod | None) -> ProbeCost:
    """Return the cost of probes whose programs do next to nothing: other programs add theirs.

    Parameters and errors as for ``probe_cost``. A call's measured time contains the end of its
    entry's trap and the beginning of its RET's, which is taken for as much as a whole entry's.
    """
    with _empty_function(form) as (function, entry, leave):
        bare = _batch_time(function)
        settings = CountSettings(site=_here(), counters=1)
        with _attached(settings, [_group(function, "on_entry", entry)], method) as attached:
            entered = _batch_time(function)
            attached.add([_group(function, "on_entry", leave)])
            both = _batch_time(function)
    return ProbeCost(_each(entered - bare, CALLS), _each(both - bare, 2 * CALLS))


def hit_costs(forms: Collection[SiteForm], method: AttachMethod | None) -> dict[SiteForm, int]:
    """Return the cost in ns of a counted call at entries of each form: FIRST, EMULATED.

    Parameters and errors as for ``probe_cost``.
    """
    costs = {}
    for form in sorted(forms, key=lambda form: form.value):
        with _empty_function(form) as (function, entry, _):
            bare = _batch_time(function)
            settings = CountSettings(site=_here(), counters=1)
            with _attached(settings, [_group(function, "on_entry", entry)], method):
                costs[form] = _each(_batch_time(function) - bare, CALLS)
    return costs


def _each(nanoseconds: float, times: int) -> int:
    return max(0, round(nanoseconds / times))


@contextmanager
def _empty_function(form: SiteForm) -> Iterator[tuple[OwnFunction, Site, Site]]:
    """Map an empty function and its caller; yield the caller, and the sites of the function."""
    form = SiteForm.FIRST if form is SiteForm.FIRST else SiteForm.EMULATED
    code = own_code()
    first = len(code.caller)
    body = code.stepped if form is SiteForm.FIRST else code.emulated
    with own_function(code.caller + body) as function:
        entry = Site(first, SiteKind.ENTRY, form, 0)
        yield function, entry, Site(first + code.ret, SiteKind.RET, SiteForm.RET, 0)


def _group(function: OwnFunction, program: str, site: Site) -> ProbeGroup:
    point = Point(site.address, site.address, cookie(0, site))
    bias = function.address
    return ProbeGroup(program, function.path, "calibration", [point], bias, os.getpid())


def _here() -> SiteSettings:
    return Target(process=Process(os.getpid())).settings()


@contextmanager
def _attached(
    settings: ProgramSettings, groups: Sequence[ProbeGroup], method: AttachMethod | None
) -> Iterator[Attached]:
    attached = attach(settings, groups, method)
    try:
        yield attached
    finally:
        attached.close()


def _batch_time(function: OwnFunction) -> float:
    """Return the median time of ``CALLS`` calls, in ns."""
    return sorted(_timed(function) for _ in range(_BATCHES))[_BATCHES // 2]


def _timed(function: OwnFunction) -> int:
    """Return this thread's CPU time for a batch: others may want the CPU as well."""
    began = time.thread_time_ns()
    function.call()
    return time.thread_time_ns() - began


def _measured(attached: Attached) -> int:
    """Return the median time measured for an empty function."""
    program = attached.program
    rows = HistogramRows(program.map("histograms"), 1, 1)
    return rows.take(0).get(0, Histogram()).percentile(0.5)


class Calibration(Closing, Generic[_T]):
    """A measurement made in a process of its own, while the run starts.

    Where there is a second CPU, it costs the start next to nothing.
    """

    def __init__(self, measure: Callable[[], _T]) -> None:
        self._found: _T | Exception | None = None
        self._child: Child | None = None
        try:
            self._child = Child("that measures what probes cost", partial(_report, measure))
        except GotraceError as error:
            self._found = error

    def cost(self, wait: float) -> _T:
        """Return the measured cost, after waiting for it for at most ``wait`` seconds.

        Raises GotraceError or OSError where it could not be measured, or not by then.
        """
        child = self._child
        if self._found is None and child is not None:
            if not child.has_answered(wait):
                raise GotraceError("calibrating took too long")
            data = child.whole_answer()
            child.wait()
            self._found = pickle.loads(data) if data else GotraceError(child.why_ended())
        assert self._found is not None
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def close(self) -> None:
        """End the process, whether or not it has finished."""
        if self._child is not None:
            self._child.end()


def _report(measure: Callable[[], _T], answer: int) -> None:
    """Measure and write the result (runs in the child)."""
    found: _T | Exception
    try:
        found = measure()
    except OSError as error:
        found = error
    except (GotraceError, RuntimeError) as error:  # RuntimeError: no further thread
        found = GotraceError(str(error))
    os.write(answer, pickle.dumps(found))
