# SPDX-License-Identifier: Apache-2.0
"""Write goroutines: in groups, one by one as Go's own dumps do, and as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, TextIO

from gotrace.goroutines.details import (
    MAX_WITNESSES,
    NO_DETAILS,
    ChannelWait,
    WaitDetails,
    WaitsByG,
)
from gotrace.goroutines.groups import GoroutineGroup, GroupKey
from gotrace.goroutines.labels import NO_LABELS, Labels
from gotrace.goroutines.model import DumpedGoroutine, Frame, State, own_function
from gotrace.goroutines.program import CodeNames
from gotrace.goroutines.rows import DumpRows
from gotrace.report.output import JsonOutput
from gotrace.report.table import columns_of, fitted, narrowed
from gotrace.text import counted, printable

if TYPE_CHECKING:
    from gotrace.goroutines.arguments import Arguments, FrameArguments

#: Frames that Go's own dumps print of a stack: runtime.tracebackInnerFrames, tracebackOuterFrames.
_INNER_FRAMES = _OUTER_FRAMES = 50
#: Goroutines, and things waited for, that are named in a group's lines; channels of a select.
_MAX_NAMED = 8
_MAX_AWAITED = 3
_NS = 10**9
#: Columns of a table that has a line a group, but for its functions.
_TABLE_NUMBERS = 45

#: Reads what goroutines wait for: WaitReader.of.
ReadWaits = Callable[[Iterable[DumpedGoroutine]], WaitsByG]


def summary(goroutines: Sequence[DumpedGoroutine], name: str) -> str:
    """Return one line on goroutines of a program ``name``: how many, and in which states."""
    states = Counter(map(attrgetter("reason"), goroutines))
    if states.pop("", 0):
        states.update(one.state.value for one in goroutines if not one.reason)
    most = sorted(states.items(), key=lambda item: (-item[1], item[0]))[:4]
    listed = [f"{count:,} {status}" for status, count in most]
    others = len(goroutines) - sum(count for _, count in most)
    listed += [counted("{:,} other{s}", others)] if others else []
    return f"{counted('{:,} goroutine{s}', len(goroutines))} of {name}: {', '.join(listed)}"


def rest_of_groups(goroutines: int, groups: int) -> str:
    """Return the line below groups of which the first ones alone are shown."""
    what, others = counted("{:,} goroutine{s}", goroutines), counted("{:,} other group{s}", groups)
    return f"and {what} in {others}"


def write_groups(out: TextIO, groups: Iterable[GoroutineGroup], waits: ReadWaits) -> None:
    """Write groups, each with its stack; ``waits`` reads what goroutines wait for."""
    groups = list(groups)
    details = _details(groups, waits)
    for group in groups:
        out.write(f"\n{_group_header(group)}:{_named(group.goroutines)}\n")
        _write_awaited(out, group, details)
        _write_stack(out, group.frames, group.goroutines[0])
        _write_creation(out, group)
    out.flush()


def write_changes(
    out: TextIO,
    changed: Iterable[tuple[GroupKey, int, int]],
    groups: Mapping[GroupKey, GoroutineGroup],
    waits: ReadWaits,
) -> None:
    """Write groups that have grown or shrunk: (group, how many there are, how many more)."""
    changed = list(changed)
    details = _details([groups[key] for key, *_ in changed if key in groups], waits)
    for key, count, change in changed:
        state, reason, frames, creation, labels = key
        group = groups.get(key)
        if group is not None:
            out.write(f"\n{change:+,}: {_group_header(group)}:{_named(group.goroutines)}\n")
            _write_awaited(out, group, details)
            _write_stack(out, frames, group.goroutines[0])
            _write_creation(out, group)
        else:
            status = f"[{reason or state.value}]{labels_text(labels)}"
            out.write(f"\n{change:+,}: {counted('{} goroutine{s}', count)} {status}:\n")
            write_frames(out, frames)
            if creation is not None:
                out.write(f"created by {_name(creation)}\n\t{_place(creation)}\n")
    out.flush()


def write_table(
    out: TextIO, groups: Iterable[GoroutineGroup], before: Mapping[GroupKey, int], lines: int
) -> None:
    """Write one line a group, at most ``lines`` of them: how many, how many more, where."""
    columns = columns_of(out)
    wide, by = narrowed([44, 44], None if columns is None else columns - _TABLE_NUMBERS)
    out.write(f"{'COUNT':>8} {'CHANGE':>8}  {'STATE':<24} {'WHERE':<{wide}} CREATED BY\n")
    for group, _ in zip(groups, range(lines), strict=False):
        count = len(group.goroutines)
        change = count - before.get(group.key, 0)
        names = where(group.frames), _name(group.created_by) if group.created_by else ""
        if columns is not None:
            names = fitted(names[0], wide), fitted(names[1], by)
        out.write(
            f"{count:>8} {f'{change:+}' if change else '':>8}  {group.status:<24} "
            f"{names[0]:<{wide}} {names[1]}".rstrip()
            + "\n"
        )
    out.flush()


def write_goroutines(
    out: TextIO,
    program: CodeNames,
    goroutines: Iterable[DumpedGoroutine],
    system: bool,
    arguments: Arguments | None = None,
    labels: Mapping[int, Labels] | None = None,
    waits: WaitsByG | None = None,
) -> None:
    """Write goroutines one by one, as runtime.Stack does, but for arguments.

    The thing that a goroutine waits for is last in the brackets. ``system``: the runtime's
    functions and wrappers are shown as well. ``arguments`` reads those of frames, where they are
    wanted. ``waits`` are what is known of the goroutines' waits.
    """
    for one in goroutines:
        notes = [one.status]
        if one.waiting_ns is not None and one.waiting_ns >= 60 * _NS:
            notes.append(f"{one.waiting_ns // (60 * _NS)} minutes")
        if one.is_locked_to_thread:
            notes.append("locked to thread")
        awaited = awaited_text(one, (waits or {}).get(one.g, NO_DETAILS), in_brackets=True)
        notes += [awaited] if awaited else []
        known = labels_text((labels or {}).get(one.labels, NO_LABELS))
        out.write(f"\ngoroutine {one.goid} [{', '.join(notes)}]{known}:\n")
        placed = _placed(program, one, arguments)
        if not system:
            placed = [pair for pair in placed if not pair[0].is_elided]
            placed = [pair for pair in placed if pair[0].is_shown] or placed
        texts = [_arguments_text(known) for _, known in placed]
        _write_stack(out, [frame for frame, _ in placed], one, texts)
        creation = program.creation(one.created_by)
        if creation is not None and (creation.is_shown or system) and one.goid != 1:
            parent = f" in goroutine {one.parent}" if one.parent else ""
            out.write(f"created by {_name(creation)}{parent}\n\t{_place(creation)}\n")
    out.flush()


def _placed(
    program: CodeNames, one: DumpedGoroutine, arguments: Arguments | None
) -> list[tuple[Frame, FrameArguments | None]]:
    """Return all logical frames with their arguments, as far as these are known."""
    known = arguments.of(one) if arguments else {}
    return [
        (frame, known.get(place) if frame is location.frames[-1] else None)
        for place, location in enumerate(program.locations(one.stack))
        for frame in location.frames
    ]


def _arguments_text(known: FrameArguments | None) -> str:
    from gotrace.values.go_syntax import go_syntax

    if known is None:
        return "..."
    texts = [f"{printable(name)}={go_syntax(value)}" for name, value in known.values.items()]
    return ", ".join(texts if known.is_whole else [*texts, "..."])


def write_json(
    output: JsonOutput,
    program: CodeNames,
    goroutines: Iterable[DumpedGoroutine],
    arguments: Arguments | None = None,
    labels: Mapping[int, Labels] | None = None,
    ts: float | None = None,
    waits: WaitsByG | None = None,
) -> None:
    """Write one object a goroutine; its stack has all frames, the runtime's included.

    ``ts`` is when (s since 1970). ``arguments`` reads those of frames, where they are wanted.
    """
    rows = DumpRows(program, goroutines, labels or {}, waits or {})
    stacks = {one: json.dumps(frames, separators=(",", ":")) for one, frames in rows.stacks.items()}
    for one, fields in rows.rows(ts):
        text = json.dumps(fields, separators=(",", ":"))
        stack = stacks[one.stack] if arguments is None else _stack_json(program, one, arguments)
        output.out.write(f'{text[:-1]},"stack":{stack}}}\n')
    output.out.flush()


def _stack_json(program: CodeNames, one: DumpedGoroutine, arguments: Arguments) -> str:
    from gotrace.values.to_json import to_json

    frames = []
    for frame, known in _placed(program, one, arguments):
        if not frame.is_elided:
            fields = {**frame.to_json(), "inlined": frame.is_inlined}
            if known is not None:
                values = {name: to_json(value) for name, value in known.values.items()}
                fields |= {"arguments": values, "all_arguments": known.is_whole}
            frames.append(fields)
    return json.dumps(frames, separators=(",", ":"))


def _group_header(group: GoroutineGroup) -> str:
    count = len(group.goroutines)
    notes = [group.status]
    if group.waiting_ns is not None:
        shortest, longest = map(span, group.waiting_ns)
        notes.append(shortest if shortest == longest else f"{shortest} to {longest}")
    locked = sum(map(attrgetter("is_locked_to_thread"), group.goroutines))
    if locked:
        notes.append("locked to thread" if locked == count else f"{locked} locked to threads")
    many = counted("{:,} goroutine{s}", count)
    what = f"goroutine {group.goroutines[0].goid}" if count == 1 else many
    return f"{what} [{', '.join(notes)}]{labels_text(group.labels)}"


def labels_text(labels: Labels) -> str:
    """Return labels as Go's own tracebacks have them since Go 1.27, with a space before them."""
    shown = [f"{_quoted(key)}: {_quoted(value)}" for key, value in labels]
    return f" {{{', '.join(shown)}}}" if shown else ""


