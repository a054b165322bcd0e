"""List what would be traced: functions, where they are, their sites, where they were inlined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gotrace.elf.pclntab.inline import InlinedCall
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.session.plan import BinaryPlan, Plan
from gotrace.sites.sites import FunctionSites
from gotrace.text import printable

__all__ = [
    "list_plan",
]


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    binary: str
    file: str | None
    line: int | None
    sites: FunctionSites
    inlined: list[InlinedCall]


def list_plan(plan: Plan, output: Output) -> None:
    """Write one row a function, and a warning for each one that cannot be traced.

    Columns: name, source position, address, entry site and its form, number of RETs (and of jumps
    out of the function), places that the function was inlined into.
    """
    for problem in plan.problems:
        output.notice(Notice(NoticeKind.WARNING, problem))
    listed = [row for binary in plan.binaries for row in _rows(binary)]
    if isinstance(output, JsonOutput):
        for row in listed:
            output.write("function", _fields(row))
        output.out.flush()
        return
    from tabulate import tabulate

    headers = ["NAME", "POSITION", "ADDRESS", "SITE", "RETS", "INLINED INTO"]
    table = tabulate([_cells(row) for row in listed], headers, "plain", disable_numparse=True)
    output.out.write(table + "\n")
    output.out.flush()


def _rows(plan: BinaryPlan) -> Iterator[_Listed]:
    names = {sites.function.name for sites in plan.functions}
    inlined: dict[str, list[InlinedCall]] = {}
    for call in plan.binary.functions.inlined_calls(names):
        inlined.setdefault(call.name, []).append(call)
    for sites in plan.functions:
        function = sites.function
        at = plan.binary.functions.declared_at(function.row)
        yield _Listed(
            function.name,
            plan.binary.image.display,
            at.file if at else None,
            at.line if at else None,
            sites,
            inlined.get(function.name, []),
        )


def _fields(row: _Listed) -> dict[str, object]:
    entry = row.sites.entry
    assert entry is not None
    return {
        "func": row.name,
        "binary": row.binary,
        "file": row.file,
        "line": row.line,
        "address": row.sites.function.entry,
        "site": entry.address,
        "form": entry.form.value,
        "rets": [site.address for site in row.sites.returns],
        "tail_jumps": row.sites.tail_jumps,
        "inlined": [
            {"caller": call.caller, "file": call.file, "line": call.line} for call in row.inlined
        ],
    }


_MOST_PLACES = 3
_WIDEST = 1000


def _cells(row: _Listed) -> list[str]:
    entry = row.sites.entry
    assert entry is not None
    function = row.sites.function
    rets = str(len(row.sites.returns))
    if row.sites.tail_jumps:
        rets += f" (+{row.sites.tail_jumps} jumps out)"
    places = [f"{call.caller} ({_position(call.file, call.line)})" for call in row.inlined]
    more = len(places) - _MOST_PLACES
    shown = ", ".join(places[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")
    return [
        _fit(row.name),
        _fit(_position(row.file, row.line)),
        f"{function.entry:#x}",
        f"+{entry.address - function.entry:#x} {entry.form.value}",
        rets,
        _fit(shown) or "-",
    ]


def _fit(text: str) -> str:
    """Make text fit for a cell: a damaged file can have names that would widen all rows."""
    shown = printable(text)
    return shown if len(shown) <= _WIDEST else f"{shown[:_WIDEST]}... ({len(text)} characters)"


def _position(file: str | None, line: int | None) -> str:
    return f"{file.rsplit('/', 1)[-1]}:{line}" if file else "-"
