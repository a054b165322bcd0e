# SPDX-License-Identifier: Apache-2.0
"""Write recordings that are added up: as the tables of the command that made them, or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from gotrace.calls import StackFrame
from gotrace.goroutines.model import Frame
from gotrace.profiles.rows import (
    Line,
    PprofLocation,
    ProfileForm,
    ProfileRow,
    StackProfile,
    ValueType,
)
from gotrace.report.by import write_values
from gotrace.report.counts import write_counts
from gotrace.report.goroutines import labels_text, rest_of_groups, span, write_frames
from gotrace.report.latencies import write_latencies
from gotrace.report.output import JsonOutput, Output, TextOutput
from gotrace.report.samples import write_samples
from gotrace.report.syscalls import write_syscalls
from gotrace.report.waits import write_waits
from gotrace.report.wall import write_wall
from gotrace.results.kinds import HEADS, KINDS, SAMPLED, SAMPLING, TOOLS, frames_of
from gotrace.results.merging import Merged, times_of
from gotrace.results.rows import Json, Row
from gotrace.session.latency_rows import Interval, LatencyGroup
from gotrace.session.order import last
from gotrace.session.row_cells import RowBy, RowStack
from gotrace.session.why.parts import PartSums, PartTotals
from gotrace.session.why.sums import BucketParts
from gotrace.text import counted, in_program, printable

_Row = Json

_FEW_HOSTS = 4
_FUNCTIONS = 30
_NO_WAITS = {"count": 0, "delay_ns": 0, "others": {"count": 0, "delay_ns": 0}}


def spoken_hosts(names: Sequence[str]) -> str:
    """Return hosts in words: some of them, and how many others there are."""
    shown = [printable(name) for name in sorted(names)]
    if len(shown) <= _FEW_HOSTS:
        return ", ".join(shown)
    return f"{', '.join(shown[: _FEW_HOSTS - 1])} and {len(shown) - _FEW_HOSTS + 1} others"


def write_merged(output: Output, merged: Merged, top: int | None) -> None:
    """Write the sums, of each kind the ``top`` largest rows."""
    if isinstance(output, JsonOutput):
        _write_json(output, merged, top)
        return
    _write_text(output, merged, top)


def _write_text(output: TextOutput, merged: Merged, top: int | None) -> None:
    out = output.out
    hosts = merged.places
    output.heading(f"{hosts}: {spoken_hosts(list(merged.hosts))}\n")
    _write_notices(out, merged, "warning")
    if merged.tool is None:
        out.write("no results\n")
    elif merged.tool == "gofunccount":
        _write_counts(output, merged, top)
    elif merged.tool == "gofunclatency":
        _write_latencies(output, merged, top)
    else:
        names = sorted(merged.hosts) if merged.by_host else [None]
        for name in names:
            out.write("\n")
            what = f"host {printable(name)}" if name is not None else hosts
            rows = {kind: _shown(merged.rows(kind), name) for kind in TOOLS[merged.tool]}
            for head in (one for kind in HEADS for one in rows.get(kind, ())):
                head["seconds"] = merged.units if name is None else merged.hosts[name].units
            _WRITERS[merged.tool](out, rows, what, top)
    _write_notices(out, merged, "lost")
    out.flush()


def _write_json(output: JsonOutput, merged: Merged, top: int | None) -> None:
    """Write everything, of kinds that have an order the ``top`` largest rows."""
    seen: Counter[str] = Counter()
    for row in merged.objects():
        kind = row.pop("kind")
        seen[kind] += 1
        how = KINDS.get(kind)
        if top and how is not None and how.order and not how.is_whole:
            place = seen[how.below or kind]
            if not how.is_descending:
                place = len(merged.rows(kind)) - place + 1
            if place > top:
                continue
        output.write(kind, row)
    output.out.flush()


_STACKED = ("stack", "waker_stack")


def _write_notices(out: TextIO, merged: Merged, kind: str) -> None:
    """Write notices of a kind, each with the hosts it is from."""
    found: dict[str, list[str]] = {}
    for notice in merged.notices:
        if notice["kind"] == kind:
            found.setdefault(str(notice["message"]), []).append(notice["host"])
    for text, names in found.items():
        out.write(f"{printable(text)} ({spoken_hosts([*set(names)])})\n")


def _shown(rows: Sequence[_Row], name: str | None = None) -> list[Row]:
    """Return the rows of a host, or of all, with their stacks and values for text."""
    found = [dict(row) for row in rows if name is None or row.get("host") == name]
    for row in found:
        row |= {one: RowStack.of_json(row[one]) for one in _STACKED if one in row}
        row |= {"by": RowBy.of_json(row["by"])} if "by" in row else {}
    return found


def _placed(rows: Sequence[_Row]) -> list[Row]:
    """Return rows for text, with their hosts before their programs."""
    return [{**row, "program": _place(row)} for row in _shown(rows)]


def _place(row: _Row) -> str | None:
    """Return the place of a function, which is shown before its name: host, program, or both."""
    host, program = row.get("host"), row.get("program")
    return in_program(host, program) if program is not None else host


def _by(row: _Row) -> Mapping[str, Any] | None:
    return RowBy.of_json(row["by"]).values if row.get("by") is not None else None


def _write_counts(output: Output, merged: Merged, top: int | None) -> None:
    rows = _placed(merged.rows("count"))
    by = merged.options.get("by", ()) if any("by" in row for row in rows) else ()
    rates = any("rate" in row for row in rows)
    write_counts(output, last(rows, top), False, {}, by, rates)


def _write_latencies(output: Output, merged: Merged, top: int | None) -> None:
    rows = merged.rows("histogram")
    if rows and "of" in rows[0]:
        write_values(output, last(_placed(rows), top), False)
        return
    rest = merged.rows("rest")
    interval = Interval(
        last([_latency(row) for row in rows], top),
        _placed(rest),
        merged.ended or 0.0,
        merged.units,
        1,
        total=sum(row["sum_ns"] for row in (*rows, *rest)),
        rates=any("rate" in row for row in rows),
    )
    write_latencies(output, interval, False)


def _latency(row: _Row) -> LatencyGroup:
    why: BucketParts | None = None
    if "why" in row:
        parts = row["why"]["parts"].items()
        sums = {name: PartTotals(known["ns"], known["calls"]) for name, known in parts}
        why = {None: PartSums(sums)}
    return LatencyGroup(
        row["func"],
        times_of(row),
        row.get("goid"),
        row.get("goroutine"),
        row.get("pid") or 0,
        why,
        (_by(row) or {}) if "by" in row else None,
        _place(row),
    )


def _write_waits(out: TextIO, rows: Mapping[str, list[Row]], what: str, top: int | None) -> None:
    if rows["syscall"]:
        write_syscalls(out, rows["syscall"], top)
        out.write("\n")
    (head,) = rows["waits"] or [_NO_WAITS]
    write_waits(out, head, rows["wait"], what, False, top)


def _write_samples(out: TextIO, rows: Mapping[str, list[Row]], what: str, top: int | None) -> None:
    for head in (head for name in SAMPLED for head in rows.get(name, ())):
        functions, samples = (rows[f"{head['kind']}_{what}"] for what in ("function", "stack"))
        by = next((text for row in samples if "by" in row for text in row["by"].values), None)
        write_samples(out, head, functions, samples, what, top or _FUNCTIONS, by)
    for head in rows.get("wall", ()):
        write_wall(out, head, rows["wall_group"], what, top)


def _write_goroutines(
    out: TextIO, rows: Mapping[str, list[Row]], what: str, top: int | None
) -> None:
    """Write goroutines in groups, the largest first."""
    found = rows["goroutine"]
    count = sum(row["count"] for row in found)
    out.write(counted(f"{{:,}} goroutine{{s}} of {what}\n", count))
    for row in found[:top]:
        notes = [row["reason"] or row["state"]]
        if row["waiting_ns"] is not None:
            shortest, longest = span(row["waiting_ns"]), span(row["longest_ns"])
            notes.append(shortest if shortest == longest else f"{shortest} to {longest}")
        labels = labels_text(tuple(sorted(row.get("labels", {}).items())))
        out.write(counted("\n{:,} goroutine{s}", row["count"]))
        out.write(f" [{', '.join(map(printable, notes))}]{labels}:\n")
        write_frames(out, row["stack"].shown(False))
        if creation := row.get("created_by"):
            frame = Frame.of_json(creation)
            out.write(f"created by {printable(frame.function)}\n")
            out.write(f"\t{printable(frame.file)}:{frame.line}\n")
    rest = found[top:] if top else []
    if rest:
        count = sum(row["count"] for row in rest)
        out.write(f"\n{rest_of_groups(count, len(rest))}\n")


_WRITERS = {
    "gooffcpu": _write_waits,
    "gostacks": _write_goroutines,
    **dict.fromkeys(SAMPLING, _write_samples),
}

#: The second value of profiles, by the unit of what is compared.
_TYPES = {"ns": ValueType("time", "nanoseconds"), "bytes": ValueType("space", "bytes")}
#: Kinds whose rows are stacks, or may be by them.
_STACKS = [name for name, one in KINDS.items() if one.compared and one.named and name != "rest"]


def merged_profile(merged: Merged) -> StackProfile | None:
    """Return all stacks for a profile, None if there are none."""
    rows: list[ProfileRow] = []
    types: list[ValueType] = []
    for kind in _STACKS:
        how = KINDS[kind]
        found = [
            _profile_row(row, stack, how.weights(row))
            for row in merged.rows(kind)
            if "of" not in row and (stack := _stack_of(row)) is not None
        ]
        if found:
            types = [ValueType("events", "count"), *(_TYPES[how.unit] for _ in how.compared[1:])]
            rows = found
    if not rows:
        return None
    form = ProfileForm(tuple(types))
    name = f"{merged.tool} of {merged.places}"
    return StackProfile(form, rows, name, length_ns=round(merged.units * 1e9))


def _stack_of(row: _Row) -> Sequence[_Row] | None:
    if "stack" in row:
        return frames_of(row["stack"])
    stack = frames_of((row.get("by") or {}).get("$stack"))
    return None if stack is None else [{"func": row["func"]}, *stack]


def _profile_row(row: _Row, stack: Sequence[_Row], fields: Sequence[str]) -> ProfileRow:
    frames = [StackFrame(str(one["func"]), one.get("file"), one.get("line")) for one in stack]
    located = [
        PprofLocation(0, (Line(one.function, one.file or "", one.line or 0),)) for one in frames
    ]
    labels = {"host": row["host"]} if "host" in row else {}
    note = row.get("reason") or row.get("state")
    return ProfileRow(
        located, tuple(row[name] for name in fields), labels, f"[{note}]" if note else ""
    )
