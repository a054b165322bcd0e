# SPDX-License-Identifier: Apache-2.0
"""What a configuration asks for: read, checked against the schema, and taken apart."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

import jsonschema

from gotrace import units
from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.privacy import DENIED, Errors, Privacy, hashed_form, without_users
from gotrace.fleet.schema import PART, SCHEMA
from gotrace.fleet.trusted import read_trusted
from gotrace.fleet.yaml_lines import Document, Path, read_yaml
from gotrace.probes.pattern import is_recipe
from gotrace.probes.scope import did_you_mean
from gotrace.probes.spec import KeyText, parse_key, parse_probe
from gotrace.requests.flight import probes_in
from gotrace.target.containers import Container

_MAX_EXPRESSIONS = 16
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: The length of a value, and nothing else of it.
_LENGTH = re.compile(r"len\([^()]*(?:\([^()]*\))?[^()]*\)")
_MIN_HASH_KEY = 16
_HEADER_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
#: What labels say of a pod.
POD_LABELS = ("namespace", "pod", "container")
_OWN_LABELS = {"target", "function", "le", "quantile", "job", "instance"}
_OWN_PREFIXES = ("gotraced_", "process_", "python_")
#: A flight's name is the beginning of its files' names, up to the first ``-``.
_FLIGHT_NAME = re.compile(r"\w+", re.ASCII)
#: Label sets of all metrics, of all targets and of one.
#: So many histograms of 27 buckets, no two alike, take a scrape up to 2 s, packed; Prometheus waits
#: for 10 s.
_MAX_SERIES, _MAX_TARGET_SERIES = 16384, 8192
#: Files of a target, and of one whose programs have no name in common.
_MAX_FILES, _MAX_UNNAMED_FILES = 16, 256
_MAX_IDLE = 720 * 3600  # seconds
_AS_USUAL = Privacy()
_DEFAULT_BUDGET = "2%"
_WILD = set("*?[")


class MetricType(Enum):
    """What a metric is."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Protocol(Enum):
    """How OTLP is spoken."""

    HTTP = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class PodSpec:
    """Pods of Kubernetes, by patterns of names; None is any. ``container`` is one within a pod."""

    namespace: str | None = None
    pod: str | None = None
    container: str | None = None

    def matches(self, found: Container) -> bool:
        """Return whether a container is one of these; what has no names is none."""
        return all(
            pattern is None or (name is not None and fnmatchcase(name, pattern))
            for pattern, name in (
                (self.namespace, found.namespace),
                (self.pod, found.pod),
                (self.container, found.name),
            )
        )

    def attributes(self) -> dict[str, str]:
        """Return what all of these have in common, as attributes of a resource."""
        named = Container("", None, self.namespace, self.pod, self.container).attributes()
        return {key: value for key, value in named.items() if value and not _WILD & set(value)}


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Programs to look for: of one path or name, or all those in a control group or in pods."""

    name: str
    exe: str | None = None
    comm: str | None = None
    cgroup: str | None = None
    kubernetes: PodSpec | None = None
    #: The most label sets of all metrics.
    max_series: int = _MAX_TARGET_SERIES
    #: The number of the user whose processes are meant, None for all.
    user: int | None = None
    #: The most files that are traced at a time.
    max_files: int = _MAX_FILES


@dataclass(frozen=True, slots=True)
class Buckets:
    """Bounds of a histogram: from ``low`` to ``high``, ``per_octave`` in each power of two.

    In ns, or in what values are counted in.
    """

    low: int
    high: int
    per_octave: int = 1

    def bounds(self) -> list[int]:
        """Return the bounds, ascending, each the end of one of the kernel's buckets.

        >>> Buckets(1000, 5000).bounds()
        [512, 1024, 2048, 4096, 8192]
        """
        first = max(self.low.bit_length() - 1, 0)
        last = max(self.high - 1, 1).bit_length()
        steps = 16 // self.per_octave
        found = [
            (16 + step) << (octave - 4) if octave >= 4 else (1 << octave) + (step << octave >> 4)
            for octave in range(first, last)
            for step in range(0, 16, steps)
        ]
        return sorted({*found, 1 << last})


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``targets`` are names; ``labels`` and ``key`` go together."""

    name: str
    type: MetricType
    probe: str
    targets: tuple[str, ...]
    help: str
    labels: tuple[str, ...] = ()
    key: KeyText | None = None
    of: KeyText | None = None
    functions: bool = False
    series: int = 256
    open_calls: int = 8192
    buckets: Buckets | None = None
    #: Seconds without a call after which a series ends; 0 for never.
    idle: float = 3600.0
    privacy: Privacy = _AS_USUAL
    #: Labels that are hashes of their values.
    hashed: frozenset[str] = frozenset()
    #: Whether labels say which pod a call was in.
    pods: bool = False

    @property
    def bounds(self) -> list[int]:
        """Return the bounds of a histogram's buckets, in ns or what values are counted in."""
        usual = Buckets(1, 1 << 32) if self.of else Buckets(1_000, 16 * 10**9)
        return (self.buckets or usual).bounds()


