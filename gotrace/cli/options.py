# SPDX-License-Identifier: Apache-2.0
"""The commands' options: those that they share, and the parsing of a command line."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from gotrace import __version__, units
from gotrace.cli.conflicts import Conflict, Needs, Rule, check_options
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
from gotrace.records import Field, dataclass, field, fields, replace
from gotrace.session.choices import ReturnMode
from gotrace.session.order import Order


class Heading(Enum):
    """The headings of a command's help, in their order; each has options, which are fields."""

    TARGET = "target"
    CHOICE = "choice"
    VALUES = "values"
    RUN = "run"
    OUTPUT = "output"
    EXPERT = "for experts"

    def option(
        self,
        words: str,
        help: str,
        type: Callable[[str], object] | None = None,
        *,
        alone: str = "",
        **keywords: object,
    ) -> Any:
        """Return a field that declares an option, from which parsers are made.

        ``words`` are its spellings and the names of its values, as in ``"-d --duration TIME"``;
        without a spelling it has the words that belong to no option, or the first of these. The
        annotation says the rest: a ``bool`` has no value, and a list is given again and again.
        Options that are ``alone`` by the same word are not given together. ``keywords`` are those
        of argparse.
        """
        keywords = {"help": help, "type": type, **keywords}
        return field(metadata={"option": _Declared(self, words.split(), alone, keywords)})


class _Declared(NamedTuple):
    """An option as its field declares it."""

    heading: Heading
    words: list[str]
    alone: str
    keywords: dict[str, Any]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Options:
    """The options of a command, each declared by its field.

    A field without a declaration is not an option: parsing finds it out, or a class of one command
    declares it. The class of options that several commands share has no objects of its own, and
    needs no constructor: to write one takes a millisecond.
    """

    #: Whether one of the options that are not given together has to be.
    NEEDS_ONE: ClassVar[bool] = False

    json: bool = Heading.OUTPUT.option("--json", "print one JSON object a line")
    debug: bool = Heading.EXPERT.option("--debug", "show tracebacks")
    tool: str = ""


_O = TypeVar("_O", bound=Options)


class OptionParser(argparse.ArgumentParser, Generic[_O]):
    """A parser that makes the options of one command, and raises UsageError."""

    kind: type[_O]

    def error(self, message: str) -> NoReturn:
        raise UsageError(mistake(self, message))

    def format_help(self) -> str:
        """Return the help, which fits a small terminal."""
        from gotrace.cli.help import fit_help

        self.description = fit_help(self.description or "")
        self.epilog = fit_help(self.epilog or "")
        return super().format_help()


def new_parser(name: str, description: str, epilog: str, kind: type[_O]) -> OptionParser[_O]:
    """Return a parser of the options that ``kind`` declares, which shows ``epilog`` as it is."""
    parser: OptionParser[_O] = OptionParser(
        prog=name,
        description=description,
        epilog=epilog,
        # With a width: at each option argparse would import shutil to find it out.
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=80),
        allow_abbrev=False,
    )
    parser.kind = kind
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    declaring = [each for each in fields(kind) if each.metadata]
    declaring.sort(key=_is_of_many)
    for heading in Heading:
        group: argparse._ArgumentGroup | None = None
        alone: dict[str, argparse._ActionsContainer] = {}
        for each in declaring:
            declared: _Declared = each.metadata["option"]
            if declared.heading is not heading:
                continue
            group = group or parser.add_argument_group(heading.value)
            place: argparse._ActionsContainer = group
            if word := declared.alone:
                if word not in alone:
                    alone[word] = group.add_mutually_exclusive_group(required=kind.NEEDS_ONE)
                place = alone[word]
            _add(place, each.name, str(each.type), declared)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _is_of_many(declared: Field[Any]) -> bool:
    """Return whether a field is not that of the first word, which comes before the others."""
    return declared.metadata["option"].words[0].startswith("-") or _is_list(str(declared.type))


def _is_list(annotation: str) -> bool:
    return annotation.startswith(("list[", "Sequence["))