def _quoted(text: str) -> str:
    """Return a text as runtime.printquoted has it, if runtime.tracebackStringNeedsQuoting."""
    if re.fullmatch(r"[a-zA-Z0-9./_]*", text):
        return text
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
    return f'"{"".join(named.get(c) or _escaped(c) for c in text)}"'


def _escaped(character: str) -> str:
    code = ord(character)
    if " " <= character <= "~":
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _named(goroutines: Sequence[DumpedGoroutine]) -> str:
    if len(goroutines) == 1:
        return ""
    ids = nsmallest(_MAX_NAMED, map(attrgetter("goid"), goroutines))
    more = ", ..." if len(goroutines) > _MAX_NAMED else ""
    return f" {', '.join(map(str, ids))}{more}"


def _examples(group: GoroutineGroup) -> list[list[DumpedGoroutine]]:
    """Return some goroutines that wait for each of the things that most wait for."""
    return [
        list(islice((one for one in group.goroutines if one.awaited == what), MAX_WITNESSES))
        for what, _ in group.awaited(_MAX_AWAITED)
    ]


def _details(groups: Iterable[GoroutineGroup], waits: ReadWaits) -> WaitsByG:
    """Return details of groups' waits: a lock has its name in all if one proves it."""
    wanted: list[DumpedGoroutine] = []
    for group in groups:
        wanted += chain.from_iterable(_examples(group))
        wanted += (one for one in group.goroutines if one.awaited is None)
    return waits(wanted)


