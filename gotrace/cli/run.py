# SPDX-License-Identifier: Apache-2.0
"""A command's run: its requests, its first and last notices, and its exit status."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO, TypeVar

from gotrace.cli.command import if_failed, to_end
from gotrace.cli.options import (
    NO_FILES,
    CallsOptions,
    Files,
    FunctionOptions,
    Named,
    Options,
    RunOptions,
)
from gotrace.cli.progress import Progress
from gotrace.cli.stream import ResultFile, result_stream
from gotrace.errors import GotraceError, NoMatchError, UsageError
from gotrace.probes.pattern import is_recipe
from gotrace.report.durations import duration
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, Patience, TextOutput
from gotrace.target.process import one_process
from gotrace.target.target import Target
from gotrace.text import counted, printable, quote

if TYPE_CHECKING:  # at run time where it is used: gostacks, which has no probes, does without
    from gotrace.overhead import ProbeCost
    from gotrace.session.budget import HitCounts, Spent
    from gotrace.session.calibrate import Calibration
    from gotrace.session.plan import ProbePlan
    from gotrace.session.probing import Probing
    from gotrace.session.request import Asked
    from gotrace.session.run import Run
    from gotrace.session.trace import TraceRequest

_T = TypeVar("_T")
_M = TypeVar("_M", bound="Probing")
_C = TypeVar("_C")

_MAX_PROBLEMS = 5
_MOSTLY = 0.5  # share of the time
_NOTABLE = 0.01  # of one CPU
_LEAST_NS = 5_000_000  # of a short run a few hits can be a large share


def asked_of(options: FunctionOptions) -> Asked:
    """Return which functions the options ask for."""
    from gotrace.session.request import Asked

    return Asked(options.patterns, options.exclude, options.regexp)


@contextmanager
def target_of(options: FunctionOptions) -> Iterator[Target]:
    """Open the target that the options name."""
    pids, command, _ = options.named
    pid, several = (pids[0], ()) if len(pids) == 1 else (None, pids)
    with closing(Target.of(pid, command, options.uid, options.cgroup, several)) as target:
        target.debug_file = options.debug_file
        check_values(options, target)
        yield target


def check_values(options: FunctionOptions, target: Target) -> None:
    """Raise NoMatchError for a word that is no function and looks like a value of one.

    It is a part of a condition if a shell was given no quotes: of ``main.f n > 3`` it takes
    ``> 3`` for a file.
    """
    words = () if options.regexp else pairwise(options.patterns)
    for before, word in words:
        if not re.fullmatch(r"\$?[A-Za-z_]\w*", word) or set(before) & {" ", "*"}:
            continue
        from gotrace.session.count import CountRequest
        from gotrace.session.request import Asked

        try:
            CountRequest(target=target, asked=Asked([word])).select()
        except (NoMatchError, UsageError):
            number = _number_made() or "3"
            condition = shlex.quote(f"{before} ({word} > {number})")
            by = " --by '$func'" if isinstance(options, CallsOptions) and not options.by else ""
            text = f"no function is called {quote(word)}: a condition is in the same quotes as its"
            text += f" function: type {options.tool}{by} {condition}"
            raise NoMatchError(text) from None


def _number_made() -> str | None:
    """Return the name of the file that standard output is, None if that is not a number."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(1).st_mode):
            name = os.path.basename(os.readlink("/proc/self/fd/1"))
            return name if re.fullmatch(r"[0-9]+\w*", name) else None
    return None


@contextmanager
def process_of(options: RunOptions, does: str) -> Iterator[Target]:
    """Open the one process, or the command, that the options name; ``does``: as errors say it."""
    pids, command, _ = options.named
    pid = one_process(pids, does) if pids else None
    with closing(Target.of(pid, command)) as target:
        target.debug_file = options.debug_file
        yield target


def list_probes(request: TraceRequest, output: Output) -> int:
    """List the functions that a trace would be of, and return the exit status."""
    from gotrace.report.listing import list_functions, list_plan
    from gotrace.session.plan import once, to_be_traced

    specs, _ = request.parsed
    if any(spec.signature or spec.predicate or spec.format for spec in specs):
        planned = request.plan()
        calls = planned.traced.calls if planned.traced else ()
        sources = {
            (id(call.binary), call.function.function.entry): call.places.source for call in calls
        }
        list_plan(planned.plan.whole or once(planned.plan), output, sources)
        return status_of(planned.plan.failed)
    found = request.select(inlined=True)
    return status_of(list_functions(found, output, request.verb, to_be_traced))


def make_output(options: Options) -> Output:
    """Return standard output and standard error for results and notices."""
    return open_output(NO_FILES, as_json=options.json)


