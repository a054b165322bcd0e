# SPDX-License-Identifier: Apache-2.0
"""Probes at entries and at RETs, by which calls are followed from their beginning to their end."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress

from gotrace.errors import GotraceError
from gotrace.kernel.attach import Attached, Point, ProbeGroup, attach
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.program import BpfProgram
from gotrace.records import dataclass
from gotrace.session.budget import counting_hits, removable
from gotrace.session.choices import ReturnMode
from gotrace.session.landings import Landings, Shared, can_move, place_entries, why_not
from gotrace.session.open_calls import Diagnostic, OpenCalls, Throttle
from gotrace.session.probing import Level, Move, Prepared, Probing
from gotrace.session.tasks import unwind_groups
from gotrace.session.why.probes import BY_PROCESS
from gotrace.settings import ProgramSettings

_RETURNING = 0.2  # seconds, for open calls to return


@dataclass(slots=True)
class _File:
    """The probes of a file that its functions share, and the numbers of these."""

    unwinds: list[ProbeGroup]
    functions: set[int]
    landings: Landings | None = None


class Paired(Probing):
    """The probes of a run that pairs entries with returns; a context manager that detaches."""

    #: Causes of missing calls.
    LOSSES: tuple[Diagnostic, ...] = ()

    def _attach(
        self,
        prepared: Prepared,
        settings: ProgramSettings,
        *,
        returning: Collection[int] | None = None,
        first: Sequence[ProbeGroup] = (),
        beside: Sequence[ProbeGroup] = (),
        apart: Sequence[ProbeGroup] = (),
        by_call: Sequence[str] = (),
    ) -> None:
        """Attach to RETs first and then to entries, so that no call seen entering is lost.

        ``returning`` are the numbers of the functions whose returns are probed, None for all.
        ``first`` are further probes that come before all others, ``beside`` probes that are needed
        if any return is probed, ``apart`` those that can be removed before others, by
        ``_leave_apart``. ``by_call`` are maps with a row for each open call. Raises
        AttachError or LoadError.
        """
        target, plan, tasks, why = prepared.target, prepared.plan, prepared.tasks, prepared.why
        assert tasks is not None
        self._prepared = prepared
        is_lightened = prepared.budget is not None or prepared.is_minded
        rets: dict[int, ProbeGroup] = {}
        groups = [*apart, *first, *(why.groups() if why else ())]
        #: What there is of each file while functions of it are there, if others may come and go.
        self._files: dict[int, _File] = {}
        if returning is None or returning:
            groups += [*self._unwinds(prepared), *beside]
            found = plan.return_groups("on_return", target.pid, tasks.kind, returning)
            if can_move(prepared) or is_lightened:
                found, rets = removable(found, prepared.functions)
            groups += found
        entries = plan.entry_groups("on_entry", target.pid, tasks.kind)
        self._rets, self._entries = rets, dict[int, ProbeGroup]()
        self._needless: list[ProbeGroup] = []
        files = prepared.room.files if prepared.room is not None else 0
        if prepared.counts_hits:
            settings = counting_hits(settings, prepared.functions, files)
        if is_lightened:
            entries, self._entries = removable(entries, prepared.functions)
        self._can_leave = prepared.is_minded and prepared.room is None and bool(groups)
        self._apart, self._staying = apart, entries
        self.attached: Attached = attach(
            settings, groups + entries, prepared.forced, self._prepare, prepared.announce
        )
        more, by_process = (("why_saved",), BY_PROCESS) if why else ((), ())
        self._landings: list[Landings] = []  # of each file
        self._shared = Shared(self.attached.program) if can_move(prepared) else None
        self._moves: list[Move] = []
        #: When all that follows calls is to be removed, None if it is not.
        self._left_at: float | None = None
        #: When calls of functions began to be counted alone whose RETs are to be removed.
        self._counted: dict[int, float] = {}
        self._cheaper: list[int] = []  # those whose RETs were removed
        self._see_returns(prepared, rets, returning is None or bool(returning))
        program = self.attached.program
        self._open = OpenCalls(program, *by_call, *more, by_process=by_process, files=files)
        # Where one process is traced, the run ends with it.
        self._sweep = None if target.process else Throttle(self._remove_exited)

    def _unwinds(self, prepared: Prepared) -> list[ProbeGroup]:
        """Return the probes of a plan's file that are needed once, if it is a new one."""
        tasks = prepared.tasks
        assert tasks is not None
        numbers = {number for number, _, _ in prepared.plan.numbered()}
        if prepared.room is not None and tasks.number in self._files:
            self._files[tasks.number].functions |= numbers
            return []
        groups = [group for group in unwind_groups(prepared.target, tasks) if group.points]
        if prepared.room is not None:
            self._files[tasks.number] = _File(groups, numbers)
        return groups

    def add(self, prepared: Prepared) -> dict[Point, OSError]:
        target, plan, tasks = prepared.target, prepared.plan, prepared.tasks
        assert tasks is not None
        numbers = [number for number, _, _ in plan.numbered()]
        self._open.forget(numbers)
        rows, no = self.attached.program.map("counted"), bytes(4)
        for number in numbers:
            rows.update((number + 1).to_bytes(4, "little"), no)
        place_entries(prepared, self.attached.program)
        groups = self._unwinds(prepared)
        rets = removable(
            plan.return_groups("on_return", target.pid, tasks.kind), prepared.functions
        )[1]
        entries = removable(
            plan.entry_groups("on_entry", target.pid, tasks.kind), prepared.functions
        )[1]
        self._rets |= rets
        self._entries |= entries
        refused = self.attached.extend([*groups, *rets.values(), *entries.values()])
        self._see_returns(prepared, rets, bool(rets))
        return refused

    @property
    def landings(self) -> Landings | None:
        """Return those of the first file, None if no calls are seen returning in callers."""
        return self._landings[0] if self._landings else None

    def _see_returns(
        self, prepared: Prepared, rets: dict[int, ProbeGroup], has_returns: bool
    ) -> None:
        """See calls return where they land, if that can be, or say why they are seen at RETs."""
        assert prepared.tasks is not None
        is_multi = self.attached.method is AttachMethod.MULTI
        if self._shared is not None and can_move(prepared) and rets and is_multi:
            file = self._files.get(prepared.tasks.number)
            if file is not None and file.landings is not None:
                file.landings.add(prepared, rets)
                return
            self._landings.append(Landings(prepared, self.attached, rets, self._shared))
            if file is not None:
                file.landings = self._landings[-1]
        elif prepared.returns is not ReturnMode.RET and has_returns:
            reason = why_not(prepared) or "this kernel has no uprobe-multi links (Linux 6.6)"
            if prepared.returns is ReturnMode.LANDING:
                self.problem = f"calls are seen returning at RETs: {reason}"
            else:
                self._moves.append(Move(None, "ret", reason))

    def _prepare(self, program: BpfProgram) -> None:
        """Fill a loaded program's maps, before anything is attached."""
        prepared = self._prepared
        place_entries(prepared, program)
        if prepared.why is not None:
            prepared.why.prepare(program)
        if prepared.tasks is not None:
            prepared.tasks.prepare(program)

    def _look_after(self) -> None:
        """Move functions to landings, and remove now and then the entries of ended processes."""
        if self._counted:
            with suppress(GotraceError):  # the probes may be gone, which is said elsewhere
                self._leave_returns()
        self.move()
        if self._sweep is not None:
            self._sweep()

    def _remove_exited(self) -> None:
        self._open.remove_exited()

    def lighten(self, function: int) -> Level | None:
        if function not in self._entries:
            return None
        if function in self._rets and function not in self._counted:
            row, yes = (function + 1).to_bytes(4, "little"), (1).to_bytes(4, "little")
            self.attached.program.map("counted").update(row, yes)
            self._counted[function] = time.monotonic()
            if landings := self._landings_of(function):
                landings.begin_to_leave(function)
            return Level.COUNTED
        if function in self._counted:
            self._counted[function] = 0.0
        self._needless.append(self._entries.pop(function))
        return Level.OFF

    def remove(self, functions: Collection[int]) -> None:
        # Entries first: most calls that are open have returned once the kernel has removed them.
        entries = [self._entries.pop(one) for one in functions if one in self._entries]
        if entries:
            self.attached.change((), entries)
        self._counted |= dict.fromkeys(self._rets.keys() & functions, -_RETURNING)
        self._leave_returns()
        for number, file in list(self._files.items()):
            file.functions.difference_update(functions)
            if not file.functions:
                self._remove_file(number, file)
        self._open.remove_calls(functions)

    def _remove_file(self, number: int, file: _File) -> None:
        """Remove what its functions have shared, once all of these have left."""
        del self._files[number]
        groups = file.unwinds
        if file.landings is not None:
            self._landings.remove(file.landings)
            groups += file.landings.for_faults
        if groups:
            self.attached.change((), groups)
        self._open.remove_file(number)

    def drop_probes(self) -> Collection[int]:
        self._leave_returns()
        needless, self._needless = self._needless, []
        if needless:
            self.attached.change((), needless)
        cheaper, self._cheaper = self._cheaper, []
        return cheaper

    def lighten_all(self) -> bool:
        if not self._can_leave:
            return False
        self._can_leave = False
        for landings in self._landings:
            landings.stop()
        rows, yes = self.attached.program.map("counted"), (1).to_bytes(4, "little")
        rows.update_array(0, [yes] * rows.max_entries)
        self._left_at = time.monotonic() + _RETURNING
        return True

    def move(self) -> None:
        for landings in self._landings:
            landings.step()

    def settle(self) -> bool:
        if self._left_at is None or time.monotonic() < self._left_at:
            return False
        self._left_at = None
        with suppress(GotraceError):  # the probes may be gone, which is said elsewhere
            self.attached.leave(but=self._staying)
        return True

    def _leave_apart(self) -> bool:
        """Remove the probes that can be removed before others; return whether they were there."""
        if self._can_leave:
            self.attached.change((), self._apart)
        return self._can_leave

    def _leave_returns(self) -> None:
        """Remove the RETs of functions whose calls are counted, once most calls have returned."""
        now = time.monotonic()
        leaving = [one for one, since in self._counted.items() if now >= since + _RETURNING]
        rets = [self._rets.pop(function) for function in leaving]
        for function in leaving:
            del self._counted[function]
        groups = []
        for function, group in zip(leaving, rets, strict=True):
            if self._landings_of(function) is None:
                groups.append(group)
        for landings in self._landings:
            if own := [function for function in leaving if landings.has(function)]:
                landings.leave(own)
        if groups:
            self.attached.change((), groups)
        self._cheaper += leaving

    def _landings_of(self, function: int) -> Landings | None:
        return next((one for one in self._landings if one.has(function)), None)

    @property
    def pause(self) -> float:
        return min((landings.pause for landings in self._landings), default=math.inf)

    def moved(self) -> Iterable[Move]:
        moves, self._moves = self._moves, []
        return [*moves, *(move for landings in self._landings for move in landings.moves())]

    def take_ways(self) -> Mapping[str, str]:
        """Return how the calls of each function were seen returning since the last time.

        By name: "ret", "landing", or "both".
        """
        names = [function.name for function in self._prepared.plan.names]
        if not self._landings:
            return dict.fromkeys(names, "ret")
        found: dict[str, str] = {}
        for number, way in (way for one in self._landings for way in one.take().items()):
            name = names[number]
            found[name] = way if found.get(name, way) == way else "both"
        return found

    def open_calls(self, functions: Container[int] | None = None) -> int:
        """Return how many calls of functions, or of all, were entered and have not returned."""
        return self._open.number(functions)

    def open_by_task(self) -> Iterator[list[int]]:
        """Yield the functions of each task's open calls, the outermost first."""
        return self._open.by_task()

    def open_now(self) -> Set[int]:
        """Return the functions of which a task has a call open, or one not seen to end."""
        return self._open.functions()

    def lost(self) -> dict[str, int]:
        counts = self.diagnostics()
        return {what.name.lower(): counts[what] for what in self.LOSSES}