def _add(
    place: argparse._ActionsContainer, name: str, annotation: str, declared: _Declared
) -> None:
    """Add an option to a part of a parser."""
    spellings = [word for word in declared.words if word.startswith("-")]
    values = tuple(declared.words[len(spellings) :])
    keywords = {word: value for word, value in declared.keywords.items() if value is not None}
    is_list = _is_list(annotation)
    if not spellings:
        place.add_argument(name, nargs="*" if is_list else None, metavar=values[0], **keywords)
        return
    if not values:
        keywords["action"] = "store_const" if "const" in keywords else "store_true"
    elif len(values) > 1:
        keywords |= {"nargs": len(values), "metavar": values}
    elif values[0].endswith("..."):
        keywords |= {"nargs": "+", "metavar": values[0].removesuffix("...")}
    else:
        keywords |= {"action": "append" if is_list else "store", "metavar": values[0]}
    if is_list and not annotation.endswith(" | None"):
        keywords.setdefault("default", [])
    place.add_argument(*spellings, dest=name, **keywords)


_E = TypeVar("_E", bound=Enum)


def duration(text: str) -> int:
    """Parse a length of time to ns, for argparse."""
    return units.nanoseconds(text)


def seconds(text: str) -> float:
    """Parse a length of time, longer than nothing, to seconds, for argparse."""
    if duration(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not more than 0")
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


def _user(text: str) -> int:
    """Parse a user's number or name."""
    if text.isdecimal() and text.isascii() and int(text) < 1 << 32:
        return int(text)
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"no user is called {text!r}") from None


def _cgroup(text: str) -> int:
    """Return the number of a control group by its directory's path."""
    from gotrace.target.process import cgroup_number

    try:
        return cgroup_number(text)
    except GotraceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def label(text: str) -> str:
    """Parse a label of goroutines to its key, for argparse."""
    from gotrace.probes.spec import parse_label

    return parse_label(text)


size.__name__ = "size (512K, 64M, 1G)"
positive.__name__ = "positive number"
seconds.__name__ = duration.__name__ = "length of time (5, 1.5s, 500ms, 1m30s)"


def sort_option(*orders: Order) -> Any:
    """Return the field of the rows' order, by which ``--top`` chooses; the first is the default."""
    words = ", ".join(order.value for order in orders)
    help = f"order rows by this, and choose those of --top by it: {words}"
    return Heading.OUTPUT.option(
        "--sort BY",
        f"{help} (default {orders[0].value})",
        one_of(orders, "order"),
    )


#: The values of ``--why``.
WHY_ALL, WHY_WAITS = "all", "waits"
_WAITS = f"--why={WHY_WAITS}"


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

    @property
    def is_one(self) -> bool:
        """Return whether it is one process, that of a command included."""
        return self.pid is not None or self.command is not None


_NOBODY = Named()


class Files(NamedTuple):
    """The files of ``-o``, by what is written to them."""

    text: str | None = None
    json: str | None = None
    profiles: tuple[str, ...] = ()
    #: Latency over time.
    page: str | None = None
    requests: tuple[str, ...] = ()
    recording: str | None = None

    def given(self, only_stacks: bool, prints_json: bool) -> dict[str, str]:
        """Return the names that rows of conflicts have for the files, with what was typed.

        ``-o=rows`` is JSON, printed or in a file, without text.
        """
        found = {}
        if self.text is None and (prints_json or self.json is not None):
            found["-o=rows"] = "--json" if prints_json else f"-o {self.json}"
        for kind, of_kind in self._asdict().items():
            paths = [of_kind] if isinstance(of_kind, str) else of_kind or ()
            for path in reversed(paths):
                kinds = [kind, f"{kind}{os.path.splitext(path)[1]}"]
                kinds += ["stacks"] if only_stacks else []
                found.update({f"-o={kind}": f"-o {path}" for kind in kinds})
        return found


NO_FILES = Files()


