# SPDX-License-Identifier: Apache-2.0
"""The kinds of rows that can be added up and compared, each declared once.

``docs/json.md`` has their fields in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gotrace.errors import UsageError, said
from gotrace.histogram import MARKS
from gotrace.records import dataclass
from gotrace.results.rows import (
    Json,
    Key,
    Row,
    RowField,
    RowKind,
    are_buckets,
    are_frames,
    each,
    is_count,
    is_flag,
    is_number,
    is_one_of,
    is_plain,
    is_signed,
    is_sum,
    is_text,
    key,
    least,
    longest,
    mapped,
    maybe,
    most,
    record,
    summed,
    total,
    with_kinds,
)
from gotrace.text import printable


def _add_buckets(mine: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[list[int]]:
    found = {(low, high): count for low, high, count in mine}
    for low, high, count in other:
        found[low, high] = found.get((low, high), 0) + count
    return [[low, high, count] for (low, high), count in sorted(found.items())]


def _add_why(mine: Json, other: Json) -> Row:
    """Add parts up; what bands of both would be is not known."""
    parts = {name: dict(part) for name, part in mine["parts"].items()}
    for name, part in other["parts"].items():
        known = parts.setdefault(name, {"ns": 0, "calls": 0})
        for figure, value in part.items():
            known[figure] = known.get(figure, 0) + value
    return {"parts": parts}


def _add_returns(mine: str, other: str) -> str:
    return mine if mine == other else "both"


def _asked_calls(row: Json) -> dict[str, Any]:
    """Return the expressions that rows are by; those of all others together do not say it."""
    by = row.get("by", {})
    return {"by": list(by)} if by is not None else {}


def _asked_times(row: Json) -> dict[str, Any]:
    """Return the keys of rows, goroutines among them, and the value in place of the time."""
    found = {"of": row.get("of"), "unit": row.get("unit"), "goroutines": "goid" in row}
    return found | _asked_calls(row)


def frames_of(stack: Any) -> Sequence[Json] | None:
    """Return the frames of a ``$stack``, None if it has none; one that is cut ends in one more."""
    if isinstance(stack, dict) and isinstance(stack.get("$elements"), list):
        return [*stack["$elements"], {"func": "(more frames)", "file": None, "line": None}]
    return stack if isinstance(stack, list) else None


def _functions(frames: Iterable[Json]) -> tuple[str, ...]:
    return tuple(frame["func"] for frame in frames)


def _call_name(row: Json) -> Key:
    """Return the function, its program, the goroutine without its number, and the values."""
    program, function = row.get("program"), row.get("func") or "all functions"
    name = f"{program}:{function}" if program else function
    if "caller" in row:
        name += f" in {row['caller']} at {row['at'].rpartition('/')[2]}"
    if goroutine := row.get("goroutine"):
        name += f" {goroutine[goroutine.find('[') :]}" if "[" in goroutine else " goroutines"
    by, stack = row.get("by", {}), _functions(())
    if by is None:
        return Key("(others)")
    texts = []
    for text, value in with_kinds(by).items():
        if text == "$stack" and (frames := frames_of(value)) is not None:
            stack = _functions(frames)
        else:
            texts.append(f"{text} = {_shown(value)}")
    return Key(", ".join([name, *texts]), stack)


def _shown(value: object) -> str:
    """Return a value of a call, of an error its text and type."""
    if isinstance(value, dict) and "$error" in value:
        return f"{_shown(value['$error'])} ({value.get('$type')})"
    return json.dumps(value, ensure_ascii=False)


def _wait_name(row: Json) -> Key:
    return Key(f"[{row['reason'] or row['state']}]", _functions(row["stack"]))


def _samples_name(row: Json) -> Key:
    texts = [f"{text} = {_shown(value)}" for text, value in row.get("by", {}).items()]
    return Key(", ".join([f"[{row['work']}]", *texts]), _functions(row["stack"]))


def _is_by(value: Any) -> bool:
    """Return whether a value is that of ``by``: its stack has frames."""
    return mapped(is_plain)(value) and (
        (frames := frames_of(value.get("$stack"))) is None or are_frames(frames)
    )


_is_why = record(
    {"parts": mapped(record({"ns": is_sum, "calls": is_count}))},
    bands=is_plain,
)
_are_parts = record({"parts": mapped(is_sum)})
_STATES = ("waiting", "runnable", "syscall")
_FUNCTION = (
    key("func", maybe(is_text)),
    key("by", maybe(_is_by), needed=False),
    key("program", needed=False),
)
_SPENT = (
    total("probe_hits", maybe(is_count), needed=False),
    total("probe_ns", maybe(is_sum), needed=False),
)
_STACK = key("stack", are_frames)
_CHOSEN = ("states", "reason", "functions")


@dataclass(frozen=True, slots=True)
class Sampled:
    """A measurement of an event by interrupted stacks, and the names that its rows have.

    ``name`` is that of its first row, and begins the names of the others. Amounts are in ``unit``:
    ns, bytes, or "" if events are counted. ``text`` is what amounts are of, and ``column`` the head
    of their column. ``tool`` prints them. If amounts are an estimate (``is_estimate``), samples do
    not all stand for as much, and functions have a standard error.
    """

    name: str
    unit: str
    text: str
    column: str
    tool: str = "gooncpu"
    is_estimate: bool = False

    def field(self, what: str) -> str:
        """Return the name of a field that has an amount."""
        return f"{what}_{self.unit or f'{self.name}s'}"

    @property
    def amount(self) -> str:
        """Return the name of the field that has the sum."""
        return self.field(self.name) if self.unit else f"{self.name}s"


#: By the names of their first rows.
SAMPLED = {
    one.name: one
    for one in (
        Sampled("cpu", "ns", "CPU time", "TIME"),
        Sampled("alloc", "bytes", "allocated memory", "BYTES", "goalloc", is_estimate=True),
    )
}
#: What a program's own profile has, all of it at once.
HEAP = Sampled("heap", "bytes", "memory in use", "IN USE", "goalloc")
#: The commands that print them.
SAMPLING = {one.tool for one in SAMPLED.values()}


def _sampled(of: Sampled) -> Iterator[RowKind]:
    """Yield the kinds of rows of a measurement by interrupted stacks."""
    stack, period = f"{of.name}_stack", of.field("period")
    sums = total("samples"), total(of.amount, is_sum)
    more = [total("clock_ns", maybe(is_sum))] if of.unit == "ns" else []
    if of.is_estimate:
        more = [total(f"{what}_bytes", maybe(is_sum)) for what in ("sampled", "counter")]
        more.append(total("others_bytes", is_sum))
    yield RowKind(
        of.name,
        of.tool,
        keys=(
            key("method", is_one_of("samples", "spans"))
            if of.is_estimate
            else key(period, is_count),
        ),
        sums=(*sums, *more, total("others")),
        derived=("pid",),
        asked=lambda row: (
            {"heap": False} if of.is_estimate else {"off": False, period: row[period]}
        ),
        begins=stack,
    )
    own, whole = of.field("self"), of.field("total")
    yield RowKind(
        f"{of.name}_function",
        of.tool,
        keys=(key("func"),),
        sums=(total(own, is_sum), total(whole, is_sum)),
        derived=("self_error", "total_error") if of.is_estimate else (),
        order=(f"-{own}", f"-{whole}"),
    )
    yield RowKind(
        stack,
        of.tool,
        keys=(
            key("work", is_one_of("program", "garbage collection", "GC assist", "scheduler")),
            key("group"),
            key("by", _is_by, needed=False),
            _STACK,
        ),
        sums=(*sums, *((total("objects", is_sum),) if of.is_estimate else ())),
        order=(f"-{of.amount}",),
        compared=("samples", of.amount) if of.unit else (of.amount,),
        unit=of.unit,
        events="samples" if of.unit else of.text,
        named=_samples_name,
        asked=_asked_calls,
    )


_IN_USE = (
    total("samples"),
    *(total(f"{what}_bytes", is_sum) for what in ("heap", "alloc")),
    *(total(name, is_sum) for name in ("objects", "alloc_objects")),
)
_DECLARED = (
    RowKind(
        "count",
        "gofunccount",
        keys=(*_FUNCTION, key("caller", needed=False), key("at", needed=False)),
        sums=(
            total("count"),
            most("places", needed=False),
            most("uncounted_places", needed=False),
        ),
        derived=("share", "rate"),
        order=("count",),
        compared=("count",),
        named=_call_name,
        shared="count",
        asked=_asked_calls,
        is_timed=True,
    ),
    RowKind(
        "histogram",
        "gofunclatency",
        keys=(
            *_FUNCTION,
            key("pid", maybe(is_count), needed=False),
            key("goid", is_count, needed=False),
            key("goroutine", needed=False),
        ),
        sums=(
            total("count"),
            total("sum_ns", is_sum),
            total("own_ns", is_sum, needed=False),
            least("min_ns"),
            most("max_ns"),
            RowField("buckets", are_buckets, _add_buckets),
            RowField("why", _is_why, _add_why, needed=False),
            RowField("returns", is_one_of("ret", "landing", "both"), _add_returns, needed=False),
            *_SPENT,
        ),
        derived=("share", "rate", *(f"{mark}_ns" for mark in MARKS)),
        order=("sum_ns", "count"),
        compared=("count", "sum_ns"),
        unit="ns",
        named=_call_name,
        shared="sum_ns",
        asked=_asked_times,
        keeps_host=lambda row: "goid" in row,
        is_timed=True,
    ),
    # The rows of --of: written as a histogram, and distinguished by ``of``.
    RowKind(
        "values",
        "gofunclatency",
        keys=(*_FUNCTION, key("of"), key("unit", maybe(is_text))),
        sums=(
            total("count"),
            total("sum", is_signed),
            least("min", is_signed),
            most("max", is_signed),
            RowField("buckets", are_buckets, _add_buckets),
            total("unknown"),
        ),
        derived=tuple(MARKS),
        order=("count",),
        compared=("count", "sum"),
        named=_call_name,
        asked=_asked_times,
        is_timed=True,
    ),
    RowKind(
        "rest",
        "gofunclatency",
        keys=(key("func", maybe(is_text)), key("program", needed=False)),
        sums=(
            total("goroutines"),
            total("count"),
            total("sum_ns", is_sum),
            total("unnamed"),
            *_SPENT,
        ),
        order=("-sum_ns",),
        compared=("count", "sum_ns"),
        unit="ns",
        named=lambda row: Key("other goroutines"),
        is_whole=True,
        is_timed=True,
    ),
    RowKind(
        "slow",
        "gofunclatency",
        keys=(
            key("ts", is_number),
            key("pid", is_count),
            key("tid", is_count),
            key("goid", is_count),
            key("func"),
            key("duration_ns", is_sum),
            key("probe_hits", maybe(is_count), needed=False),
            key("probe_ns", maybe(is_sum), needed=False),
            key("why", _are_parts, needed=False),
            key("program", needed=False),
        ),
        order=("ts",),
        keeps_host=lambda row: True,
        is_whole=True,
    ),
    RowKind(
        "waits",
        "gooffcpu",
        keys=(),
        sums=(
            total("count"),
            total("delay_ns", is_sum),
            summed("others", record({"count": is_count, "delay_ns": is_sum})),
        ),
        derived=("pid",),
        begins="wait",
    ),
    RowKind(
        "wait",
        "gooffcpu",
        keys=(
            key("state", is_one_of(*_STATES)),
            key("reason", maybe(is_text)),
            key("open", is_flag),
            key("woken_by", maybe(is_one_of("goroutine", "timer", "network poller", "runtime"))),
            key("waker", maybe(is_text)),
            _STACK,
            key("waker_stack", are_frames, needed=False),
        ),
        sums=(total("count"), total("delay_ns", is_sum), most("max_ns", needed=False)),
        order=("-delay_ns", "-count"),
        compared=("count", "delay_ns"),
        unit="ns",
        events="waits",
        named=_wait_name,
        asked=lambda row: {"state": row["state"]},
    ),
    RowKind(
        "syscall",
        "gooffcpu",
        keys=(key("name"),),
        sums=(
            total("calls"),
            total("total_ns", is_sum),
            summed("errors", mapped(is_count)),
            RowField("buckets", are_buckets, _add_buckets),
        ),
        derived=("p50_ns", "p99_ns"),
        order=("-total_ns", "-calls"),
    ),
    *(kind for one in SAMPLED.values() for kind in _sampled(one)),
    RowKind(
        "heap",
        "goalloc",
        keys=(key("profile_rate", is_count),),
        sums=_IN_USE,
        derived=("pid",),
        asked=lambda row: {"heap": True},
        begins="heap_stack",
        length="dumps",
    ),
    RowKind(
        "heap_function",
        "goalloc",
        keys=(key("func"),),
        sums=(total("self_bytes", is_sum), total("total_bytes", is_sum)),
        order=("-self_bytes", "-total_bytes"),
    ),
    RowKind(
        "heap_stack",
        "goalloc",
        keys=(key("size", is_count), _STACK),
        sums=_IN_USE,
        order=("-heap_bytes", "-alloc_bytes"),
        compared=("samples", "heap_bytes"),
        unit="bytes",
        events="samples",
        named=lambda row: Key(f"objects of {row['size']:,} bytes", _functions(row["stack"])),
        length="dumps",
    ),
    RowKind(
        "wall",
        "gooncpu",
        keys=(),
        sums=(
            total("wall_ns", is_sum),
            summed("others", record({"count": is_count, "ns": is_sum})),
        ),
        derived=("pid",),
        asked=lambda row: {"off": True},
        begins="wall_stack",
    ),
    RowKind(
        "wall_group",
        "gooncpu",
        keys=(key("group"),),
        sums=tuple(
            total(f"{what}_ns", is_sum)
            for what in ("wall", "running", "runnable", "syscall", "waiting")
        ),
        order=("-wall_ns",),
    ),
    RowKind(
        "wall_stack",
        "gooncpu",
        keys=(
            key("group"),
            key("state", is_one_of("running", *_STATES)),
            key("reason", maybe(is_text)),
            _STACK,
        ),
        sums=(total("count"), total("ns", is_sum)),
        order=("-ns", "-count"),
        compared=("count", "ns"),
        unit="ns",
        events="times",
        named=_wait_name,
        below="wall_group",
    ),
    RowKind(
        "dump",
        "gostacks",
        keys=(
            *(key(name, each(is_text), needed=False) for name in _CHOSEN),
            key("system", is_flag, needed=False),
        ),
        sums=(total("goroutines"), total("shown"), total("moved")),
        derived=("pid",),
        asked=lambda row: {name: row[name] for name in (*_CHOSEN, "system") if name in row},
        begins="goroutine",
        length="dumps",
    ),
    RowKind(
        "goroutine",
        "gostacks",
        keys=(
            key("state"),
            key("reason", maybe(is_text)),
            key("awaits", maybe(is_text), needed=False),
            key("created_by", maybe(lambda value: are_frames([value])), needed=False),
            key("labels", mapped(is_text), needed=False),
            key("locked_to_thread", is_flag, needed=False),
            key("system", is_flag, needed=False),
            key("moved", is_flag, needed=False),
            key("whole", is_flag, needed=False),
            _STACK,
        ),
        sums=(
            total("count", needed=False),
            least("waiting_ns", maybe(is_sum)),
            longest("longest_ns", maybe(is_sum)),
        ),
        unknown=("goid", "address", "lock", "channels", "parent"),
        order=("-count",),
        compared=("count",),
        named=_wait_name,
        filled=lambda row: {"count": 1, "longest_ns": row["waiting_ns"]},
        length="dumps",
    ),
)
#: By the kind of a row's object; what ``--of`` makes is "values".
KINDS: Mapping[str, RowKind] = {kind.name: kind for kind in _DECLARED}
#: The kinds of each command's rows, in the order in which it writes them.
TOOLS: dict[str, list[str]] = {}
for _kind in _DECLARED:
    TOOLS.setdefault(_kind.tool, []).append(_kind.name)
#: The row that begins each reading, and those after it that are compared.
HEADS = {kind.name: kind.begins for kind in _DECLARED if kind.is_head}


def kind_of(row: Json) -> RowKind | None:
    """Return the kind of a row's object, None of one that is not a result."""
    name = row.get("kind")
    if not isinstance(name, str):
        return None
    return KINDS["values"] if name == "histogram" and "of" in row else KINDS.get(name)


