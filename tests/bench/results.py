# SPDX-License-Identifier: Apache-2.0
"""Collect what was measured, as the JSON that plots are made of and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.stats import Requirement, Series

SCHEMA = 1

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Measure:
    """One contender's figures in one case; ``missing`` says why there are none."""

    case: str
    contender: str
    unit: str
    series: Series | None = None
    note: str = ""
    missing: str = ""


def number(value: float) -> str:
    """Write a figure with three digits that count, or all of those before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass
class Results:
    """Collect measures and requirements in the order in which they came."""

    machine: Mapping[str, object]
    mode: str
    elapsed_s: float = 0.0
    measures: list[Measure] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)

    def add(
        self,
        case: str,
        contender: str,
        unit: str,
        values: Sequence[float],
        note: str = "",
        missing: str = "",
    ) -> None:
        """Add a measure; without values it is missing, and ``missing`` says why."""
        series = Series.of(values) if values else None
        why = "" if values else missing or "not measured"
        self.measures.append(Measure(case, contender, unit, series, note, why))

    def find(self, case: str, contender: str) -> Measure | None:
        """Return a contender's measure in a case, None where it did not take part."""
        found = (m for m in self.measures if (m.case, m.contender) == (case, contender))
        return next(found, None)

    def series(self, case: str, contender: str) -> Series | None:
        """Return a contender's figures in a case, None where there are none."""
        measure = self.find(case, contender)
        return measure.series if measure else None

    def to_json(self) -> str:
        """Return everything as one JSON document; ``tests/test_bench.py`` holds its shape."""
        document: Json = {
            "schema": SCHEMA,
            "mode": self.mode,
            "elapsed_s": round(self.elapsed_s, 1),
            "machine": dict(self.machine),
            "measures": [_measure(measure) for measure in self.measures],
            "requirements": [_requirement(requirement) for requirement in self.requirements],
        }
        return json.dumps(document, indent=1) + "\n"

    def lines(self) -> Iterator[str]:
        """Yield the table of measures, case by case, and a line for each requirement."""
        yield ", ".join(f"{name}: {value}" for name, value in self.machine.items())
        case = ""
        for measure in self.measures:
            if measure.case != case:
                case = measure.case
                yield ""
                yield f"{case:<40} {'median':>11} {'low':>11} {'high':>11} unit"
            yield _measure_line(measure)
        if self.requirements:
            yield ""
            yield f"{'requirement':<66} {'median':>9} {'spread':>17} {'bound':>16}"
        for requirement in self.requirements:
            yield _requirement_line(requirement)


def _figures(series: Series | None) -> Json:
    if series is None:
        return {"values": [], "median": None, "low": None, "high": None}
    spread = {"median": series.median, "low": series.low, "high": series.high}
    return {"values": list(series.values), **spread}


def _measure(measure: Measure) -> Json:
    return {
        "case": measure.case,
        "contender": measure.contender,
        "unit": measure.unit,
        **_figures(measure.series),
        "note": measure.note,
        "missing": measure.missing,
    }


def _requirement(requirement: Requirement) -> Json:
    return {
        "name": requirement.name,
        "unit": requirement.unit,
        **_figures(requirement.series),
        "bound": requirement.bound,
        "at_most": requirement.at_most,
        "verdict": requirement.verdict.value,
        "why": requirement.why,
    }


def _measure_line(measure: Measure) -> str:
    if measure.series is None:
        return f"  {measure.contender:<38} missing: {measure.missing}"
    series = measure.series
    figures = " ".join(f"{number(v):>11}" for v in (series.median, series.low, series.high))
    note = f"  ({measure.note})" if measure.note else ""
    return f"  {measure.contender:<38} {figures} {measure.unit}{note}"


def _requirement_line(requirement: Requirement) -> str:
    unit = requirement.unit if requirement.unit == "x" else f" {requirement.unit}"
    bound = f"{'<=' if requirement.at_most else '>='} {number(requirement.bound)}{unit}"
    series, verdict = requirement.series, requirement.verdict.value
    if series is None:
        return f"{requirement.name:<66} {'-':>9} {'':>17} {bound:>16} {verdict}: {requirement.why}"
    spread = f"{number(series.low)} to {number(series.high)}"
    median = f"{number(series.median)}{unit if unit == 'x' else ''}"
    return f"{requirement.name:<66} {median:>9} {spread:>17} {bound:>16} {verdict}"
