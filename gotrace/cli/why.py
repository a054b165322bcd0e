# SPDX-License-Identifier: Apache-2.0
"""Runs with ``--why``: the price is announced before it is paid."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gotrace.cli.options import WHY_ALL, WHY_WAITS, ForceOptions, PartsOptions
from gotrace.errors import GotraceError
from gotrace.report.output import Notice, NoticeKind, Output

if TYPE_CHECKING:  # loaded only where --why is given
    from gotrace.session.budget import Hits
    from gotrace.session.scheduler import SchedulerProbes
    from gotrace.session.why.price import Price
    from gotrace.session.why.probes import WhyOptions


_SECOND = 1.0


def why_of(options: PartsOptions, *, callers: bool = False) -> WhyOptions | None:
    """Return the options of ``--why``; ``callers``: who ended the longest wait, too."""
    if options.why is None:
        return None
    from gotrace.session.why.probes import WhyOptions

    return WhyOptions(syscalls=options.why != WHY_WAITS, callers=callers)


class PriceWatch:
    """Messages about a scheduler's share of a CPU, before it is paid and later on.

    A program may be idle when its changes are counted. So it is said again once that is much, and
    more than was said before. ``what`` is what takes it, beside ``--why``.
    """

    def __init__(self, options: ForceOptions, output: Output, what: str = "--why") -> None:
        self._options, self._output, self._what = options, output, what
        self._accepted: list[str] = []
        self._probes: SchedulerProbes | None = None
        self._said = self._since = 0.0
        self._changes: int | None = None

    def accept(self, probes: SchedulerProbes) -> None:
        """Say how much probes will cost; raise GotraceError if that is too much."""
        from gotrace.session.why.probes import WhyProbes

        options = self._options
        what = "--why" if isinstance(probes, WhyProbes) else self._what
        self._probes = probes
        self._accepted.insert(0, what)
        if probes.target.command is not None:
            text = f"what {what} takes of a CPU is not known before the program runs"
            fields = {"what": "why_price", "share": None}
            self._output.notice(Notice(NoticeKind.WARNING, text, fields))
            return
        from gotrace.session.why.price import price_of

        is_all = isinstance(options, PartsOptions) and options.why == WHY_ALL
        less = "--why=waits takes less, and " if is_all and probes.has_syscalls else ""
        price = price_of(probes, options.attach)
        say_price(options, self._output, price, f"{probes.COUNTED}: {what}", less)
        self._said += price.share

    def look(self, hits: Hits | None) -> None:
        """Say how much it takes now if that is to be said; ``hits`` are those of the run."""
        now = time.monotonic()
        passed = now - self._since
        if self._probes is None or hits is None or passed < _SECOND:
            return
        before, self._changes, self._since = self._changes, hits.others(), now
        if before is None:
            return
        from gotrace.session.why.price import MAX_SHARE, usual_price

        price = usual_price(self._probes, (self._changes - before) / passed)
        if price.share > max(MAX_SHARE, 2 * self._said):
            self._said = price.share
            what = f"{self._probes.COUNTED}: {' with '.join(self._accepted)}"
            self._output.notice(_price_notice(price, what, "now", "takes"))


def say_price(
    options: ForceOptions, output: Output, price: Price, what: str, less: str = ""
) -> None:
    """Print the cost of watching a program before it is paid; raise GotraceError if it is too high.

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
