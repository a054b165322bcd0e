# SPDX-License-Identifier: Apache-2.0
"""Optional probes of a monitor: waits by stack, and calls of functions.

Each says what it will take of a CPU before it is attached, and both are the runs that ``gooffcpu``
and ``gofunclatency`` have, read at each snapshot.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

from gotrace.closing import Closing
from gotrace.elf.buildinfo import main_module
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.model import Frame
from gotrace.goroutines.program import CodeNames
from gotrace.gotypes.wait_reasons import WaitFor, meaning_of
from gotrace.histogram import Histogram
from gotrace.live.model import Attachment, FunctionRow, WaitGroupRow, WaitUse
from gotrace.overhead import ProbeCost
from gotrace.probes.recipes import find_recipe, recipes_keys, split_recipe
from gotrace.probes.spec import parse_key
from gotrace.records import dataclass, field
from gotrace.results.rows import Row
from gotrace.session.calibrate import Calibration, probe_cost
from gotrace.session.choices import WaitState
from gotrace.session.count import CountRequest
from gotrace.session.keys import KeyMeter, KeyOptions, KeyPeriod, KeyRequest, key_of
from gotrace.session.latency import LatencyMeter, LatencyOptions, LatencyRequest, Measurement
from gotrace.session.request import Asked
from gotrace.session.row_cells import RowStack
from gotrace.session.run import Run, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.waits.meter import WaitMeter, WaitRequest
from gotrace.session.waits.naming import WaitChoice, named_waits, waker_label
from gotrace.session.why.price import price_of
from gotrace.sites.records import SiteForm
from gotrace.target.target import Target
from gotrace.values.model import Value

#: Snapshots whose numbers are kept, and rows that are kept while they have none.
HISTORY = 300
_MAX_ROWS = 2000
_COUNTING = 0.2  # seconds
_MAX_WAIT = 1.5  # seconds, for the cost of a hit
_USUAL_HIT = 1000  # ns
_READING = 0.02  # seconds
_IDLE = 60.0  # seconds after which a key gives its row to another one


@dataclass(frozen=True, slots=True)
class AttachPrice:
    """The price of an attachment: ``share`` is the part of one CPU, ``text`` the message."""

    text: str
    share: float


#: Is shown a price before it is paid, and raises GotraceError if that is not wanted.
AcceptPrice = Callable[[AttachPrice], None]


_K = TypeVar("_K")


def percent(share: float) -> str:
    """Return a part of a CPU as prices have it."""
    return f"{100 * share:.{1 if share < 0.1 else 0}f}%"


@dataclass
class _History(Generic[_K]):
    """The latest numbers of rows that come and go."""

    numbers: dict[_K, deque[int]] = field(default_factory=dict)

    def add(self, found: Mapping[_K, int]) -> None:
        """Take the numbers of a snapshot; rows that it does not have get 0."""
        for key in found:
            self.numbers.setdefault(key, deque(maxlen=HISTORY))
        for key, numbers in self.numbers.items():
            numbers.append(found.get(key, 0))
        if len(self.numbers) > _MAX_ROWS:
            self.numbers = {k: n for k, n in self.numbers.items() if any(n)}

    def of(self, key: _K) -> tuple[int, ...]:
        return tuple(self.numbers[key])


def _passed(since: float) -> tuple[float, float]:
    now = time.monotonic()
    return now - since, now


#: Recipes of functions that a server calls for each request, which its handlers are within.
SERVERS = ("http.server", "grpc.handler")
#: Up to Go 1.19 a lock's reason is that of any semaphore.
LOCKS = frozenset({WaitFor.LOCK, WaitFor.SEMAPHORE})
#: The functions by which packages wait for a semaphore; the runtime has its own.
_SEMAPHORES = ".runtime_Semacquire"


def is_runtimes(reason: str, names: Iterable[str]) -> bool:
    """Return whether a wait is the runtime's own, for its collector; innermost names first."""
    wait_for = meaning_of(reason).wait_for
    if wait_for is WaitFor.SEMAPHORE:
        return not any(_SEMAPHORES in name for name in names)
    return wait_for is WaitFor.COLLECTOR


def _is_lock(names: Collection[str]) -> bool:
    """Return whether a semaphore is of a lock: up to Go 1.24 it may be of a group, too."""
    return any(_SEMAPHORES in name for name in names) and "sync.(*WaitGroup).Wait" not in names


