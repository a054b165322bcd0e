# SPDX-License-Identifier: Apache-2.0
"""List the functions of a trace, without tracing: places, sites, where they were inlined.

A program may have 90,000 functions. Each is written as soon as its sites are chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from gotrace.elf.pclntab.inline import InlinedCall, InlinedCalls
from gotrace.errors import GotraceError
from gotrace.records import dataclass
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.report.table import columns_of, hanging
from gotrace.session.count import InlinedScope
from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.session.plan import Check, ProbePlan, Selections, Verdict
from gotrace.sites.inlined import InlinedSites, Proof, Unproven, untraced
from gotrace.sites.landings import Callers, CallerSearch
from gotrace.sites.lines import reason_text
from gotrace.sites.records import SiteError
from gotrace.sites.sites import FunctionSites, InlinedPlace
from gotrace.target.target import TargetBinary
from gotrace.text import counted, in_program, printable

if TYPE_CHECKING:
    from gotrace.abi.locations import SignatureSource
    from gotrace.elf.functions import FuncInfo

    #: Gives the source of a function's signature.
    SourceOf = Callable[[FuncInfo], SignatureSource]


def list_plan(
    plan: ProbePlan,
    output: Output,
    sources: Mapping[tuple[int, int], SignatureSource] | None = None,
) -> None:
    """Write one row a function, and a warning for each one that cannot be traced.

    ``sources`` are those of signatures if values are to be traced, by ``id`` of the file and the
    entry.
    """
    problems = plan.problems if isinstance(output, JsonOutput) else by_kind(plan.problems)
    for problem in (*map(str, plan.failed), *problems):
        output.notice(Notice(NoticeKind.WARNING, problem))
    writers = _Writers(output, shows_sources=sources is not None)
    programs = plan.program_names
    for binary in plan.binaries:
        if not binary.functions:
            continue
        names = [sites.function.name for sites in binary.functions]
        source = None
        if sources is not None:
            source = partial(_planned_source, sources, binary.binary)
            _say_where(binary.binary, output)
        writers.begin(binary.binary, names, programs.get(binary.binary), source)
        for sites in binary.functions:
            writers.write(sites)
    writers.end()
    if only := plan.only_inlined():
        output.notice(Notice(NoticeKind.WARNING, only.text("listed"), only.fields))


def _source_in(binary: TargetBinary, output: Output) -> SourceOf:
    """Return sources of signatures, and say where the information on them is."""
    from gotrace.abi.function_values import FunctionValues  # lists of what is counted need none

    _say_where(binary, output)
    if binary.dwarf_problem is not None:
        output.notice(Notice(NoticeKind.WARNING, binary.dwarf_problem))
    return FunctionValues(binary).source


def _say_where(binary: TargetBinary, output: Output) -> None:
    """Say where the debugging information is, if that is a file of its own."""
    if (note := binary.debug_note) is not None:
        output.notice(Notice(NoticeKind.WARNING, note))


def _planned_source(
    sources: Mapping[tuple[int, int], SignatureSource], binary: TargetBinary, function: FuncInfo
) -> SignatureSource:
    return sources[id(binary), function.entry]


#: By the verb that a tool has for a function: what it does with a call.
_DONE = {"count": "counted", "measure": "measured", "trace": "traced"}


def list_functions(
    found: Selections, output: Output, verb: str, check: Check, counts_inlined: bool = False
) -> tuple[GotraceError, ...]:
    """Write one row a function, as they come, and warnings of those that cannot be traced.

    Those that exist only inlined come last. Text has one line for all warnings of a kind, at the
    end. ``verb`` is what the tool does to a function, for messages. ``counts_inlined``: it counts
    inlined calls also of functions that are not spelled out. A function that several requests
    select comes once. Return what of the requests comes to nothing, and raise it where all do.
    """
    follows = verb != "count"
    # A list is written as its functions become known: in text, many of them do not wait for that.
    most = 0 if not follows else MAX_FUNCTIONS if isinstance(output, JsonOutput) else _MAX_SEARCHED
    shown = [len(one.rows) <= most and one.binary.image.arch.steps_rets for one in found.selected]
    has_values = verb == "trace"
    writers = _Writers(output, follows and any(shown), has_values)
    failed = list(found.failed)
    for text in (*map(str, failed), *found.notes):
        output.notice(Notice(NoticeKind.WARNING, text))
    programs = found.program_names
    seen: set[tuple[int, int, int | str]] = set()
    any_usable = False
    problems: list[str] = []
    for selected, shows_callers in zip(found.selected, shown, strict=True):
        file = selected.binary.image.identity
        names = selected.binary.functions.names
        only = selected.only_inlined()
        listed = [*(names[row] for row in selected.rows), *only]
        source = _source_in(selected.binary, output) if has_values else None
        writers.begin(selected.binary, listed, programs.get(selected.binary), source)
        if shows_callers:
            writers.find_callers(selected.rows)
        first_problem, usable = "", bool(only)
        for sites in selected.sites(returns=True, values=has_values):
            verdict = check(sites)
            first_problem = _noted(sites, verdict, output, problems) or first_problem
            usable = usable or verdict.usable
            function = sites.function
            key = (file.device, file.inode, function.name if sites.is_line else function.entry)
            if (verdict.usable or sites.is_line) and key not in seen:
                seen.add(key)
                writers.write(sites)
        for name in only:
            writers.write_inlined(name)
        any_usable = any_usable or usable
        if not usable:
            failed.append(selected.nothing_usable(verb, first_problem))
    if any_usable:
        writers.end()
    for problem in by_kind(problems):
        output.notice(Notice(NoticeKind.WARNING, problem))
    if not counts_inlined:
        _say_unseen(found, output, verb)
    if not any_usable:
        raise failed[-1]
    return tuple(failed)


def _noted(
    sites: FunctionSites, verdict: Verdict, output: Output, problems: list[str]
) -> str | None:
    """Take note of what is wrong with a function, for a line at the end if it is text.

    A line of the source has the reasons in its row.
    """
    if sites.is_line:
        return sites.problem
    if not isinstance(output, JsonOutput):
        problems += verdict.problems
    for problem in verdict.problems if isinstance(output, JsonOutput) else ():
        output.notice(Notice(NoticeKind.WARNING, problem))
    return verdict.problems[0] if verdict.problems else None


def _say_unseen(found: Selections, output: Output, verb: str) -> None:
    """Warn of functions that exist only inlined and whose calls are not seen."""
    scope = InlinedScope.NAMED if verb == "count" else InlinedScope.NONE
    for selected in found.selected:
        if unseen := selected.unseen_inlined(found.program_names, scope):
            output.notice(Notice(NoticeKind.WARNING, unseen.text(_DONE[verb]), unseen.fields))


#: The fault of a function, after its name.
_PROBLEM = re.compile(r"(.+?)((?:: | cannot be | also ends ).*)", re.DOTALL)
#: The part of it that differs from function to function.
_DETAIL = re.compile(r"0x[0-9a-f]+|(?<=opcode) [0-9a-f ]+|\(\d+ bytes\)")
_MAX_NAMED = 3


def by_kind(problems: Iterable[str]) -> list[str]:
    """Return problems of functions, one line for all of a kind: the first, and which others."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for problem in problems:
        match = _PROBLEM.fullmatch(problem)
        name, rest = match.groups() if match else ("", problem)
        kind = _DETAIL.sub("", rest.replace(name, "") if name else rest)
        kinds.setdefault(kind, []).append((name, problem))
    return [_together(alike) for alike in kinds.values()]


