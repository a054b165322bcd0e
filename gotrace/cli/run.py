# SPDX-License-Identifier: Apache-2.0
"""A command's run: its requests, its first and last notices, and its exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from gotrace.cli.progress import Progress
from gotrace.cli.stream import Patience, open_standard_streams, result_file, result_stream
from gotrace.errors import GotraceError
from gotrace.report.colour import Colour, paint, wants_colour
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.target.target import Target
from gotrace.text import counted, printable

if TYPE_CHECKING:  # at run time where it is used: gostacks, which has no probes, needs none of it
    from gotrace.kernel.attach import Attached
    from gotrace.session.calibrate import Calibration
    from gotrace.session.open_calls import Diagnostic
    from gotrace.session.plan import BinaryRequest, ProbePlan, Split

__all__ = [
    "attached_notices",
    "inlined_notices",
    "lost_notice",
    "make_output",
    "mostly_tracing",
    "not_shown",
    "probe_cost_of",
    "problem_notices",
    "refuse_partial",
    "requests_of",
    "run_command",
    "run_output",
    "split_of",
    "status_of",
    "target_of",
    "warning_to",
]

_T = TypeVar("_T")

_MAX_PROBLEMS = 5
_MOSTLY = 0.5  # share of the time
_INTERRUPTED = 130  # what shells make of an end by SIGINT


def requests_of(options: argparse.Namespace) -> list[BinaryRequest]:
    """Return what the options' patterns ask for."""
    from gotrace.session.plan import requests_for

    return requests_for(options.patterns, options.exclude, options.regexp, split=split_of(options))


def split_of(options: argparse.Namespace) -> Split:
    """Return what separates the binary from the pattern, for the target that the options name."""
    from gotrace.session.plan import splitting

    return splitting(_pids(options), options.command)


def target_of(options: argparse.Namespace) -> Target:
    """Return the target that the options name."""
    return Target.of(options.pid, options.command, options.uid, options.cgroup, options.pids)


def make_output(options: argparse.Namespace) -> Output:
    """Return standard output and standard error for results and notices."""
    patience = options.patience = Patience()
    out = result_stream(sys.stdout, patience)
    if options.json:
        return JsonOutput(out)
    return TextOutput(out, result_stream(sys.stderr, patience, must=False))


def run_output(options: argparse.Namespace) -> Output:
    """Return where a run's results and notices go, as its options say.

    Begins to say that the start takes its time. Raises OSError where a file cannot be written.
    """
    patience = options.patience = Patience()
    out = result_stream(sys.stdout, patience)
    err = result_stream(sys.stderr, patience, must=False)
    before = None
    if not getattr(options, "list", False) and not options.quiet:
        progress = Progress(options.tool)
        _to_end.append(progress.end)
        before = progress.end
    if getattr(options, "output", None) is None:
        if options.json:
            return JsonOutput(out, before=before)
        # Folded stacks are alone on standard output.
        frame = err if getattr(options, "folded", False) else out
        return TextOutput(out, err, options.quiet, frame=frame, before=before)
    file = result_file(options.output)
    _to_end.append(file.close)
    words = TextOutput(file, err, options.quiet, frame=out, before=before)
    return JsonOutput(file, words) if options.json else words


#: What is to be done at the end, the last first: results' files are closed.
_to_end: list[Callable[[], None]] = []


def attached_notices(
    options: argparse.Namespace, plan: ProbePlan, attached: Attached, doing: str
) -> Iterator[Notice]:
    """Yield warnings about what is not traced, then what is, the run's opening line.

    ``doing`` is that line's first word.
    """
    for failure in plan.failed:  # each, however many: nothing of what they ask for is traced
        yield Notice(NoticeKind.WARNING, str(failure))
    yield from problem_notices(plan.problems, options.json)
    refused = plan.refused(attached.failed)
    shown = refused if len(refused) <= _MAX_PROBLEMS else refused[:1]
    for probe in shown:
        name = probe.function
        if name is None:
            yield Notice(NoticeKind.WARNING, probe.text)
        else:
            yield Notice(NoticeKind.WARNING, f"{name}: {probe.text}", {"func": name})
    if len(refused) > len(shown):
        text = f"and {len(refused) - len(shown)} more probes that the kernel refused"
        yield Notice(NoticeKind.WARNING, text)
    count = len(plan.functions) - sum(probe.is_entry for probe in refused)
    what = '", "'.join(options.patterns)
    text = f'{doing} {count} function{"" if count == 1 else "s"}{_of(options)} for "{what}"...'
    fields = {
        "functions": count,
        "pids": list(_pids(options)),
        "patterns": options.patterns,
        "attach": attached.method.value,
        "ts": time.time(),
    }
    yield Notice(NoticeKind.ATTACHED, f"{text} Hit Ctrl-C to end.", fields)


