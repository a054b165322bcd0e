# SPDX-License-Identifier: Apache-2.0
"""A command's run: its requests, its first and last notices, and its exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from gotrace.cli.progress import Progress
from gotrace.cli.stream import Patience, open_standard_streams, result_file, result_stream
from gotrace.errors import GotraceError
from gotrace.gotypes.symbols import parse_name
from gotrace.kernel.attach import Attached, Point, refusal
from gotrace.kernel.cookie import INDEX_MASK
from gotrace.probes.pattern import split_target
from gotrace.probes.select import Selector
from gotrace.report.colour import Colour, paint, wants_colour
from gotrace.report.listing import by_kind
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryRequest, Plan
from gotrace.sites.sites import FunctionSites, SiteForm
from gotrace.target.process import file_test
from gotrace.target.target import Target
from gotrace.text import printable

__all__ = [
    "attached_notices",
    "has_stepped_entry",
    "inlined_notices",
    "make_output",
    "mostly_tracing",
    "not_shown",
    "problem_notices",
    "refuse_partial",
    "requests_of",
    "run_command",
    "status_of",
    "target_of",
    "warning_to",
]

_MAX_PROBLEMS = 5
_MOSTLY = 0.5  # share of the time
_MAX_LOOKED_UP = 200
_FULL = (Diagnostic.STACKS_FULL, Diagnostic.FRAMES_FULL)


def requests_of(options: argparse.Namespace) -> list[BinaryRequest]:
    """Group the patterns by the file they name."""
    by_binary: dict[str | None, list[str]] = {}
    exists = file_test(options.pid)
    for text in options.patterns:
        binary, pattern = split_target(text, exists)
        by_binary.setdefault(binary, []).append(pattern)
    return [
        BinaryRequest(binary, Selector(patterns, options.exclude, regex=options.regexp))
        for binary, patterns in by_binary.items()
    ]


def target_of(options: argparse.Namespace) -> Target:
    """Return the target that the options name."""
    return Target.of(options.pid, options.command)


def make_output(options: argparse.Namespace) -> Output:
    """Return where results and notices go. Raises OSError where a file cannot be written."""
    patience = options.patience = Patience()
    out = result_stream(sys.stdout, patience)
    err = result_stream(sys.stderr, patience, must=False)
    before = None
    if not options.list and not options.quiet and not getattr(options, "doctor", False):
        progress = Progress(options.tool)
        _to_end.append(progress.end)
        before = progress.end
    if options.output is None:
        if options.json:
            return JsonOutput(out, before=before)
        return TextOutput(out, err, options.quiet, before=before)
    file = result_file(options.output)
    _to_end.append(file.close)
    words = TextOutput(file, err, options.quiet, frame=out, before=before)
    return JsonOutput(file, words) if options.json else words


#: What is to be done at the end, the last first: results' files are closed.
_to_end: list[Callable[[], None]] = []


def attached_notices(
    options: argparse.Namespace, plan: Plan, attached: Attached, doing: str
) -> Iterator[Notice]:
    """Yield warnings about what is not traced, then what is, the run's opening line.

    ``doing`` is that line's first word.
    """
    for failure in plan.failed:  # each, however many: nothing of what they ask for is traced
        yield Notice(NoticeKind.WARNING, str(failure))
    yield from problem_notices(plan.problems if options.json else by_kind(plan.problems))
    every = [sites for binary in plan.binaries for sites in binary.functions]
    refused = [(point, _probed(every, point), error) for point, error in attached.failed.items()]
    shown = refused if len(refused) <= _MAX_PROBLEMS else refused[:1]
    for point, sites, error in shown:
        text = f"no probe at {point.address:#x}: {refusal(error)}"
        if sites is None:
            yield Notice(NoticeKind.WARNING, text)
        else:
            name = sites.function.name
            yield Notice(NoticeKind.WARNING, f"{name}: {text}", {"func": name})
    if len(refused) > len(shown):
        text = f"and {len(refused) - len(shown)} more probes that the kernel refused"
        yield Notice(NoticeKind.WARNING, text)
    unseen = {
        point.cookie & INDEX_MASK
        for point, sites, _ in refused
        if sites is not None and sites.entry is not None and sites.entry.address == point.address
    }
    count = len(plan.functions) - len(unseen)
    what = '", "'.join(options.patterns)
    text = f'{doing} {count} function{"" if count == 1 else "s"} for "{what}"...'
    fields = {
        "functions": count,
        "patterns": options.patterns,
        "rung": attached.rung.value,
        "ts": time.time(),
    }
    yield Notice(NoticeKind.ATTACHED, f"{text} Hit Ctrl-C to end.", fields)


def _probed(every: Sequence[FunctionSites], point: Point) -> FunctionSites | None:
    """Return which of a plan's functions a point is in; the runtime itself is watched as well."""
    sites = every[point.cookie & INDEX_MASK]
    is_in = sites.function.entry <= point.address < sites.function.end
    return sites if is_in else None


def problem_notices(problems: Sequence[str]) -> Iterator[Notice]:
    """Yield a warning for each problem, or, when there are many, for the first and the number."""
    shown = problems if len(problems) <= _MAX_PROBLEMS else problems[:1]
    for problem in shown:
        yield Notice(NoticeKind.WARNING, problem)
    if len(problems) > len(shown):
        more = f"and {len(problems) - len(shown)} more warnings: --list shows what can be probed"
        yield Notice(NoticeKind.WARNING, more)


def inlined_notices(plan: Plan, verb: str) -> Iterator[Notice]:
    """Yield warnings about traced functions that are also inlined, where no probe sees them.

    ``verb`` is what the tool does with a call, in the past tense. Plans of many functions get
    none: there it is the rule.
    """
    places: Counter[str] = Counter()
    for file in plan.binaries:
        names = {sites.function.name for sites in file.functions}
        if len(names) <= _MAX_LOOKED_UP:
            places.update(call.name for call in file.binary.functions.inlined_calls(names))
    for name, count in places.most_common(_MAX_PROBLEMS):
        text = (
            f"{name} is also inlined in {count} place{'' if count == 1 else 's'}: not {verb} there"
        )
        yield Notice(NoticeKind.WARNING, text, {"func": name, "inlined": count})
    if len(places) > _MAX_PROBLEMS:
        text = f"and {len(places) - _MAX_PROBLEMS} more functions are also inlined: see --list"
        yield Notice(NoticeKind.WARNING, text)


def warning_to(output: Output) -> Callable[[str], None]:
    """Return a function that writes a warning to ``output``."""
    return lambda text: output.notice(Notice(NoticeKind.WARNING, text))


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
    most = sorted((share, name) for name, share in shares.items() if share > _MOSTLY)
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
        # A locale that lacks a letter of a name is no reason to end.
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
    except KeyboardInterrupt:
        print(f"{name}: interrupted before tracing began", file=sys.stderr)
        return 1


def _explain(log: str = "") -> None:
    """Print where the error being handled was raised, and the compiler's messages."""
    for line in f"{traceback.format_exc()}{log}".splitlines():
        print(printable(line), file=sys.stderr)


def _discard_output() -> None:
    """Let the interpreter's last flush of standard output, at exit, go nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