def run_output(options: RunOptions) -> Output:
    """Return where a run's results and notices go, as its options say.

    Begins to say that the start takes its time. Raises OSError where a file cannot be written.
    """
    is_list = isinstance(options, FunctionOptions) and options.list
    tool = None if is_list or options.quiet else options.tool
    return open_output(options.files, options.json, options.quiet, options.folded, tool)


def open_output(
    files: Files,
    as_json: bool,
    quiet: bool = False,
    folded: bool = False,
    starting: str | None = None,
) -> Output:
    """Return where results go, in text and as JSON: files, or standard output.

    ``starting`` is said to take its time. Raises OSError if a file cannot be written.
    """
    patience = Patience()
    out = result_stream(sys.stdout, patience)
    err = result_stream(sys.stderr, patience, must=False)
    before = None
    if starting is not None:
        progress = Progress(starting)
        to_end.append(progress.end)
        before = progress.end
    if as_json and files.text is None:
        return JsonOutput(out, None, before, patience)
    rows = _opened(files.json, err, quiet) if files.json else out if as_json else None
    text = _opened(files.text, err, quiet) if files.text else out if rows is None else None
    # Folded stacks, and JSON, are alone on standard output.
    frame = err if rows is out or (folded and text is out) else out
    words = TextOutput(
        text or rows or out, err, quiet, frame, before, patience, has_results=text is not None
    )
    return words if rows is None else JsonOutput(rows, words, patience=patience)


def _opened(path: str, err: TextIO, quiet: bool) -> TextIO:
    """Open a file for results that is closed when the command ends. Raises OSError."""
    file = ResultFile(path)

    def end() -> None:
        file.close()
        if file.is_result and not quiet:
            with suppress(OSError):
                print(f"wrote {printable(path)}", file=err, flush=True)

    to_end.append(end)
    if_failed.append(file.give_up)
    return file


def opened_notices(options: FunctionOptions, run: Run[_M, _C], done: str) -> Iterator[Notice]:
    """Yield warnings about untraced functions, the run's opening line, and unseen calls.

    ``done`` is what the tool does with a call, in the past tense.
    """
    from gotrace.session.run import NoteKind

    yield from attached_notices(options, run)
    inlined = list(run.inlined(done))
    also = [note for note in inlined if note.kind is NoteKind.INLINED]
    named = also if len(also) <= _MAX_PROBLEMS else also[:1]
    for note in named:
        yield Notice(NoticeKind.WARNING, note.text, note.fields)
    if len(also) > len(named):
        more = counted("{} more function{s}", len(also) - len(named))
        yield Notice(NoticeKind.WARNING, f"and {more} inlined in other places too: see --list")
    for note in inlined:
        if note.kind is NoteKind.ONLY_INLINED:
            yield Notice(NoticeKind.WARNING, note.text, note.fields)
    yield from _unseen(options.patterns)


def attached_notices(options: FunctionOptions, run: Run[_M, _C]) -> Iterator[Notice]:
    """Yield warnings about untraced functions, and the run's opening line."""
    from gotrace.session.run import NoteKind

    warnings = list(run.warnings())
    for note in warnings:
        # Of what fails each is shown, however many: nothing of what they ask for is traced.
        if note.kind in (NoteKind.PROCESS, NoteKind.TASKS, NoteKind.FAILED):
            yield Notice(NoticeKind.WARNING, note.text, note.fields)
    problems = [note.text for note in warnings if note.kind is NoteKind.PROBLEM]
    yield from problem_notices(problems, options.has_json)
    refused = [note for note in warnings if note.kind is NoteKind.REFUSED]
    shown = refused if len(refused) <= _MAX_PROBLEMS else refused[:1]
    for note in shown:
        yield Notice(NoticeKind.WARNING, note.text, note.fields)
    if len(refused) > len(shown):
        text = f"and {len(refused) - len(shown)} more probes that the kernel refused"
        yield Notice(NoticeKind.WARNING, text)
    fields = run.question(options.named.pids, options.patterns)
    what = '", "'.join(options.patterns)
    of = f"{counted('{} function{s}', fields['functions'])}{_of(options.named)}"
    text = f'Tracing {of} for "{what}"... Hit Ctrl-C to end.'
    yield Notice(NoticeKind.ATTACHED, text, fields)


def _unseen(patterns: Sequence[str]) -> Iterator[Notice]:
    """Yield a warning for each recipe that looks complete and is not."""
    names = [text for text in patterns if is_recipe(text)]
    if not names:
        return
    from gotrace.probes.recipes import find_recipe, split_recipe

    for name in dict.fromkeys(split_recipe(text)[1] for text in names):
        if unseen := find_recipe(name).unseen:
            fields = {"what": "unseen", "recipe": f"@{name}"}
            yield Notice(NoticeKind.WARNING, f"@{name}: {unseen}", fields)


