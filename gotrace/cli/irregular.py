# SPDX-License-Identifier: Apache-2.0
"""Say at the end of a run which calls are not in its results, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from gotrace.report.output import Notice, NoticeKind
from gotrace.session.open_calls import Diagnostic
from gotrace.session.paired import Paired
from gotrace.session.plan import ProbePlan
from gotrace.text import counted

if TYPE_CHECKING:  # counting does without
    from gotrace.session.decode import Undecided

#: Things that were not read in time, for ``unread_notices``: shown calls, or records of any kind.
CALLS = (
    "{} call{s} lost, the latest: they came faster than they could be shown; try a predicate, or"
    " GOTRACE_DRAIN=30, which goes on for as many seconds after the end"
)
RECORDS = "{} record{s} lost: they came faster than they could be read; give fewer patterns"
_UNDECIDED = "{} call{s} not shown: the predicate could not be decided"

#: Templates of ``counted``; ``NOT`` stands for what the tool has not done with these calls.
_TEXTS = {
    Diagnostic.UNWOUND: "{} call{s} did not return: unwound by a panic or runtime.Goexit",
    Diagnostic.UNWOUND_UNSEEN: (
        "{} call{s} NOT: it was not seen how they ended, or too many were unwound at once"
    ),
    Diagnostic.UNMATCHED: "{} return{s} NOT: entered before tracing began",
    Diagnostic.STACKS_FULL: "{} call{s} NOT: too many goroutines had calls open",
    Diagnostic.OUTER_CALLS_FULL: "{} call{s} NOT: too many calls were open inside one another",
    Diagnostic.NEW_CALLERS: (
        "{} call{s} NOT: they came from new callers, after the probes had left the RETs; try"
        " --returns ret"
    ),
    Diagnostic.SAVED_FULL: "{} call{s} NOT: too many were open to keep their arguments",
    Diagnostic.NO_GOROUTINE: "{} hit{s} NOT: no goroutine could be found",
    Diagnostic.WORK_BUSY: "{} call{s} NOT: no buffer was free",
    Diagnostic.TAIL_CALLS: "{} call{s} NOT: they ended by jumping to another function",
    Diagnostic.CALLS_UNDECIDED: "{} call{s} NOT: their predicate or key takes too many steps",
    Diagnostic.ENDED_FULL: (
        "{} ended goroutine{s} still listed: there was no room to record their end"
    ),
    Diagnostic.EXTREMES_LOST: "{} time{s} a call may be missing from the minimum or maximum",
    Diagnostic.SLOW_LOST: "{} slow calls not printed: they came too fast",
    Diagnostic.EVENTS_LOST: (
        "{} call{s} lost: they came faster than they could be taken; try a predicate, or"
        " gofunclatency --by, which adds them up in the kernel"
    ),
    Diagnostic.WHY_FULL: "{} call{s} whose time is shown as unknown: there was no room for more",
    Diagnostic.WHY_THREADS_FULL: "{} time{s} a thread could not be followed: there were too many",
}


def irregularities(
    meter: Paired,
    plan: ProbePlan,
    not_done: str,
    calls: int,
    without: Collection[Diagnostic] = (),
) -> Iterator[Notice]:
    """Yield a notice for each irregularity of a run that has occurred, but those ``without``.

    ``not_done`` is what the tool has not done with such calls: "not shown". There were as many
    ``calls`` that are in its results.
    """
    counts, open_calls = meter.diagnostics(), meter.open_calls()
    of = calls + sum(counts[what] for what in meter.LOSSES)
    if open_calls:
        text = counted("{} call{s} still open at the end", open_calls)
        if plan.changes_threads:
            text += ", or went on on another thread"
        yield Notice(NoticeKind.SUMMARY, text, {"what": "open", "calls": open_calls})
    for what, count in counts.items():
        if not count or what not in _TEXTS or what in without:
            continue
        template = _TEXTS[what].replace("NOT", not_done, 1) + _more(what, counts, plan)
        name = what.name.lower()
        if what in meter.LOSSES:
            yield lost_notice(name, template, count, of)
        else:
            fields = {"what": name, "calls": count}
            yield Notice(NoticeKind.SUMMARY, counted(template, count), fields)


def undecided_notices(undecided: Undecided, has_reasons: bool = False) -> Iterator[Notice]:
    """Yield the notice of calls that may have been wanted; with why it is not known, if asked.

    Without a share: calls that the kernel has left out are not counted.
    """
    if calls := undecided.calls:
        text, fields = counted(_UNDECIDED, calls), {"what": "undecided", "calls": calls}
        if has_reasons:
            reasons = undecided.reasons
            causes = ", ".join(f"{why} ({calls:,})" for why, calls in reasons.most_common())
            text, fields = f"{text}: {causes}", {**fields, "reasons": dict(reasons)}
        yield Notice(NoticeKind.LOST, text, fields)


def unread_notices(lost: int, taken: int, template: str = RECORDS) -> Iterator[Notice]:
    """Yield the notice of records that were not read in time, beside those taken."""
    if lost:
        yield lost_notice("reader", template, lost, lost + taken)


def lost_notice(what: str, template: str, count: int, of: int) -> Notice:
    """Return the notice of calls that are missing, with their share of all if it is of calls."""
    fields: dict[str, object] = {"what": what, "calls": count}
    calls = "{} call{s} "
    if not template.startswith(calls):
        return Notice(NoticeKind.LOST, counted(template, count), fields)
    of = max(of, count)
    text = f"{count:,} of {counted('{:,} call{s}', of)} ({_percent(count / of)}) "
    return Notice(NoticeKind.LOST, text + template.removeprefix(calls), {**fields, "of": of})


def _percent(share: float) -> str:
    return "less than 0.1%" if share < 0.001 else f"{share:.1%}"


def _more(what: Diagnostic, counts: Mapping[Diagnostic, int], plan: ProbePlan) -> str:
    """Return further possible causes of an irregularity in this run."""
    full = (Diagnostic.STACKS_FULL, Diagnostic.OUTER_CALLS_FULL)
    if what in (Diagnostic.UNWOUND, Diagnostic.UNMATCHED) and plan.changes_threads:
        return (
            ", or their goroutine changed threads within the call:"
            " gccgo's calls are distinguished by thread"
        )
    if what is Diagnostic.UNWOUND and plan.has_tail_jumps:
        return ", or ended by jumping to another function"
    if what is Diagnostic.UNMATCHED and any(counts[what] for what in full):
        return ", or not kept, out of room"
    return ""
