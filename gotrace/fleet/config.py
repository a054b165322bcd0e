# SPDX-License-Identifier: Apache-2.0
"""The configuration: read, checked against the schema, and taken apart."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeVar

import jsonschema

from gotrace import units
from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.privacy import DENIED, Errors, Privacy, hashed_form, without_users
from gotrace.fleet.schema import AMOUNT, TEXT, At, Form, KeyRecord, Made, schema_of
from gotrace.fleet.trusted import read_trusted
from gotrace.fleet.yaml_lines import Document, Path, read_yaml
from gotrace.probes.pattern import is_recipe
from gotrace.probes.scope import did_you_mean
from gotrace.probes.spec import KeyText, parse_key, parse_probe
from gotrace.records import dataclass, field, replace
from gotrace.requests.flight import probes_in
from gotrace.target.containers import Container

_MAX_EXPRESSIONS = 16
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: The length of a value, and nothing else of it.
_LENGTH = re.compile(r"len\([^()]*(?:\([^()]*\))?[^()]*\)")
_MIN_HASH_KEY = 16
_HEADER_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
#: Labels that name a pod.
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
_WILD = set("*?[")

T = TypeVar("T")


class MetricType(Enum):
    """The type of a metric."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Protocol(Enum):
    """How OTLP is spoken."""

    HTTP = "http"
    GRPC = "grpc"


def _absolute(at: At, text: str) -> str:
    if not text.startswith("/"):
        raise at.error(f"{text!r} is not an absolute path")
    return text


def _by(read: Callable[[Any], T], words: str) -> Callable[[At, Any], T]:
    """Return a reader of a value; the words of its error have ``{!r}`` for the value."""

    def found(at: At, value: Any) -> T:
        try:
            return read(value)
        except (KeyError, OverflowError, ValueError) as error:
            raise at.error(words.format(value)) from error

    return found


def _share(text: str) -> float:
    if (found := units.share(text)) > 1:
        raise ValueError
    return found


def _uid(user: str | int) -> int:
    return user if isinstance(user, int) else pwd.getpwnam(user).pw_uid


_nanoseconds = _by(
    lambda value: units.nanoseconds(str(value)), "{!r} is not a length of time, as in 10ms"
)
_number = _by(lambda value: round(float(value)), "{!r} is not a number")
_user = _by(_uid, "no user is named {!r} here: give the number")


def _seconds(at: At, value: str | float) -> float:
    if not 0.1 <= (seconds := _nanoseconds(at, value) / 1e9) <= 86400:
        raise at.error(f"{value!r}: give 100ms to 24h")
    return seconds


def _idle(at: At, value: str | float) -> float:
    if (seconds := _nanoseconds(at, value) / 1e9) and not 1 <= seconds <= _MAX_IDLE:
        raise at.error(f"{value!r}: give 1s to 720h, or 0 for never")
    return seconds


def _targets(at: At, names: Sequence[str]) -> tuple[str, ...]:
    for number, name in enumerate(names):
        if name not in at.targets:
            hint = did_you_mean(name, at.targets) or f"there is {', '.join(at.targets)}"
            raise (at / number).error(f"no target is named {name!r}: {hint}")
    return tuple(dict.fromkeys(names))


def _probe(at: At, text: str) -> str:
    if is_recipe(text):
        return text  # what it names is found when it is planned
    try:
        spec = parse_probe(text)
    except GotraceError as error:
        raise at.error(str(error)) from error
    if spec.binary is not None:
        raise at.error("a probe cannot name a file: list the file among the targets")
    if spec.format is not None:
        raise at.error("a metric takes no format: labels have the values")
    return text


def _function(words: str) -> Callable[[At, str], str]:
    """Return a reader of a probe that refuses recipes, with these words."""

    def read(at: At, text: str) -> str:
        if is_recipe(text):
            raise at.error(words)
        return _probe(at, text)

    return read


_span_probe = _function("spans take a function, not a recipe")
_kept_probe = _function("flights take functions, not recipes")