def _together(alike: Sequence[tuple[str, str]]) -> str:
    """Return problems of one kind, (name, problem) each, in a line."""
    (_, first), *others = alike
    if not others:
        return first
    names = list(dict.fromkeys(name for name, _ in others))
    shown = ", ".join(names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{first} (the same of {shown}{more})"


@dataclass(frozen=True, slots=True)
class _Called:
    """How a function is called: how often directly, and with which landings behind the call.

    ``is_closed``: in no other way.
    """

    direct: int
    emulated: int
    stepped: int
    is_closed: bool


class _Writer:
    """The common part of both forms of a list."""

    #: Rows after which they are handed on.
    _FLUSHED = 64

    def __init__(self, output: Output) -> None:
        self._out = output.out
        self._written = 0

    def begin(
        self,
        binary: TargetBinary,
        names: Sequence[str],
        program: str | None,
        source: SourceOf | None,
    ) -> None:
        """Begin with the functions of a file; ``names`` are those to come, maybe not all.

        ``program`` is what the file is called where the functions are of several programs.
        """
        self._binary = binary
        self._source = source
        self._program = program
        self._table = binary.functions
        self._inlined: InlinedCalls | None = self._table.inlined_by_name()
        self._proofs = InlinedSites(self._table) if len(names) <= _MAX_PROVEN else None
        self._callers: Callers | None = None
        self._search: CallerSearch | None = None

    def find_callers(self, rows: Sequence[int]) -> None:
        """Find where functions of the file are called directly."""
        self._callers = Callers(self._table)
        entries = {self._table.function(row).entry for row in rows}
        self._search = self._callers.search(entries, proves=True).run()

    def _found(self, entry: int) -> _Called | None:
        """Return how a function is called, None if that was not searched."""
        if self._callers is None or self._search is None:
            return None
        places = self._search.calls.get(entry, ())
        emulated = stepped = 0
        for place in places:
            with suppress(SiteError):
                best = self._callers.landings(place)[0]
                emulated, stepped = emulated + best.emulated, stepped + (not best.emulated)
        return _Called(len(places), emulated, stepped, self._search.is_closed(entry))

    def write(self, sites: FunctionSites) -> None:
        """Write one function that has an entry site."""
        raise NotImplementedError

    def write_inlined(self, name: str) -> None:
        """Write one function that exists only inlined."""
        raise NotImplementedError

    def write_line(self, sites: FunctionSites) -> None:
        """Write one line of the source."""
        raise NotImplementedError

    def end(self) -> None:
        """Write the remaining rows."""
        self._out.flush()

    def _count(self) -> None:
        self._written += 1
        if self._written % self._FLUSHED == 0:
            self._out.flush()

    def _calls(self, name: str) -> list[tuple[InlinedCall, Proof | None]]:
        """Return a function's inlined calls, and of few functions where each could be counted."""
        if self._proofs is None:
            return [(call, None) for call in self._inlined.of(name)] if self._inlined else []
        found = list(self._table.inlined_calls([name]))
        lacking = untraced(self._table, found)
        proofs = [*self._proofs.of(found), *[Proof(None, Unproven.NO_TRACE)] * len(lacking)]
        return list(zip([*found, *lacking], proofs, strict=True))


def _place(place: Proof | InlinedPlace | None) -> dict[str, object]:
    if place is None:
        return {}
    site = place.site
    return {"place": None if site is None else site.address, "unproven": _reason(place)}


def _reason(place: Proof | InlinedPlace) -> str | None:
    """Return why not all calls are seen in a place."""
    unproven = place.unproven
    return unproven.value if isinstance(unproven, Unproven) else unproven


class _JsonWriter(_Writer):
    """One object a function."""

    def __init__(self, output: JsonOutput) -> None:
        super().__init__(output)
        self._json = output

    def _signature(self, function: FuncInfo) -> dict[str, object]:
        return {} if self._source is None else {"signature": self._source(function).value}

    def _landings(self, entry: int) -> dict[str, object]:
        if (found := self._found(entry)) is None:
            return {}
        callers = {"direct": found.direct, "emulated": found.emulated, "stepped": found.stepped}
        return {"callers": callers, "closed": found.is_closed}

    def write(self, sites: FunctionSites) -> None:
        entry, function = sites.entry, sites.function
        assert entry is not None
        at = self._table.declared_at(function.row)
        self._json.write(
            "function",
            {
                "func": function.name,
                "binary": self._binary.image.display,
                "file": at.file if at else None,
                "line": at.line if at else None,
                "address": function.entry,
                "site": entry.address,
                "form": entry.form.value,
                "rets": [site.address for site in sites.returns],
                "tail_jumps": sites.tail_jumps,
                **self._signature(function),
                **self._landings(function.entry),
                "inlined": self._inlined_in(function.name),
            },
        )
        self._count()

    def write_inlined(self, name: str) -> None:
        nowhere = dict.fromkeys(("file", "line", "address", "site", "form"))
        more = {"rets": [], "tail_jumps": 0, "inlined": self._inlined_in(name)}
        row = {"func": name, "binary": self._binary.image.display, **nowhere, **more}
        self._json.write("function", row)
        self._count()

    def write_line(self, sites: FunctionSites) -> None:
        at, entry = sites.places[0].at, sites.entry
        places = [
            {
                "caller": place.at.caller,
                "file": place.at.file,
                "line": place.at.line,
                **_place(place),
            }
            for place in sites.places
        ]
        row = {
            "func": sites.function.name,
            "binary": self._binary.image.display,
            "file": at.file,
            "line": at.line,
            "address": None,
            "site": None if entry is None else entry.address,
            "form": None if entry is None else entry.form.value,
            "rets": [],
            "tail_jumps": 0,
            "inlined": places,
        }
        self._json.write("function", row)
        self._count()

    def _inlined_in(self, name: str) -> list[dict[str, object]]:
        return [
            {"caller": call.caller, "file": call.file, "line": call.line, **_place(place)}
            for call, place in self._calls(name)
        ]


@dataclass(frozen=True, slots=True)
class _Column:
    """One column; ``width`` is what a long list gives it at least, when it is not the last."""

    title: str
    width: int


_COLUMNS = (
    _Column("NAME", 0),
    _Column("POSITION", 20),
    _Column("ADDRESS", 8),
    _Column("SITE", 14),
    _Column("RETS", 4),
    _Column("SIGNATURE", 12),
    _Column("CALLERS", 0),
    _Column("INLINED INTO", 0),
)
#: The columns of a longer list are not made to fit all of it, since it is written as it comes.
_MAX_FITTED = 256
#: In a longer list a name that is wider than this moves the rest of its row to the right.
_MAX_NAME = 60
_MAX_PLACES = 3
_MAX_SEARCHED = 100  # functions whose callers text has
_MAX_CELL = 1000
_MAX_PROVEN = 10  # functions of whose inlined calls a list says where they could be counted


class _TextWriter(_Writer):
    """A table of one row a function, see ``_COLUMNS``.

    SITE is the entry site's offset and form; RETS the number of RETs, and of jumps out of the
    function; SIGNATURE, if values are traced, its source; CALLERS, if they are searched, that of
    direct calls, how many of these have a landing that the kernel emulates, and whether there may
    be other callers; INLINED INTO some of the places that the function was inlined into, or if each
    has a line of its own how many there are. A row that is wider than the terminal has a line for
    the name, one for the columns, and one for the places.
    """

    def __init__(self, output: TextOutput, shows_callers: bool, shows_sources: bool) -> None:
        super().__init__(output)
        self._output = output
        shown = {"CALLERS": shows_callers, "SIGNATURE": shows_sources}
        self._columns = [each for each in _COLUMNS if shown.get(each.title, True)]
        self._held: list[list[str]] = [[column.title for column in self._columns]]
        self._below: dict[int, list[str]] = {}
        self._widths: list[int] | None = None
        self._name_width = 0
        self._columns_here = columns_of(output.out)
        self._is_split = False

    def begin(
        self,
        binary: TargetBinary,
        names: Sequence[str],
        program: str | None,
        source: SourceOf | None,
    ) -> None:
        super().begin(binary, names, program, source)
        width = max(map(len, names), default=0) + (0 if program is None else len(program) + 1)
        self._name_width = max(self._name_width, width)

    def write(self, sites: FunctionSites) -> None:
        if self._proofs is not None and sites.entry is not None:
            self._proofs.take([sites.entry.address])
        self._write(self._cells(sites), sites.function.name)

    def write_inlined(self, name: str) -> None:
        shown = {"NAME": _fit(in_program(self._program, name))}
        self._write([shown.get(column.title, "-") for column in self._columns], name)

    def write_line(self, sites: FunctionSites) -> None:
        entry, places = sites.entry, sites.places
        shown = {"NAME": _fit(in_program(self._program, sites.function.name))}
        if entry is not None:
            shown |= {"ADDRESS": f"{entry.address:#x}", "SITE": entry.form.value}
        cells = [shown.get(column.title, "-") for column in self._columns]
        below: list[str] = []
        if len(places) == 1 and places[0].unproven is None:
            cells[-1] = _fit(places[0].at.caller)
        else:
            cells[-1] = counted("{:,} place{s}", len(places))
            below = [_how_line(f"in {place.at.caller}", place) for place in places]
        self._hold(cells, below)

    def _write(self, cells: list[str], name: str) -> None:
        cells[-1], below = self._places(name)
        self._hold(cells, below)

    def _hold(self, cells: list[str], below: list[str]) -> None:
        """Write a row, or keep it until the widths of the columns are known."""
        if self._widths is not None:
            self._out.write(self._line(cells, self._widths))
            self._out.writelines(below)
            self._count()
            return
        self._below[len(self._held)] = below
        self._held.append(cells)
        if len(self._held) > _MAX_FITTED:
            least = [column.width for column in self._columns]
            least[0] = min(self._name_width, _MAX_NAME)
            self._fit(least)

    def end(self) -> None:
        if self._widths is None and len(self._held) > 1:
            self._fit([0] * len(self._columns))
        super().end()

    def _fit(self, least: Sequence[int]) -> None:
        """Write the rows held back, in columns of the width that they need."""
        columns = zip(*self._held, strict=True)
        widths = [max(len(cells[0]) + 2, *map(len, cells)) for cells in columns]
        if any(least):
            widths[0] = min(widths[0], _MAX_NAME)
        self._widths = [max(pair) for pair in zip(widths, least, strict=True)]
        heads, *rows = self._held
        most = max(len(cells[-1]) for cells in self._held)
        width = sum(self._widths[:-1]) + 2 * (len(heads) - 1) + most
        self._is_split = self._columns_here is not None and width > self._columns_here
        self._output.heading(self._line(heads, self._widths))
        for number, cells in enumerate(rows, 1):
            self._out.write(self._line(cells, self._widths))
            self._out.writelines(self._below.get(number, ()))
        self._out.flush()

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        if not self._is_split:
            return "  ".join(padded).rstrip() + "\n"
        lines = [cells[0], "    " + "  ".join(padded[1:-1]).rstrip()]
        if cells[-1] not in ("-", _COLUMNS[-1].title):
            lines.append(hanging("    inlined into ", cells[-1], self._columns_here))
        return "\n".join(lines) + "\n"

    def _cells(self, sites: FunctionSites) -> list[str]:
        entry, function = sites.entry, sites.function
        assert entry is not None
        at = self._table.declared_at(function.row)
        rets = str(len(sites.returns))
        if sites.tail_jumps:
            rets += f" (+{sites.tail_jumps} jumps out)"
        cells = {
            "NAME": _fit(in_program(self._program, function.name)),
            "POSITION": _fit(_position(at.file, at.line)) if at else "-",
            "ADDRESS": f"{function.entry:#x}",
            "SITE": f"+{entry.address - function.entry:#x} {entry.form.value}",
            "RETS": rets,
            "SIGNATURE": self._source(function).value if self._source else "-",
            "INLINED INTO": "-",
        }
        called = self._found(function.entry)
        if called is None:
            cells["CALLERS"] = "-"
        else:  # returns are seen at landings only if all callers are known
            rest = f" ({called.emulated} landings)" if called.is_closed else ", and others"
            cells["CALLERS"] = f"{called.direct}{rest}"
        return [cells[column.title] for column in self._columns]

    def _places(self, name: str) -> tuple[str, list[str]]:
        """Return where a function is inlined, for its cell, and the lines of its places."""
        if self._inlined is None:
            return "-", []
        if self._proofs is not None:
            lines = [_place_line(name, call, place) for call, place in self._calls(name)]
            return counted("{:,} place{s}", len(lines)) if lines else "-", lines
        calls = islice(self._inlined.of(name), _MAX_PLACES)
        places = [f"{call.caller} ({_position(call.file, call.line)})" for call in calls]
        more = self._inlined.count(name) - len(places)
        shown = ", ".join(places) + (f" and {more} more" if more > 0 else "")
        return _fit(shown) or "-", []


def _place_line(name: str, call: InlinedCall, place: Proof | None) -> str:
    return _how_line(f"{name} in {call.caller} at {_position(call.file, call.line)}", place)


def _how_line(at: str, place: Proof | InlinedPlace | None) -> str:
    is_counted = "counted"
    if place is not None and (reason := _reason(place)) is not None:
        how = "not counted" if place.site is None else "counted, perhaps not always"
        text = place.unproven.text if isinstance(place.unproven, Unproven) else reason_text(reason)
        is_counted = f"{how}: {text}"
    return f"    {printable(at)}  {is_counted}\n"


class _Writers:
    """A list in all forms of an output."""

    def __init__(
        self, output: Output, shows_callers: bool = False, shows_sources: bool = False
    ) -> None:
        self._writers = [
            _JsonWriter(form)
            if isinstance(form, JsonOutput)
            else _TextWriter(form, shows_callers, shows_sources)
            for form in output.forms
        ]

    def begin(
        self,
        binary: TargetBinary,
        names: Sequence[str],
        program: str | None,
        source: SourceOf | None,
    ) -> None:
        """Begin with the functions of a file in each form."""
        for writer in self._writers:
            writer.begin(binary, names, program, source)

    def find_callers(self, rows: Sequence[int]) -> None:
        """Find the callers of functions of the file for each form."""
        for writer in self._writers:
            writer.find_callers(rows)

    def write(self, sites: FunctionSites) -> None:
        """Write one function, or line of the source, in each form."""
        for writer in self._writers:
            if sites.is_line:
                writer.write_line(sites)
            else:
                writer.write(sites)

    def write_inlined(self, name: str) -> None:
        """Write one function that exists only inlined in each form."""
        for writer in self._writers:
            writer.write_inlined(name)

    def end(self) -> None:
        """Write the remaining rows of each form."""
        for writer in self._writers:
            writer.end()


def _fit(text: str) -> str:
    """Make text fit for a cell: a damaged file can have names that would widen all rows."""
    shown = printable(text)
    return shown if len(shown) <= _MAX_CELL else f"{shown[:_MAX_CELL]}... ({len(text)} characters)"


def _position(file: str, line: int) -> str:
    return f"{file.rsplit('/', 1)[-1]}:{line}" if file else "-"
