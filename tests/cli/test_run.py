# SPDX-License-Identifier: Apache-2.0
"""What is traced and what is not, as reported, and how a command ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

import pytest

from gotrace.cli.command import run_command
from gotrace.cli.gofunccount import _parser
from gotrace.cli.irregular import lost_notice
from gotrace.cli.options import parse
from gotrace.cli.run import opened_notices
from gotrace.errors import GotraceError
from gotrace.kernel.attach import Attached, Point
from gotrace.kernel.cookie import TaskKind, cookie
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.program import BpfProgram
from gotrace.report.output import Notice, NoticeKind
from gotrace.session.probing import Prepared, Probing
from gotrace.session.run import Run
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind
from gotrace.target.target import Target
from gotrace.target.wait import Waiter
from tests.cli.plans import plan_of

PLAN = plan_of("main.a", "main.b", "main.c", "main.d", "main.e", "main.f")


def notices(points: Sequence[Point]) -> list[Notice]:
    """Return what is said where the kernel refused these points."""
    attached = Attached(cast(BpfProgram, None), AttachMethod.MULTI)
    attached.failed = {point: OSError(errno.EIO, os.strerror(errno.EIO)) for point in points}
    probing = Probing()
    probing.attached = attached
    run: Run[Probing, None] = Run(Prepared(Target(), PLAN), probing, None, Waiter(), ExitStack())
    return list(opened_notices(parse(_parser(), ["main.*"]), run, "counted"))


def entry(number: int) -> Point:
    address = 0x1000 * (number + 1)
    site = Site(address, SiteKind.ENTRY, SiteForm.BRANCH, 8)
    return Point(address, address, cookie(number, site, TaskKind.G_REGISTER))


def ret(number: int) -> Point:
    address = 0x1000 * (number + 1) + 0xFF
    site = Site(address, SiteKind.RET, SiteForm.RET, 0)
    return Point(address, address, cookie(number, site, TaskKind.G_REGISTER))


def test_a_refused_probe_is_named_by_its_function() -> None:
    *warnings, opening = notices([entry(1), ret(1), ret(2)])
    assert [(notice.message, notice.fields) for notice in warnings] == [
        ("main.b: no probe at 0x2000: Input/output error", {"func": "main.b"}),
        ("main.b: no probe at 0x20ff: Input/output error", {"func": "main.b"}),
        ("main.c: no probe at 0x30ff: Input/output error", {"func": "main.c"}),
    ]
    assert opening.kind is NoticeKind.ATTACHED
    assert opening.fields["functions"] == 5
    assert opening.message.startswith('Tracing 5 functions for "main.*"...')


def test_a_refused_probe_of_the_runtime_is_nobodys() -> None:
    site = Site(0x9000, SiteKind.ENTRY, SiteForm.FIRST, 0)
    warning, opening = notices([Point(0x9000, 0x9000, cookie(0, site))])
    assert warning.message == "no probe at 0x9000: Input/output error"
    assert not warning.fields
    assert opening.fields["functions"] == 6


def test_many_refused_probes_are_summed_up() -> None:
    first, more, opening = notices([entry(number) for number in range(6)])
    assert first.fields == {"func": "main.a"}
    assert more.message == "and 5 more probes that the kernel refused"
    assert opening.fields["functions"] == 0


def refuse(arguments: Sequence[str]) -> int:
    raise GotraceError("cannot be done")


@pytest.mark.parametrize(
    ("words", "explained"),
    [
        (("--debug", "f"), True),
        (("--debug", "f", "--", "./server"), True),
        (("f", "--", "./server", "--debug"), False),
        (("f",), False),
    ],
)
def test_debug_is_an_option_of_the_tool_alone(
    words: Sequence[str], explained: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("gofunccount", refuse, words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "gofunccount: cannot be done"
    assert (len(lines) > 1) == explained


@pytest.mark.parametrize(
    ("count", "of", "text"),
    [
        (1204, 80113, "1,204 of 80,113 calls (1.5%) lost: too fast"),
        (1, 80113, "1 of 80,113 calls (less than 0.1%) lost: too fast"),
        (1, 1, "1 of 1 call (100.0%) lost: too fast"),
        (2, 1, "2 of 2 calls (100.0%) lost: too fast"),
    ],
)
def test_lost_calls_and_their_share(count: int, of: int, text: str) -> None:
    notice = lost_notice("reader", "{} call{s} lost: too fast", count, of)
    assert notice.message == text
    assert notice.fields == {"what": "reader", "calls": count, "of": max(of, count)}


def test_of_lost_hits_there_is_no_share() -> None:
    notice = lost_notice("no_goroutine", "{} hit{s} not shown", 2, 9)
    assert (notice.message, notice.fields) == (
        "2 hits not shown",
        {"what": "no_goroutine", "calls": 2},
    )