def _condition(at: At, text: str) -> str:
    probes = [text] if is_recipe(text) else _probes_in(at, [text])
    for probe in probes:
        _kept_probe(at, probe)
    return text


def _probes_in(at: At, when: Sequence[str]) -> Sequence[str]:
    try:
        return probes_in(when)
    except UsageError as error:
        raise at.error(str(error)) from error


def _between(least: int, most: int) -> Form:
    return Form({"minimum": least, "maximum": most})


def _one_of(*values: object) -> Form:
    return Form({"enum": list(values)})


AbsolutePath = Annotated[str, Form(read=_absolute)]
NormalPath = Annotated[str, Form(read=lambda at, text: os.path.normpath(_absolute(at, text)))]
Seconds = Annotated[float, Form(AMOUNT, _seconds)]
Idle = Annotated[float, Form(AMOUNT, _idle, absent=lambda at: at.idle)]
Bytes = Annotated[int, Form(TEXT, _by(units.size, "{!r}: a size is as in 64MiB"))]
_EXPRESSIONS = Form(
    {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
        "minProperties": 1,
    }
)
Most = Annotated[int, _between(1, 1 << 20)]
Megabytes = Annotated[Most, Form(read=lambda _, number: number << 20)]
Share = Annotated[float, Form(TEXT, _by(_share, "{!r}: a budget is a part of one CPU, as in 2%"))]
Rate = Annotated[float, Form(TEXT, _by(units.per_second, "{!r}: a rate is as in 10/s"))]
UserNumber = Annotated[
    int, Form({"type": ["string", "integer"], "minLength": 1, "minimum": 0}, _user)
]
Expression = Annotated[KeyText, Form(TEXT, lambda at, text: _key(at, {"of": text}))]
#: YAML reads a bare off as false.
ShownErrors = Annotated[
    Errors, Form({"enum": ["off", "type", "text", False]}, lambda _, word: Errors(word or "off"))
]
Targets = Annotated[tuple[str, ...], Form(read=_targets, absent=lambda at: at.usual)]
_FILLED: Final = Form({"minProperties": 1})


@dataclass(frozen=True, slots=True)
class PodSpec(KeyRecord):
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
        """Return the attributes of a resource that all of these share."""
        named = Container("", None, self.namespace, self.pod, self.container).attributes()
        return {key: value for key, value in named.items() if value and not _WILD & set(value)}


@dataclass(frozen=True, slots=True)
class TargetSpec(KeyRecord):
    """Programs to look for: of one path or name, or all those in a control group or in pods."""

    name: str
    exe: NormalPath | None = None
    comm: str | None = None
    cgroup: AbsolutePath | None = None
    kubernetes: Annotated[PodSpec | None, _FILLED] = None
    #: The most label sets of all metrics.
    max_series: Most = _MAX_TARGET_SERIES
    #: The number of the user whose processes are meant, None for all.
    user: UserNumber | None = None
    #: The most files that are traced at a time.
    max_files: Most = _MAX_FILES

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> TargetSpec:
        if not {"exe", "comm", "cgroup", "kubernetes"} & set(row):
            raise at.error("a target is an exe or a comm, or what runs in a cgroup or kubernetes")
        if "cgroup" in row and "kubernetes" in row:
            reason = "give cgroup or kubernetes, not both: pods have control groups of their own"
            raise (at / "cgroup").error(reason)
        if "exe" in row and "comm" in row:
            raise (at / "comm").error("give exe or comm, not both")
        most = _MAX_FILES if {"exe", "comm"} & set(row) else _MAX_UNNAMED_FILES
        return cls.made(at, {"max_files": most, **row})


@dataclass(frozen=True, slots=True)
class Buckets(KeyRecord):
    """Bounds of a histogram: from ``low`` to ``high``, ``per_octave`` in each power of two.

    In ns, or in what values are counted in.
    """

    low: Annotated[int, Form(AMOUNT, key="from", absent=lambda _: 0)]
    high: Annotated[int, Form(AMOUNT, key="to", absent=lambda _: 0)]
    per_octave: Annotated[int, _one_of(1, 2, 4, 8, 16)] = 1

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