def files_of(paths: Sequence[str]) -> Files:
    """Return the files of ``-o`` by the ends of their names. Raises GotraceError."""
    if not paths:
        return NO_FILES
    from gotrace.profiles.write import check_place, is_profile

    profiles = tuple(path for path in paths if is_profile(path))
    for path in profiles:
        check_place(path)
    rows = [path for path in paths if is_json(path)]
    texts = [path for path in paths if path not in (*profiles, *rows)]
    return Files(one_file(texts), one_file(rows), profiles)


def one_file(paths: Sequence[str]) -> str | None:
    """Return the only file of a kind, None if there is none. Raises UsageError."""
    if len(paths) > 1:
        both = " and ".join(f"-o {path}" for path in paths)
        raise UsageError(f"{both} have the same results: give one of them")
    return paths[0] if paths else None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FileOptions(Options):
    """Of commands that write results to files."""

    output: list[str] = Heading.OUTPUT.option(
        "-o --output FILE",
        "write the results to this file, in the form that its name ends in: .txt, .ndjson (both"
        " also with .gz), and of stacks .html, .pb.gz, .folded, .speedscope.json (may be repeated)",
    )
    files: Files = NO_FILES

    @property
    def has_json(self) -> bool:
        """Return whether JSON has the results, on standard output or in a file."""
        return self.json or self.files.json is not None

    def _files(self) -> Files:
        return files_of(self.output)

    def with_form_of_files(self: _D) -> _D:
        """Return the options with their files, each with its form. Raises GotraceError.

        A file has a form in place of standard output; one whose name says none has that of
        ``--json``.
        """
        files = self._files()
        if self.json and files.text is not None and not is_text(files.text):
            rows = [path for path in self.output if path in (files.text, files.json)]
            files = files._replace(text=None, json=one_file(rows))
        return replace(self, files=files, json=self.json and files.json is None)


_D = TypeVar("_D", bound=FileOptions)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ProcessOptions(FileOptions):
    """Of commands that look at processes for some time."""

    processes: list[str] = Heading.TARGET.option(
        "-p --pid PROCESS",
        "trace this process only, by its number or name, or container:ID; several by a list or"
        " a name that they share",
        alone="source",
    )
    debug_file: str | None = Heading.TARGET.option(
        "--debug-file FILE", "the file with the debugging information that was stripped off"
    )
    duration: float | None = Heading.RUN.option(
        "-d --duration TIME", "end after this time: 5 (seconds), 1m", seconds
    )
    folded: bool = Heading.OUTPUT.option("-f --folded", "print folded stacks")

    CONFLICTS: ClassVar[Sequence[Rule]] = ()

    @property
    def only_stacks(self) -> bool:
        """Return whether all results go to files of profiles."""
        return bool(self.files.profiles) and not (self.files.text or self.has_json)

    def with_files(self: _P, parser: OptionParser[_P], besides: str = "") -> _P:
        """Return the options with their files, if nothing conflicts. Raises GotraceError.

        ``besides`` are spellings that conflict with nothing.
        """
        options = self.with_form_of_files()
        files = options.files
        # Folded stacks are printed in a file of them.
        if any(path.endswith(".folded") for path in files.profiles):
            options = replace(options, folded=False)
        given = files.given(options.only_stacks, options.json)
        check_options(parser, options, options.CONFLICTS, given, besides)
        return options


