"""Hold what the commands share: options, requests, notices, and how a command ends."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from gotrace import __version__
from gotrace.cli.stream import Patience, open_standard_streams, result_stream
from gotrace.errors import GotraceError, UsageError
from gotrace.kernel.attach import Attached, Point, Rung, refusal
from gotrace.kernel.cookie import INDEX_MASK
from gotrace.probes.pattern import split_target
from gotrace.probes.select import Selector
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.session.plan import BinaryRequest, Plan
from gotrace.sites.sites import FunctionSites
from gotrace.target.target import Target
from gotrace.text import printable

__all__ = [
    "add_interval_options",
    "add_run_options",
    "add_target_options",
    "attached_notices",
    "file_test",
    "inlined_notices",
    "make_output",
    "new_parser",
    "parse",
    "positive",
    "problem_notices",
    "refuse_partial",
    "requests_of",
    "run_command",
    "seconds",
    "status_of",
    "target_of",
]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def new_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return a parser that reports errors as UsageError and shows ``epilog`` as it is."""
    parser = _Parser(
        prog=name,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    return parser


def seconds(text: str) -> float:
    """Parse a positive number of seconds, for argparse."""
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def positive(text: str) -> int:
    """Parse a positive whole number, for argparse."""
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


positive.__name__ = "positive number"
seconds.__name__ = "number of seconds"


def add_target_options(
    parser: argparse.ArgumentParser,
    metavar: str = "[BINARY:]PATTERN",
    help: str = "a function's name, or a pattern in which only * is special",
) -> None:
    """Add what names the target and the functions in it; the words are for the latter's help."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument("-p", "--pid", type=positive, help="trace this process only")
    target.add_argument(
        "-c",
        "--cmd",
        metavar="CMD",
        help="start this command, without a shell, and trace it from its first instruction"
        " (also: all that follows --)",
    )
    parser.add_argument(
        "-r", "--regexp", action="store_true", help="patterns are regular expressions, full match"
    )
    parser.add_argument(
        "-x",
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave out functions that match (may be repeated)",
    )
    parser.add_argument(
        "patterns",
        metavar=metavar,
        nargs="*",
        help=help,
    )


def add_interval_options(parser: argparse.ArgumentParser) -> None:
    """Add how to divide a run that prints summaries, and how much of each to print."""
    parser.add_argument(
        "-i", "--interval", type=seconds, metavar="SEC", help="print every so many seconds"
    )
    parser.add_argument(
        "-T", "--timestamp", action="store_true", help="print the time above each table"
    )
    parser.add_argument("--top", type=positive, metavar="N", help="print only the N largest")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what every run has: its length, its output, how to attach."""
    parser.add_argument(
        "-d", "--duration", type=seconds, metavar="SEC", help="end after so many seconds"
    )
    parser.add_argument(
        "-l", "--list", action="store_true", help="list what would be traced, and trace nothing"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse to run when one of several probes comes to nothing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--attach",
        type=_rung,
        metavar="RUNG",
        help="attach only in this way: " + ", ".join(rung.value for rung in Rung),
    )
    parser.add_argument(
        "--debug", action="store_true", help="show tracebacks and the compiler's messages"
    )


def _rung(text: str) -> Rung:
    try:
        return Rung(text)
    except ValueError:
        known = ", ".join(rung.value for rung in Rung)
        raise argparse.ArgumentTypeError(f"no such way: {text!r} (there are {known})") from None


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; what follows ``--`` is the command to start.

    Options may stand before, between and behind patterns.
    Adds ``command``, a list of words or None. Raises UsageError. Under argcomplete it completes
    the shell's command line instead, and does not return.
    """
    if "_ARGCOMPLETE" in os.environ:
        from gotrace.cli.completion import complete

        complete(parser)
    words = list(arguments)
    command: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    options = parser.parse_intermixed_args(words)
    if command is not None and (options.cmd or options.pid):
        raise UsageError("give only one of -p PID, -c CMD and -- CMD")
    if options.cmd:
        try:
            command = shlex.split(options.cmd)
        except ValueError as error:
            raise UsageError(f"-c {options.cmd!r}: {error}") from error
    if command == []:
        raise UsageError("there is no command after -c or --")
    if not options.patterns and not getattr(options, "doctor", False):
        raise UsageError(f"which functions? Give a PATTERN (see {parser.prog} --help)")
    options.command = command
    return options


def requests_of(options: argparse.Namespace) -> list[BinaryRequest]:
    """Group the patterns by the file they name."""
    by_binary: dict[str | None, list[str]] = {}
    exists = file_test(options)
    for text in options.patterns:
        binary, pattern = split_target(text, exists)
        by_binary.setdefault(binary, []).append(pattern)
    return [
        BinaryRequest(binary, Selector(patterns, options.exclude, regex=options.regexp))
        for binary, patterns in by_binary.items()
    ]


def file_test(options: argparse.Namespace) -> Callable[[str], bool]:
    """Return what tells whether a path names a file, here or where the process with ``-p`` is."""
    root = f"/proc/{options.pid}/root"

    def exists(path: str) -> bool:
        inside = options.pid is not None and path.startswith("/")
        return os.path.isfile(path) or (inside and os.path.isfile(root + path))

    return exists


def target_of(options: argparse.Namespace) -> Target:
    """Return the target that the options name."""
    return Target.of(options.pid, options.command)


def make_output(options: argparse.Namespace) -> Output:
    """Return where results and notices go."""
    patience = options.patience = Patience()
    out = result_stream(sys.stdout, patience)
    if options.json:
        return JsonOutput(out)
    return TextOutput(out, result_stream(sys.stderr, patience, must=False))


def attached_notices(
    options: argparse.Namespace, plan: Plan, attached: Attached, doing: str
) -> Iterator[Notice]:
    """Yield warnings about what is not traced, then what is, the run's opening line.

    ``doing`` is that line's first word.
    """
    for failure in plan.failed:  # each, however many: nothing of what they ask for is traced
        yield Notice(NoticeKind.WARNING, str(failure))
    yield from problem_notices(plan.problems)
    every = [sites for binary in plan.binaries for sites in binary.functions]
    refused = [(point, _probed(every, point), error) for point, error in attached.failed.items()]
    shown = refused if len(refused) <= _MOST_PROBLEMS else refused[:1]
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


def refuse_partial(options: argparse.Namespace, failed: Sequence[GotraceError]) -> None:
    """With ``--strict``, raise what is wrong with one of several probes."""
    if options.strict and failed:
        raise failed[0]


def status_of(failed: Sequence[GotraceError]) -> int:
    """Return a run's exit status: that of the first probe that came to nothing, else 0."""
    return failed[0].exit_code if failed else 0


def problem_notices(problems: Sequence[str]) -> Iterator[Notice]:
    """Yield a warning for each problem, or, when there are many, for the first and the number."""
    shown = problems if len(problems) <= _MOST_PROBLEMS else problems[:1]
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
        if len(names) <= _MOST_LOOKED_UP:
            places.update(call.name for call in file.binary.functions.inlined_calls(names))
    for name, count in places.most_common(_MOST_PROBLEMS):
        text = (
            f"{name} is also inlined in {count} place{'' if count == 1 else 's'}: not {verb} there"
        )
        yield Notice(NoticeKind.WARNING, text, {"func": name, "inlined": count})
    if len(places) > _MOST_PROBLEMS:
        text = f"and {len(places) - _MOST_PROBLEMS} more functions are also inlined: see --list"
        yield Notice(NoticeKind.WARNING, text)


_MOST_PROBLEMS = 5
_MOST_LOOKED_UP = 200


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
        return run(arguments)
    except GotraceError as error:
        if debug:
            _explain(getattr(error, "log", ""))
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
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