_TIMES: Final = Buckets(1_000, 16 * 10**9)
_VALUES: Final = Buckets(1, 1 << 32)


@dataclass(frozen=True, slots=True)
class MetricSpec(KeyRecord):
    """One metric. ``targets`` are names; ``labels`` and ``key`` go together."""

    name: str
    type: MetricType
    probe: Annotated[str, Form(read=_probe)]
    targets: Targets
    help: str = ""
    labels: Annotated[tuple[str, ...], _EXPRESSIONS] = ()
    key: Made[KeyText | None] = None
    of: Expression | None = None
    functions: bool = False
    series: Annotated[int, _between(1, 4096)] = 256
    open_calls: Annotated[int, _between(16, 131072)] = 8192
    buckets: Buckets | None = None
    #: Seconds without a call after which a series ends; 0 for never.
    idle: Idle = 3600.0
    privacy: Made[Privacy] = _AS_USUAL
    #: Labels that are hashes of their values.
    hashed: Made[frozenset[str]] = frozenset()
    #: Whether labels say which pod a call was in.
    pods: bool = False

    @property
    def bounds(self) -> list[int]:
        """Return the bounds of a histogram's buckets, in ns or what values are counted in."""
        return (self.buckets or (_VALUES if self.of else _TIMES)).bounds()

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> MetricSpec:
        kind, probe = MetricType(row["type"]), row["probe"]
        _check_metric_name(at / "name", row["name"], kind)
        _probe(at / "probe", probe)
        labels: Mapping[str, Any] = row.get("labels", {})
        _check_labels(at / "labels", labels, bool(row.get("pods")))
        hashed, labels = _private(at / "labels", labels)
        if kind is MetricType.COUNTER:
            for only in ("of", "buckets"):
                if only in row:
                    raise (at / only).error(f"{only} is for histograms")
        buckets = None
        if "buckets" in row:
            buckets = _buckets(at / "buckets", row["buckets"], "of" not in row)
        words = "Calls" if kind is MetricType.COUNTER else row.get("of", "Duration")
        row = {"help": f"{words} of {probe}", **row}
        key, names = _key(at / "labels", labels), tuple(labels)
        texts = {"labels": names, "key": key, "hashed": hashed}
        return cls.made(at, row, buckets=buckets, privacy=at.privacy, **texts)


def _check_metric_name(at: At, name: str, kind: MetricType) -> None:
    if not _METRIC_NAME.fullmatch(name):
        reason = f"{name!r} is not a metric's name: letters, digits and _, as in store_get"
        raise at.error(reason)
    if name.startswith(_OWN_PREFIXES):
        raise at.error(f"{name!r}: this prefix is reserved for gotraced")
    if kind is MetricType.COUNTER and name.endswith("_total"):
        raise at.error(f"_total is added: call it {name.removesuffix('_total')!r}")


def _check_labels(at: At, labels: Iterable[str], has_pods: bool) -> None:
    for label in labels:
        if not _LABEL_NAME.fullmatch(label) or label.startswith("__") or label in _OWN_LABELS:
            reason = f"{label!r} cannot be a label: letters, digits and _, and not one of "
            raise (at / label).error(reason + ", ".join(sorted(_OWN_LABELS)))
        if has_pods and label in POD_LABELS:
            raise (at / label).error(f"{label!r} is a label of its own with pods: true")


def _private(at: At, expressions: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, str]]:
    """Return which expressions are hashed, and all as they are captured."""
    hashed, found = set(), {}
    for label, text in expressions.items():
        is_hashed, bare = hashed_form(_expression(text))
        if is_hashed:
            hashed.add(label)
        elif not _LENGTH.fullmatch(bare) and (name := at.privacy.denied_name(bare)):
            reason = f"{name!r} may be a secret: write 'hash:{bare}' or 'length:{bare}'"
            raise (at / label).error(f"{reason}, or list the word in allow_names")
        found[label] = bare
    return frozenset(hashed), found


