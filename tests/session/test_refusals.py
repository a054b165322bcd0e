# SPDX-License-Identifier: Apache-2.0
"""Requests that cannot be are refused in a line that says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.errors import GotraceError
from gotrace.kernel.cookie import MAX_FILES
from gotrace.session import run as module
from gotrace.session.landings import Landings
from gotrace.session.oncpu.allocs import _site
from gotrace.session.plan import Selected
from gotrace.session.run import Run
from gotrace.session.scheduler import check_watchable, needed_reasons
from gotrace.session.tasks import _numbered
from gotrace.session.trace_plan import _Planner
from gotrace.session.waits.names import SyscallRequest
from gotrace.session.waits.probes import wait_probes
from gotrace.target.target import Target

_BARE: Any = SimpleNamespace(
    functions=SimpleNamespace(rows_named=lambda name: ()),
    image=SimpleNamespace(display="x"),
    wait_reasons=None,
    go_version=None,
    layout=None,
)
_IN_FILE: Any = SimpleNamespace(binary=_BARE)
_CHANGED: Any = SimpleNamespace(
    _refused={}, _callers=SimpleNamespace(landings=lambda _: [SimpleNamespace(intact=False)])
)


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: wait_probes(Target(), None), "waits need one process: "),
        (
            lambda: SyscallRequest(target=Target()).prepare(None, None),
            "system calls need one process: ",
        ),
        (
            lambda: _numbered([_BARE] * (MAX_FILES + 1)),
            f"{MAX_FILES + 1} files, and at most {MAX_FILES} are traced: leave out some",
        ),
        (
            lambda: raised(Selected.nothing_usable(_IN_FILE, "count", "no")),
            "nothing to count in x: no",
        ),
        (
            lambda: _site(_BARE, "runtime.mProf_Malloc"),
            "x: has no runtime.mProf_Malloc that can be probed",
        ),
        (
            lambda: needed_reasons(_BARE, "watching waits"),
            "x: watching waits has not found why goroutines of this Go wait",
        ),
        (
            lambda: check_watchable(_BARE, "this"),
            "this needs a Go runtime to watch: programs of gccgo have another one",
        ),
        (
            lambda: Landings._choose(_CHANGED, 1, True),
            "results are changed before where it returns to can be probed",
        ),
    ],
)
def test_refused(use: Callable[[], object], words: str) -> None:
    with pytest.raises(GotraceError, match=f"^{words}"):
        use()


def test_functions_without_descriptions_are_said_once_for_each_reason() -> None:
    planner: Any = SimpleNamespace(_values=SimpleNamespace(problem=None), _notes={})
    planner._shaped = {"it is stripped": ["main.f", "main.g", "main.h"]}
    planner._bare = {"it is old": ["main.i", "main.j"]}
    assert _Planner.problems.__get__(planner) == [
        "main.i and 1 more function: no debug information says what they take, it is old:"
        " registers and stack words are shown; give a signature, as in 'main.i(x int) error'",
        "main.f and 2 more functions: arguments are shown by their shape, results as registers,"
        " since it is stripped; give a signature, as in 'main.f(x int) error'",
    ]


def test_a_command_that_was_replaced_before_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetime: Any = SimpleNamespace(missed_command=lambda: "/bin/x")
    monkeypatch.setattr(module, "Lifetime", lambda *_: lifetime)
    lifetime.PERIOD = 1
    run: Any = SimpleNamespace(_news=[], plan=None, attached=SimpleNamespace(began=0.0))
    run.target = SimpleNamespace(start=lambda: None, command=None)
    with suppress(AttributeError):  # of the rest of a run
        Run.begin(run)
    (note,) = run._news
    assert note.text == "/bin/x was replaced before it was started: what runs now is not traced"
