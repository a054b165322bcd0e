# SPDX-License-Identifier: Apache-2.0
"""What runs: the engine, and where its results go."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.config import Config, Listen, SpanSpec, load_config
from gotrace.fleet.engine import Engine, measure_cost
from gotrace.fleet.exposition import EngineCollector, Reloads, registry_of
from gotrace.fleet.probing import Cost, Probe
from gotrace.fleet.targets import Program
from gotrace.fleet.web import Health, ProfileKind, WebServer
from gotrace.kernel.features import has_multi_links
from gotrace.kernel.keeper import hold_leanly
from gotrace.kernel.privileges import Capability, keep_only
from gotrace.kernel.program_cache import compile_apart
from gotrace.target.target import Target
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.otlp import Otlp
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
        self._otlp: Otlp | None = None
        self._reader: SpanReader | None = None
        self._sent: Counter[tuple[str, str]] = Counter()  # by exporters that are gone
        self._stopping = threading.Event()
        hold_leanly()
        compile_apart()
        self._engine = Engine(config, measure_cost(), self._start_span)
        _give_up_rights(config)
        self._listen(config.listen)
        self._export(config)

    def _listen(self, listen: Listen | None) -> None:
        if self._web is not None:
            self._web.close()
            self._web = None
        if listen is None:
            return
        engine = self._engine
        registry = registry_of(EngineCollector(engine, self._reloads, self._otlp_counts))
        health = Health(lambda: engine.pulse, lambda: engine.is_ready)
        self._web = WebServer(listen, registry, health, self._profile)
        log.warning("listening on %s:%d", listen.host, self._web.port)

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

    def _export(self, config: Config) -> None:
        """Go over to another collector; no span probe is attached now."""
        self._end_export()
        if config.otlp is None:
            return
        from gotrace.fleet.otlp import Otlp  # loads the SDK: 20 MB

        engine = self._engine
        self._otlp = Otlp(config.otlp, engine.collect, config.targets, waits=engine.waits)
        if config.spans:
            from gotrace.fleet.spans import SpanReader

            self._reader = SpanReader(self._otlp)

    def _end_export(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._otlp is not None:
            self._otlp.close()
            self._sent.update(self._otlp.counts())
            self._otlp = None

    def _otlp_counts(self) -> dict[tuple[str, str], int]:
        otlp = self._otlp
        return dict(self._sent + Counter(otlp.counts() if otlp else {}))

    def _start_span(
        self,
        specs: Sequence[SpanSpec],
        program: Program,
        target: Target,
        cost: Cost,
        share: float,
    ) -> Probe:
        assert self._reader is not None
        return self._reader.start_probe(specs, program, target, cost, share)

    def begin(self) -> None:
        """Attach what there is."""
        began = time.monotonic()
        self._engine.turn()
        attached = sum(status.attached for status in self._engine.statuses())
        log.warning("%d probes attached in %.1f s", attached, time.monotonic() - began)

    def turn(self) -> None:
        """Do what is due."""
        self._engine.turn()

    def ask_to_stop(self) -> None:
        """Have a turn end soon; may be called in a signal handler."""
        self._stopping.set()
        self._engine.ask_to_stop()

    def reload(self) -> None:
        """Read the file again; where it is wrong, go on as before."""
        before = self._engine.config
        try:
            config = load_config(self._path)
            if config.listen != before.listen:
                self._listen(config.listen)
        except GotraceError as error:
            self._reloads.failed += 1
            log.error("not reloaded: %s", printable(str(error)))
            return
        self._engine.reload(config)
        if _exported(config) != _exported(before):
            self._export(config)
        self._reloads.done += 1
        log.warning("reloaded %s", printable(self._path))

    def close(self) -> None:
        """Detach everything, send the last of it and stop listening."""
        self._stopping.set()
        with ExitStack() as ending:
            if self._web is not None:
                ending.callback(self._web.close)
            ending.callback(self._end_export)
            ending.callback(self._engine.close)


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
        log.info("capabilities: %s", ", ".join(sorted(each.name for each in left)) or "none")


_PRIVILEGED_PORTS = 1024


def _exported(config: Config) -> tuple[object, ...]:
    """Return what an exporter is made of."""
    pods = [(target.name, target.kubernetes) for target in config.targets if target.kubernetes]
    return config.otlp, config.spans, pods