def _pids(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the processes that ``-p`` names."""
    return options.pids or (() if options.pid is None else (options.pid,))


def _of(options: argparse.Namespace) -> str:
    """Return which processes are traced if that is not what was typed."""
    pids = _pids(options)
    if not (options.by_name or options.pids):
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


def inlined_notices(plan: ProbePlan, verb: str) -> Iterator[Notice]:
    """Yield warnings about functions that are inlined, where no probe sees them.

    ``verb`` is what the tool does with a call, in the past tense. Traced functions that are also
    inlined get none where they are many: there it is the rule. Those that exist only inlined have
    a line in all.
    """
    found = plan.inlined()
    for inlined in found[:_MAX_PROBLEMS]:
        fields = {"func": inlined.function, "inlined": inlined.places}
        yield Notice(NoticeKind.WARNING, inlined.text(verb), fields)
    if len(found) > _MAX_PROBLEMS:
        text = f"and {len(found) - _MAX_PROBLEMS} more functions are also inlined: see --list"
        yield Notice(NoticeKind.WARNING, text)
    if only := plan.only_inlined():
        yield Notice(NoticeKind.WARNING, only.text(verb), only.fields)


def warning_to(output: Output) -> Callable[[str], None]:
    """Return a function that writes a warning to ``output``."""
    return lambda text: output.notice(Notice(NoticeKind.WARNING, text))


def not_shown(
    open_calls: int,
    counts: Mapping[Diagnostic, int],
    texts: Mapping[Diagnostic, str],
    lost: Container[Diagnostic],
    plan: ProbePlan,
    of: int,
) -> Iterator[Notice]:
    """Yield a notice for each irregularity that has occurred and has one of ``texts``.

    ``texts`` are templates of ``counted``; those that are not ``lost`` are summaries. ``of`` is how
    many calls there were, the lost ones included.
    """
    if open_calls:
        text = counted("{} call{s} still open at the end", open_calls)
        if plan.changes_threads:
            text += ", or went on on another thread"
        yield Notice(NoticeKind.SUMMARY, text, {"what": "open", "calls": open_calls})
    for what, count in counts.items():
        if count and what in texts:
            template, name = texts[what] + _more(what, counts, plan), what.name.lower()
            if what in lost:
                yield lost_notice(name, template, count, of)
            else:
                yield Notice(
                    NoticeKind.SUMMARY, counted(template, count), {"what": name, "calls": count}
                )


def lost_notice(what: str, template: str, count: int, of: int) -> Notice:
    """Return the notice of calls that are missing, with their share of all.

    Of what is not calls there is none.
    """
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
    """Return what else may have caused an irregularity in this run."""
    from gotrace.session.open_calls import Diagnostic

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


def probe_cost_of(calibration: Calibration[_T], wait: float = 0.8) -> _T | None:
    """Return what probes cost, None where that is not known within ``wait`` seconds."""
    try:
        return calibration.cost(wait)
    except (GotraceError, OSError):
        return None


def refuse_partial(options: argparse.Namespace, failed: Sequence[GotraceError]) -> None:
    """With ``--strict``, raise what is wrong with one of several probes."""
    if options.strict and failed:
        raise failed[0]


def status_of(failed: Sequence[GotraceError]) -> int:
    """Return a run's exit status: that of the first probe that came to nothing, else 0."""
    return failed[0].exit_code if failed else 0


def run_command(name: str, run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and turn how it ends into an exit status.

    Prints an error as one line on stderr, with a traceback only under ``--debug``. A reader that
    has closed standard output ends the command quietly.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a letter of a name is not a reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        open_standard_streams()
        try:
            return run(arguments)
        finally:
            while _to_end:
                _to_end.pop()()
    except GotraceError as error:
        if debug:
            _explain(getattr(error, "log", ""))
        text = f"{name}: {printable(str(error))}"
        colour = Colour.ERROR if wants_colour(sys.stderr) else None
        print(paint(text, colour), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _discard_output()
        return 0
    except OSError as error:
        # Whatever concerns the target has been turned into a GotraceError where it was met: what
        # names no file is a write to standard output.
        if debug:
            _explain()
        what = error.filename or "cannot write the results"
        reason = error.strerror or error
        print(f"{name}: {printable(str(what))}: {reason}", file=sys.stderr)
        _discard_output()
        return 1
    except MemoryError:
        if debug:
            _explain()
        print(f"{name}: out of memory: raise ulimit -v, or trace fewer functions", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before tracing began
        return _INTERRUPTED


def _explain(log: str = "") -> None:
    """Print where the error being handled was raised, and the compiler's messages."""
    import traceback

    for line in f"{traceback.format_exc()}{log}".splitlines():
        print(printable(line), file=sys.stderr)


def _discard_output() -> None:
    """Let the interpreter's last flush of standard output, at exit, go nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
