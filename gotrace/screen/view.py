# SPDX-License-Identifier: Apache-2.0
"""The contents of the screen, and the effect of keys: panes, and the choices in them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from gotrace.errors import GotraceError, UsageError
from gotrace.live.model import (
    FunctionRow,
    GroupRow,
    RequestRow,
    SlowRequest,
    Snapshot,
    StackView,
    WaitGroupRow,
)
from gotrace.live.monitor import Monitor
from gotrace.records import dataclass, field
from gotrace.report.durations import PERCENTILES, TIME, duration, table
from gotrace.report.goroutines import awaited_text
from gotrace.report.top import (
    FUNCTION_ORDERS,
    GROUP_ORDERS,
    LOST_REQUESTS,
    REQUEST_ORDERS,
    WAIT_ORDERS,
    ScreenLine,
    declared_lines,
    declared_orders,
    function_lines,
    goroutine_lines,
    group_lines,
    head_lines,
    root_lines,
    stack_lines,
    wait_lines,
)
from gotrace.results.kinds import KINDS
from gotrace.results.rows import Json
from gotrace.screen.terminal import Terminal
from gotrace.session.undisturbed import Meanwhile
from gotrace.target.process import ProcessError
from gotrace.target.wait import Reason, SignalWaiter
from gotrace.text import counted

if TYPE_CHECKING:  # loaded where something is attached
    from gotrace.live.attached import AcceptPrice, AttachPrice

#: Snapshots that say how often a function is called.
_RECENT = 10
#: Goroutines of a group that can be looked at one by one.
_MOST = 500
#: Seconds between two looks at what is being attached.
_MOMENT = 0.05
#: Seconds in which a thread that attaches may end by itself, once the user leaves.
_PATIENCE = 0.1
#: Lines of a question or a message at the bottom.
_MAX_ASKED = 4
_HELP = """\
g        goroutines, those alike together; ! marks groups that leak
w        waits: says what that takes, and attaches if you agree
f, F     functions: asks for a pattern, as that does; F for another one
c        CPU time by function: samples it
r, R     requests: asks for their root, as that does; R for another one
d        detach what this pane has attached
Enter    into a group, a goroutine, a stack of waits, a request; Esc goes back
Enter    on a function: its callers, what its time goes into, its latest calls,
         after it has said what that takes
