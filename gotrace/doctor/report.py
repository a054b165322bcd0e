# SPDX-License-Identifier: Apache-2.0
"""Render the findings about the machine: a line a check, or JSON lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gotrace.doctor.finding import CheckState, Finding
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of, hanging
from gotrace.text import printable

_STATE_WIDTH = max(len(state.value) for state in CheckState)
_CHECK_WIDTH = 25  # that of the longest name


def write_findings(output: Output, findings: Iterable[Finding]) -> bool:
    """Write findings as they come, then the verdict; return whether tracing is possible."""
    states: Counter[CheckState] = Counter()
    for finding in findings:
        states[finding.state] += 1
        if isinstance(output, JsonOutput):
            output.write("check", _fields(finding))
        else:
            output.out.write(_lines(finding, columns_of(output.out)))
        output.out.flush()
    possible = not states[CheckState.FAIL]
    message = _verdict(states)
    if isinstance(output, JsonOutput):
        output.write("verdict", {"possible": possible, "message": message})
    else:
        output.out.write(f"\n{message}\n")
    output.out.flush()
    return possible


def _fields(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "state": finding.state.value,
        "found": finding.found,
        "advice": finding.advice,
    }


def _lines(finding: Finding, columns: int | None) -> str:
    state, check = finding.state.value, finding.check
    before = f"{state:<{_STATE_WIDTH}}  {check:<{_CHECK_WIDTH}} "
    text = hanging(before, printable(finding.found), columns) + "\n"
    if finding.advice:
        text += f"{'':<{_STATE_WIDTH}}  {'':<{_CHECK_WIDTH}} -> {printable(finding.advice)}\n"
    return text


def _verdict(states: Counter[CheckState]) -> str:
    if states[CheckState.FAIL]:
        return f"Tracing will not work in full: fix the {_problems(states[CheckState.FAIL])} above."
    if states[CheckState.WARN]:
        return f"Tracing works, with {_problems(states[CheckState.WARN], 'limitation')}: see above."
    return "Tracing works."


def _problems(count: int, noun: str = "problem") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
