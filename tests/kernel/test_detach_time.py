# SPDX-License-Identifier: Apache-2.0
"""What removing probes by perf events takes is said before they are placed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from gotrace.kernel import attach, detach_time
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import ProbeGroup
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.select import Selector
from gotrace.session.count import CallCounter
from gotrace.session.plan import BinaryRequest, make_plan
from gotrace.session.probing import Prepared
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest


@pytest.mark.parametrize(
    ("count", "seconds", "said"),
    [
        (1000, 50.0, "about 50 s to remove 1000 probes"),
        (9000, 450.0, "about 8 minutes to remove 9000 probes"),
        (1000, 4.9, None),
        (1000, None, None),
        (19, 50.0, None),
    ],
)
def test_a_long_end_is_said(
    count: int, seconds: float | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach_time, "removal_seconds", lambda asked: seconds)
    text = detach_time.price(count)
    assert (text is None) if said is None else (text is not None and said in text)


def test_all_descriptors_are_closed() -> None:
    for count in (1, 200):
        descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        detach_time.close_all(descriptors)
        for descriptor in descriptors:
            with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
                os.fstat(descriptor)


def test_no_estimate_where_the_trial_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(os.listdir("/proc/self/fd"))

    def refused(path: str, offset: int) -> int:
        raise PermissionError(errno.EACCES, "not permitted")

    monkeypatch.setattr(kernel, "open_uprobe", refused)
    assert detach_time.removal_seconds(1000) is None
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.live
def test_estimate_grows_with_the_number() -> None:
    one = detach_time.removal_seconds(1)
    assert one is not None and one > 0


@pytest.mark.live
@pytest.mark.parametrize("method", AttachMethod)
def test_said_before_anything_is_attached(
    method: AttachMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(attach, "price", lambda count: f"{count} probes")
    add = attach.Attached.add

    def noted(attached: attach.Attached, groups: Sequence[ProbeGroup]) -> None:
        events.append("attached")
        add(attached, groups)

    monkeypatch.setattr(attach.Attached, "add", noted)
    target = Target()
    try:
        path = build(FIXTURES / "live_count", newest())
        request = BinaryRequest(str(path), Selector(["main.leaf", "main.smallFrame"]))
        plan = make_plan(target, [request], returns=False, verb="count")
        with CallCounter(Prepared(target, plan, forced=method, announce=events.append)):
            pass
    finally:
        target.close()
    assert events == (["attached"] if method is AttachMethod.MULTI else ["2 probes", "attached"])