def _key(at: At, expressions: Mapping[str, Any]) -> KeyText | None:
    """Parse expressions, each by itself first so that an error has its line."""
    if len(expressions) > _MAX_EXPRESSIONS:
        raise at.error(f"more than {_MAX_EXPRESSIONS} expressions")
    for label, text in expressions.items():
        place = at if at.path[-1] == label else at / label
        try:
            count = len(parse_key(_expression(text)).expressions)
        except GotraceError as error:
            raise place.error(str(error)) from error
        if count != 1:
            raise place.error(f"{text!r}: give one expression")
    if not expressions:
        return None
    return parse_key(", ".join(map(_expression, expressions.values())))


def _buckets(at: At, row: Mapping[str, Any], is_time: bool) -> Buckets:
    def bound(key: str, usual: int) -> int:
        if key not in row:
            return usual
        return (_nanoseconds if is_time else _number)(at / key, row[key])

    usual = _TIMES if is_time else _VALUES
    low, high = bound("from", usual.low), bound("to", usual.high)
    if not 0 < low < high < 1 << 43:
        raise at.error("buckets need a positive first value and a larger last one")
    return Buckets.made(at, row, low=low, high=high)


def _expression(value: object) -> str:
    """Return an expression's text: YAML reads a bare 1 or true as another type."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class SpanSpec(KeyRecord):
    """Calls to be sent as spans, at most ``rate`` a second of them for each program.

    ``why``: with what their time goes into. ``trace_context``: in the traces of the program's own
    spans that their contexts hold. ``inherit``: below the calls that have started their goroutines.
    """

    name: Annotated[str | None, Form(absent=lambda _: None)]
    probe: Annotated[str, Form(read=_span_probe)]
    targets: Targets
    attributes: Annotated[tuple[tuple[str, str], ...], _EXPRESSIONS] = ()
    rate: Rate = 10.0
    why: bool = False
    trace_context: bool = True
    inherit: bool = True
    privacy: Made[Privacy] = _AS_USUAL
    #: Attributes that are hashes of their values.
    hashed: Made[frozenset[str]] = frozenset()

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> SpanSpec:
        hashed, found = _private(at / "attributes", row.get("attributes", {}))
        _key(at / "attributes", found)
        attributes = tuple(found.items())
        return cls.made(at, row, attributes=attributes, hashed=hashed, privacy=at.privacy)


@dataclass(frozen=True, slots=True)
class FlightSpec(KeyRecord):
    """Files of what a program did in the ``keep`` seconds before one of ``when``.

    ``memory`` is what the kernel keeps of a program, in bytes. There are at most ``files`` of a
    target in ``folder``, and one of a program in ``every`` seconds. Without ``probes`` they have
    the calls of the program's own functions.
    """

    name: str
    targets: Targets
    when: tuple[Annotated[str, Form(read=_condition)], ...]
    folder: NormalPath
    probes: tuple[Annotated[str, Form(read=_kept_probe)], ...] = ()
    keep: Seconds = 5.0
    memory: Bytes = 64 << 20
    files: Annotated[int, _between(1, 10_000)] = 20
    every: Seconds = 60.0
    form: Annotated[str, _one_of("trace", "pftrace", "json")] = "trace"
    privacy: Made[Privacy] = _AS_USUAL

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> FlightSpec:
        if not _FLIGHT_NAME.fullmatch(row["name"]):
            reason = f"{row['name']!r} cannot be a flight's name: letters, digits and _"
            raise (at / "name").error(reason)
        found = cls.made(at, row, privacy=at.privacy)
        _probes_in(at / "when", found.when)
        return found


@dataclass(frozen=True, slots=True)
class WaitsSpec(KeyRecord):
    """Programs whose goroutines' waits are added up, with room for so many goroutines of each."""

    targets: Targets
    goroutines: Annotated[int, _between(256, 1 << 22)] = 65536


