# SPDX-License-Identifier: Apache-2.0
"""What runs: the engine, and where its results go."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.config import Config, load_config
from gotrace.fleet.engine import DETAILS, Engine, StartSpan, measure_cost
from gotrace.fleet.exposition import EngineCollector, OtlpCounts, Reloads, registry_of
from gotrace.fleet.web import Health, ProfileKind, WebServer
from gotrace.kernel.features import has_multi_links
from gotrace.kernel.keeper import hold_leanly
from gotrace.kernel.privileges import Capability, keep_only
from gotrace.kernel.program_cache import compile_apart
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.spans import SpanReader

__all__ = ["Daemon"]

log = logging.getLogger("gotraced")


class Daemon:
    """An engine, its endpoint, its exporter, and the file that says what they do."""

    def __init__(self, path: str, config: Config) -> None:
        """Listen. Raises GotraceError where that is not possible."""
        self._path = path
        self._reloads = Reloads()
        self._web: WebServer | None = None
        self._own_health: WebServer | None = None
        self._export: _Exporter | None = None
        self._sent = OtlpCounts()  # by exporters that are gone
        self._stopping = threading.Event()
        hold_leanly()
        compile_apart()
        self._engine = Engine(config, measure_cost())
        _give_up_rights(config)
        self._web = self._web_server(config)
        self._own_health = self._health_server(config)
        self._export = self._exporter(config)
        self._engine.start_span = self._export.start_span if self._export else None

    def _web_server(self, config: Config) -> WebServer | None:
        """Return what answers at an address, the one there is where it is the same.

        Raises GotraceError.
        """
        listen, before = config.listen, self._web
        if before is not None and (before.listen, before.spec) == (listen, config.web):
            return before
        if listen is None:
            return None
        engine = self._engine
        registry = registry_of(EngineCollector(engine, self._reloads, self._otlp_counts))
        web = WebServer(
            listen, registry, self._health(), self._profile, beside=before, spec=config.web
        )
        log.info("listening on %s:%d", listen.host, web.port)
        return web

    def _health_server(self, config: Config) -> WebServer | None:
        """Return what answers for health alone. Raises GotraceError."""
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
        """Return what sends, the one there is where it is the same. Raises GotraceError."""
        made_of = _exported(config)
        if config.otlp is None or (self._export is not None and self._export.made_of == made_of):
            return self._export if config.otlp is not None else None
        return _Exporter(self._engine, config)

    def _otlp_counts(self) -> OtlpCounts | None:
        export = self._export
        found = OtlpCounts()
        found.add(self._sent)
        if export is not None:
            found.add(export.counts())
        return found if export is not None or found.items else None

    def begin(self) -> None:
        """Attach what there is."""
        began = time.monotonic()
        self._engine.turn()
        attached = sum(status.attached for status in self._engine.statuses())
        log.info("%d probes attached in %.1f s", attached, time.monotonic() - began)

    def turn(self) -> float:
        """Do what is due, and return in how many seconds something may be due again."""
        return self._engine.turn()

    def ask_to_stop(self) -> None:
        """Have a turn end soon; may be called in a signal handler."""
        self._stopping.set()
        self._engine.ask_to_stop()

    def reload(self) -> None:
        """Read the file again: do all that it asks for, or go on as before if anything fails."""
        engine = self._engine
        try:
            with ExitStack() as undo:
                config = load_config(self._path)
                web = self._web_server(config)
                if web is not None and web is not self._web:
                    undo.callback(web.close)
                health = self._health_server(config)
                if health is not None and health is not self._own_health:
                    undo.callback(health.close)
                export = self._exporter(config)
                if export is not None and export is not self._export:
                    undo.callback(export.close)
                start_span = export.start_span if export else None
                engine.reload(config, start_span, keeps_spans=export is self._export)
                undo.pop_all()
        except Exception as error:  # whatever it is: what there is goes on
            self._reloads.failed += 1
            known = isinstance(error, GotraceError | OSError | ModuleNotFoundError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            log.error("not reloaded: %s", printable(reason), exc_info=not known)
            return
        web, self._web = self._web, web
        export, self._export = self._export, export
        health, self._own_health = self._own_health, health
        for server, now in ((web, self._web), (health, self._own_health)):
            if server is not None and server is not now:
                server.close()
        if export is not None and export is not self._export:
            self._sent.add(export.close(self._export))
        self._reloads.done += 1
        log.info("reloaded %s", printable(self._path))

    def close(self) -> None:
        """Detach everything, send the last of it and stop listening."""
        self._stopping.set()
        with ExitStack() as ending:
            for server in (self._own_health, self._web):
                if server is not None:
                    ending.callback(server.close)
            if self._export is not None:
                ending.callback(self._export.close)
            ending.callback(self._engine.close)


class _Exporter:
    """What sends metrics and spans to a collector."""

    def __init__(self, engine: Engine, config: Config) -> None:
        """Begin to send metrics. Raises GotraceError, ModuleNotFoundError."""
        from gotrace.fleet.otlp import Otlp  # loads the SDK: 20 MB

        assert config.otlp is not None
        self.made_of = _exported(config)
        self.otlp = Otlp(config.otlp, engine.collect, config.targets, waits=engine.waits)
        self._reader: SpanReader | None = None
        if config.spans:
            from gotrace.fleet.spans import SpanReader

            self._reader = SpanReader(self.otlp)

    @property
    def start_span(self) -> StartSpan | None:
        """Return what attaches probes of spans, None where there are no spans."""
        return self._reader.start_probe if self._reader else None

    def close(self, heir: _Exporter | None = None) -> OtlpCounts:
        """Send the last of it, and return how much was sent; no span probe is attached now."""
        if self._reader is not None:
            self._reader.close()
        self.otlp.close(heir.otlp if heir else None)
        return self.counts()

    def counts(self) -> OtlpCounts:
        """Return what has become of points and spans."""
        otlp = self.otlp
        return OtlpCounts(
            Counter(otlp.counts()), Counter(otlp.dropped()), Counter(otlp.failures()), otlp.waiting
        )


#: What following targets takes, for as long as it goes on, since any may be replaced or restarted:
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
    """Return what an exporter is made of."""
    pods = [(target.name, target.kubernetes) for target in config.targets if target.kubernetes]
    return config.otlp, bool(config.spans), pods
