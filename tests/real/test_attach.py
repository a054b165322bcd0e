# SPDX-License-Identifier: Apache-2.0
"""Attach to and detach from programs that check their own results, all at random."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.real.report import figures, rounds
from tests.real.soak import Soak
from tests.real.targets import TARGETS, busy, releases
from tests.toolchains import Toolchain, each_toolchain
from tests.tools.harness import code_of

pytestmark = pytest.mark.live

SEED = 20

#: Rounds: three releases, two programs each, make 1,020.
ROUNDS = 170
#: Functions that gotrace is attached to in one process: planning and loading them takes a while.
MAX_TRACED = 1500

three_releases = pytest.mark.parametrize(
    "toolchain", [pytest.param(found, id=f"go{found.minor}") for found in releases()]
)
each_target = pytest.mark.parametrize("target", TARGETS)


@three_releases
@each_target
def test_attach_and_detach_at_random_moments(target: str, toolchain: Toolchain) -> None:
    number = rounds(quick=3, full=ROUNDS)
    with (
        busy(target, toolchain) as fixture,
        Soak(fixture.pid, SEED, most_traced=MAX_TRACED) as soak,
    ):
        clean = code_of(fixture.pid)
        for turn in range(number):
            soak.anew(soak.uses[turn // 10 % len(soak.uses)]) if turn % 10 == 0 else soak.round()
            assert code_of(fixture.pid) == clean
            fixture.say("status")
            fixture.read_until("status ")
    assert soak.failed == {}
    assert soak.rounds.total() == number
    figures(
        f"attach and detach, {target}, Go {toolchain.version}",
        rounds=soak.rounds,
        functions=len(soak.functions),
        probes=soak.probes,
        calls={use.value: calls for use, calls in soak.calls.items()},
    )
    assert soak.calls.total() > 0


#: What a Go program has without any code of its own.
RUNTIME = (
    *("runtime.*", "runtime/*", "internal/*", "syscall.*", "sync.*", "sync/*", "reflect.*"),
    *("type:*", "type..*", "unicode/*", "errors.*", "os.*", "time.*", "math/*"),
    *("gcWriteBarrier*", "cmpbody", "memeqbody", "indexbytebody", "aeshash*", "debugCall*"),
    *("callRet", "gosave*", "setg_gcc*", "_rt0_*", "go:*", "go.*", "crypto/internal/*"),
)


@each_toolchain
@each_target
def test_every_function_of_the_runtime(target: str, toolchain: Toolchain) -> None:
    """All at once, in each of the ways: a crash, a wrong result or a stop of the target fails."""
    with busy(target, toolchain) as fixture, Soak(fixture.pid, SEED, RUNTIME) as soak:
        clean = code_of(fixture.pid)
        for use in soak.uses:
            for _ in range(rounds(quick=1, full=3)):
                soak.all(use, turns=6)
                assert code_of(fixture.pid) == clean
                fixture.say("status")
                fixture.read_until("status ")
    figures(
        f"all of the runtime, {target}, Go {toolchain.version}",
        functions=len(soak.functions),
        called={use.value: len(seen) for use, seen in soak.seen.items()},
        calls=Counter({use.value: calls for use, calls in soak.calls.items()}),
        refused=soak.failed,
    )
    assert all(soak.calls[use] > 0 for use in soak.uses)
