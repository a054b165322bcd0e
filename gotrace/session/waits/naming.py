# SPDX-License-Identifier: Apache-2.0
"""Names for the addresses of waits, and the choice of waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from gotrace.goroutines.groups import matcher, stacks_with
from gotrace.goroutines.model import Stack
from gotrace.goroutines.program import CodeNames
from gotrace.gotypes.wait_reasons import WaitFor, meaning_of
from gotrace.profiles.rows import Line, PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.records import dataclass, field
from gotrace.results.rows import Json, Row
from gotrace.session.choices import WaitState
from gotrace.session.row_cells import RowStacks
from gotrace.session.symbols import is_plumbing
from gotrace.session.waits.meter import EndedBy, WaitRow

#: The types of runtime/pprof's block profile.
FORM = ProfileForm((ValueType("contentions", "count"), ValueType("delay", "nanoseconds")))
#: Between a blocked stack and that of who woke it, as bcc's offwaketime has it.
_DIVIDER = PprofLocation(0, (Line("--", "", 0),))


class WokenBy(Enum):
    """The event that ended waits."""

    GOROUTINE = "goroutine"
    TIMER = "timer"
    NETWORK = "network poller"
    RUNTIME = "runtime"


#: The end of all waits: profiles begin with their callers, as Go's own block profile does.
_PARKING = frozenset({"runtime.gopark", "runtime.goparkunlock"})
#: Functions of the runtime that make goroutines runnable that the network poller has found, by
#: themselves or by runtime.injectglist (callers of netpoll in src/runtime/proc.go of Go 1.19 to
#: 1.27). They do that for the collector's goroutines and others as well.
_POLLERS = frozenset(
    {
        "runtime.findRunnable",
        "runtime.findrunnable",
        "runtime.pollWork",
        "runtime.startTheWorldWithSema",
        "runtime.sysmon",
    }
)
_INJECTS = "runtime.injectglist"


@dataclass(frozen=True, slots=True)
class WaitChoice:
    """The choice of waits, and of those that are kept apart.

    ``inside`` are patterns of functions, one of which has to be on the stack; ``reasons`` are texts
    in which only ``*`` is special, one of which the reason has to be. ``system``: those of
    the runtime's own goroutines as well. ``wakers``: stacks of who ended waits are kept apart.
    """

    inside: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    system: bool = False
    wakers: bool = False


@dataclass
class _Wakers:
    """Wakers by their stacks."""

    program: CodeNames
    _known: dict[tuple[EndedBy, Stack, bool], tuple[WokenBy | None, str | None]] = field(
        default_factory=dict
    )

    def of(self, row: WaitRow) -> tuple[WokenBy | None, str | None]:
        key = row.ended_by, row.ended_by_stack, meaning_of(row.reason).wait_for is WaitFor.NETWORK
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _find(
        self, ended_by: EndedBy, stack: Stack, is_polled: bool
    ) -> tuple[WokenBy | None, str | None]:
        frames = self.program.frames(stack)
        names = [frame.function for frame in frames if not frame.is_elided]
        if ended_by is EndedBy.NONE:
            return None, None
        ending = _enders(names)
        if _POLLERS & ending:  # who starts the world again does that on the way, too
            return (WokenBy.NETWORK if is_polled else WokenBy.RUNTIME), None
        if _INJECTS in ending:  # for the collector, the scavenger and the like
            return WokenBy.RUNTIME, None
        if ended_by is EndedBy.GOROUTINE and not self.program.is_system_stack(stack):
            own = (name for name in names if not is_plumbing(name))
            return WokenBy.GOROUTINE, next(own, _outermost(names))
        if any("timer" in name.lower() for name in names if name.startswith("runtime.")):
            return WokenBy.TIMER, None
        return WokenBy.RUNTIME, None


def _enders(names: Sequence[str]) -> set[str]:
    """Return the functions that ended a wait: the two innermost, or injectglist and its caller."""
    at = 1 if names[1:2] == [_INJECTS] else 0
    return {*names[at : at + 2]}


def _outermost(names: Sequence[str]) -> str | None:
    """Return the function that a goroutine of the standard library's was started with."""
    return next((name for name in reversed(names) if name != "runtime.goexit"), None)