@dataclass(frozen=True, slots=True)
class SpanSpec:
    """Calls to be sent as spans, at most ``rate`` a second of them for each program.

    ``why``: with what their time goes into. ``trace_context``: in the traces of the program's own
    spans that their contexts hold. ``inherit``: below the calls that have started their goroutines.
    """

    name: str | None
    probe: str
    targets: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...] = ()
    rate: float = 10.0
    why: bool = False
    trace_context: bool = True
    inherit: bool = True
    privacy: Privacy = _AS_USUAL
    #: Attributes that are hashes of their values.
    hashed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FlightSpec:
    """Files of what a program did in the ``keep`` seconds before one of ``when``.

    ``memory`` is what the kernel keeps of a program, in bytes. There are at most ``files`` of a
    target in ``folder``, and one of a program in ``every`` seconds. Without ``probes`` they have
    the calls of the program's own functions.
    """

    name: str
    targets: tuple[str, ...]
    when: tuple[str, ...]
    folder: str
    probes: tuple[str, ...] = ()
    keep: float = 5.0
    memory: int = 64 << 20
    files: int = 20
    every: float = 60.0
    form: str = "trace"
    privacy: Privacy = _AS_USUAL


@dataclass(frozen=True, slots=True)
class WaitsSpec:
    """Programs whose goroutines' waits are added up, with room for so many goroutines of each."""

    targets: tuple[str, ...]
    goroutines: int = 65536


@dataclass(frozen=True, slots=True)
class HeaderSpec:
    """A header of requests: its value, or the file or the environment's variable that has it."""

    name: str
    value: str = ""
    file: str | None = None
    env: str | None = None


@dataclass(frozen=True, slots=True)
class OtlpSpec:
    """Where metrics and spans are sent: times in seconds, ``queue`` in spans.

    ``disk`` is a directory for spans that wait, of ``disk_bytes`` at most. ``ca_file`` has the
    authorities, ``cert_file`` and ``key_file`` are shown to the collector.
    """

    endpoint: str
    protocol: Protocol
    headers: tuple[HeaderSpec, ...] = ()
    interval: float = 15.0
    timeout: float = 10.0
    queue: int = 16384
    resource: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    disk: str | None = None
    disk_bytes: int = 100 << 20


