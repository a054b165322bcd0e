# SPDX-License-Identifier: Apache-2.0
"""Requests of root beside the file of the configuration, each for its own time."""

from __future__ import annotations

from collections.abc import Iterable

from gotrace.errors import UsageError
from gotrace.fleet.config import Config, Limit, MetricSpec, TargetSpec, parse_part
from gotrace.records import dataclass, replace

_MOST = 32
_MOST_METRICS = 64


@dataclass(frozen=True, slots=True)
class Snippet:
    """Metrics, and perhaps targets of their own, until a time (``time.monotonic``).

    All of its probes together may take ``budget``, a part of one CPU.
    """

    name: str
    targets: tuple[TargetSpec, ...]
    metrics: tuple[MetricSpec, ...]
    budget: float
    ends: float


def read_snippet(name: str, text: str, budget: float, ends: float, config: Config) -> Snippet:
    """Parse a request beside a configuration. Raises UsageError."""
    found = parse_part(name, text, config)
    metrics = found.metrics[len(config.metrics) :]
    if len(metrics) > _MOST_METRICS:
        raise UsageError(f"{name}: there are {len(metrics)} metrics, and room for {_MOST_METRICS}")
    return Snippet(name, found.targets[len(config.targets) :], metrics, budget, ends)


def beside(config: Config, snippets: Iterable[Snippet]) -> Config:
    """Return a configuration with what is asked for as well. Raises UsageError for a conflict."""
    for snippet in snippets:
        names = {target.name for target in (*config.targets, *snippet.targets)}
        twice = {one.name for one in config.targets} & {one.name for one in snippet.targets}
        twice |= {one.name for one in config.metrics} & {one.name for one in snippet.metrics}
        if twice:
            raise UsageError(f"{snippet.name}: {min(twice)!r} is there twice")
        metrics = [replace(metric, privacy=config.privacy) for metric in snippet.metrics]
        for metric in metrics:
            if missing := sorted(set(metric.targets) - names):
                raise UsageError(f"{snippet.name}: no target is named {missing[0]!r}")
        jobs = frozenset(metric.name for metric in metrics)
        config = replace(
            config,
            targets=(*config.targets, *snippet.targets),
            metrics=(*config.metrics, *metrics),
            limits=(*config.limits, Limit(snippet.name, jobs, snippet.budget)),
        )
    return config


@dataclass
class Snippets:
    """The snippets at the moment; ``file`` is the configuration of the file by itself."""

    file: Config
    snippets: tuple[Snippet, ...] = ()

    def named(self, name: str) -> Snippet:
        """Return one by its name. Raises UsageError."""
        for one in self.snippets:
            if one.name == name:
                return one
        listed = ", ".join(one.name for one in self.snippets) or "nothing"
        raise UsageError(f"{name!r} is not asked for: there is {listed}")

    def check(self, snippet: Snippet) -> None:
        """Raise UsageError if there is no room for another one, or one of its name."""
        if any(one.name == snippet.name for one in self.snippets):
            raise UsageError(f"{snippet.name!r} is asked for already: end it, or give --name")
        if len(self.snippets) >= _MOST:
            raise UsageError(f"{_MOST} are asked for already: end one")

    def over(self, now: float) -> tuple[Snippet, ...]:
        return tuple(one for one in self.snippets if one.ends <= now)

    def fitting(self, file: Config) -> tuple[tuple[Snippet, ...], list[str]]:
        """Return the snippets that go with another file, and why others do not."""
        kept: list[Snippet] = []
        problems = []
        for snippet in self.snippets:
            try:
                beside(file, [*kept, snippet])
            except UsageError as error:
                problems.append(str(error))
            else:
                kept.append(snippet)
        return tuple(kept), problems