def _waits(at: At, row: bool | Mapping[str, Any]) -> WaitsSpec | None:
    if row is False:
        return None
    return WaitsSpec.read(at, {} if row is True else row)


@dataclass(frozen=True, slots=True)
class RuntimeSpec(KeyRecord):
    """Programs whose runtimes' figures are read: those of ``processes`` of each target at most.

    They are read once in ``interval`` seconds at most. ``pods``: labels say which pod it was.
    """

    targets: Targets
    interval: Seconds = 5.0
    processes: Annotated[int, _between(1, 1024)] = 64
    pods: bool = False


def _runtime(at: At, row: bool | Mapping[str, Any]) -> RuntimeSpec | None:
    if row is False:
        return None
    return RuntimeSpec.read(at, {} if row is True else row)


@dataclass(frozen=True, slots=True)
class HeaderSpec(KeyRecord):
    """A header of requests: its value, or the file or the environment's variable that has it."""

    name: Made[str]
    value: Made[str] = ""
    file: AbsolutePath | None = None
    env: str | None = None


def _header(at: At, value: str | Mapping[str, str]) -> HeaderSpec:
    name = str(at.path[-1])
    if not _HEADER_NAME.fullmatch(name):
        raise at.error(f"{name!r} cannot be a header's name")
    if isinstance(value, str):
        if not value.isascii() or not value.isprintable():
            raise at.error("a header's value is printable ASCII")
        return HeaderSpec(name, value)
    if len(value) != 1:
        raise at.error("give file or env")
    return HeaderSpec.made(at, value, name=name)


def _endpoint(at: At, text: str) -> str:
    if not re.match(r"https?://[^/\s]+", text):
        raise at.error(f"{without_users(text)!r}: an endpoint is as in http://127.0.0.1:4318")
    return text.rstrip("/")


TlsPath = Annotated[AbsolutePath, Form(within="tls")]
Texts = Annotated[
    tuple[tuple[str, str], ...],
    Form(
        {"type": "object", "additionalProperties": {"type": "string"}},
        lambda _, texts: tuple(texts.items()),
    ),
]
_HEADER: Final = {**schema_of(HeaderSpec), "type": ["string", "object"]}
Headers = Annotated[
    tuple[HeaderSpec, ...],
    Form(
        {"type": "object", "additionalProperties": _HEADER},
        lambda at, rows: tuple(_header(at / key, rows[key]) for key in rows),
    ),
]


@dataclass(frozen=True, slots=True)
class OtlpSpec(KeyRecord):
    """Where metrics and spans are sent: times in seconds, ``queue`` in spans.

    ``disk`` is a directory for spans that wait, of ``disk_bytes`` at most. ``ca_file`` has the
    authorities, ``cert_file`` and ``key_file`` are shown to the collector.
    """

    endpoint: Annotated[str, Form(read=_endpoint)]
    protocol: Protocol = Protocol.HTTP
    headers: Headers = ()
    interval: Seconds = 15.0
    timeout: Seconds = 10.0
    queue: Most = 16384
    resource: Texts = ()
    ca_file: TlsPath | None = None
    cert_file: TlsPath | None = None
    key_file: TlsPath | None = None
    disk: AbsolutePath | None = None
    disk_bytes: Annotated[Megabytes, Form(key="disk_size")] = 100 << 20

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> OtlpSpec:
        found = cls.made(at, row)
        if (found.cert_file is None) != (found.key_file is None):
            raise (at / "tls").error("give both cert_file and key_file")
        if "tls" in row and not found.endpoint.startswith("https:"):
            raise (at / "tls").error("tls needs an endpoint of https")
        return found


@dataclass(frozen=True, slots=True)
class Listen:
    """The address that is listened on."""

    host: str
    port: int


