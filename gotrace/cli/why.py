# SPDX-License-Identifier: Apache-2.0
"""The option ``--why``: what it takes is said before it is paid."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gotrace.cli.options import WHY_ALL, WHY_WAITS
from gotrace.errors import GotraceError
from gotrace.report.output import Notice, NoticeKind, Output

if TYPE_CHECKING:  # loaded only where --why is given
    from gotrace.session.request import Accept
    from gotrace.session.scheduler import SchedulerProbes
    from gotrace.session.why.price import Price
    from gotrace.session.why.probes import WhyOptions

__all__ = ["accepting", "add_why_options", "say_price", "why_of"]


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


def accepting(options: argparse.Namespace, output: Output, what: str = "--why") -> Accept:
    """Return what says how much watching a scheduler will cost, and refuses to pay too much.

    ``what`` is what will take that.
    """

    def accept(probes: SchedulerProbes) -> None:
        if probes.target.command is not None:
            text = f"what {what} takes of a CPU is not known before the program runs"
            output.notice(Notice(NoticeKind.WARNING, text, {"what": "why_price", "share": None}))
            return
        from gotrace.session.why.price import price_of

        is_all = getattr(options, "why", None) == WHY_ALL and probes.has_syscalls
        less = "--why=waits takes less, and " if is_all else ""
        price = price_of(probes, options.attach)
        say_price(options, output, price, f"{probes.COUNTED}: {what}", less)

    return accept


def say_price(
    options: argparse.Namespace, output: Output, price: Price, what: str, less: str = ""
) -> None:
    """Say what watching a program will cost it; raise GotraceError if that is too much.

    ``what`` has the number of changes in it, ``less`` is what costs less.
    """
    from gotrace.session.why.price import MAX_SHARE

    share = f"{100 * price.share:.{1 if price.share < 0.1 else 0}f}%"
    counted = what.format(f"{round(price.changes):,}")
    text = f"this program {counted} will take about {share} of one CPU"
    fields = {"what": "why_price", "changes": round(price.changes), "share": price.share}
    if price.share > MAX_SHARE and not options.force:
        raise GotraceError(f"{text}: {less}--force accepts it")
    output.notice(Notice(NoticeKind.WARNING, text, fields))
