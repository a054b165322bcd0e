# SPDX-License-Identifier: Apache-2.0
"""Name who ended a wait by the stack of the waker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gotrace.session.waits.meter import EndedBy
from gotrace.session.waits.naming import WokenBy, _Wakers


@dataclass(frozen=True)
class Frame:
    function: str
    is_elided: bool = False


class Names:
    """A program whose stacks are the names of their functions."""

    def frames(self, stack: tuple[str, ...]) -> list[Frame]:
        return [Frame(name) for name in stack]

    def is_system_stack(self, stack: tuple[str, ...]) -> bool:
        return stack[-1] == "runtime.mcall"


@pytest.mark.parametrize(
    ("names", "woken_by"),
    [
        ("findRunnable schedule park_m mcall", WokenBy.NETWORK),
        ("injectglist findRunnable schedule park_m mcall", WokenBy.NETWORK),
        ("casgstatus injectglist sysmon mstart1 mcall", WokenBy.NETWORK),
        ("injectglist startTheWorldWithSema startTheWorldGC.func1 mcall", WokenBy.NETWORK),
        ("injectglist gcMarkTermination gcMarkDone gcBgMarkWorker goexit", WokenBy.RUNTIME),
        ("casgstatus injectglist gcWakeAllAssists gcMarkDone gcAssistAlloc", WokenBy.RUNTIME),
        ("injectglist wakeScavenger sysmon mstart1 mcall", WokenBy.RUNTIME),
        ("goready timeSleepUntil.timer schedule mcall", WokenBy.TIMER),
        ("goready send chansend1 goexit", WokenBy.GOROUTINE),
    ],
)
def test_the_poller_is_who_took_from_it(names: str, woken_by: WokenBy) -> None:
    stack = cast(Any, tuple(f"runtime.{name}" for name in names.split()))
    wakers = _Wakers(cast(Any, Names()))
    assert wakers._find(EndedBy.GOROUTINE, stack, True)[0] is woken_by
    # What does not wait for input and output the poller does not find.
    other = WokenBy.RUNTIME if woken_by is WokenBy.NETWORK else woken_by
    assert wakers._find(EndedBy.GOROUTINE, stack, False)[0] is other
