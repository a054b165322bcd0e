# SPDX-License-Identifier: Apache-2.0
"""Requests of a server while they are measured: their times, and what these go into."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack

from gotrace.closing import Closing
from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.live.attached import AcceptPrice, AttachPrice, calls_price, percent, plain, recipe_keys
from gotrace.overhead import ProbeCost
from gotrace.probes.recipes import find_recipe, functions_of
from gotrace.probes.spec import parse_key
from gotrace.records import dataclass, field
from gotrace.session.keys import KeyMeter, KeyOptions, KeyRequest, key_of
from gotrace.session.request import Asked
from gotrace.session.run import Run, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.why.parts import PartSums
from gotrace.session.why.price import price_of
from gotrace.session.why.probes import WhyOptions
from gotrace.target.target import Target

#: How many goroutines are counted one by one: in a server of HTTP/2 each request has its own.
_GOROUTINES = 1 << 14
_BY_GOROUTINE = parse_key("$goid")


@dataclass(slots=True)
class Route:
    """The requests of a route: their ``times``, and these by what is asked for.

    ``why`` is what the times went into, by bucket; it is empty if that was not followed.
    """

    name: str
    times: Histogram = field(default_factory=Histogram)
    why: dict[int | None, PartSums] = field(default_factory=dict)
    keys: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """The requests that began and ended in so many seconds, those with most time first.

    ``goroutines`` began one, None if there were too many to know each.
    """

    seconds: float
    routes: tuple[Route, ...]
    goroutines: Collection[int] | None


def _times(target: Target, server: str, why: WhyOptions | None) -> KeyRequest:
    """Return the request for the times of routes, and of what is asked for in them."""
    keys = recipe_keys([server])
    names = {name for probe in find_recipe(server[1:]).probes for name, _ in probe.names}
    return KeyRequest(
        target=target,
        asked=Asked([server]),
        verb="measure",
        done="measured",
        key=key_of([*keys, *({"path"} & names)]),
        follows_returns=True,
        options=KeyOptions(times=True, parts=why is not None),
        why=why,
    )


class Served(Closing):
    """The measurement of a server's requests; a context manager that detaches."""

    def __init__(self, target: Target, server: str, accept: AcceptPrice) -> None:
        """Attach to the functions of the ``server``, a recipe. Raises GotraceError.

        If ``accept`` refuses the price of their times, or of what these go into, that is not
        measured.
        """
        price = calls_price(target, [server])
        accept(AttachPrice(price.text, price.share / 2))  # one hit of two
        #: Why something is not measured, by what it is.
        self.unseen: dict[str, str] = {}

        def accept_parts(probes: SchedulerProbes) -> None:
            share = price_of(probes, None).share
            accept(AttachPrice(f"that takes about {percent(share)} of one CPU", share))

        begun = KeyRequest(
            target=target,
            asked=Asked(functions_of(server)),
            verb="count",
            done="counted",
            key=_BY_GOROUTINE,
            is_strict=False,
            options=KeyOptions(rows=_GOROUTINES),
        )
        self._times: Run[KeyMeter, ProbeCost] | None = None
        with ExitStack() as opened:
            self._begun = opened.enter_context(open_run(begun))
            self._begun.begin()
            try:
                accept(price)
                try:
                    run = open_run(_times(target, server, WhyOptions()), accept=accept_parts)
                except GotraceError as error:
                    self.unseen["what the time of slow requests goes into"] = str(error)
                    run = open_run(_times(target, server, None))
                self._times = opened.enter_context(run)
                self._times.begin()
            except GotraceError as error:
                self.unseen["times of requests"] = str(error)
            self._opened = opened.pop_all()

    def poll(self) -> None:
        """Look after the runs; to be called some times a second."""
        for run in (self._begun, self._times):
            if run is not None:
                run.is_over(0)
                run.meter.poll()

    def take(self) -> ServedRequests:
        """Return the requests up to now, once."""
        began = self._times.began if self._times is not None else self._begun.began
        seconds = time.monotonic() - began
        routes: dict[str, Route] = {}
        for row in self._times.meter.take().rows if self._times is not None else ():
            *words, key = map(plain, row.values) if row.values is not None else ("others", "")
            name = " ".join(words) or key
            route = routes.setdefault(name, Route(name))
            times = row.times or Histogram()
            route.times.merge(times)
            route.keys.setdefault(key, Histogram()).merge(times)
            for bucket, parts in (row.why or {}).items():
                route.why.setdefault(bucket, PartSums()).merge(parts)
        by_time = sorted(routes.values(), key=lambda route: -route.times.sum)
        return ServedRequests(seconds, tuple(by_time), self._goroutines())

    def _goroutines(self) -> Collection[int] | None:
        found = self._begun.meter.take().rows
        if any(row.values is None for row in found):
            return None
        return {int(plain(value)) for row in found for value in row.values or ()}

    def close(self) -> None:
        self._opened.close()
