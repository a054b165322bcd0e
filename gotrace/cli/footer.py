"""Say at the end of a run which calls its results do not show, and why."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from gotrace.gotypes.symbols import parse_name
from gotrace.report.output import Notice, NoticeKind
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import Plan
from gotrace.sites.sites import SiteForm

__all__ = ["has_stepped_entry", "mostly_tracing", "not_shown"]

_FULL = (Diagnostic.STACKS_FULL, Diagnostic.FRAMES_FULL)


def not_shown(
    open_calls: int,
    counts: Mapping[Diagnostic, int],
    texts: Mapping[Diagnostic, str],
    lost: Container[Diagnostic],
    plan: Plan,
) -> Iterator[Notice]:
    """Yield a notice for each irregularity that has occurred and has one of ``texts``.

    ``texts`` have a pair of braces for the number; those that are not ``lost`` are summaries.
    """
    if open_calls:
        text = f"{open_calls} calls were still open"
        if _changes_threads(plan):
            text += ", or went on on another thread"
        yield Notice(NoticeKind.SUMMARY, text, {"what": "open", "calls": open_calls})
    for what, count in counts.items():
        if count and what in texts:
            kind = NoticeKind.LOST if what in lost else NoticeKind.SUMMARY
            text = texts[what].format(count) + _more(what, counts, plan)
            yield Notice(kind, text, {"what": what.name.lower(), "calls": count})


def _more(what: Diagnostic, counts: Mapping[Diagnostic, int], plan: Plan) -> str:
    """Return what else may have caused an irregularity in this run."""
    if what in (Diagnostic.UNWOUND, Diagnostic.UNMATCHED) and _changes_threads(plan):
        return (
            ", or their goroutine changed threads within the call:"
            " gccgo's calls are told apart by thread"
        )
    if what is Diagnostic.UNWOUND and any(
        sites.tail_jumps for binary in plan.binaries for sites in binary.functions
    ):
        return ", or ended by jumping to another function"
    if what is Diagnostic.UNMATCHED and any(counts[full] for full in _FULL):
        return ", or not kept for want of room"
    return ""


def _changes_threads(plan: Plan) -> bool:
    """Return whether calls told apart by thread are those of goroutines: gccgo's."""
    return any(
        parse_name(sites.function.name, gccgo=True).package
        for binary in plan.binaries
        if not binary.binary.functions.has_pclntab
        for sites in binary.functions
    )


def has_stepped_entry(plan: Plan) -> bool:
    """Return whether the kernel has to single-step at the entry of any function."""
    return any(
        sites.entry is not None and sites.entry.form is SiteForm.FIRST
        for binary in plan.binaries
        for sites in binary.functions
    )


def mostly_tracing(shares: Mapping[str, float]) -> Iterator[Notice]:
    """Yield a notice where most of the time of calls went into probes within them.

    ``shares`` are those of the functions' times, by name ("" where they are measured together).
    """
    most = sorted((share, name) for name, share in shares.items() if share > _MOST)
    if not most:
        return
    share, name = most[-1]
    part = f"{min(99, round(100 * share))}%"
    whose = f"{name}'s time" if name else "the time measured"
    others = f", and most of that of {len(most) - 1} others" if len(most) > 1 else ""
    yield Notice(
        NoticeKind.SUMMARY,
        f"about {part} of {whose} is tracing, of calls within its calls{others}: trace fewer"
        " functions",
        {"what": "mostly_tracing", "functions": len(most)},
    )


_MOST = 0.5
