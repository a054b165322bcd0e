# SPDX-License-Identifier: Apache-2.0
"""Try out what the running kernel can do, and what the trials make of other kernels."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from gotrace.kernel import features
from gotrace.kernel import syscalls as kernel

pytestmark = pytest.mark.live

#: r0 = 0; exit: registers stay as they are.
IDLE = bytes.fromhex("b700000000000000 9500000000000000")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what was found, before and after."""
    features.steps_can_be_skipped.cache_clear()
    yield
    features.steps_can_be_skipped.cache_clear()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_steps_are_skipped_where_the_verifier_lets_a_program_write_registers() -> None:
    before = descriptors()
    accepted = kernel.verifier_log(features._moving_program()) is None
    assert features.steps_can_be_skipped() == accepted
    assert descriptors() == before


def test_a_program_that_is_accepted_but_moves_nothing_skips_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is what the probed function did, not that the program was loaded."""
    monkeypatch.setattr(features, "_moving_program", lambda: IDLE)
    assert not features.steps_can_be_skipped()


def test_a_kernel_without_uprobe_events_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, offset: int) -> int:
        raise OSError(errno.ENOENT, "the kernel has no uprobe event source")

    monkeypatch.setattr(features, "_moving_program", lambda: IDLE)
    monkeypatch.setattr(kernel, "open_uprobe", refuse)
    before = descriptors()
    assert not features.steps_can_be_skipped()
    assert descriptors() == before