def _listen(at: At, text: str) -> Listen:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal():
        raise at.error(f"{text!r}: an address to listen on is as in 127.0.0.1:9435")
    if int(port) > 65535:
        raise at.error(f"port {port} is above 65535")
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))


Address = Annotated[Listen, Form(TEXT, _listen)]


@dataclass(frozen=True, slots=True)
class WebSpec(KeyRecord):
    """How requests are answered beside where: ``health`` alone is answered there, without TLS.

    ``config`` is a file of TLS and authentication, ``hosts`` are patterns of names of this host.
    """

    config: Annotated[AbsolutePath | None, Form(key="web_config")] = None
    hosts: tuple[str, ...] = ()
    health: Address | None = None

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> WebSpec:
        for key in ("web_config", "hosts"):
            if key in row and "listen" not in row:
                raise (at / key).error(f"{key} is about listen: give one")
        return cls.made(at, row)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit for some jobs, by name, together: a part of one CPU. ``name`` says whose it is."""

    name: str
    jobs: frozenset[str]
    share: float


@dataclass(frozen=True, slots=True)
class PlanningSpec(KeyRecord):
    """The limits of reading a program: bytes, seconds of CPU time, bytes of a packed section."""

    memory: Megabytes = 256 << 20
    seconds: Most = 30
    section: Megabytes = 64 << 20


def _bare_word(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _hash_key(at: At, path: str) -> bytes:
    text = read_trusted(path, "hash_key").strip()
    if len(text) < _MIN_HASH_KEY:
        raise at.error(f"a key has at least {_MIN_HASH_KEY} characters")
    return text.encode()


@dataclass(frozen=True, slots=True)
class _PrivacyKeys(KeyRecord):
    """Keys for exported values: errors, words beside those of secrets, words that are none."""

    errors: ShownErrors = Errors.TYPE
    deny_names: tuple[str, ...] = ()
    allow_names: tuple[str, ...] = ()
    hash_key: Annotated[bytes | None, Form(TEXT, _hash_key)] = None

    def privacy(self, at: At) -> Privacy:
        """Return the same with all words. Raises UsageError."""
        denied = dict.fromkeys((*DENIED, *map(_bare_word, self.deny_names)))
        for number, name in enumerate(self.allow_names):
            if _bare_word(name) not in denied:
                hint = did_you_mean(name, list(denied)) or f"there is {', '.join(denied)}"
                raise (at / "allow_names" / number).error(f"{name!r}: {hint}")
            del denied[_bare_word(name)]
        return Privacy(self.errors, tuple(denied), self.hash_key)


@dataclass(frozen=True, slots=True)
class Config(KeyRecord):
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
    listen: Address | None = None
    otlp: OtlpSpec | None = None
    budget: Share = 0.02
    host_budget: Share | None = None
    pprof: bool = False
    waits: Annotated[
        WaitsSpec | None, Form({**schema_of(WaitsSpec), "type": ["boolean", "object"]}, _waits)
    ] = None
    runtime_metrics: Annotated[
        RuntimeSpec | None,
        Form({**schema_of(RuntimeSpec), "type": ["boolean", "object"]}, _runtime),
    ] = None
    max_series: Most = _MAX_SERIES
    web: Annotated[WebSpec, Form(is_flat=True)] = field(default_factory=WebSpec)
    privacy: Annotated[Privacy, Form(schema_of(_PrivacyKeys), is_flat=True)] = _AS_USUAL
    #: Of metrics that do not say it.
    idle: Idle = 3600.0
    planning: Annotated[PlanningSpec, _FILLED] = field(default_factory=PlanningSpec)
    limits: Made[tuple[Limit, ...]] = ()
    flights: tuple[FlightSpec, ...] = ()
    flight_memory: Bytes = 256 << 20

    @classmethod
    def read(cls, at: At, row: Mapping[str, Any]) -> Config:
        privacy = _PrivacyKeys.read(at, row).privacy(at)
        idle, targets = _first(at, row)
        names = tuple(target.name for target in targets)
        place = replace(at, privacy=privacy, idle=idle, targets=names, usual=names)
        found = cls.made(place, row, targets=targets, privacy=privacy, idle=idle)
        found._check(at)
        return found

    def _check(self, at: At) -> None:
        """Raise UsageError where one key does not go with another."""
        _once(at / "targets", self.targets)
        _once(at / "metrics", self.metrics)
        _once(at / "flights", self.flights)
        own = self.metrics or self.waits or self.runtime_metrics
        if not (own or self.spans or self.flights):
            what = "no metrics, waits, runtime_metrics, spans or flights"
            raise at.error(f"{what} are configured: nothing to do")
        if self.spans and self.otlp is None:
            raise (at / "spans").error("spans are sent by OTLP: give otlp an endpoint")
        if self.listen is None and self.otlp is None and own:
            raise at.error("there is nowhere to send results: give listen or otlp")
        for number, metric in enumerate(self.metrics):
            if self.runtime_metrics and metric.name.startswith("go_"):
                reason = f"{metric.name!r}: with runtime_metrics, names of go_ are the runtime's"
                raise (at / "metrics" / number / "name").error(reason)
        if self.pprof and self.listen is None:
            raise (at / "pprof").error("profiles are served by HTTP: give listen")
        for number, flight in enumerate(self.flights):
            if flight.memory > self.flight_memory:
                most = f"flight_memory, {self.flight_memory >> 20}MiB"
                reason = f"{flight.memory >> 20}MiB are more than {most}"
                raise (at / "flights" / number / "memory").error(reason)


def _first(at: At, row: Mapping[str, Any]) -> tuple[float, tuple[TargetSpec, ...]]:
    """Return the file's ``idle``, and the targets, which others refer to."""
    idle = _idle(at / "idle", row.get("idle", at.idle))
    rows = enumerate(row.get("targets", ()))
    return idle, tuple(TargetSpec.read(at / "targets" / number, one) for number, one in rows)