def _of(named: Named) -> str:
    """Return the traced processes if they are not those that were typed."""
    pids = named.pids
    if not (named.by_name or len(pids) > 1):
        return ""
    listed = ", ".join(map(str, pids))
    return f" of {len(pids)} processes: {listed}" if len(pids) > 1 else f" of process {listed}"


def problem_notices(problems: Sequence[str], is_json: bool) -> Iterator[Notice]:
    """Yield a warning for each problem, or, when there are many, for the first and the number.

    In text one of each kind stands for all of it.
    """
    if problems and not is_json:
        from gotrace.report.listing import by_kind

        problems = by_kind(problems)
    shown = problems if len(problems) <= _MAX_PROBLEMS else problems[:1]
    for problem in shown:
        yield Notice(NoticeKind.WARNING, problem)
    if len(problems) > len(shown):
        more = f"and {len(problems) - len(shown)} more warnings: --list shows what can be probed"
        yield Notice(NoticeKind.WARNING, more)


def mostly_tracing(shares: Mapping[str, float]) -> Iterator[Notice]:
    """Yield a notice where most of the time of calls went into probes within them.

    ``shares`` are those of the functions' times, by name ("" where they are measured together).
    """
    most = sorted((share, name) for name, share in shares.items() if share > _MOSTLY)
    if not most:
        return
    share, name = most[-1]
    part = f"{min(99, round(100 * share))}%"
    whose = f"{name}'s time" if name else "the time measured"
    others = counted(", and most of that of {} other{s}", len(most) - 1) if most[1:] else ""
    yield Notice(
        NoticeKind.SUMMARY,
        f"about {part} of {whose} is tracing, of calls within its calls{others}: trace fewer"
        " functions",
        {"what": "mostly_tracing", "functions": len(most)},
    )


def together(plan: ProbePlan, by_goroutine: bool = False) -> Iterator[Notice]:
    """Yield a notice if a histogram is of several functions."""
    count = len(set(plan.names))
    if count > 1:
        whose = "each goroutine's histogram has its" if by_goroutine else "one histogram has the"
        all_of_them = counted("all {:,} function{s}", count)
        text = f"{whose} calls of {all_of_them}: -F makes one for each function"
        yield Notice(NoticeKind.SUMMARY, text, {"what": "together", "functions": count})


def tracing_took(
    what: str,
    emulated: Spent,
    stepped: Spent,
    seconds: float,
    switches: Spent | None = None,
) -> Iterator[Notice]:
    """Yield the hits' part of the program's time, if that is 1% of one CPU and 5 ms or more.

    They are the hits whose instruction the kernel emulates, those that it single-steps, and those
    at switches of its scheduler. It is an estimate, and never more than there are CPUs.
    """
    hits = [(emulated, "hits"), (stepped, "single-stepped hits")]
    if switches is not None:
        hits.append((switches, "switches"))
    total = sum(spent.ns for spent, _ in hits)
    total = min(total, round(seconds * 1e9 * (os.cpu_count() or 1)))
    share = total / (seconds * 1e9) if seconds > 0 else 0.0
    if share < _NOTABLE or total < _LEAST_NS:
        return
    parts = [
        f"{spent.hits:,} {words} of {duration(spent.ns // spent.hits)}"
        for spent, words in hits
        if spent.hits
    ]
    text = f"{what} took about {share:.0%} of one CPU: {' and '.join(parts)}"
    fields = {"hits": emulated.hits, "stepped_hits": stepped.hits}
    cost = {"what": "cost", "ns": total, "share": round(share, 4), **fields}
    yield Notice(NoticeKind.SUMMARY, text, cost)


def hits_took(what: str, hits: HitCounts, cost: ProbeCost, seconds: float) -> Iterator[Notice]:
    """Yield the cost of a run's hits, as ``tracing_took`` does."""
    each = hits.emulated(cost), hits.single_stepped(cost)
    yield from tracing_took(what, *each, seconds, hits.switches)


def probe_cost_of(calibration: Calibration[_T] | None, wait: float = 0.8) -> _T | None:
    """Return the cost of probes, None if it is not known within ``wait`` seconds."""
    try:
        return calibration.cost(wait) if calibration else None
    except (GotraceError, OSError):
        return None


def status_of(failed: Sequence[GotraceError]) -> int:
    """Return a run's exit status: that of the first probe that came to nothing, else 0."""
    return failed[0].exit_code if failed else 0
