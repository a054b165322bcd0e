# SPDX-License-Identifier: Apache-2.0
"""The running daemon: the engine, and where its results go."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.asked import Snippet, Snippets, beside
from gotrace.fleet.config import Config, load_config
from gotrace.fleet.control import Control, ControlOrder, settle
from gotrace.fleet.engine import Engine, measure_cost
from gotrace.fleet.exposition import EngineCollector, OtlpCounts, Reloads, registry_of
from gotrace.fleet.jobs import StartSpan
from gotrace.fleet.probing import DETAILS
from gotrace.fleet.telemetry.runtime import RuntimeWatch
from gotrace.fleet.threads import apart, note_failure
from gotrace.fleet.web import Health, ProfileKind, WebServer
from gotrace.kernel.features import has_multi_links
from gotrace.kernel.keeper import hold_together
from gotrace.kernel.privileges import Capability, keep_only
from gotrace.kernel.program_cache import compile_apart
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.spans import SpanReader

log = logging.getLogger("gotraced")

_ORDERS = 0.2  # seconds that an order waits at most
_AGAIN = 1.0  # seconds until a turn that has failed is followed by the next


class Daemon:
    """An engine, its endpoint, its exporter, and the file that says what they do."""

    def __init__(self, path: str, config: Config, control: str | None = None) -> None:
        """Listen, at ``control`` for root's requests. Raises GotraceError if that fails."""
        self._path = path
        self._asked = Snippets(config)
        self._control: Control | None = None
        if control is not None:
            self._control = Control(control, lambda: self._asked.file)
        self._reloads = Reloads()
        self._web: WebServer | None = None
        self._own_health: WebServer | None = None
        self._export: _Exporter | None = None
        self._sent = OtlpCounts()  # by exporters that are gone
        self._stopping = threading.Event()
        compile_apart()
        engine = self._engine = Engine(config, measure_cost())
        self._runtimes = RuntimeWatch(lambda: engine.config, engine.programs)
        _give_up_rights(config)
        hold_together()
        self._web = self._web_server(config)
        self._own_health = self._health_server(config)
        self._export = self._exporter(config)
        self._engine.send_spans(self._export.start_span if self._export else None)

    def _web_server(self, config: Config) -> WebServer | None:
        """Return the server at an address: the one there is if it is the same.

        Raises GotraceError.
        """
        listen, before = config.listen, self._web
        if before is not None and (before.listen, before.spec) == (listen, config.web):
            return before
        if listen is None:
            return None
        engine = self._engine
        collector = EngineCollector(engine, self._reloads, self._otlp_counts, self._runtimes.rows)
        registry = registry_of(collector)
        web = WebServer(
            listen, registry, self._health(), self._profile, beside=before, spec=config.web
        )
        log.info("listening on %s:%d", listen.host, web.port)
        return web

    def _health_server(self, config: Config) -> WebServer | None:
        """Return the server for health alone. Raises GotraceError."""
        listen, before = config.web.health, self._own_health
        if listen is None or (before is not None and before.listen == listen):
            return before if listen is not None else None
        web = WebServer(listen, None, self._health(), beside=before)
        log.info("health at %s:%d", listen.host, web.port)
        return web

    def _health(self) -> Health:
        engine = self._engine
        return Health(lambda: engine.pulse, lambda: engine.is_ready)

    def _profile(self, kind: ProfileKind, target: str, pid: int | None, seconds: int) -> bytes:
        """Return a profile of a target's process; called by threads of the server.

        Raises GotraceError, NoMatchError where there is none.
        """
        engine = self._engine
        if not engine.config.pprof:
            raise NoMatchError("profiles are off: the configuration has no pprof: true")
        pid, program = engine.process(target, pid)
        share = engine.config.budget
        from gotrace.fleet.telemetry.profiles import take_profile  # 3 MB

        return take_profile(kind, pid, program, seconds, engine.cost, share, self._stopping)

    def _exporter(self, config: Config) -> _Exporter | None:
        """Return the exporter: the one there is if it is the same. Raises GotraceError."""
        made_of = _exported(config)
        if config.otlp is None or (self._export is not None and self._export.made_of == made_of):
            return self._export if config.otlp is not None else None
        return _Exporter(self._engine, config, self._runtimes)

    def _otlp_counts(self) -> OtlpCounts | None:
        export = self._export
        found = OtlpCounts()
        found.add(self._sent)
        if export is not None:
            found.add(export.counts())
        return found if export is not None or found.items else None

    def begin(self) -> None:
        """Attach everything for the first time."""
        began = time.monotonic()
        self._engine_turn()
        if self._control is not None:
            self._control.start()
        attached = sum(status.attached for status in self._engine.statuses())
        log.info("%d probes attached in %.1f s", attached, time.monotonic() - began)

    def turn(self) -> float:
        """Do the work that is due, and return in how many seconds some may be due again."""
        if over := self._asked.over(time.monotonic()):
            with suppress(GotraceError):  # the log says so, and the next turn tries it again
                self._end(over)
                for one in over:
                    log.info("%s has ended: its time is over", printable(one.name))
        while self._control is not None and (order := self._control.take()) is not None:
            try:
                settle(order, self._obey(order))
            except GotraceError as error:
                settle(order, error)
            except Exception as error:  # a bug, which is to cost this order alone
                note_failure("engine", "control", error)
                settle(order, GotraceError(f"{type(error).__name__}: see the log"))
        return min(self._engine_turn(), _ORDERS if self._control is not None else math.inf)

    def _engine_turn(self) -> float:
        """Run a turn of the engine; if it fails, it does the rest in its next turn."""
        with apart("engine", "a turn of the engine"):
            return self._engine.turn()
        return _AGAIN

    def _obey(self, order: ControlOrder) -> list[str]:
        """Obey an order of root, and return the answer. Raises GotraceError."""
        asked, begin = self._asked, order.begin
        if order.end is not None:
            one = asked.named(order.end)
            self._end((one,))
            log.info("%s has ended: root has asked for it", printable(one.name))
            return [f"{one.name} has ended"]
        if begin is None:
            return [self._told(one) for one in asked.snippets] or ["nothing is asked for"]
        asked.check(begin)
        snippets = (*asked.snippets, begin)
        config = beside(asked.file, snippets)  # a name may have been taken meanwhile
        if (problem := self._go_over(lambda: config, f"{begin.name} has not begun")) is not None:
            raise GotraceError(problem)
        asked.snippets = snippets
        left = round(begin.ends - time.monotonic())
        log.info("%s has begun, for %d s: root has asked for it", printable(begin.name), left)
        self._engine.turn()
        problems = [one for metric in begin.metrics for one in self._engine.problems(metric.name)]
        return [self._told(begin), *problems]

    def _end(self, snippets: Sequence[Snippet]) -> None:
        """End snippets. Raises GotraceError."""
        kept = tuple(one for one in self._asked.snippets if one not in snippets)
        config = beside(self._asked.file, kept)
        names = ", ".join(one.name for one in snippets)
        if (problem := self._go_over(lambda: config, f"{names}: not ended")) is not None:
            raise GotraceError(problem)
        self._asked.snippets = kept

    def _told(self, one: Snippet) -> str:
        """Return how something fares that is asked for."""
        names = {metric.name for metric in one.metrics}
        attached = over = 0
        for status in self._engine.statuses():
            if status.job in names:
                attached, over = attached + status.attached, over + status.over_budget
        left = max(0, round(one.ends - time.monotonic()))
        text = f"{one.name}: {', '.join(sorted(names))}: {left} s left, budget {one.budget:.2%}"
        text += f", {attached} attached"
        return text + (f", {over} times over the budget" if over else "")

    def ask_to_stop(self) -> None:
        """End a turn soon; may be called in a signal handler."""
        self._stopping.set()
        self._engine.ask_to_stop()

    def reload(self) -> None:
        """Read the file again: do all that it asks for, or go on as before if anything fails.

        Root's snippets go on, unless the file has the same names.
        """
        file, kept, problems = self._asked.file, self._asked.snippets, list[str]()

        def make() -> Config:
            nonlocal file, kept, problems
            file = load_config(self._path)
            kept, problems = self._asked.fitting(file)
            return beside(file, kept)

        if self._go_over(make, "not reloaded") is not None:
            self._reloads.failed += 1
            return
        self._asked = Snippets(file, kept)
        for problem in problems:
            log.warning("ended by the reload: %s", printable(problem))
        self._reloads.done += 1
        log.info("reloaded %s", printable(self._path))

    def _go_over(self, make: Callable[[], Config], what: str) -> str | None:
        """Do all that a configuration asks for, or nothing; return why it fails, None else.

        ``make`` makes it, and ``what`` is what the log says of a failure.
        """
        engine = self._engine
        try:
            with ExitStack() as undo:
                config = make()
                web = self._web_server(config)
                if web is not None and web is not self._web:
                    undo.callback(web.close)
                health = self._health_server(config)
                if health is not None and health is not self._own_health:
                    undo.callback(health.close)
                export = self._exporter(config)
                if export is not None and export is not self._export:
                    undo.callback(export.close)
                engine.reload(config, export.start_span if export else None)
                undo.pop_all()
        except Exception as error:  # whatever it is: what there is goes on
            known = isinstance(error, GotraceError | OSError | ModuleNotFoundError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            log.error("%s: %s", what, printable(reason), exc_info=not known)
            return reason
        web, self._web = self._web, web
        export, self._export = self._export, export
        health, self._own_health = self._own_health, health
        for server, now in ((web, self._web), (health, self._own_health)):
            if server is not None and server is not now:
                server.close()
        if export is not None and export is not self._export:
            self._sent.add(export.close(self._export))
        return None

    def close(self) -> None:
        """Detach everything, send the last of it and stop listening."""
        self._stopping.set()
        with ExitStack() as ending:
            ending.callback(self._runtimes.close)
            if self._control is not None:
                ending.callback(self._control.close)
            for server in (self._own_health, self._web):
                if server is not None:
                    ending.callback(server.close)
            if self._export is not None:
                ending.callback(self._export.close)
            ending.callback(self._engine.close)


class _Exporter:
    """A sender of metrics and spans to a collector."""

    def __init__(self, engine: Engine, config: Config, runtimes: RuntimeWatch) -> None:
        """Begin to send metrics. Raises GotraceError, ModuleNotFoundError."""
        from gotrace.fleet.otlp import Otlp  # loads the SDK: 20 MB

        assert config.otlp is not None
        self.made_of = _exported(config)
        more = engine.waits, runtimes.rows
        self.otlp = Otlp(config.otlp, engine.collect, config.targets, None, *more)
        self._reader: SpanReader | None = None
        if config.spans:
            from gotrace.fleet.spans import SpanReader

            self._reader = SpanReader(self.otlp)

    @property
    def start_span(self) -> StartSpan | None:
        """Return the function that starts a probe for spans, or None if no spans are sent."""
        return self._reader.start_probe if self._reader else None

    def close(self, heir: _Exporter | None = None) -> OtlpCounts:
        """Send the last of it, and return how much was sent; no span probe is attached now."""
        if self._reader is not None:
            self._reader.close()
        self.otlp.close(heir.otlp if heir else None)
        return self.counts()

    def counts(self) -> OtlpCounts:
        """Return the counts of points and spans, by their fate."""
        otlp = self.otlp
        return OtlpCounts(
            Counter(otlp.counts()), Counter(otlp.dropped()), Counter(otlp.failures()), otlp.waiting
        )


#: The rights that following targets takes, at all times, since any may be replaced or restarted:
#: BPF programs and uprobes; what other users' processes run and are in; files that only their
#: owners can read; event buffers beyond a user's limit.
_NEEDED = (
    Capability.BPF,
    Capability.PERFMON,
    Capability.SYS_PTRACE,
    Capability.DAC_READ_SEARCH,
    Capability.IPC_LOCK,
)
#: Uprobes, and limits of descriptors and of locked memory, before Linux 6.6.
_NEEDED_BEFORE = (Capability.SYS_ADMIN, Capability.SYS_RESOURCE)


def _give_up_rights(config: Config) -> None:
    """Give up what attaching to more programs does not take.

    After having the kernel time programs, which takes more, and before there are other threads.
    """
    needed = list(_NEEDED)
    if not has_multi_links():
        needed += _NEEDED_BEFORE
    if config.listen is not None and 0 < config.listen.port < _PRIVILEGED_PORTS:
        needed.append(Capability.NET_BIND_SERVICE)
    try:
        left = keep_only(needed)
    except OSError as error:
        log.warning("rights that are not needed are kept: %s", error)
    else:
        DETAILS.info("capabilities: %s", ", ".join(sorted(each.name for each in left)) or "none")


_PRIVILEGED_PORTS = 1024


def _exported(config: Config) -> tuple[object, ...]:
    """Return the settings that an exporter is made of."""
    pods = [(target.name, target.kubernetes) for target in config.targets if target.kubernetes]
    return config.otlp, bool(config.spans), pods