@dataclass(frozen=True, slots=True)
class Listen:
    """The address that is listened on."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WebSpec:
    """How requests are answered beside where: ``health`` alone is answered there, without TLS.

    ``config`` is a file of TLS and authentication, ``hosts`` are patterns of names of this host.
    """

    config: str | None = None
    hosts: tuple[str, ...] = ()
    health: Listen | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """What some jobs, by name, may pay together: a part of one CPU. ``name`` says whose it is."""

    name: str
    jobs: frozenset[str]
    share: float


@dataclass(frozen=True, slots=True)
class PlanningSpec:
    """What reading a program may take: bytes, seconds of CPU time, bytes of a packed section."""

    memory: int = 256 << 20
    seconds: int = 30
    section: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration; ``budget`` is the part of one CPU that each target may pay.

    ``host_budget`` is what all targets may pay together, None if nothing limits that.
    ``max_series`` is the most label sets of all metrics and targets. ``limits`` are of metrics that
    are asked for beside the file's. ``flight_memory`` is the most bytes that the kernel keeps of
    all programs for ``flights``.

    ``pprof``: whether goroutines may be read through ``listen``.
    """

    targets: tuple[TargetSpec, ...]
    metrics: tuple[MetricSpec, ...] = ()
    spans: tuple[SpanSpec, ...] = ()
    listen: Listen | None = None
    otlp: OtlpSpec | None = None
    budget: float = 0.02
    host_budget: float | None = None
    pprof: bool = False
    waits: WaitsSpec | None = None
    max_series: int = _MAX_SERIES
    web: WebSpec = field(default_factory=WebSpec)
    privacy: Privacy = _AS_USUAL
    planning: PlanningSpec = field(default_factory=PlanningSpec)
    limits: tuple[Limit, ...] = ()
    flights: tuple[FlightSpec, ...] = ()
    flight_memory: int = 256 << 20


def load_config(path: str) -> Config:
    """Read a configuration that no other user could have written. Raises UsageError.

    It decides what is read out of other programs' memory and where that is sent.
    """
    return parse_config(path, read_trusted(path))


def parse_config(name: str, text: str) -> Config:
    """Parse a configuration; ``name`` is what messages call the file.

    Raises UsageError with the line of the first thing that is wrong.
    """
    return _Reader(_checked(name, text, SCHEMA)).config()


def parse_part(name: str, text: str, base: Config) -> Config:
    """Return a configuration with the metrics, and perhaps targets, of a text beside its own.

    Raises UsageError as ``parse_config`` does.
    """
    return _Reader(_checked(name, text, PART), base.privacy).beside(base)


def _checked(name: str, text: str, schema: Mapping[str, Any]) -> Document:
    """Return a document that is as a schema wants it. Raises UsageError."""
    document = read_yaml(name, text)
    validator = jsonschema.Draft202012Validator(schema)
    errors = [_described(document, error) for error in validator.iter_errors(document.data)]
    if errors:
        # A key that is misspelt is missing, too: it is named first.
        line, reason = min(errors, key=lambda e: (e[0], not e[1].startswith("unknown"), e[1]))
        raise document.error_at(line, reason)
    return document