def named_waits(
    program: CodeNames, state: WaitState, rows: Iterable[WaitRow], choice: WaitChoice
) -> list[Row]:
    """Return the rows of the waits that are wanted, those that take most first.

    ``waker`` is the function that ended them, outside of the runtime and of what unlocks and sends
    for it, null where that is not a goroutine, or not known. Raises UsageError for a bad pattern.
    """
    rows = list(rows)
    inside = stacks_with(program, {row.stack for row in rows}, choice.inside)
    reasons = {row.reason for row in rows}
    wanted = {reason for reason in reasons if any(map(matcher(reason), choice.reasons))}
    wakers, stacks = _Wakers(program), RowStacks(program)
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if choice.inside and row.stack not in inside:
            continue
        if choice.reasons and row.reason not in wanted:
            continue
        if not choice.system and program.is_system_stack(row.stack):
            continue
        waking = row.ended_by_stack if choice.wakers else ()
        woken_by, waker = wakers.of(row)
        key = row.reason, row.stack, woken_by, waker, waking, row.is_open
        wait = found.setdefault(
            key,
            {
                "kind": "wait",
                "state": state.value,
                "reason": row.reason or None,
                "count": 0,
                "delay_ns": 0,
                "max_ns": 0,
                "open": row.is_open,
                "woken_by": woken_by.value if woken_by else None,
                "waker": waker,
                "stack": stacks[row.stack],
                **({"waker_stack": stacks[waking]} if waking else {}),
            },
        )
        wait["count"] += row.count
        wait["delay_ns"] += row.ns
        wait["max_ns"] = max(wait["max_ns"], row.max_ns)
    return sorted(found.values(), key=_rank)


def _rank(row: Json) -> tuple[object, ...]:
    return -row["delay_ns"], -row["count"], row["reason"] or "", row["stack"].addresses


def waits_head(waits: Sequence[Json], others: tuple[int, int], fields: Mapping[str, object]) -> Row:
    """Return the sums of a reading, with ``fields``; ``others`` are waits that found no row."""
    count, ns = others
    return {
        "kind": "waits",
        **fields,
        "count": count + sum(wait["count"] for wait in waits),
        "delay_ns": ns + sum(wait["delay_ns"] for wait in waits),
        "others": {"count": count, "delay_ns": ns},
    }


def waker_label(wait: Json) -> str | None:
    """Return the waker in a word, None where it is not known."""
    label: str | None = wait["waker"] or wait["woken_by"]
    return label


def without_parking(stack: list[PprofLocation]) -> list[PprofLocation]:
    """Return a stack without the end of all waits, as Go's own block profile has it."""
    for index, location in enumerate(stack):
        left = [line for line in location.lines if line.function not in _PARKING]
        if left:
            return [PprofLocation(location.address, tuple(left)), *stack[index + 1 :]]
    return stack


def profile_rows(program: CodeNames, waits: Iterable[Json]) -> list[ProfileRow]:
    """Return waits for a profile: the waker's stack, where it is kept apart, on top."""
    rows = []
    for wait in waits:
        stack = without_parking(program.profiled(wait["stack"].addresses))
        values, state = (wait["count"], wait["delay_ns"]), wait["state"]
        labels: dict[str, str | int] = {"reason": wait["reason"]} if wait["reason"] else {}
        if label := waker_label(wait):
            labels["waker"] = label
        if state != WaitState.WAITING.value:
            labels["state"] = state
        if wait["open"]:
            labels["open"] = "yes"
        if "waker_stack" in wait:
            waker = [
                PprofLocation(location.address, location.lines[::-1])
                for location in reversed(program.profiled(wait["waker_stack"].addresses))
            ]
            rows.append(ProfileRow([*waker, _DIVIDER, *stack], values, labels))
        else:
            rows.append(ProfileRow(stack, values, labels, f"[{wait['reason'] or state}]"))
    return rows