#: The fields of ``attached`` about the question, and of ``detached`` about a run's length.
ATTACHED = (
    key("patterns", each(is_text), needed=False),
    key("state", needed=False),
    key("in", each(is_text), needed=False),
    key("reason", each(is_text), needed=False),
    *(key(name, is_flag, needed=False) for name in ("names", "open", "system", "kernel", "off")),
    key("hertz", is_number, needed=False),
)
#: What recordings were asked, as it is typed.
_TYPED = {
    **{name: f"--{name}" for name in ("by", "in", "names", "of", "off", "open", "reason")},
    **{name: f"--{name}" for name in ("state", "system")},
    "goroutines": "-g",
    "heap": "--heap",
    "hertz": "-F",
    "kernel": "-K",
    "states": "--state",
}
#: Of these, what recordings need not agree on to be compared: figures are per second all the same.
_NOT_COMPARED = {"patterns", "hertz", *(of.field("period") for of in SAMPLED.values())}


def compared(asked: Json) -> Row:
    """Return the part of what was asked that recordings have to agree on to be compared."""
    return {name: value for name, value in asked.items() if name not in _NOT_COMPARED}


def agree(asked: Row, given: Json, name: str, others: str, to: str) -> None:
    """Take note of what the recording ``name`` was asked, if others were asked the same.

    What either does not say is taken to be the same: ``asked`` is what others were asked, called
    ``others``. ``to`` is the verb of the command. Raises UsageError.
    """
    for option, value in given.items():
        known = asked.setdefault(option, value)
        if known != value:
            text = f"{name} has {_said(option, value)}, {others} {_said(option, known)}: {to}"
            stacked = option == "by" and ("$stack" in str(value)) != ("$stack" in str(known))
            hint = "; -o FILE.html adds $stack" if stacked else ""
            raise UsageError(f"{text} recordings of one question{hint}")


def _said(option: str, value: Any) -> str:
    """Return an option with its value, as it is typed."""
    typed = said(_TYPED.get(option, option), option)
    if value is None or value is False or value == []:
        return f"no {typed}"
    if value is True:
        return typed
    values = value if isinstance(value, list) else [value]
    words = [one if isinstance(one, str) else _shown(one) for one in values]
    return printable(f"{typed} {', '.join(words)}")


DETACHED = (RowField("seconds", is_number, needed=False),)
#: The beginning of recordings that are added up.
MERGED = (
    RowField("of", maybe(is_one_of(*TOOLS))),
    RowField("by_host", is_flag),
    RowField("options", lambda value: isinstance(value, dict) and is_plain(value)),
    RowField("ts", maybe(is_number)),
    RowField(
        "hosts",
        each(
            record(
                {
                    "host": is_text,
                    "runs": each(is_number),
                    "intervals": each(lambda pair: each(is_number)(pair) and len(pair) == 2),
                }
            )
        ),
    ),
)
#: Notices that stay, with the names of their hosts.
NOTICES = ("lost", "warning", "summary")


def is_notice(row: Json) -> bool:
    """Return whether a row may be a notice: it has a message, and can be written again."""
    return is_text(row.get("message")) and is_plain(row)