def _described(document: Document, error: Any) -> tuple[int, str]:
    """Return the line and the words for what a schema's check found."""
    path: Path = tuple(error.absolute_path)
    where = _spoken(path)
    line = document.line(path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", ()))
        unknown = [key for key in error.instance if key not in known]
        if known and unknown:
            line = document.line((*path, unknown[0]))
            hint = did_you_mean(unknown[0], known) or f"there is {', '.join(known)}"
            return line, f"unknown key {unknown[0]!r}{where}: {hint}"
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return line, f"{missing[0]!r} is missing{where}"
    if error.validator == "enum":
        values = ", ".join(map(str, error.validator_value))
        return line, f"{error.instance!r}{where}: give one of {values}"
    if error.validator == "type":
        kinds = error.validator_value
        wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
        return line, f"{_short(error.instance)}{where} is not of type {wanted}"
    return line, f"{error.message[:200]}{where}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _spoken(path: Path) -> str:
    """Return where something is, in words."""
    words = [str(part) if isinstance(part, str) else f"number {part + 1}" for part in path]
    return f" in {' '.join(words)}" if words else ""


@dataclass
class _Reader:
    """Take apart what the schema has accepted."""

    document: Document
    privacy: Privacy = _AS_USUAL

    def config(self) -> Config:
        data = self.document.data
        self.privacy = self._privacy(data)
        targets = tuple(self._target(number, row) for number, row in self._rows("targets"))
        self._once("targets", [target.name for target in targets])
        names = tuple(target.name for target in targets)
        metrics = tuple(self._metric(number, row, names) for number, row in self._rows("metrics"))
        self._once("metrics", [metric.name for metric in metrics])
        spans = tuple(self._span(number, row, names) for number, row in self._rows("spans"))
        otlp = self._otlp(data["otlp"]) if "otlp" in data else None
        waits = self._waits(data["waits"], names) if "waits" in data else None
        flights = tuple(self._flight(number, row, names) for number, row in self._rows("flights"))
        self._once("flights", [flight.name for flight in flights])
        if not metrics and not spans and waits is None and not flights:
            reason = "no metrics, waits, spans or flights are configured: nothing to do"
            raise self.document.error((), reason)
        if spans and otlp is None:
            raise self.document.error(("spans",), "spans are sent by OTLP: give otlp an endpoint")
        listen = self._listen("listen", data["listen"]) if "listen" in data else None
        if listen is None and otlp is None and (metrics or waits is not None):
            raise self.document.error((), "there is nowhere to send results: give listen or otlp")
        budget = self._share(("budget",), data.get("budget", _DEFAULT_BUDGET))
        pprof = data.get("pprof", False)
        if pprof and listen is None:
            raise self.document.error(("pprof",), "profiles are served by HTTP: give listen")
        host = data.get("host_budget")
        return Config(
            targets,
            metrics,
            spans,
            listen,
            otlp,
            budget,
            None if host is None else self._share(("host_budget",), host),
            pprof,
            waits,
            data.get("max_series", _MAX_SERIES),
            self._web(data),
            self.privacy,
            self._planning(data.get("planning", {})),
            flights=flights,
            flight_memory=self._flight_memory(data, flights),
        )

    def _planning(self, row: Mapping[str, int]) -> PlanningSpec:
        usual = PlanningSpec()
        return PlanningSpec(
            row.get("memory", usual.memory >> 20) << 20,
            row.get("seconds", usual.seconds),
            row.get("section", usual.section >> 20) << 20,
        )

    def beside(self, base: Config) -> Config:
        """Return a configuration with what this one has, too; no name may be there twice."""
        targets = tuple(self._target(number, row) for number, row in self._rows("targets"))
        self._once("targets", [target.name for target in targets], base.targets)
        every = (*base.targets, *targets)
        usual = tuple(target.name for target in targets or every)
        names = tuple(target.name for target in every)
        metrics = []
        for number, row in self._rows("metrics"):
            chosen = row if "targets" in row else {**row, "targets": usual}
            metrics.append(self._metric(number, chosen, names))
        self._once("metrics", [metric.name for metric in metrics], base.metrics)
        return replace(base, targets=every, metrics=(*base.metrics, *metrics))

    def _rows(self, key: str) -> Sequence[tuple[int, Mapping[str, Any]]]:
        return list(enumerate(self.document.data.get(key, ())))

    def _once(
        self, key: str, names: Sequence[str], others: Sequence[TargetSpec | MetricSpec] = ()
    ) -> None:
        seen = {one.name for one in others}
        for number, name in enumerate(names):
            if name in seen:
                raise self.document.error((key, number, "name"), f"{name!r} is there twice")
            seen.add(name)

    def _target(self, number: int, row: Mapping[str, Any]) -> TargetSpec:
        path = ("targets", number)
        if not {"exe", "comm", "cgroup", "kubernetes"} & set(row):
            reason = "a target is an exe or a comm, or what runs in a cgroup or kubernetes"
            raise self.document.error(path, reason)
        if "cgroup" in row and "kubernetes" in row:
            reason = "give cgroup or kubernetes, not both: pods have control groups of their own"
            raise self.document.error((*path, "cgroup"), reason)
        for key in ("exe", "cgroup"):
            if key in row and not row[key].startswith("/"):
                raise self.document.error((*path, key), f"{row[key]!r} is not an absolute path")
        if "exe" in row and "comm" in row:
            raise self.document.error((*path, "comm"), "give exe or comm, not both")
        exe = os.path.normpath(row["exe"]) if "exe" in row else None
        pods = PodSpec(**row["kubernetes"]) if "kubernetes" in row else None
        most = row.get("max_series", _MAX_TARGET_SERIES)
        user = self._user((*path, "user"), row["user"]) if "user" in row else None
        files = row.get(
            "max_files", _MAX_FILES if {"exe", "comm"} & set(row) else _MAX_UNNAMED_FILES
        )
        return TargetSpec(
            row["name"], exe, row.get("comm"), row.get("cgroup"), pods, most, user, files
        )

    def _user(self, path: Path, user: str | int) -> int:
        if isinstance(user, int):
            return user
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError as error:
            reason = f"no user is named {user!r} here: give the number"
            raise self.document.error(path, reason) from error

    def _metric(self, number: int, row: Mapping[str, Any], targets: tuple[str, ...]) -> MetricSpec:
        path = ("metrics", number)
        name, kind = row["name"], MetricType(row["type"])
        if not _METRIC_NAME.fullmatch(name):
            reason = f"{name!r} is not a metric's name: letters, digits and _, as in store_get"
            raise self.document.error((*path, "name"), reason)
        if name.startswith(_OWN_PREFIXES):
            raise self.document.error(
                (*path, "name"), f"{name!r}: this prefix is reserved for gotraced"
            )
        if kind is MetricType.COUNTER and name.endswith("_total"):
            bare = name.removesuffix("_total")
            raise self.document.error((*path, "name"), f"_total is added: call it {bare!r}")
        self._probe((*path, "probe"), row["probe"])
        labels: Mapping[str, Any] = row.get("labels", {})
        for label in labels:
            if not _LABEL_NAME.fullmatch(label) or label.startswith("__") or label in _OWN_LABELS:
                reason = f"{label!r} cannot be a label: letters, digits and _, and not one of "
                reason += ", ".join(sorted(_OWN_LABELS))
                raise self.document.error((*path, "labels", label), reason)
        for label in POD_LABELS if row.get("pods") else ():
            if label in labels:
                reason = f"{label!r} is a label of its own with pods: true"
                raise self.document.error((*path, "labels", label), reason)
        hashed, labels = self._private((*path, "labels"), labels)
        key = self._key((*path, "labels"), labels)
        if kind is MetricType.COUNTER:
            for only in ("of", "buckets"):
                if only in row:
                    raise self.document.error((*path, only), f"{only} is for histograms")
        of = self._key((*path, "of"), {"of": row["of"]}) if "of" in row else None
        if of is not None and len(of.expressions) > 1:
            raise self.document.error((*path, "of"), "a histogram needs one value")
        buckets = (
            self._buckets((*path, "buckets"), row["buckets"], of) if "buckets" in row else None
        )
        default = f"Calls of {row['probe']}"
        if kind is MetricType.HISTOGRAM:
            default = f"{row['of']} of {row['probe']}" if of else f"Duration of {row['probe']}"
        return MetricSpec(
            name,
            kind,
            row["probe"],
            self._targets(path, row, targets),
            row.get("help", default),
            tuple(labels),
            key,
            of,
            **{key: row[key] for key in ("functions", "series", "open_calls") if key in row},
            buckets=buckets,
            idle=self._idle(path, row),
            privacy=self.privacy,
            hashed=hashed,
            pods=row.get("pods", False),
        )

    def _span(self, number: int, row: Mapping[str, Any], targets: tuple[str, ...]) -> SpanSpec:
        path = ("spans", number)
        self._probe((*path, "probe"), row["probe"])
        if is_recipe(row["probe"]):
            raise self.document.error((*path, "probe"), "spans take a function, not a recipe")
        hashed, attributes = self._private((*path, "attributes"), row.get("attributes", {}))
        self._key((*path, "attributes"), attributes)
        rate = 10.0
        if "rate" in row:
            try:
                rate = units.per_second(row["rate"])
            except ValueError as error:
                reason = f"{row['rate']!r}: a rate is as in 10/s"
                raise self.document.error((*path, "rate"), reason) from error
        return SpanSpec(
            row.get("name"),
            row["probe"],
            self._targets(path, row, targets),
            tuple((label, _expression(text)) for label, text in attributes.items()),
            rate,
            row.get("why", False),
            row.get("trace_context", True),
            row.get("inherit", True),
            self.privacy,
            hashed,
        )

    def _waits(self, row: bool | Mapping[str, Any], targets: tuple[str, ...]) -> WaitsSpec | None:
        if isinstance(row, bool):
            return WaitsSpec(targets) if row else None
        rooms = {key: row[key] for key in ("goroutines",) if key in row}
        return WaitsSpec(self._targets(("waits",), row, targets), **rooms)

    def _flight(self, number: int, row: Mapping[str, Any], targets: tuple[str, ...]) -> FlightSpec:
        path = ("flights", number)
        name, folder = row["name"], row["folder"]
        if not _FLIGHT_NAME.fullmatch(name):
            reason = f"{name!r} cannot be a flight's name: letters, digits and _"
            raise self.document.error((*path, "name"), reason)
        if not folder.startswith("/"):
            raise self.document.error((*path, "folder"), f"{folder!r} is not an absolute path")
        for key in ("when", "probes"):
            for at, text in enumerate(row.get(key, ())):
                self._flight_probe((*path, key, at), text, [text] if key == "probes" else None)
        try:
            probes_in(row["when"])
        except UsageError as error:
            raise self.document.error((*path, "when"), str(error)) from error
        return FlightSpec(
            name,
            self._targets(path, row, targets),
            tuple(row["when"]),
            os.path.normpath(folder),
            tuple(row.get("probes", ())),
            self._seconds((*path, "keep"), row.get("keep", "5s")),
            self._bytes((*path, "memory"), row.get("memory", "64MiB")),
            every=self._seconds((*path, "every"), row.get("every", "1m")),
            **{key: row[key] for key in ("files", "form") if key in row},
            privacy=self.privacy,
        )

    def _flight_probe(self, path: Path, text: str, probes: Sequence[str] | None) -> None:
        """Check a condition, or a probe that calls are kept of."""
        if is_recipe(text):
            raise self.document.error(path, "flights take functions, not recipes")
        try:
            probes = probes_in([text]) if probes is None else probes
        except UsageError as error:
            raise self.document.error(path, str(error)) from error
        for probe in probes:
            self._probe(path, probe)

    def _flight_memory(self, data: Mapping[str, Any], flights: Sequence[FlightSpec]) -> int:
        most = self._bytes(("flight_memory",), data.get("flight_memory", "256MiB"))
        for number, flight in enumerate(flights):
            if flight.memory > most:
                reason = f"{flight.memory >> 20}MiB are more than flight_memory, {most >> 20}MiB"
                raise self.document.error(("flights", number, "memory"), reason)
        return most

    def _bytes(self, path: Path, text: str) -> int:
        try:
            return units.size(text)
        except ValueError as error:
            raise self.document.error(path, f"{text!r}: a size is as in 64MiB") from error

    def _targets(
        self, path: Path, row: Mapping[str, Any], targets: tuple[str, ...]
    ) -> tuple[str, ...]:
        for number, name in enumerate(row.get("targets", ())):
            if name not in targets:
                hint = did_you_mean(name, targets) or f"there is {', '.join(targets)}"
                reason = f"no target is named {name!r}: {hint}"
                raise self.document.error((*path, "targets", number), reason)
        return tuple(dict.fromkeys(row.get("targets", targets)))

    def _probe(self, path: Path, text: str) -> None:
        if is_recipe(text):
            return  # what it names is found when it is planned
        try:
            spec = parse_probe(text)
        except GotraceError as error:
            raise self.document.error(path, str(error)) from error
        if spec.binary is not None:
            raise self.document.error(
                path, "a probe cannot name a file: list the file among the targets"
            )
        if spec.format is not None:
            raise self.document.error(path, "a metric takes no format: labels have the values")

    def _key(self, path: Path, expressions: Mapping[str, Any]) -> KeyText | None:
        """Parse expressions, each by itself first so that an error has its line."""
        if len(expressions) > _MAX_EXPRESSIONS:
            raise self.document.error(path, f"more than {_MAX_EXPRESSIONS} expressions")
        for label, text in expressions.items():
            at = path if path[-1] == label else (*path, label)
            try:
                if len(parse_key(_expression(text)).expressions) != 1:
                    raise self.document.error(at, f"{text!r}: give one expression")
            except GotraceError as error:
                if isinstance(error, UsageError) and str(error).startswith(self.document.name):
                    raise
                raise self.document.error(at, str(error)) from error
        if not expressions:
            return None
        return parse_key(", ".join(map(_expression, expressions.values())))

    def _buckets(self, path: Path, row: Mapping[str, Any], of: KeyText | None) -> Buckets:
        low = self._amount((*path, "from"), row.get("from", 1 if of else "1us"), of is None)
        high = self._amount((*path, "to"), row.get("to", 1 << 32 if of else "16s"), of is None)
        if not 0 < low < high < 1 << 43:
            raise self.document.error(
                path, "buckets need a positive first value and a larger last one"
            )
        return Buckets(low, high, row.get("per_octave", 1))

    def _amount(self, path: Path, value: str | float, is_time: bool) -> int:
        """Return ns of a time, where a plain number is seconds, or a plain number."""
        try:
            return units.nanoseconds(str(value)) if is_time else round(float(value))
        except (OverflowError, ValueError) as error:
            what = "a length of time, as in 10ms" if is_time else "a number"
            raise self.document.error(path, f"{value!r} is not {what}") from error

    def _seconds(self, path: Path, value: str | float) -> float:
        seconds = self._amount(path, value, True) / 1e9
        if not 0.1 <= seconds <= 86400:
            raise self.document.error(path, f"{value!r}: give 100ms to 24h")
        return seconds

    def _privacy(self, data: Mapping[str, Any]) -> Privacy:
        errors = data.get("errors", "type")  # YAML reads a bare off as false
        denied = dict.fromkeys((*DENIED, *map(_bare_word, data.get("deny_names", ()))))
        for number, name in enumerate(data.get("allow_names", ())):
            if _bare_word(name) not in denied:
                hint = did_you_mean(name, list(denied)) or f"there is {', '.join(denied)}"
                raise self.document.error(("allow_names", number), f"{name!r}: {hint}")
            del denied[_bare_word(name)]
        key = None
        if "hash_key" in data:
            text = read_trusted(data["hash_key"], "hash_key").strip()
            if len(text) < _MIN_HASH_KEY:
                reason = f"a key has at least {_MIN_HASH_KEY} characters"
                raise self.document.error(("hash_key",), reason)
            key = text.encode()
        return Privacy(Errors(errors) if errors else Errors.OFF, tuple(denied), key)

    def _private(
        self, path: Path, expressions: Mapping[str, Any]
    ) -> tuple[frozenset[str], dict[str, Any]]:
        """Return which expressions are hashed, and all as they are captured."""
        hashed, found = set(), {}
        for label, text in expressions.items():
            is_hashed, bare = hashed_form(_expression(text))
            if is_hashed:
                hashed.add(label)
            elif not _LENGTH.fullmatch(bare) and (name := self.privacy.denied_name(bare)):
                reason = f"{name!r} may be a secret: write 'hash:{bare}' or 'length:{bare}'"
                reason += ", or list the word in allow_names"
                raise self.document.error((*path, label), reason)
            found[label] = bare
        return frozenset(hashed), found

    def _idle(self, path: Path, row: Mapping[str, Any]) -> float:
        found = row.get("idle", self.document.data.get("idle", "1h"))
        at = (*path, "idle") if "idle" in row else ("idle",)
        seconds = self._amount(at, found, True) / 1e9
        if seconds and not 1 <= seconds <= _MAX_IDLE:
            raise self.document.error(at, f"{found!r}: give 1s to 720h, or 0 for never")
        return seconds

    def _share(self, path: Path, text: str) -> float:
        with suppress(ValueError):
            if (found := units.share(text)) <= 1:
                return found
        raise self.document.error(path, f"{text!r}: a budget is a part of one CPU, as in 2%")

    def _web(self, data: Mapping[str, Any]) -> WebSpec:
        for key in ("web_config", "hosts"):
            if key in data and "listen" not in data:
                raise self.document.error((key,), f"{key} is about listen: give one")
        if not data.get("web_config", "/").startswith("/"):
            reason = f"{data['web_config']!r} is not an absolute path"
            raise self.document.error(("web_config",), reason)
        health = self._listen("health", data["health"]) if "health" in data else None
        return WebSpec(data.get("web_config"), tuple(data.get("hosts", ())), health)

    def _listen(self, key: str, text: str) -> Listen:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdecimal():
            reason = f"{text!r}: an address to listen on is as in 127.0.0.1:9435"
            raise self.document.error((key,), reason)
        if int(port) > 65535:
            raise self.document.error((key,), f"port {port} is above 65535")
        return Listen(host.removeprefix("[").removesuffix("]"), int(port))

    def _otlp(self, row: Mapping[str, Any]) -> OtlpSpec:
        path = ("otlp",)
        if not re.match(r"https?://[^/\s]+", row["endpoint"]):
            reason = (
                f"{without_users(row['endpoint'])!r}: an endpoint is as in http://127.0.0.1:4318"
            )
            raise self.document.error((*path, "endpoint"), reason)
        files = {key: row.get("tls", {}).get(key) for key in ("ca_file", "cert_file", "key_file")}
        for key, file in (*files.items(), ("disk", row.get("disk"))):
            at = (*path, "disk") if key == "disk" else (*path, "tls", key)
            if file is not None and not file.startswith("/"):
                raise self.document.error(at, f"{file!r} is not an absolute path")
        if (files["cert_file"] is None) != (files["key_file"] is None):
            raise self.document.error((*path, "tls"), "give both cert_file and key_file")
        if "tls" in row and not row["endpoint"].startswith("https:"):
            raise self.document.error((*path, "tls"), "tls needs an endpoint of https")
        return OtlpSpec(
            row["endpoint"].rstrip("/"),
            Protocol(row.get("protocol", "http")),
            tuple(self._header(name, value) for name, value in row.get("headers", {}).items()),
            self._seconds((*path, "interval"), row.get("interval", "15s")),
            self._seconds((*path, "timeout"), row.get("timeout", "10s")),
            row.get("queue", 16384),
            tuple(row.get("resource", {}).items()),
            **files,
            disk=row.get("disk"),
            disk_bytes=row.get("disk_size", 100) << 20,
        )

    def _header(self, name: str, value: str | Mapping[str, str]) -> HeaderSpec:
        path = ("otlp", "headers", name)
        if not _HEADER_NAME.fullmatch(name):
            raise self.document.error(path, f"{name!r} cannot be a header's name")
        if isinstance(value, str):
            if not value.isascii() or not value.isprintable():
                raise self.document.error(path, "a header's value is printable ASCII")
            return HeaderSpec(name, value)
        if len(value) != 1:
            raise self.document.error(path, "give file or env")
        if not value.get("file", "/").startswith("/"):
            raise self.document.error(path, f"{value['file']!r} is not an absolute path")
        return HeaderSpec(name, **value)


def _bare_word(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _expression(value: object) -> str:
    """Return an expression's text: YAML reads a bare 1 or true as another type."""
    return str(value).lower() if isinstance(value, bool) else str(value)