/        show only lines with a text; Enter with nothing shows all again
s        sort by the next column
Tab      the next process, if there are several
p        pause, and go on
h        this help
q        leave
""".splitlines()
_ATTACHING = "attaching: counting what that takes, and placing probes (Esc gives up, q leaves)..."
_GIVEN_UP = "attaching is given up: waiting for its end (q leaves)..."
_ESCAPE = "\x1b"
#: Keys that do their work also while something is asked or attached.
_AT_ONCE = frozenset({"h", "?", "p", "s"})


class _Pane(Enum):
    GROUPS = "goroutines"
    WAITS = "waits"
    FUNCTIONS = "functions"
    REQUESTS = "roots of requests"
    SAMPLED = "functions sampled"


#: The keys of panes of samples, by the names of what is sampled.
_SAMPLED = {"c": "cpu"}


_ORDERS: Mapping[_Pane, Mapping[str, Callable[[Any], Any]]] = {
    _Pane.GROUPS: GROUP_ORDERS,
    _Pane.WAITS: WAIT_ORDERS,
    _Pane.FUNCTIONS: FUNCTION_ORDERS,
    _Pane.REQUESTS: REQUEST_ORDERS,
    _Pane.SAMPLED: declared_orders(KINDS["cpu_function"]),
}


class _Declined(UsageError):
    """Something that the user does not want to pay for."""


class _Asking:
    """A price that one thread asks another to accept."""

    def __init__(self) -> None:
        #: The price that waits for an answer, None where there is none.
        self.price: AttachPrice | None = None
        self._answered = threading.Event()
        self._is_accepted = False

    def accept(self, price: AttachPrice) -> None:
        """Wait for the answer; raise _Declined if it is not yes."""
        self.price = price
        self._answered.wait()
        if not self._is_accepted:
            raise _Declined("not attached")

    def answer(self, is_accepted: bool) -> None:
        """Answer this price, or the one that is to come: the first answer holds."""
        self.price = None
        if not self._answered.is_set():
            self._is_accepted = is_accepted
            self._answered.set()

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()


@dataclass
class _Level:
    """A view that the user has opened, and its chosen line.

    That is a group's goroutines, a root's requests, a function, or a stack or tree: lines. These
    have their ``heading``, else ``title``, above them.
    """

    title: str
    heading: str | None = None
    group: int | None = None
    root: str | None = None
    function: str | None = None
    stack: list[ScreenLine] = field(default_factory=list)
    rows: list[StackView] = field(default_factory=list)
    slow: Sequence[SlowRequest] = ()
    at: int = 0
    top: int = 0

    @property
    def has_choice(self) -> bool:
        """Return whether Enter goes further."""
        return self.group is not None or self.root is not None


@dataclass
class _Process:
    """One process that is watched, and its latest snapshot."""

    monitor: Monitor
    snapshot: Snapshot | None = None
    has_ended: bool = False


def watch(
    monitors: Sequence[Monitor],
    waiter: SignalWaiter,
    delay: float,
    start: Callable[[Monitor], None],
) -> list[int]:
    """Show programs until the user leaves, a signal comes, or all of them have ended.

    ``start`` attaches what is wanted from the start. Returns the processes that have ended.
    """
    view = None
    try:
        with Terminal() as terminal:

            def abandon() -> None:
                terminal.restore()
                os._exit(1)

            waiter.on_second = abandon
            view = _View(terminal, monitors, waiter, delay)
            return view.run(start)
    finally:  # the terminal first, whatever takes its time
        if view is not None:
            view.finish()


class _View:
    """The screen."""

    def __init__(
        self,
        terminal: Terminal,
        monitors: Sequence[Monitor],
        waiter: SignalWaiter,
        delay: float,
    ) -> None:
        self._terminal = terminal
        self._waiter = waiter
        self._delay = delay
        self._processes = [_Process(monitor) for monitor in monitors]
        self._current = self._processes[0]
        self._pane = _Pane.GROUPS
        self._orders = {pane: next(iter(orders)) for pane, orders in _ORDERS.items()}
        self._filter = ""
        self._levels: list[_Level] = []
        self._at = dict.fromkeys(_Pane, 0)
        self._top = dict.fromkeys(_Pane, 0)
        self._is_paused = False
        self._shows_help = False
        self._message = ""
        self._entry: str | None = None
        #: The attaching of probes in another thread, and its question to the user.
        self._attaching: Meanwhile[None] | None = None
        self._asking, self._attached = _Asking(), threading.Event()
        self._actions: Mapping[str, Callable[[], None]] = {
            "h": self._help,
            "?": self._help,
            "g": lambda: self._show(_Pane.GROUPS),
            "w": self._waits,
            "f": self._functions,
            "F": self._ask_functions,
            "r": self._requests,
            "R": self._ask_requests,
            "d": self._detach,
            "/": self._ask_filter,
            "s": self._sort,
            "p": self._pause,
            "\t": self._next,
            **{key: partial(self._sampled, name) for key, name in _SAMPLED.items()},
        }

    def run(self, start: Callable[[Monitor], None]) -> list[int]:
        """Show, until the end."""
        self._message = "reading goroutines..."
        self._draw()
        self._message = ""
        self._look()
        self._draw()
        for one in self._processes:
            self._attach(lambda _, one=one: start(one.monitor))  # type: ignore[misc]
        if self._pane is _Pane.GROUPS and not self._levels and self._current.monitor.requests:
            self._show(_Pane.REQUESTS)  # unless the user has gone elsewhere meanwhile
        tick = time.monotonic() + self._delay
        while self._waiter.asked is None:
            if all(one.has_ended for one in self._processes):
                break
            reason = self._waiter.wait(tick, also=self._terminal.input)
            if reason is Reason.ASKED:
                break
            if reason is Reason.INPUT and (not self._keys() or self._terminal.is_gone):
                break
            if time.monotonic() >= tick:
                tick = time.monotonic() + self._delay
                if not self._is_paused:
                    self._look()
            elif reason is Reason.EXIT:
                self._look()
            self._draw()
        return [one.monitor.pid for one in self._processes if one.has_ended]

    def _look(self) -> None:
        for one in self._processes:
            if not one.has_ended:
                try:
                    one.snapshot = one.monitor.snapshot()
                except ProcessError:
                    one.has_ended = True
                except GotraceError as error:
                    self._message = str(error)
        if self._levels and not self._current.has_ended:
            self._read_level(self._levels[-1])

    def _read_level(self, level: _Level) -> None:
        """Bring the view that the user has opened up to date."""
        snapshot = self._current.snapshot
        if level.group is not None:
            self._read_group(level)
        elif snapshot is not None and level.root is not None:
            rows = {row.name: row for row in snapshot.requests or ()}
            level.slow = rows[level.root].slowest if level.root in rows else ()
        elif snapshot is not None and level.function is not None:
            row = self._function(level.function)
            if row is not None:
                level.stack = _function_detail(row)
            if snapshot.calls is not None and row and snapshot.calls.name == row.function:
                from gotrace.report.top_calls import calls_lines

                found = calls_lines(snapshot.calls, self._terminal.size[1])
                level.stack = [*found, ScreenLine(""), *level.stack]

    def _read_group(self, level: _Level) -> None:
        assert level.group is not None
        try:
            level.rows = self._current.monitor.goroutines(level.group, _MOST)
        except ProcessError:
            self._current.has_ended = True
        except GotraceError as error:
            self._message = str(error)

    # what is drawn

    def _draw(self) -> None:
        height, width = self._terminal.size
        lines = self._head()
        reverse: set[int] = set()
        asked = wrap(self._entry or self._message, max(width - 1, 10))[-_MAX_ASKED:]
        body = max(1, height - len(lines) - 1 - max(1, len(asked)))
        heading, rows = self._table()
        at, top = (0, 0) if self._shows_help else self._scrolled(len(rows), body)
        lines.append(ScreenLine(heading))
        bold = len(lines) - 1
        if rows and self._has_choice():
            reverse.add(len(lines) + at - top)
        lines += rows[top : top + body] or [ScreenLine(self._nothing())]
        bottom = asked or [self._bottom(len(rows))]
        above = height - len(bottom)
        lines += [ScreenLine("")] * (above - len(lines))
        lines = [*lines[:above], *map(ScreenLine, bottom)]
        self._terminal.draw(lines, reverse, {0, bold})

    def _head(self) -> list[ScreenLine]:
        snapshot = self._current.snapshot
        head = snapshot.head if snapshot is not None else None
        if head is None:
            try:
                head = self._current.monitor.head()
            except GotraceError:
                return [ScreenLine(f"process {self._current.monitor.pid}")]
        texts = head_lines(head)
        notes = []
        if len(self._processes) > 1:
            place = self._processes.index(self._current) + 1
            notes.append(f"{place} of {len(self._processes)}")
        if self._current.has_ended:
            notes.append("ENDED")
        if self._is_paused:
            notes.append("PAUSED")
        if notes:
            texts[0] = f"[{', '.join(notes)}] {texts[0]}"
        return [ScreenLine(text) for text in texts]

    def _table(self) -> tuple[str, list[ScreenLine]]:
        if self._shows_help:
            return "KEY", [*map(ScreenLine, _HELP)]
        if self._levels:
            level = self._levels[-1]
            if level.root is not None:
                from gotrace.report.top_calls import slow_lines

                return slow_lines(level.slow, self._terminal.size[1])
            if level.group is None:
                return level.heading or level.title, level.stack
            heading, lines = goroutine_lines(level.rows, self._terminal.size[1])
            return heading, lines
        snapshot, is_ascii = self._current.snapshot, self._terminal.is_ascii
        if snapshot is None:
            return "", []
        rows = self._rows()
        if self._pane is _Pane.GROUPS:
            return group_lines(rows, is_ascii, self._terminal.size[1])
        if self._pane is _Pane.WAITS:
            return wait_lines(rows, is_ascii, self._terminal.size[1])
        if self._pane is _Pane.SAMPLED and snapshot.sampled is not None:
            return declared_lines(snapshot.sampled, rows, self._terminal.size[1])
        if self._pane is _Pane.REQUESTS:
            return root_lines(rows, is_ascii, self._terminal.size[1])
        return function_lines(rows, is_ascii, self._terminal.size[1])

    def _rows(self) -> list[Any]:
        """Return the pane's rows, sorted, and those alone that the filter lets through."""
        snapshot = self._current.snapshot
        assert snapshot is not None
        rows: Sequence[Any] = {
            _Pane.GROUPS: snapshot.groups,
            _Pane.WAITS: snapshot.waits or (),
            _Pane.FUNCTIONS: snapshot.functions or (),
            _Pane.REQUESTS: snapshot.requests or (),
            _Pane.SAMPLED: snapshot.sampled.rows if snapshot.sampled else (),
        }[self._pane]
        if self._filter:
            rows = [row for row in rows if self._filter in _text(row)]
        return sorted(rows, key=_ORDERS[self._pane][self._orders[self._pane]])

    def _nothing(self) -> str:
        if self._filter and not self._levels:
            return f"nothing has {self._filter!r} in it"
        if self._levels:
            is_of_root = self._levels[-1].root is not None
            return "no request in the last minute" if is_of_root else "its goroutines have gone on"
        monitor = self._current.monitor
        if self._pane is _Pane.WAITS:
            is_attached = monitor.waits is not None
            return "no wait has ended yet" if is_attached else "not attached: press w"
        if self._pane is _Pane.FUNCTIONS:
            is_attached = monitor.functions is not None
            return "no call has returned yet" if is_attached else "not attached: press f"
        if self._pane is _Pane.SAMPLED:
            return "no sample yet" if monitor.sampled is not None else "not attached"
        if self._pane is _Pane.REQUESTS:
            is_attached = monitor.requests is not None
            return "no request is whole yet" if is_attached else "not attached: press r"
        return ""

    def _bottom(self, count: int) -> str:
        if self._shows_help:
            return "any key goes back, q leaves"
        order = self._orders[self._pane]
        title = "groups" if self._pane is _Pane.GROUPS else self._pane.value
        first, *rest = (self._levels[-1].title if self._levels else title).split(" ")
        if self._has_choice():  # the first word of what can be chosen from is a plural
            first = f"{count:,} {first.removesuffix('s') if count == 1 else first}"
        shown = " ".join([first, *rest])
        snapshot = self._current.snapshot
        if self._pane is _Pane.REQUESTS and snapshot is not None and snapshot.requests_lost:
            shown = f"{counted(LOST_REQUESTS, snapshot.requests_lost)}; {shown}"
        by = "" if self._levels else f" by {order}"
        if self._levels and self._levels[-1].function and self._current.monitor.calls is None:
            by = "; Enter looks at each call"
        wanted = f", with {self._filter!r}" if self._filter else ""
        keys = "h help, q leave"
        if not self._levels and self._current.monitor.requests is not None:
            keys = f"{'g goroutines' if self._pane is _Pane.REQUESTS else 'r requests'}, {keys}"
        return f"{shown}{by}{wanted} -- {keys}"

    def _has_choice(self) -> bool:
        return not self._shows_help and (not self._levels or self._levels[-1].has_choice)

    def _scrolled(self, count: int, body: int) -> tuple[int, int]:
        """Return the chosen line, and the first that is shown, so that the former is."""
        last = max(0, count - 1)
        if self._levels:
            level = self._levels[-1]
            level.at = min(max(level.at, 0), last)
            level.top = min(level.top, max(0, count - body))
            level.top = min(max(level.top, level.at - body + 1), level.at)
            return level.at, level.top
        pane = self._pane
        self._at[pane] = min(max(self._at[pane], 0), last)
        self._top[pane] = min(self._top[pane], max(0, count - body))
        self._top[pane] = min(max(self._top[pane], self._at[pane] - body + 1), self._at[pane])
        return self._at[pane], self._top[pane]

    # what keys do

    def _keys(self) -> bool:
        """Handle the keys that were pressed; return whether to go on."""
        while (key := self._terminal.key()) is not None:
            if not self._do(key):
                return False
        return True

    def _do(self, key: str) -> bool:
        self._message = ""
        if self._shows_help:
            self._shows_help = False
            return key != "q"
        if key == "q":
            return False
        if key in _MOVES:
            self._move(key)
        elif key in ("\n", "\r", "KEY_ENTER", "KEY_RIGHT"):
            self._enter()
        elif key in ("\x1b", "KEY_LEFT", "KEY_BACKSPACE", "\x7f", "\b"):
            self._leave(1)
        else:
            self._actions.get(key, lambda: None)()
        return True

    def _move(self, key: str) -> None:
        page = max(1, self._terminal.size[0] - 8)
        by = {"page": page, "-page": -page}.get(str(_MOVES[key]), _MOVES[key])
        assert isinstance(by, int)
        if self._levels:
            self._levels[-1].at = max(0, self._levels[-1].at + by)
        else:
            self._at[self._pane] = max(0, self._at[self._pane] + by)

    def _leave(self, levels: int) -> None:
        """Go back, and detach what has been attached on the way in."""
        for level in self._levels[-levels:]:
            if level.function is not None:
                self._current.monitor.detach_calls()
        del self._levels[-levels:]

    def _enter(self) -> None:
        if self._current.snapshot is None:
            return
        if self._levels:
            level = self._levels[-1]
            if level.function is not None:
                self._attach_calls(level.function)
            elif level.root is not None and level.slow:
                from gotrace.report.requests import REQUEST_HEADING
                from gotrace.report.top_calls import tree_lines

                slow = level.slow[min(level.at, len(level.slow) - 1)]
                title = f"request of {duration(slow.duration_ns)}"
                lines = tree_lines(slow, self._terminal.size[1])
                heading = REQUEST_HEADING.rstrip()
                self._levels.append(_Level(title, heading, stack=lines))
            elif level.group is not None and level.rows:
                view = level.rows[min(level.at, len(level.rows) - 1)]
                title = f"goroutine {view.goroutine.goid} [{view.goroutine.status}]"
                awaited = awaited_text(view.goroutine, view.waits)
                width = self._terminal.size[1]
                stack = stack_lines(view.frames, view.created_by, width, awaited)
                self._levels.append(_Level(title, stack=stack))
            return
        rows = self._rows()
        if not rows or self._pane is _Pane.SAMPLED:
            return
        row = rows[min(self._at[self._pane], len(rows) - 1)]
        if isinstance(row, GroupRow):
            of = f"of {row.count:,} " if row.count > _MOST else ""
            level = _Level(f"{of}goroutines [{row.status}]", group=row.number)
            self._read_group(level)
            self._levels.append(level)
        elif isinstance(row, WaitGroupRow):
            stack = stack_lines(row.frames, None, self._terminal.size[1])
            self._levels.append(_Level(f"[{row.reason}]", stack=stack))
        elif isinstance(row, RequestRow):
            self._levels.append(_Level("requests", root=row.name, slow=row.slowest))
        else:
            level = _Level(row.name, function=row.name)
            self._levels.append(level)
            self._read_level(level)
            self._attach_calls(row.name)

    def _attach_calls(self, name: str) -> None:
        """Look at each call of a function, if that is not done already."""
        monitor, snapshot = self._current.monitor, self._current.snapshot
        if monitor.calls is not None or snapshot is None:
            return
        row = self._function(name)
        latest = row.history[-_RECENT:] if row is not None else ()
        calls_s = sum(latest) / (len(latest) * row.seconds) if row is not None and latest else 0.0
        function = row.function if row is not None else name
        self._attach(lambda accept: monitor.attach_calls(function, calls_s, accept))

    def _function(self, name: str) -> FunctionRow | None:
        snapshot = self._current.snapshot
        rows = snapshot.functions if snapshot is not None else None
        return next((row for row in rows or () if row.name == name), None)

    def _show(self, pane: _Pane) -> None:
        self._pane = pane
        self._leave(len(self._levels))

    def _help(self) -> None:
        self._shows_help = True

    def _pause(self) -> None:
        self._is_paused = not self._is_paused

    def _sort(self) -> None:
        names = list(_ORDERS[self._pane])
        at = names.index(self._orders[self._pane])
        self._orders[self._pane] = names[(at + 1) % len(names)]

    def _next(self) -> None:
        self._leave(len(self._levels))
        at = self._processes.index(self._current)
        self._current = self._processes[(at + 1) % len(self._processes)]

    def _ask_filter(self) -> None:
        text = self._ask("show only lines with: ")
        if text is not None:
            self._filter = text

    def _waits(self) -> None:
        self._show(_Pane.WAITS)
        monitor = self._current.monitor
        if monitor.waits is None:
            self._attach(monitor.attach_waits)

    def _functions(self) -> None:
        self._show(_Pane.FUNCTIONS)
        if self._current.monitor.functions is None:
            self._ask_functions()

    def _ask_functions(self) -> None:
        self._show(_Pane.FUNCTIONS)
        monitor = self._current.monitor
        other = f", or {monitor.server}" if monitor.server else ""
        text = self._ask(f"functions, such as main.*{other}: ")
        if text:
            patterns = text.split()
            self._attach(lambda accept: monitor.attach_functions(patterns, accept))

    def _sampled(self, name: str) -> None:
        self._show(_Pane.SAMPLED)
        monitor, now = self._current.monitor, self._current.monitor.sampled
        if now is None or now.of.name != name:
            self._attach(lambda _: monitor.attach_sampled(name))

    def _requests(self) -> None:
        self._show(_Pane.REQUESTS)
        if self._current.monitor.requests is None:
            self._ask_requests()

    def _ask_requests(self) -> None:
        self._show(_Pane.REQUESTS)
        monitor = self._current.monitor
        other = f"; Enter for {monitor.server}" if monitor.server else ""
        root = self._ask(f"root of requests, such as main.handle{other}: ")
        if root is not None and (root := root or monitor.server):
            self._attach(lambda accept: monitor.attach_requests(root, accept, brief=True))

    def _detach(self) -> None:
        monitor = self._current.monitor
        if monitor.calls is not None:
            monitor.detach_calls()
        elif self._pane is _Pane.WAITS:
            monitor.detach_waits()
        elif self._pane is _Pane.FUNCTIONS:
            monitor.detach_functions()
        elif self._pane is _Pane.REQUESTS:
            monitor.detach_requests()
        elif self._pane is _Pane.SAMPLED:
            monitor.detach_sampled()
        self._look()

    def _attach(self, action: Callable[[AcceptPrice], None]) -> None:
        """Attach in a thread of its own, and ask whether the price is to be paid.

        The program is looked at meanwhile. A failure to attach becomes a message. A signal ends the
        wait at once; ``finish`` is for the thread then.
        """
        asking, done = _Asking(), threading.Event()

        def attach() -> None:
            try:
                action(asking.accept)
            finally:
                done.set()

        if self._waiter.asked is not None:
            return
        self._asking, self._attached, self._attaching = asking, done, Meanwhile(attach)
        tick, is_given_up = time.monotonic() + self._delay, False
        while not done.is_set():
            if asking.price is not None and not asking.is_answered:
                asking.answer(self._agrees(f"{asking.price.text}. Attach?"))
            else:
                if time.monotonic() >= tick and not self._is_paused:
                    self._look()
                    tick = time.monotonic() + self._delay
                self._message = _GIVEN_UP if is_given_up else _ATTACHING
                self._draw()
                self._waiter.wait(time.monotonic() + _MOMENT, also=self._terminal.input)
                for key in self._terminal.look_ahead({*_AT_ONCE, *_MOVES, _ESCAPE}):
                    if key != _ESCAPE:
                        self._do(key)
                    elif not asking.is_answered:
                        asking.answer(False)
                        is_given_up = True
                if "q" in self._terminal.ahead or self._terminal.is_gone:
                    self._waiter.ask()
            if self._waiter.asked is not None:
                return
        self._message = ""
        attaching, self._attaching = self._attaching, None
        try:
            attaching.result()
        except _Declined:
            self._message = "not attached"
        except GotraceError as error:
            self._message = str(error)
        self._look()

    def finish(self) -> None:
        """Wait until nothing is being attached any more.

        A user who leaves does not wait for a compiler: the end of this process ends it, and
        detaches what has been placed.
        """
        if self._attaching is not None:
            self._asking.answer(False)
            if not self._attached.wait(_PATIENCE) and self._waiter.asked is not None:
                os._exit(0)
            with suppress(GotraceError):
                self._attaching.result()

    def _agrees(self, question: str) -> bool:
        """Return whether the user says yes: no is the default, and what another key stands for."""
        self._entry = f"{question} (y/N)"
        try:
            while True:
                self._draw()
                key = self._wait_for_key()
                if key is None or key in ("y", "Y", "n", "N", "\x1b", "\n", "\r", "KEY_ENTER"):
                    return key in ("y", "Y")
                if key in _AT_ONCE or key in _MOVES:
                    self._do(key)
                elif key in self._actions or key == "q":
                    self._terminal.ahead.insert(0, key)
                    return False
        finally:
            self._entry, self._shows_help = None, False

    def _ask(self, question: str) -> str | None:
        """Return a line that the user types, None if it is given up."""
        text = ""
        try:
            while True:
                self._entry = f"{question}{text}_"
                self._draw()
                key = self._wait_for_key()
                if key is None or key == "\x1b":
                    return None
                if key in ("\n", "\r", "KEY_ENTER"):
                    return text
                if key in ("KEY_BACKSPACE", "\x7f", "\b"):
                    text = text[:-1]
                elif key == "\x15":  # Ctrl-U
                    text = ""
                elif key in _MOVES and len(key) > 1:
                    self._move(key)
                elif len(key) == 1 and key.isprintable():
                    text += key
        finally:
            self._entry = None

    def _wait_for_key(self) -> str | None:
        """Return the next key, None once a signal has come; goes on looking meanwhile."""
        tick = time.monotonic() + self._delay
        while self._waiter.asked is None:
            if (key := self._terminal.key()) is not None:
                return key
            reason = self._waiter.wait(tick, also=self._terminal.input)
            if reason in (Reason.ASKED, Reason.EXIT) or self._terminal.is_gone:
                return None
            if reason is Reason.TIME:
                tick = time.monotonic() + self._delay
                if not self._is_paused:
                    self._look()
            self._draw()
        return None


