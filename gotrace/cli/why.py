# SPDX-License-Identifier: Apache-2.0
"""The option ``--why``: what it takes is said before it is paid."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from gotrace.cli.options import WHY_ALL, WHY_WAITS
from gotrace.errors import GotraceError
from gotrace.report.output import Notice, NoticeKind, Output

if TYPE_CHECKING:  # loaded only where --why is given
    from gotrace.session.request import Accept
    from gotrace.session.scheduler import SchedulerProbes
    from gotrace.session.why.price import Price
    from gotrace.session.why.probes import WhyOptions

__all__ = ["PriceWatch", "accepting", "add_why_options", "say_price", "why_of"]


_SECOND = 1.0


def add_why_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where time goes. ``parse`` knows ``--why=waits``: no pattern may follow it."""
    parser.add_argument(
        "--why",
        action="store_const",
        const=WHY_ALL,
        help="show what the time of calls went into; --why=waits: without system calls",
    )
    parser.add_argument(
        "--force", action="store_true", help="use --why whatever it takes of the program's time"
    )


def why_of(options: argparse.Namespace, *, callers: bool = False) -> WhyOptions | None:
    """Return what ``--why`` asks for; ``callers``: who ended the longest wait, too."""
    if options.why is None:
        return None
    from gotrace.session.why.probes import WhyOptions

    return WhyOptions(syscalls=options.why != WHY_WAITS, callers=callers)


class PriceWatch:
    """What says how much a run takes of a CPU once that is much, and more than was said before.

    A program may be idle when its changes are counted.
    """

    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._probes: SchedulerProbes | None = None
        self._said = 0.0
        self._since = time.monotonic()
        self._changes = 0

    def begin(self, probes: SchedulerProbes, said: float) -> None:
        """Take what is watched, and the part of one CPU that was said."""
        self._probes, self._said = probes, said

    def saw(self, changes: int) -> None:
        """Take how many changes were reported since the last call, or should have been."""
        self._changes += changes
        passed = time.monotonic() - self._since
        if self._probes is None or passed < _SECOND:
            return
        from gotrace.session.why.price import MAX_SHARE, usual_price

        price = usual_price(self._probes, self._changes / passed)
        self._since += passed
        self._changes = 0
        if price.share > max(MAX_SHARE, 2 * self._said):
            self._said = price.share
            what = f"{self._probes.COUNTED}: {self._what}"
            self._output.notice(_price_notice(price, what, "now", "takes"))


def accepting(
    options: argparse.Namespace,
    output: Output,
    what: str = "--why",
    watch: PriceWatch | None = None,
) -> Accept:
    """Return what says how much watching a scheduler will cost, and refuses to pay too much.

    ``what`` is what will take that; ``watch`` goes on from there.
    """

    def accept(probes: SchedulerProbes) -> None:
        if watch is not None:
            watch.begin(probes, 0)
        if probes.target.command is not None:
            text = f"what {what} takes of a CPU is not known before the program runs"
            output.notice(Notice(NoticeKind.WARNING, text, {"what": "why_price", "share": None}))
            return
        from gotrace.session.why.price import price_of

        is_all = getattr(options, "why", None) == WHY_ALL and probes.has_syscalls
        less = "--why=waits takes less, and " if is_all else ""
        price = price_of(probes, options.attach)
        say_price(options, output, price, f"{probes.COUNTED}: {what}", less)
        if watch is not None:
            watch.begin(probes, price.share)

    return accept


def say_price(
    options: argparse.Namespace, output: Output, price: Price, what: str, less: str = ""
) -> None:
    """Say what watching a program will cost it; raise GotraceError if that is too much.

    ``what`` has the number of changes in it, ``less`` is what costs less.
    """
    from gotrace.session.why.price import MAX_SHARE

    notice = _price_notice(price, what)
    if price.share > MAX_SHARE and not options.force:
        raise GotraceError(f"{notice.message}: {less}--force accepts it")
    output.notice(notice)


def _price_notice(price: Price, what: str, when: str = "", takes: str = "will take") -> Notice:
    share = f"{100 * price.share:.{1 if price.share < 0.1 else 0}f}%"
    counted = what.format(f"{round(price.changes):,}")
    text = f"{when and when + ' '}this program {counted} {takes} about {share} of one CPU"
    fields = {"what": "why_price", "changes": round(price.changes), "share": price.share}
    return Notice(NoticeKind.WARNING, text, fields)
