# SPDX-License-Identifier: Apache-2.0
"""List the data that a configuration sends out of a host, and their receivers."""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.fleet.config import Config, HeaderSpec, MetricSpec
from gotrace.fleet.privacy import DENIED, Errors, without_users

_ERRORS = {
    Errors.OFF: "neither types nor texts",
    Errors.TYPE: "types, and no texts",
    Errors.TEXT: "types and texts",
}


def leaving(config: Config) -> Iterator[str]:
    """Yield a line for each thing that leaves the host."""
    if config.listen is not None:
        place = f"{config.listen.host}:{config.listen.port}"
        who = "with TLS or passwords of web_config" if config.web.config else "to all who reach it"
        yield f"metrics at {place}, {who}"
        if config.pprof:
            yield f"profiles at {place}: names of functions, states of goroutines, arguments not"
    if config.otlp is not None:
        yield f"metrics and spans to {without_users(config.otlp.endpoint)}"
        names = ", ".join(map(_header, config.otlp.headers))
        if names:
            yield f"  headers: {names}"
        yield "  of each span: function, file, line, process, goroutine, edge, container and pod"
        for key, value in config.otlp.resource:
            yield f"  of each resource: {key}={value}"
        yield "  of each resource: this host's name, the target's name"
    for metric in config.metrics:
        what = "names of functions" if metric.functions else "no values"
        if metric.labels:
            what = ", ".join(_labels(metric))
        yield f"metric {metric.name}: {what}"
    if config.waits is not None:
        yield "waits: reasons in the runtime's words, no values"
    if config.runtime_metrics is not None:
        yield "runtime_metrics: figures of Go's runtime and numbers of processes, no values"
    for span in config.spans:
        shown = [
            f"{name} = {'hash of ' if name in span.hashed else ''}{text}"
            for name, text in span.attributes
        ]
        if span.trace_context:
            shown.append("trace and span of the program's own context")
        yield f"span {span.name or span.probe}: {', '.join(shown) or 'no values'}"
    for flight in config.flights:
        yield f"flight {flight.name}: nothing, but files in {flight.folder} of this host:"
        calls = ", ".join(flight.probes) or "the program's own functions"
        yield f"  arguments and results of calls of {calls}, and of {', '.join(flight.when)}"
        yield "  what goroutines did and waited for"
    yield f"errors: {_ERRORS[config.privacy.errors]}"
    denied = config.privacy.denied
    usual = "the usual names" if denied == DENIED else f"{len(denied)} words"
    yield f"left out of values: fields, keys and names with {usual} of secrets in them"


def _labels(metric: MetricSpec) -> Iterator[str]:
    assert metric.key is not None
    for name, text in zip(metric.labels, metric.key.texts, strict=True):
        yield f"{name} = {'hash of ' if name in metric.hashed else ''}{text}"


def _header(one: HeaderSpec) -> str:
    if one.file is not None:
        return f"{one.name} (from {one.file})"
    return f"{one.name} (from ${one.env})" if one.env is not None else one.name