#: The lines by which keys move the choice.
_MOVES: Mapping[str, int | str] = {
    "KEY_UP": -1,
    "k": -1,
    "KEY_DOWN": 1,
    "j": 1,
    "KEY_PPAGE": "-page",
    "KEY_NPAGE": "page",
    " ": "page",
    "KEY_HOME": -(1 << 30),
    "KEY_END": 1 << 30,
}


def _text(row: GroupRow | WaitGroupRow | FunctionRow | RequestRow | Json) -> str:
    """Return the text that a filter looks at: all names of a row."""
    if isinstance(row, Mapping):
        return "\n".join(map(str, row.values()))
    if isinstance(row, FunctionRow | RequestRow):
        return row.name
    names = [frame.function for frame in row.frames]
    if isinstance(row, GroupRow):
        created = [row.created_by.function] if row.created_by else []
        return "\n".join([row.status, *names, *created])
    return "\n".join([row.reason, *names, row.waker or ""])


def _function_detail(row: FunctionRow) -> list[ScreenLine]:
    """Return the histogram of a function's latest calls."""
    times = row.times
    if not times.count:
        return [ScreenLine("no call has returned since the last look")]
    octaves = {exponent: count for exponent, count in times.octaves().items() if count}
    rows = [
        (1 << exponent if exponent else 0, (2 << exponent) - 1, octaves.get(exponent, 0))
        for exponent in range(min(octaves), max(octaves) + 1)
    ]
    marks = [f"{mark} = {duration(times.percentile(q))}" for mark, q in PERCENTILES.items()]
    return [*map(ScreenLine, table(rows, TIME)), ScreenLine(""), ScreenLine(", ".join(marks))]
