# SPDX-License-Identifier: Apache-2.0
"""The commands' options: those that they share, and the parsing of a command line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from gotrace import __version__, units
from gotrace.cli.conflicts import Conflict, Rule, check_options
from gotrace.cli.habits import (
    check_shell,
    check_words,
    mistake,
    refuse_long_options,
    two_targets,
    which_functions,
)
from gotrace.errors import GotraceError, UsageError
from gotrace.kernel.methods import AttachMethod
from gotrace.report.order import Order
from gotrace.session.choices import ReturnMode


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Options:
    """The options of a command; each has the name that its parser gives it.

    A field with a default is no option: parsing finds it out. The class of options that several
    commands share has no objects of its own, and needs no constructor: to write one takes a
    millisecond.
    """

    json: bool
    debug: bool
    tool: str = ""


_O = TypeVar("_O", bound=Options)


class OptionParser(argparse.ArgumentParser, Generic[_O]):
    """A parser that makes the options of one command, and raises UsageError."""

    kind: type[_O]

    def error(self, message: str) -> NoReturn:
        raise UsageError(mistake(self, message))


def new_parser(name: str, description: str, epilog: str, kind: type[_O]) -> OptionParser[_O]:
    """Return a parser that reports errors as UsageError and shows ``epilog`` as it is."""
    parser: OptionParser[_O] = OptionParser(
        prog=name,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.kind = kind
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    return parser


_E = TypeVar("_E", bound=Enum)


def duration(text: str) -> int:
    """Parse a length of time to ns, for argparse."""
    return units.nanoseconds(text)


def seconds(text: str) -> float:
    """Parse a length of time, longer than nothing, to seconds, for argparse."""
    return units.seconds(text)


def positive(text: str) -> int:
    """Parse a positive whole number, for argparse."""
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def size(text: str) -> int:
    """Parse a number of bytes, for argparse."""
    return units.size(text)


def share(text: str) -> float:
    """Parse a percentage of one CPU, for argparse; return it as a part of one CPU."""
    return units.share(text)


def one_of(members: Iterable[_E], what: str) -> Callable[[str], _E]:
    """Return a parser of an enum's members by their values, for argparse; ``what`` names them."""
    by_value = {member.value: member for member in members}

    def parse_member(text: str) -> _E:
        try:
            return by_value[text]
        except KeyError:
            known = ", ".join(map(str, by_value))
            raise argparse.ArgumentTypeError(
                f"no such {what}: {text!r} (there are {known})"
            ) from None

    return parse_member


size.__name__ = "size (512K, 64M, 1G)"
positive.__name__ = "positive number"
seconds.__name__ = duration.__name__ = "length of time (5, 1.5s, 500ms, 1m30s)"


def add_command_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the one traced process, or the command to start."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "-p",
        "--pid",
        action="append",
        dest="processes",
        default=[],
        metavar="PROCESS",
        help="trace this process only, by its number or name, or container:ID; several by a list or"
        " a name that they share",
    )
    target.add_argument(
        "-c",
        "--cmd",
        metavar="CMD",
        help="start this command, without a shell, and trace it from its first instruction"
        " (also: all that follows --)",
    )


def add_target_options(
    parser: argparse.ArgumentParser,
    metavar: str = "[BINARY:]PATTERN",
    help: str = "a function's name, or a pattern in which only * is special",
) -> None:
    """Add the options of the target and its functions; the words are for the latter's help."""
    add_command_options(parser)
    parser.add_argument(
        "--uid", type=_user, metavar="USER", help="only processes of this user, by number or name"
    )
    parser.add_argument(
        "--cgroup",
        type=_cgroup,
        metavar="PATH",
        help="only processes in this control group (version 2) or those within it",
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
        "-i",
        "--interval",
        type=seconds,
        metavar="TIME",
        help="print this often: 5 (s), 500ms",
    )
    parser.add_argument(
        "-T", "--timestamp", action="store_true", help="print the time above each table"
    )
    parser.add_argument("--top", type=positive, metavar="N", help="print only the N largest")
    add_diff_option(parser)


def add_diff_option(parser: argparse._ActionsContainer) -> None:
    """Add the comparison of two recordings, in place of a run."""
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="print what changed between two recordings (x.ndjson), the largest changes first",
    )