class WaitUses:
    """The uses of waits, by their stacks in a program of this main module, None if not known."""

    def __init__(self, module: str | None) -> None:
        self._own = ("main.", *((f"{module}/", f"{module}.") if module else ()))
        recipes = map(find_recipe, SERVERS)
        self._servers = {probe.function for recipe in recipes for probe in recipe.probes}

    def of(self, reason: str, stack: RowStack, roots: Collection[str]) -> WaitUse:
        """Return whose a wait is; ``roots`` begin requests, beside the functions of servers."""
        names = [frame.function for frame in stack.frames if frame.function != "runtime.goexit"]
        wait_for = meaning_of(reason).wait_for
        if wait_for is WaitFor.LOCK or (wait_for is WaitFor.SEMAPHORE and _is_lock(names)):
            return WaitUse.REQUEST
        if any(name in self._servers or name in roots for name in names):
            return WaitUse.REQUEST
        within = names if stack.is_cut else names[:-1]  # without that which a goroutine began with
        return WaitUse.WORK if any(n.startswith(self._own) for n in within) else WaitUse.IDLE


class WaitWatch(Closing):
    """Where goroutines wait, from when this is made on; a context manager that detaches."""

    def __init__(self, target: Target, accept: AcceptPrice | None) -> None:
        """Attach. Raises GotraceError."""
        self.share = 0.0

        def accept_probes(probes: SchedulerProbes) -> None:
            price = price_of(probes, None)
            self.share = price.share
            if accept is not None:
                text = (
                    f"this program changes {round(price.changes):,} states a second: waits will"
                    f" take about {percent(price.share)} of one CPU"
                )
                accept(AttachPrice(text, price.share))

        request = WaitRequest(target=target)
        self._run: Run[WaitMeter, None] = open_run(request, accept=accept_probes)
        self._run.begin()
        self._taken = time.monotonic()
        self._uses = WaitUses(main_module(target.binary(None).image))
        #: How long the latest reading is of.
        self.seconds = 0.0
        self._history: _History[tuple[str, tuple[Frame, ...]]] = _History()
        #: Who ended most of their time, and whose they are.
        self._known: dict[tuple[str, tuple[Frame, ...]], tuple[str | None, WaitUse]] = {}
        #: The latest sums, as gooffcpu prints them.
        self.latest: list[Row] = []
        self.others = (0, 0)

    @property
    def program(self) -> CodeNames:
        """Return the names of addresses in stacks."""
        return self._run.meter.program

    @property
    def attachment(self) -> Attachment:
        return Attachment("waits", self.share)

    def take(self, roots: Collection[str] = ()) -> list[WaitGroupRow]:
        """Return the waits that ended since the last time.

        Those of requests come first, which calls of ``roots`` begin as well; then those that took
        most.
        """
        self._run.is_over(0)
        seconds, self._taken = _passed(self._taken)
        self.seconds = seconds
        period, program = self._run.meter.take(), self.program
        choice = WaitChoice()
        self.latest = named_waits(program, WaitState.WAITING, period.rows, choice)
        self.others = period.others
        groups: dict[tuple[str, tuple[Frame, ...]], list[Row]] = {}
        for wait in self.latest:
            frames = tuple(wait["stack"].shown(False))
            groups.setdefault((wait["reason"] or "", frames), []).append(wait)
        self._history.add(
            {key: sum(one["delay_ns"] for one in found) for key, found in groups.items()}
        )
        rows = []
        for key in self._history.numbers:
            reason, frames = key
            found = groups.get(key, [])
            most = max(found, key=lambda one: one["delay_ns"], default=None)
            if most is not None:
                use = self._uses.of(reason, most["stack"], roots)
                self._known[key] = waker_label(most) or self._known.get(key, (None,))[0], use
            waker, use = self._known[key]
            count = sum(one["count"] for one in found)
            ns = sum(one["delay_ns"] for one in found)
            history = self._history.of(key)
            rows.append(WaitGroupRow(seconds, reason, frames, waker, count, ns, history, use))
        return sorted(rows, key=lambda row: row.rank)

    def close(self) -> None:
        self._run.close()


def plain(value: Value) -> str:
    """Return a value of a recipe's key: a text without quotes."""
    from gotrace.values.go_syntax import by_text

    return by_text(value).strip('"')


def recipe_keys(patterns: Sequence[str]) -> Sequence[str]:
    """Return the keys of recipes, with routes in place of paths: of these there is no end."""
    keys = recipes_keys(patterns) or ()
    probes = [
        probe for text in patterns if keys for probe in find_recipe(split_recipe(text)[1]).probes
    ]
    has_routes = all("route" in dict(probe.names) for probe in probes)
    return [re.sub(r"\bpath\b", "route", key) for key in keys] if has_routes else keys


def calls_price(target: Target, patterns: Sequence[str]) -> AttachPrice:
    """Count the calls for a moment; return the price of measuring them. Raises GotraceError."""
    asked = Asked(patterns)
    with Calibration(lambda: probe_cost(SiteForm.EMULATED, None)) as calibration:
        if asked.has_recipes:
            found, _ = asked.probes(target, formats=False)
            asked = Asked([probe.pattern for probe in found])
        with open_run(CountRequest(target=target, asked=asked, is_strict=False)) as run:
            run.begin()
            began = time.monotonic()
            run.is_over(_COUNTING)
            calls = sum(run.meter.take()) / (time.monotonic() - began)
            count = len(run.plan.functions)
        try:
            hit = calibration.cost(_MAX_WAIT).hit
        except (GotraceError, OSError):
            hit = _USUAL_HIT
    share = 2 * calls * hit / 1e9
    what = "1 function is" if count == 1 else f"{count:,} functions are"
    return AttachPrice(
        f"{what} called {round(calls):,} times a second: measuring that will take about"
        f" {percent(share)} of one CPU",
        share,
    )