def _once(
    at: At,
    rows: Iterable[TargetSpec | MetricSpec | FlightSpec],
    others: Iterable[TargetSpec | MetricSpec] = (),
) -> None:
    seen = {one.name for one in others}
    for number, one in enumerate(rows):
        if one.name in seen:
            raise (at / number / "name").error(f"{one.name!r} is there twice")
        seen.add(one.name)


SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **schema_of(Config),
}


#: The same of what is asked for while it runs.
_PART: Final[dict[str, Any]] = {
    **SCHEMA,
    "properties": {key: SCHEMA["properties"][key] for key in ("targets", "metrics", "idle")},
    "required": ["metrics"],
}


def load_config(path: str) -> Config:
    """Read a configuration that no other user could have written. Raises UsageError.

    It decides what is read out of other programs' memory and where that is sent.
    """
    return parse_config(path, read_trusted(path))


def parse_config(name: str, text: str) -> Config:
    """Parse a configuration; ``name`` is what messages call the file.

    Raises UsageError with the line of the first thing that is wrong.
    """
    document = _checked(name, text, SCHEMA)
    return Config.read(At(document), document.data)


def parse_part(name: str, text: str, base: Config) -> Config:
    """Return a configuration with the metrics, and perhaps targets, of a text beside its own.

    Raises UsageError as ``parse_config`` does.
    """
    document = _checked(name, text, _PART)
    at = At(document, privacy=base.privacy)
    idle, targets = _first(at, document.data)
    _once(at / "targets", targets, base.targets)
    every = (*base.targets, *targets)
    names, usual = (tuple(one.name for one in some) for some in (every, targets or every))
    at = replace(at, idle=idle, targets=names, usual=usual)
    rows = enumerate(document.data["metrics"])
    metrics = tuple(MetricSpec.read(at / "metrics" / number, row) for number, row in rows)
    _once(at / "metrics", metrics, base.metrics)
    return replace(base, targets=every, metrics=(*base.metrics, *metrics))


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
