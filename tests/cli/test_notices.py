# SPDX-License-Identifier: Apache-2.0
"""What commands say beside their results, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.cli.asserting import _record
from gotrace.cli.dumping import _warn_moved
from gotrace.cli.irregular import irregularities, unread_notices
from gotrace.cli.pace import _exited
from gotrace.cli.recordings import _Files
from gotrace.cli.run import problem_notices
from gotrace.cli.snapshots import _accepting
from gotrace.cli.stack_files import say_lost
from gotrace.cli.tracing import _Profile
from gotrace.cli.trees import left_out_notices, with_own_functions
from gotrace.cli.why import say_price
from gotrace.errors import GotraceError
from gotrace.report.output import Notice, NoticeKind
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan

Say = Callable[[Any], Iterable[Notice] | None]


def ended(**fields: Any) -> Iterable[Notice]:
    target: Any = SimpleNamespace(**{"pid": 7, "processes": (), "command": None, **fields})
    return [_exited(target)]


def written(out: Any) -> None:
    options: Any = SimpleNamespace(files=SimpleNamespace(recording="x-%n.trace"), max_files=None)
    recording: Any = SimpleNamespace(
        calls=[1, 2],
        requests=[],
        cause="main.f",
        lost=3,
        save=lambda path: None,
        begin_ns=0,
        end_ns=3 * 10**9,
        after_ns=10**9,
    )
    files = _Files(options, out)
    while files.left:
        files.write(recording)
    out.said += files._unsaid[-2:]


def without_calls(what: Diagnostic) -> Iterable[Notice]:
    counts = {one: 2 * (one is what) for one in Diagnostic}
    meter: Any = SimpleNamespace(diagnostics=lambda: counts, open_calls=lambda: 0, LOSSES=())
    return irregularities(meter, ProbePlan((), ()), "not shown", 9)


def some(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def refused(use: Callable[[], object]) -> Iterable[Notice]:
    with pytest.raises(GotraceError) as caught:
        use()
    return [Notice(NoticeKind.LOST, str(caught.value))]


_PRINTING: Any = SimpleNamespace(
    patterns=["main.f"], folded=False, files=SimpleNamespace(profiles=())
)
_WITHOUT: Any = SimpleNamespace(rows=list, without_stack=2)
_PRICE: Any = SimpleNamespace(text="this takes all", share=9.0, changes=10**9)
_UNFORCED: Any = SimpleNamespace(force=False)


@pytest.mark.parametrize(
    ("say", "messages"),
    [
        (
            lambda out: say_lost(out, {"unseen": 3, "stacks": 1}),
            [
                "3 not counted: there were too many goroutines",
                "1 stack not kept: there were too many",
            ],
        ),
        (
            lambda out: _warn_moved([some(has_moved=moved) for moved in (1, 0, 1)], out),
            ["2 goroutines kept moving while being read: without a stack"],
        ),
        (
            lambda out: _record("x.assert", (), 5, out),
            ["x.assert is not written: not all is known, or the command has failed"],
        ),
        (
            lambda out: refused(lambda: with_own_functions(some(regexp=True), some())),
            [r"with -r give a PROBE as well: -r 'main\..*'"],
        ),
        (
            lambda out: left_out_notices(some(left_out=[f"main.{n}" for n in range(6)])),
            [
                "6 functions left out, which are called too often: main.0, main.1, main.2, main.3,"
                " main.4, ..."
            ],
        ),
        (
            lambda out: problem_notices([f"file {n} is odd" for n in range(40)], is_json=True),
            ["file 0 is odd", "and 39 more warnings: --list shows what can be probed"],
        ),
        (
            lambda out: unread_notices(3, 9),
            ["3 records lost: they came faster than they could be read; give fewer patterns"],
        ),
        (
            written,
            [
                "wrote x-100.trace: 2s before main.f and 1s after, 2 calls, after 3 lost records",
                "100 files written: -M says how many there may be",
            ],
        ),
        (
            lambda out: _Profile(_PRINTING, _WITHOUT, None).write(out),
            ["2 calls without a stack: there were too many"],
        ),
        (
            lambda out: without_calls(Diagnostic.WHY_THREADS_FULL),
            ["2 times a thread could not be followed: there were too many"],
        ),
        (
            lambda out: ended(processes=[SimpleNamespace(tgid=3), SimpleNamespace(tgid=4)]),
            ["processes 3, 4 have ended"],
        ),
        (
            lambda out: ended(command=SimpleNamespace(reap=lambda: 9)),
            ["process 7 was killed by SIGKILL"],
        ),
        (
            lambda out: refused(lambda: _accepting(_UNFORCED, None)(_PRICE)),
            ["this takes all: --force accepts it"],
        ),
        (
            lambda out: refused(
                lambda: say_price(_UNFORCED, out, _PRICE, "changes {} times", "x ")
            ),
            [
                "this program changes 1,000,000,000 times will take about 900% of one CPU: x"
                " --force accepts it"
            ],
        ),
        *(
            (lambda out, what=what: without_calls(what), [f"2 calls {text}"])
            for what, text in {
                Diagnostic.STACKS_FULL: "not shown: too many goroutines had calls open",
                Diagnostic.WORK_BUSY: "not shown: no buffer was free",
                Diagnostic.TAIL_CALLS: "not shown: they ended by jumping to another function",
                Diagnostic.CALLS_UNDECIDED: (
                    "not shown: their predicate or key takes too many steps"
                ),
                Diagnostic.WHY_FULL: "whose time is shown as unknown: there was no room for more",
            }.items()
        ),
    ],
)
def test_notice(say: Say, messages: list[str]) -> None:
    said: list[Notice] = []
    out: Any = SimpleNamespace(notice=said.append, said=said)
    said += say(out) or ()
    assert [one.message for one in said] == messages