#: The key by which a function's calls are added up to find its errors.
_BY_FUNCTION = parse_key("$func")


class FunctionWatch(Closing):
    """Calls of functions, from when this is made on; a context manager that detaches."""

    def __init__(self, target: Target, patterns: Sequence[str], accept: AcceptPrice | None) -> None:
        """Attach. Raises GotraceError, NoMatchError among these."""
        if not patterns:
            raise UsageError("no functions were given: type a pattern, such as 'main.*'")
        asked = Asked(patterns)
        self.patterns = tuple(patterns)
        self.key = key_of(recipe_keys(patterns))
        self.share = 0.0
        price = calls_price(target, patterns)
        self.share = price.share
        if accept is not None:
            accept(price)
        request: LatencyRequest | KeyRequest
        if asked.has_recipes:
            options = KeyOptions(times=True, intervals=True)
            request = KeyRequest(
                target=target,
                asked=asked,
                verb="measure",
                done="measured",
                key=self.key,
                follows_returns=True,
                options=options,
            )
        else:
            by_function = LatencyOptions(per_function=True, intervals=True)
            request = LatencyRequest(target=target, asked=asked, options=by_function)
        with ExitStack() as opened:
            self._errors = None if asked.has_recipes else self._open_errors(target, opened)
            self.run: Run[LatencyMeter, ProbeCost] | Run[KeyMeter, ProbeCost] = (
                opened.enter_context(open_run(request))
            )
            if self._errors is not None:
                self._errors.begin()
            self.run.begin()
            self._take_errors()  # of calls before that
            self._opened = opened.pop_all()
        self._history: _History[tuple[str, str]] = _History()
        #: The latest times, as gofunclatency prints them.
        self.latest: Measurement | KeyPeriod | None = None
        self._taken = self.run.began
        #: How long the latest reading is of.
        self.seconds = 0.0

    def _open_errors(self, target: Target, opened: ExitStack) -> Run[KeyMeter, ProbeCost] | None:
        """Attach to functions that return errors, as well; None if no function is known to."""
        probes = [f"{pattern} ($err != nil)" for pattern in self.patterns]
        request = KeyRequest(
            target=target,
            asked=Asked(probes),
            key=_BY_FUNCTION,
            verb="count",
            done="counted",
            is_strict=False,
        )
        try:
            run = opened.enter_context(open_run(request))
        except GotraceError:
            return None
        return run

    @property
    def attachment(self) -> Attachment:
        return Attachment(f"calls of {', '.join(self.patterns)}", self.share)

    def take(self) -> list[FunctionRow]:
        """Return the functions with their calls since the last time, most time first."""
        self.run.is_over(0)
        meter = self.run.meter
        if isinstance(meter, LatencyMeter):
            meter.poll(time.monotonic() + _READING)
        else:
            meter.poll()
            meter.forget_idle(_IDLE)
        errors = self._take_errors()
        began = time.monotonic()
        self.latest = meter.take()  # last: it waits for programs that run, which can take seconds
        # Calls that come while it waits are of the next interval.
        seconds, self._taken = began - self._taken, began
        self.seconds = seconds
        names = self.run.plan.names
        found: dict[tuple[str, str], Histogram] = {}
        if isinstance(self.latest, Measurement):
            for number, times in self.latest.rows.items():
                found[names[number].text, names[number].text] = times
        else:
            for row in self.latest.rows:
                name = " ".join(map(plain, row.values)) if row.values is not None else "(others)"
                function = names[row.function].text if row.function is not None else ""
                found.setdefault((name, function), Histogram()).merge(row.times or Histogram())
        self._history.add({name: times.count for name, times in found.items()})
        rows = []
        for key in self._history.numbers:
            times, history = found.get(key, Histogram()), self._history.of(key)
            rows.append(FunctionRow(seconds, *key, times, errors.get(key[0]), history))
        return sorted(rows, key=lambda row: (-row.times.sum, row.name))

    def _take_errors(self) -> dict[str, int]:
        """Return how many calls returned an error, of functions that can."""
        if self._errors is None:
            return {}
        self._errors.is_over(0)
        self._errors.meter.poll()
        names = self._errors.plan.names
        errors = {name.text: 0 for name in names}
        for row in self._errors.meter.take().rows:
            if row.function is not None:
                errors[names[row.function].text] += row.calls
        return errors

    def close(self) -> None:
        self._opened.close()
