# SPDX-License-Identifier: Apache-2.0
"""Write verdicts on assertions: a table, reasons, and the worst root's tree; or JSON.

For others there are JUnit's XML, and the lines from which GitHub makes annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from xml.etree import ElementTree

from gotrace.assertions.grammar import BoundScope
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict
from gotrace.report.calls import Clock, LineStyle
from gotrace.report.output import JsonOutput, Output
from gotrace.report.requests import REQUEST_HEADING, request_lines
from gotrace.report.table import columns_of, table_lines
from gotrace.text import counted, printable

_HEADS = ("ASSERTION", "VERDICT", "ROOTS", "LEAST", "MEDIAN", "MOST")
_NAME = "gotrace assert"
#: Lines of a tree: one root may have made a million calls.
_MAX_LINES = 40


def write_verdicts(
    output: Output, verdicts: Sequence[BoundVerdict], clock: Clock, style: LineStyle
) -> None:
    """Write all verdicts of a run."""
    if isinstance(output, JsonOutput):
        for verdict in verdicts:
            output.write("assertion", _fields(verdict, clock))
    else:
        rows = [_HEADS, *map(_cells, verdicts)]
        for line in table_lines(rows, 4, columns_of(output.out)):
            output.out.write(f"{line.rstrip()}\n")
        for verdict in verdicts:
            output.out.writelines(_below(verdict, clock, style))
    output.out.flush()


def _cells(verdict: BoundVerdict) -> Sequence[str]:
    found = (verdict.least, verdict.median, verdict.most)
    is_run = verdict.assertion.scope is BoundScope.RUN
    roots = "-" if is_run else f"{verdict.roots:,}"
    numbers = ("-" if number is None else f"{number:,}" for number in found)
    return printable(verdict.assertion.text), verdict.outcome.value, roots, *numbers


def _below(verdict: BoundVerdict, clock: Clock, style: LineStyle) -> Iterator[str]:
    """Yield the lines that say why a verdict is not that it holds."""
    if verdict.outcome.status == 0:
        return
    text = printable(verdict.assertion.text)
    for why in verdict.why:
        yield f"{text}: {printable(why)}\n"
    if verdict.worst is None:
        return
    yield f"\n{_summary(verdict)}; the worst:\n"
    yield REQUEST_HEADING
    lines = request_lines(verdict.worst, clock, style)
    yield from islice(lines, _MAX_LINES)
    if more := sum(1 for _ in lines):
        yield f"and {more:,} more calls\n"


def _summary(verdict: BoundVerdict) -> str:
    """Return a verdict in one line."""
    text = f"{printable(verdict.assertion.text)}: {verdict.outcome.value}"
    if verdict.why:
        return f"{text}: {printable('; '.join(verdict.why))}"
    if verdict.outcome is not BoundOutcome.FAILS:
        return text
    if verdict.assertion.root is None:
        return f"{text}: {counted('{:,} call{s}', verdict.most or 0)}"
    return f"{text} for {verdict.broken:,} of {counted('{:,} root{s}', verdict.roots)}"


def recorded(verdicts: Sequence[BoundVerdict]) -> str:
    """Return a file of assertions whose bounds are what was seen."""
    lines = ["# The most calls that gotrace assert --record has seen.\n"]
    for verdict in verdicts:
        if verdict.most is None:
            lines.append(f"# {verdict.assertion.text}: {verdict.outcome.value}\n")
        else:
            lines.append(f"{verdict.assertion.closed(verdict.most).text}\n")
    return "".join(lines)


def junit(
    verdicts: Sequence[BoundVerdict], clock: Clock, style: LineStyle, allow_missing: bool
) -> bytes:
    """Return verdicts as a report of tests in JUnit's XML, in which each is a test."""
    names = [_element(verdict, allow_missing) for verdict in verdicts]
    numbers = {
        "tests": str(len(verdicts)),
        "failures": str(names.count("failure")),
        "errors": str(names.count("error")),
    }
    suites = ElementTree.Element("testsuites", numbers)
    skipped = {"skipped": str(names.count("skipped"))}
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _NAME, **numbers, **skipped})
    for verdict, name in zip(verdicts, names, strict=True):
        text = printable(verdict.assertion.text)
        case = ElementTree.SubElement(suite, "testcase", {"classname": _NAME, "name": text})
        if name is not None:
            fault = ElementTree.SubElement(case, name, {"message": _summary(verdict)})
            at = "" if verdict.place is None else "{}:{}".format(*verdict.place)
            fault.text = f"{printable(at)}\n{''.join(_below(verdict, clock, style))}"
    ElementTree.indent(suites)
    content: bytes = ElementTree.tostring(suites, "utf-8", xml_declaration=True)
    return content


def _element(verdict: BoundVerdict, allow_missing: bool) -> str | None:
    """Return the element of a test in JUnit's XML that says so, None if it passes."""
    if verdict.outcome.status == 0:
        return None
    if verdict.outcome is BoundOutcome.MISSING and allow_missing:
        return "skipped"
    return "failure" if verdict.outcome is BoundOutcome.FAILS else "error"


def annotation_lines(
    verdicts: Sequence[BoundVerdict], folder: str, module: str | None, allow_missing: bool
) -> Iterator[str]:
    """Yield lines from which GitHub annotates the source of the functions that are at fault.

    Paths are those in the repository at ``folder``, or in a ``module`` that was built without them.
    """
    for verdict in verdicts:
        if _element(verdict, allow_missing) in (None, "skipped"):
            continue
        properties = [f"title={_NAME}"]
        if verdict.place is not None:
            file, line = verdict.place
            for above in (folder, module or ""):
                if above and file.startswith(f"{above}/"):
                    file = file[len(above) + 1 :]
            properties = [f"file={_escaped(file)}", f"line={line}", *properties]
        yield f"::error {','.join(properties)}::{_escaped(_summary(verdict), '')}\n"


def _escaped(text: str, also: str = ":,") -> str:
    """Return a text as GitHub's commands have it."""
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _fields(verdict: BoundVerdict, clock: Clock) -> dict[str, object]:
    fields: dict[str, object] = {
        "assertion": verdict.assertion.text,
        "outcome": verdict.outcome.value,
        "bound": verdict.most if verdict.assertion.is_open else verdict.assertion.number,
        "roots": None if verdict.assertion.scope is BoundScope.RUN else verdict.roots,
        "broken": verdict.broken,
        "least": verdict.least,
        "median": verdict.median,
        "most": verdict.most,
        "why": list(verdict.why),
    }
    if verdict.worst is not None:
        worst = verdict.worst.mapped(lambda call: call.as_call(clock.epoch))
        fields["worst"] = json.loads(worst.to_json())
    return fields