_P = TypeVar("_P", bound=ProcessOptions)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SummaryOptions(ProcessOptions):
    """Of commands that print summaries, which can be compared."""

    interval: float | None = Heading.RUN.option(
        "-i --interval TIME", "print this often: 5 (s), 500ms", seconds
    )
    diff: list[str] | None = Heading.RUN.option(
        "--diff A B",
        "print what changed between two recordings (x.ndjson), the largest change beyond noise"
        " first",
    )
    top: int | None = Heading.OUTPUT.option("--top N", "print only the N largest", positive)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunOptions(ProcessOptions):
    """Of commands that attach."""

    cmd: str | None = Heading.TARGET.option(
        "-c --cmd CMD",
        "start this command, without a shell, and trace it from its first instruction"
        " (also: all that follows --)",
        alone="source",
    )
    quiet: bool = Heading.OUTPUT.option(
        "-q --quiet",
        "leave out headings, and notices but for errors and what is missing",
    )
    attach: AttachMethod | None = Heading.EXPERT.option(
        "--attach METHOD",
        "attach only in this way: " + ", ".join(method.value for method in AttachMethod),
        one_of(AttachMethod, "way"),
    )
    debug: bool = Heading.EXPERT.option("--debug", "show tracebacks and the compiler's messages")
    named: Named = _NOBODY

    @property
    def says_moves(self) -> bool:
        """Return whether it is said that calls are seen returning elsewhere than before."""
        return self.has_json

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

    why: str | None = Heading.VALUES.option(
        "--why",
        "show what the time of calls went into; --why=waits: without system calls",
        const=WHY_ALL,
    )
    force: bool = Heading.EXPERT.option(
        "--force", "use --why whatever it takes of the program's time"
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BudgetOptions(RunOptions):
    """Options of runs that can be held to a part of the time."""

    budget: float | None = Heading.EXPERT.option(
        "--budget PERCENT",
        "take at most this much of one CPU from the program: 2%%, 0.5%%; what costs more"
        " is first counted and not measured, then not traced at all",
        share,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FunctionOptions(RunOptions):
    """Of runs of chosen functions."""

    patterns: Sequence[str] = Heading.TARGET.option(
        "[BINARY:]PATTERN",
        "a function's name, or a pattern in which only * is special",
    )
    uid: int | None = Heading.TARGET.option(
        "--uid USER", "only processes of this user, by number or name", _user
    )
    cgroup: int | None = Heading.TARGET.option(
        "--cgroup PATH",
        "only processes in this control group (version 2) or those within it",
        _cgroup,
    )
    regexp: bool = Heading.CHOICE.option(
        "-r --regexp", "patterns are regular expressions, full match"
    )
    exclude: Sequence[str] = Heading.CHOICE.option(
        "-x --exclude PATTERN", "leave out functions that match (may be repeated)"
    )
    list: bool = Heading.RUN.option("-l --list", "list what would be traced, and trace nothing")
    strict: bool = Heading.EXPERT.option(
        "--strict", "refuse to run when one of several probes comes to nothing"
    )
    short: bool = Heading.OUTPUT.option(
        "--short",
        "print names without the beginning of import paths, http.Get for net/http.Get",
    )
    returns: ReturnMode = Heading.EXPERT.option(
        "--returns WHERE",
        "see calls return at RETs (ret) or, which costs a tenth, in their callers (landing);"
        " auto, the default: in the callers of functions that are called often",
        one_of(ReturnMode, "choice"),
        default=ReturnMode.AUTO,
    )

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


_ALL_STACKS = "{1} has all stacks of the run: leave out {2}"
STACK_CONFLICTS: Sequence[Rule] = (
    Conflict("-o=stacks -f", "--top -i -T", _ALL_STACKS),
    Conflict("-f", "--json -o=json", _ALL_STACKS),
    Conflict("-o=profiles", "-f", "{1} and -f cannot be combined: give one of them"),
)
CALLS_CONFLICTS: Sequence[Rule] = (
    *STACK_CONFLICTS,
    Conflict("-o=profiles", "-i", _ALL_STACKS),
    Conflict("-o=stacks -f", "--sort --short", _ALL_STACKS),
    Needs(
        "-Z --rows",
        "--by --of -f -o=profiles",
        "{1} is for --by: give both, or leave it out",
    ),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CallsOptions(FunctionOptions, BudgetOptions, SummaryOptions):
    """Of runs that add calls up."""

    CONFLICTS = (
        *CALLS_CONFLICTS,
        Needs(
            "--returns",
            "--by -f -o=profiles",
            "--returns is for --by: other calls are counted when they are entered",
        ),
    )

    by: list[str] | None = Heading.VALUES.option(
        "--by EXPR[,EXPR]",
        "one row for each value of these expressions: parameters, results and their parts,"
        ' $stack, $caller, $goid, $pid, $comm, $label("user"); added up in the kernel',
    )
    string_size: int = Heading.VALUES.option(
        "-Z --string-size BYTES",
        "most bytes of a text that --by compares (default 64, no more than 256)",
        positive,
        default=64,
    )
    rows: int = Heading.VALUES.option(
        "--rows N",
        "most rows that --by makes; all further values share one (default 1024)",
        positive,
        default=1024,
    )
    timestamp: bool = Heading.OUTPUT.option("-T --timestamp", "print the time above each table")
    sort: Order | None = sort_option(Order.COUNT, Order.NAME)
    folded: bool = Heading.OUTPUT.option(
        "-f --folded",
        "by $stack, folded: one line for each stack, as flame graph tools read them",
    )
    #: Whether rows are by stack for the sake of a file that shows stacks.
    adds_stack: bool = False

    @property
    def is_run(self) -> bool:
        """Return whether functions are traced, and not recordings compared."""
        return not self.diff

    @property
    def value(self) -> str | None:
        """Return the expression that histograms are made of in place of the time."""
        return None

    @property
    def wants_stacks(self) -> bool:
        """Return whether stacks are to be written in a format of theirs."""
        return self.folded or bool(self.files.profiles)

    def prepared(self: _C, parser: OptionParser[_C]) -> _C:
        """Return the options with the keys that calls are added up by. Raises UsageError."""
        options = super().prepared(parser)
        if not options.is_run:
            return options
        by = options.by
        if not by and any("@" in pattern for pattern in options.patterns):
            from gotrace.probes.recipes import recipes_keys

            by = recipes_keys(options.patterns)
        if not (by or options.value):
            from gotrace.session.bare import check_bare

            check_bare(options.patterns, options.tool, options.regexp)
        options = replace(options, by=by).with_files(parser)
        adds_stack = options.wants_stacks and "$stack" not in (by or ())
        if adds_stack:
            by = [*(by or ()), "$stack"]
        return replace(options, by=by, adds_stack=adds_stack)


_C = TypeVar("_C", bound=CallsOptions)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CountOptions(CallsOptions):
    """The options of gofunccount."""

    CONFLICTS = (
        Conflict(
            "--places",
            "--by -f -o=profiles",
            "{1} counts calls: leave out {2}, which needs calls of their own",
        ),
        *CallsOptions.CONFLICTS,
    )

    inlined: bool = Heading.CHOICE.option(
        "--inlined",
        "count calls where they are inlined, also of functions that a pattern matches: their probes"
        " can cost much more than others",
    )
    places: bool = Heading.OUTPUT.option(
        "--places", "one row for each place where a function is inlined, and one for its own code"
    )
    force: bool = Heading.EXPERT.option(
        "--force", "count lines and inlined calls whatever it takes of the program's time"
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LookOptions(Options):
    """The options of a subcommand that looks at a process if one is given."""

    processes: list[str] = Heading.TARGET.option(
        "-p --pid PROCESS", "look at this process, by its number or name, or container:ID"
    )


class Subcommand(Protocol):
    """The module of a word that ``gotrace`` takes as its first: ``habits.module_of``."""

    def parser(self) -> OptionParser[Any]:
        """Return the parser of the words after it."""

    def run(self, options: Any) -> int:
        """Run the subcommand, and return the exit status."""


def is_completing() -> bool:
    """Return whether a shell asks for completions of its line."""
    return "_ARGCOMPLETE" in os.environ


def parse_plain(parser: OptionParser[_O], arguments: Sequence[str], **found: object) -> _O:
    """Parse the command line of a command that starts none; ``found`` are options beside it.

    Options may come before, between and after patterns. Raises UsageError. Under argcomplete it
    completes the shell's command line instead, and does not return.
    """
    if is_completing():
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


def is_json(path: str) -> bool:
    """Return whether the name of a file of results asks for JSON."""
    from gotrace.cli import files

    return files.is_json(path)


def is_text(path: str) -> bool:
    """Return whether the name of a file of results asks for text."""
    from gotrace.cli import files

    return files.is_text(path)