def _write_awaited(out: TextIO, group: GoroutineGroup, details: WaitsByG) -> None:
    """Write what a group's goroutines wait for; selects of alike channels are added up."""
    named = group.awaited(_MAX_AWAITED)
    for (_, count), (one, *_) in zip(named, _examples(group), strict=True):
        known = details.get(one.g, NO_DETAILS)
        _write_number(out, count, awaited_text(one, known))
        if known.holder is not None:
            goid, method = known.holder.goid, printable(known.holder.method)
            out.write(
                f"  goroutine {goid} may hold it: it is in {method}, which has it in its frame\n"
            )
    waiting, things = group.awaiting
    _write_others(out, waiting - sum(count for _, count in named), things - len(named))

    unnamed = [details.get(one.g, NO_DETAILS) for one in group.goroutines if one.awaited is None]
    selects = [one for one in unnamed if one.channels]
    alike: defaultdict[str, list[WaitDetails]] = defaultdict(list)
    for select in selects:
        alike[_any_of(map(_channel_type, select.channels))].append(select)
    most = nsmallest(_MAX_AWAITED, alike.items(), key=lambda item: (-len(item[1]), item[0]))
    for text, found in most:
        full = _any_of(map(_channel_text, found[0].channels))
        _write_number(out, len(found), full if len(found) == 1 else text)
    rest = len(selects) - sum(len(found) for _, found in most)
    _write_others(out, rest, len(alike) - len(most))


def _write_number(out: TextIO, count: int, what: str) -> None:
    out.write(f"  {count:,} {'waits' if count == 1 else 'wait'} for {what}\n")


def _write_others(out: TextIO, count: int, things: int) -> None:
    if things:
        _write_number(out, count, f"{things:,} others")