def add_sort_option(parser: argparse.ArgumentParser, orders: Sequence[Order]) -> None:
    """Add the option of the rows' order, by which ``--top`` chooses; the first is the default."""
    words = ", ".join(order.value for order in orders)
    parser.add_argument(
        "--sort",
        type=one_of(orders, "order"),
        metavar="BY",
        help=f"order rows by this, and choose those of --top by it: {words}"
        f" (default {orders[0].value})",
    )


#: The values of ``--why``.
WHY_ALL, WHY_WAITS = "all", "waits"
_WAITS = f"--why={WHY_WAITS}"


def add_why_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--why``. ``parse`` knows ``--why=waits``: no pattern may follow it."""
    parser.add_argument(
        "--why",
        action="store_const",
        const=WHY_ALL,
        help="show what the time of calls went into; --why=waits: without system calls",
    )
    parser.add_argument(
        "--force", action="store_true", help="use --why whatever it takes of the program's time"
    )


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the keys that calls are grouped by."""
    parser.add_argument(
        "--by",
        action="append",
        metavar="EXPR[, EXPR]",
        help="one row for each value of these expressions: parameters, results and their parts,"
        ' $stack, $caller, $goid, $pid, $comm, $label("user"); added up in the kernel',
    )
    parser.add_argument(
        "-f",
        "--folded",
        action="store_true",
        help="by $stack, folded: one line for each stack, as flame graph tools read them",
    )
    parser.add_argument(
        "-Z",
        "--string-size",
        type=positive,
        metavar="BYTES",
        default=64,
        help="most bytes of a text that --by compares (default 64, no more than 256)",
    )
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        default=1024,
        help="most rows that --by makes; all further values share one (default 1024)",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of runs of chosen functions: their length, their output, how to attach."""
    parser.add_argument(
        "-l", "--list", action="store_true", help="list what would be traced, and trace nothing"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse to run when one of several probes comes to nothing",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write results to this file: compressed if it ends in .gz, as JSON if in .ndjson",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="print names without the beginning of import paths, http.Get for net/http.Get",
    )
    add_watching_options(parser)


def add_watching_options(parser: argparse.ArgumentParser, has_budget: bool = True) -> None:
    """Add the options of every run: its length, the form of its output, how to attach."""
    parser.add_argument(
        "-d",
        "--duration",
        type=seconds,
        metavar="TIME",
        help="end after this time: 5 (seconds), 1m",
    )
    if has_budget:
        parser.add_argument(
            "--budget",
            type=share,
            metavar="PERCENT",
            help="take at most this much of one CPU from the program: 2%%, 0.5%%; what costs more"
            " is first counted and not measured, then not traced at all",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="leave out headings, and notices but for errors and what is missing",
    )
    parser.add_argument(
        "--attach",
        type=one_of(AttachMethod, "way"),
        metavar="METHOD",
        help="attach only in this way: " + ", ".join(method.value for method in AttachMethod),
    )
    parser.add_argument(
        "--debug", action="store_true", help="show tracebacks and the compiler's messages"
    )


def add_return_options(parser: argparse.ArgumentParser) -> None:
    """Add where calls are seen returning."""
    where = (
        "see calls return at RETs (ret) or, which costs a tenth, in their callers (landing);"
        " auto, the default: in the callers of functions that are called often"
    )
    kind = one_of(ReturnMode, "choice")
    parser.add_argument(
        "--returns", type=kind, metavar="WHERE", default=ReturnMode.AUTO, help=where
    )


def _recipes_keys(patterns: Sequence[str]) -> list[str] | None:
    """Return the keys by which recipes among the patterns group calls, None without a recipe."""
    from gotrace.probes.pattern import is_recipe

    if not any(map(is_recipe, patterns)):
        return None
    from gotrace.probes.recipes import find_recipe, split_recipe

    if not all(map(is_recipe, patterns)):
        raise UsageError("recipes and patterns cannot be combined without a common key: give --by")
    keys = {probe.by for text in patterns for probe in find_recipe(split_recipe(text)[1]).probes}
    if len(keys) > 1:
        raise UsageError(f"these recipes have different keys: give --by, {' or '.join(keys)}")
    return list(keys)


def _check_bare(patterns: Sequence[str], tool: str, regexp: bool) -> None:
    """Raise UsageError for a predicate or format where calls are not looked at one by one."""
    for pattern in patterns:
        if not regexp and (found := re.search(r"""\s+(?=[("`])""", pattern.rstrip())):
            function, condition = pattern[: found.start()], pattern[found.end() :]
            if "$panicked" in condition:
                raise UsageError(
                    f"{tool} adds calls up where they return: type gotrace '{function} {condition}'"
                )
            raise UsageError(
                f"{tool} takes {condition!r} only with --by: type {tool} --by '$func'"
                f" '{function} {condition}'"
            )


class Named(NamedTuple):
    """The processes that ``-p`` names, or the words of the command to be started."""

    pids: tuple[int, ...] = ()
    command: list[str] | None = None
    #: Whether any process is given by its name.
    by_name: bool = False

    @property
    def pid(self) -> int | None:
        """Return the one process, None if there are several or none."""
        return self.pids[0] if len(self.pids) == 1 else None


_NOBODY = Named()


class Files(NamedTuple):
    """The file of ``-o``, by what is written to it."""

    table: str | None = None
    profile: str | None = None
    #: Latency over time.
    page: str | None = None
    requests: str | None = None
    recording: str | None = None

    def given(self) -> dict[str, str]:
        """Return a conflict row for each file that is given, with the words that were typed."""
        found = {}
        for kind, path in self._asdict().items():
            if path:
                kinds = [kind, f"{kind}{os.path.splitext(path)[1]}"]
                kinds += ["json"] if kind == "table" and is_json(path) else []
                found.update({f"-o={kind}": f"-o {path}" for kind in kinds})
        return found


_NO_FILE = Files()


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SummaryOptions(Options):
    """Of commands that print summaries, which can be compared."""

    processes: list[str]
    duration: float | None
    interval: float | None
    top: int | None
    diff: list[str] | None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunOptions(Options):
    """Of commands that attach."""

    processes: list[str]
    cmd: str | None
    duration: float | None
    folded: bool
    quiet: bool
    attach: AttachMethod | None
    named: Named = _NOBODY

    @property
    def says_moves(self) -> bool:
        """Return whether it is said that calls are seen returning elsewhere than before."""
        return self.json

    def prepared(self: _R, parser: OptionParser[_R]) -> _R:
        """Return the options as they are meant. Raises UsageError."""
        return self


_R = TypeVar("_R", bound=RunOptions)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ForceOptions(RunOptions):
    """Options of runs that report their price first."""

    force: bool


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PartsOptions(ForceOptions):
    """Options of runs that show the parts of time."""

    why: str | None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FunctionOptions(RunOptions):
    """Of runs of chosen functions."""

    uid: int | None
    cgroup: int | None
    regexp: bool
    exclude: Sequence[str]
    patterns: Sequence[str]
    list: bool
    strict: bool
    output: str | None
    short: bool
    budget: float | None
    returns: ReturnMode
    files: Files = _NO_FILE

    @property
    def is_run(self) -> bool:
        return True

    @property
    def is_of_some(self) -> bool:
        """Return whether calls of some goroutines or threads alone are wanted."""
        return False

    def roots(self) -> Sequence[str] | None:
        """Return the probes that come before the patterns, None if there have to be patterns."""
        return None

    def prepared(self: _F, parser: OptionParser[_F]) -> _F:
        """Return the options with whole patterns. Raises UsageError."""
        if not self.is_run:
            return self
        roots = self.roots()
        if roots is None and not self.patterns:
            has_excluded = bool(self.exclude)
            raise UsageError(which_functions(self.tool, self.named.command, has_excluded))
        from gotrace.probes.pattern import whole_probes

        patterns = whole_probes([*(roots or ()), *self.patterns], regexp=self.regexp)
        return replace(self, patterns=patterns)


_F = TypeVar("_F", bound=FunctionOptions)


_ALL_STACKS = "{1} has all stacks of the run: leave out --json, -i and --top"
CALLS_CONFLICTS: Sequence[Rule] = (
    Conflict("-o=profile -f", "--json -i --top", _ALL_STACKS),
    Conflict("-o=profile", "-f", "{1} and -f cannot be combined: give one of them"),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CallsOptions(FunctionOptions, SummaryOptions):
    """Of runs that add calls up."""

    CONFLICTS: ClassVar[Sequence[Rule]] = CALLS_CONFLICTS

    by: list[str] | None
    string_size: int
    rows: int
    timestamp: bool
    sort: Order | None

    @property
    def is_run(self) -> bool:
        """Return whether functions are traced, and not recordings compared."""
        return not self.diff

    @property
    def names_target(self) -> bool:
        return bool(self.named.command or self.patterns)

    @property
    def value(self) -> str | None:
        """Return the expression that histograms are made of in place of the time."""
        return None

    @property
    def wants_stacks(self) -> bool:
        """Return whether stacks are to be written in a format of theirs."""
        return self.folded or self.files.profile is not None

    def _files(self) -> Files:
        profile = profile_in(self.output)
        return Files(profile=profile) if profile else Files(table=self.output)

    def prepared(self: _C, parser: OptionParser[_C]) -> _C:
        """Return the options with the keys that calls are added up by. Raises UsageError."""
        options = super().prepared(parser)
        if not options.is_run:
            return options
        by = options.by or _recipes_keys(options.patterns)
        if not (by or options.value):
            _check_bare(options.patterns, options.tool, options.regexp)
        options = replace(options, by=by)
        options = replace(options, files=options._files())
        profile, table = options.files.profile, options.files.table
        if adds_nothing(profile):
            options = replace(options, folded=False)
        check_options(parser, options, options.CONFLICTS, options.files.given())
        if options.wants_stacks and "$stack" not in (by or ()):
            by = [*(by or ()), "$stack"]
        return replace(options, by=by, json=options.json or is_json(table))


_C = TypeVar("_C", bound=CallsOptions)


def profile_in(path: str | None) -> str | None:
    """Return the file of ``-o`` if a profile is wanted in it. Raises GotraceError."""
    if not path:
        return None
    from gotrace.profiles.write import check_place, is_profile

    if not is_profile(path):
        return None
    check_place(path)
    return path


def adds_nothing(profile: str | None) -> bool:
    return profile is not None and profile.endswith(".folded")


def _user(text: str) -> int:
    """Parse a user's number or name."""
    if text.isdecimal() and text.isascii() and int(text) < 1 << 32:
        return int(text)
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"there is no user {text!r}") from None


def _cgroup(text: str) -> int:
    """Return the number of a control group by its directory's path."""
    from gotrace.target.process import cgroup_number

    try:
        return cgroup_number(text)
    except GotraceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_plain(parser: OptionParser[_O], arguments: Sequence[str], **found: object) -> _O:
    """Parse the command line of a command that starts none; ``found`` are options beside it.

    Options may come before, between and after patterns. Raises UsageError. Under argcomplete it
    completes the shell's command line instead, and does not return.
    """
    if "_ARGCOMPLETE" in os.environ:
        from gotrace.cli.completion import complete

        complete(parser)
    refuse_long_options(parser, arguments)
    given = vars(parser.parse_intermixed_args(list(arguments)))
    check_words(parser.prog, given)
    return parser.kind(**{**given, **found}, tool=parser.prog)


def parse(parser: OptionParser[_R], arguments: Sequence[str]) -> _R:
    """Parse a command line; the words after ``--`` are the command to start.

    Options may come before, between and after patterns. Raises UsageError. Under argcomplete it
    completes the shell's command line and does not return.
    """
    words = list(arguments)
    command: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    # argparse would take a pattern after --why for its value.
    waits = {"why": WHY_WAITS} if _WAITS in words else {}
    words = ["--why" if word == _WAITS else word for word in words]
    options = parse_plain(parser, words, **waits)
    return replace(options, named=_named(options, command)).prepared(parser)


def _named(options: RunOptions, command: list[str] | None) -> Named:
    """Return the named target; ``command`` follows ``--``. Raises UsageError."""
    from gotrace.target.process import process_numbers

    pids = process_numbers(options.processes)
    by_name = any(re.search("[^0-9, ]", text) for text in options.processes)
    if command is not None and (options.cmd or pids):
        raise UsageError(two_targets(command))
    if options.cmd:
        import shlex

        check_shell(options.cmd)
        try:
            command = shlex.split(options.cmd)
        except ValueError as error:
            raise UsageError(f"-c {options.cmd!r}: {error}") from error
    if command == []:
        raise UsageError("there is no command after -c or --")
    return Named(pids, command, by_name)


def is_json(path: str | None) -> bool:
    """Return whether the name of a file of results asks for JSON."""
    if path is None:
        return False
    from gotrace.cli import files

    return files.is_json(path)
