# SPDX-License-Identifier: Apache-2.0
"""The option ``--why``: what it takes is said before it is paid."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gotrace.cli.options import WHY_ALL, WHY_WAITS
from gotrace.errors import GotraceError
from gotrace.report.output import Notice, NoticeKind, Output

if TYPE_CHECKING:
    from gotrace.kernel.attach import AttachMethod
    from gotrace.session.tasks import Tasks
    from gotrace.session.why.parts import WhyProbes
    from gotrace.session.why.price import Priced
    from gotrace.target.target import Target

__all__ = ["accept_price", "add_why_options", "prepared_why"]


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


def prepared_why(
    options: argparse.Namespace,
    target: Target,
    tasks: Tasks,
    output: Output,
    *,
    callers: bool = False,
    classes: bool = False,
) -> WhyProbes | None:
    """Return what finds out where time goes, None where that is not asked for.

    Prints what it will cost. Raises GotraceError where that is too much, or cannot be done.
    """
    if options.why is None and not classes:
        return None
    from gotrace.session.why.parts import WhyOptions, why_probes

    wanted = WhyOptions(syscalls=options.why != WHY_WAITS, callers=callers, classes=classes)
    probes = why_probes(target, tasks, wanted)
    waits = "--why=waits takes less, and " if options.why == WHY_ALL and probes.has_syscalls else ""
    accept_price(probes, options.attach, options.force, "--why", output, waits)
    return probes


def accept_price(
    probes: Priced,
    forced: AttachMethod | None,
    is_accepted: bool,
    what: str,
    output: Output,
    less: str = "",
) -> None:
    """Say what watching a scheduler will cost; raise GotraceError where that is too much.

    ``what`` is what will take that, and ``less`` says how to take less.
    """
    if probes.target.command is not None:
        text = f"what {what} takes of a CPU is not known before the program runs"
        output.notice(Notice(NoticeKind.WARNING, text, {"what": "why_price", "share": None}))
        return
    from gotrace.session.why.price import MAX_SHARE, price_of

    price = price_of(probes, forced)
    share = f"{100 * price.share:.{1 if price.share < 0.1 else 0}f}%"
    text = (
        f"this program changes {round(price.changes):,} states a second: {what} will take about"
        f" {share} of one CPU"
    )
    fields = {"what": "why_price", "changes": round(price.changes), "share": price.share}
    if price.share > MAX_SHARE and not is_accepted:
        raise GotraceError(f"{text}: {less}--force accepts it")
    output.notice(Notice(NoticeKind.WARNING, text, fields))