def awaited_text(one: DumpedGoroutine, details: WaitDetails, in_brackets: bool = False) -> str:
    """Return the text of the object of a goroutine's wait, "" where that is not known.

    ``in_brackets``: it has no closing bracket, by which readers of Go's own dumps find the end.
    """
    if details.channels:
        return _any_of(_channel_text(channel, in_brackets) for channel in details.channels)
    if one.awaited is None:
        return ""
    is_shown = details.lock and not (in_brackets and "]" in details.lock)
    place = f" ({printable(details.lock)})" if is_shown else ""
    return f"{one.awaited.type} {one.awaited.address:#x}{place}"


def _any_of(channels: Iterable[str]) -> str:
    texts = list(channels)
    left_out = len(texts) - _MAX_NAMED
    if left_out > 0:
        texts[_MAX_NAMED:] = [counted("{:,} other{s}", left_out)]
    return " or ".join(texts)


def _channel_text(channel: ChannelWait, in_brackets: bool = False) -> str:
    kind = channel.type
    if in_brackets and "]" in kind:
        kind = channel.direction.value
    notes = [] if in_brackets and "]" in channel.field else [printable(channel.field)]
    if channel.is_timer:
        notes.append("timer")
    elif channel.capacity:
        notes.append(f"len {channel.length}, cap {channel.capacity}")
    return f"{printable(kind)} {channel.address:#x}{_in_parentheses(notes)}"


def _channel_type(channel: ChannelWait) -> str:
    notes = [printable(channel.field), "timer" if channel.is_timer else ""]
    return printable(channel.type) + _in_parentheses(notes)


def _in_parentheses(notes: Iterable[str]) -> str:
    shown = ", ".join(filter(None, notes))
    return f" ({shown})" if shown else ""


def _write_stack(
    out: TextIO, frames: Sequence[Frame], one: DumpedGoroutine, arguments: Sequence[str] = ()
) -> None:
    write_frames(out, frames, arguments)
    if one.has_moved:
        out.write("\tgoroutine moved while it was read; stack unavailable\n")
    elif one.state is State.RUNNING and not one.stack:
        out.write("\tgoroutine running on other thread; stack unavailable\n")
    elif not one.is_whole:
        out.write("...additional frames elided...\n")


def write_frames(out: TextIO, frames: Sequence[Frame], arguments: Sequence[str] = ()) -> None:
    """Write frames as Go's own dumps do, those in the middle of very many left out.

    ``arguments`` are what is between each one's parentheses, dots where they are not given.
    """
    left_out = len(frames) - _INNER_FRAMES - _OUTER_FRAMES
    for index, frame in enumerate(frames):
        if left_out > 0 and index == _INNER_FRAMES:
            out.write(f"...{left_out} frames elided...\n")
        if left_out <= 0 or not _INNER_FRAMES <= index < _INNER_FRAMES + left_out:
            inside = arguments[index] if arguments else "..."
            out.write(f"{_name(frame)}({inside})\n\t{_place(frame)}\n")


def _write_creation(out: TextIO, group: GoroutineGroup) -> None:
    creation = group.created_by
    if creation is None or group.goroutines[0].goid == 1:
        return
    parents = set(map(attrgetter("parent"), group.goroutines)) - {0}
    where = f" in goroutine {min(parents)}" if len(parents) == 1 else ""
    where = f" in {len(parents):,} goroutines" if len(parents) > 1 else where
    out.write(f"created by {_name(creation)}{where}\n\t{_place(creation)}\n")


def _place(frame: Frame) -> str:
    offset = "" if frame.offset is None else f" +{frame.offset:#x}"
    line = f":{frame.line}" if frame.line else ""  # C and the kernel have names alone
    return f"{printable(frame.file)}{line}{offset}"


def _name(frame: Frame) -> str:
    return printable(spoken(frame.function))


def where(frames: Sequence[Frame]) -> str:
    """Return the innermost function of the program's own, as ``own_function`` does."""
    return printable(spoken(own_function([frame.function for frame in frames])))


def span(ns: int) -> str:
    """Return a length of time in two units at most."""
    seconds = ns // _NS
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 48:
        return f"{hours // 24}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60}m"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"


def spoken(name: str) -> str:
    """Return a function's name as Go's dumps print it (runtime.printFuncName).

    Type arguments are ``[...]``, of a generic method of a generic type twice.
    """
    if name == "runtime.gopanic":
        return "panic"
    first, last = name.find("["), name.rfind("]")
    if first < 0 or last <= first:
        return name
    inside = name[first + 1 : last]
    depth = 1
    for at, character in enumerate(inside):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            again = inside.find("[", at)
            if again < 0:
                return name
            return f"{name[:first]}[...]{inside[at + 1 : again]}[...]{name[last + 1 :]}"
    return f"{name[:first]}[...]{name[last + 1 :]}"
