# SPDX-License-Identifier: Apache-2.0
"""Say why the kernel refused probes, by the errors of kernels that this one is not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gotrace.doctor.trials import _attach, _here
from gotrace.errors import GotraceError
from gotrace.kernel import attach, program
from gotrace.kernel import keeper as keepers
from gotrace.kernel import own_function as own_function_module
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import (
    Attached,
    AttachError,
    Point,
    ProbeGroup,
    _attach_cookie,
    _MethodUnavailable,
    _need_probes,
    _Probes,
)
from gotrace.kernel.cookie import cookie
from gotrace.kernel.keeper import Keeper
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.own_function import own_code, own_function
from gotrace.kernel.program import BpfProgram
from gotrace.settings import CountSettings
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind

ENTRIES = [Point(0x100, 0x100, 1), Point(0x200, 0x200, 2)]
RETS = [Point(0x1F0, 0x1F0, 1), Point(0x2F0, 0x2F0, 2)]

_NO_PROBES: Any = SimpleNamespace(
    descriptors=[[]], failed={}, _links=[], _load=lambda *_: 0, attach_tracepoint=None
)
_GROUP = ProbeGroup("on_entry", "/server", "/server", ENTRIES, None, 0)


def missing(monkeypatch: pytest.MonkeyPatch, refused: dict[int, int]) -> str:
    """Return why a kernel that refuses these file offsets, with these errors, has no multi."""

    def link(
        program: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int
    ) -> int:
        for offset in offsets:
            if offset in refused:
                raise OSError(refused[offset], os.strerror(refused[offset]))
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(kernel, "link_uprobe_multi", link)
    groups = [
        ProbeGroup(name, "/server", "/server", points, None, 0)
        for name, points in (("on_return", RETS), ("on_entry", ENTRIES))
    ]
    probes = _Probes(cast(BpfProgram, None), AttachMethod.MULTI, {"on_return": 3, "on_entry": 4})
    try:
        failed, sizes = probes.change((groups, ()))
        assert sum(sizes) == len(probes.held())
        with pytest.raises(_MethodUnavailable) as caught:
            _need_probes(AttachMethod.MULTI, groups, failed)
    finally:
        probes.detach()
    return str(caught.value)


def test_a_kernel_that_may_lack_the_attachment_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = dict.fromkeys([point.offset for point in (*RETS, *ENTRIES)], errno.EINVAL)
    why = missing(monkeypatch, every)
    assert "no uprobe-multi links (Linux 6.6), or another tracer" in why


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.EPERM,
            "cannot attach to /server: the kernel does not permit it: run as root, or with"
            " CAP_BPF and CAP_PERFMON",
        ),
        (errno.ESRCH, "cannot attach to /server: the process has ended"),
    ],
)
def test_what_no_other_method_would_do_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    with pytest.raises(AttachError, match=words):
        missing(monkeypatch, dict.fromkeys([point.offset for point in (*RETS, *ENTRIES)], number))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: _attach_cookie(_NO_PROBES, _GROUP, 3), "no cookie for perf events: Invalid argu"),
        (
            lambda: BpfProgram.attach_tracepoint(_NO_PROBES, "sys_exit", ["f"]),
            "cannot attach to the kernel's tracepoint sys_exit: Invalid argument",
        ),
        (
            lambda: BpfProgram.attach_system_calls(_NO_PROBES, "f", "g"),
            "cannot attach to the kernel's tracepoints of system calls: Invalid argument",
        ),
        (own_code, "programs are not traced on "),
        (
            kernel.online_cpus,
            "cannot find which CPUs are online: /nowhere: No such file or directory: mount sysfs",
        ),
    ],
    ids=["cookie", "tracepoint", "system calls", "machine", "sysfs"],
)
def test_what_another_host_lacks(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[], object], words: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    for name in ("link_perf_event", "open_raw_tracepoint", "open_tracepoint"):
        monkeypatch.setattr(kernel, name, refuse)
    monkeypatch.setattr(kernel, "open_uprobe", lambda path, offset: 0)
    monkeypatch.setattr(kernel, "tracepoint_number", lambda name: 1)
    monkeypatch.setattr(kernel, "_ONLINE_CPUS", Path("/nowhere"))
    monkeypatch.setattr(program, "preempts_at_system_calls", lambda: True)
    monkeypatch.setattr(own_function_module, "HOST", None)
    with pytest.raises((GotraceError, _MethodUnavailable), match=words):
        use()


def test_a_kernel_that_took_other_probes_has_the_attachment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = dict.fromkeys([point.offset for point in ENTRIES], errno.EINVAL)
    why = missing(monkeypatch, entries)
    assert "uprobe-multi" not in why and why.startswith("another tracer, such as a bcc tool")


def test_another_error_among_them_says_that_the_attachment_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = missing(monkeypatch, {0x1F0: errno.EOPNOTSUPP, 0x2F0: errno.EINVAL})
    assert why == os.strerror(errno.EOPNOTSUPP)


@pytest.mark.live
@pytest.mark.parametrize("method", AttachMethod)
def test_hits_count_once_all_probes_are_in_place(
    method: AttachMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attaching takes long where functions are many: a first interval would have more calls."""
    with own_function(own_code().emulated) as function:

        class BusyKeeper(Keeper):
            def _outcome(self) -> Any:
                result = super()._outcome()
                for _ in range(7):
                    function.call()
                return result

        monkeypatch.setattr(attach, "Keeper", BusyKeeper)
        settings = CountSettings(site=_here(), counters=2)
        before = time.monotonic()
        attached = _attach(function, "on_entry", settings, method)
        try:
            assert before < attached.began <= time.monotonic()
            for _ in range(5):
                function.call()
            assert attached.program.map("counts").sums()[1] == 5
        finally:
            attached.close()


@pytest.mark.live
@pytest.mark.parametrize("is_together", [False, True])
def test_what_is_changed_often_does_not_grow(
    is_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps has as many descriptors in the end, and the groups that are gone are gone here."""
    monkeypatch.setattr(keepers, "_holding", keepers._Holding())
    if is_together:
        keepers.hold_together()
    settings = CountSettings(site=_here(), counters=2)
    with own_function(own_code().emulated) as function:
        path, address = function.path, function.address
        site = cookie(1, Site(0, SiteKind.ENTRY, SiteForm.EMULATED, 0))
        entry = ProbeGroup("on_entry", path, path, [Point(0, 0, site)], address, os.getpid())
        changing = replace(entry)
        attached = attach.attach(settings, [changing, entry])
        try:
            sizes = set()
            for calls in range(1, 21):
                before, changing = changing, replace(changing)
                assert not attached.change([changing], [before])
                held = _descriptors(attached)
                kept = [len(each) for each in vars(attached).values() if isinstance(each, Sized)]
                sizes.add((*kept, *held))
                function.call()
                assert attached.program.map("counts").sums()[1] == 2 * calls
            assert len(sizes) == 1, sizes
        finally:
            attached.close()
            if (holder := keepers._holding.holder()) is not None:
                holder.control.close()
                os.waitpid(holder.pid, 0)


def _descriptors(attached: Attached) -> list[int]:
    """Return how many files each process has open that keeps probes."""
    return [
        len(os.listdir(f"/proc/{keeper.pid}/fd"))
        for keeper in (kept.keeper for kept in attached._kept)
    ]
