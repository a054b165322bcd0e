# SPDX-License-Identifier: Apache-2.0
"""Advice for users of other tools: the words that they type first, and gotrace's for them.

The tools are funccount, funclatency, trace, stackcount, argdist, offcputime and profile of bcc,
bpftrace, perf, strace, ltrace, Delve and pprof. tests/tools/habits.txt has whole command lines.
"""

from __future__ import annotations

import argparse
import os.path
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gotrace.errors import UsageError
from gotrace.text import quote

_BARE = "a function is given without an option, as in 'main.handle'"
_PROCESS = "-p PROCESS takes the number or the name of a process"
_STACK = "-U prints the goroutine's stack, --stack-depth N its N innermost frames"
_GOROUTINES = "stacks are those of goroutines, without an option"
_EVERY = "-f adds up the goroutines' stacks"

#: Options of other tools, and what there is here in their place.
_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("-e", "--exec", "--filter", "--func", "--function", "--event"), _BARE),
    **dict.fromkeys(("-n", "-P", "--process", "--name", "--comm", "--tgid"), _PROCESS),
    **dict.fromkeys(("-K", "-k", "-w", "--stack"), _STACK),
    **dict.fromkeys(("-j", "--format"), "--json prints JSON"),
    **dict.fromkeys(("-D", "-v"), "--debug shows the compiler's messages"),
    **dict.fromkeys(("--timeout", "--seconds"), "-d TIME ends a run"),
    "--command": "-c CMD starts a command, and so does -- CMD at the end",
    "--ebpf": "leave it out",
    "--merge": "type gofleet --merge FILE... to add recordings up, --diff A B compares two",
    "--return": "a call's line has its results: leave it out",
    "--stack-storage-size": "leave it out",
    "--speedscope": "-o x.speedscope.json writes one",
    "--pprof": "-o x.pb.gz writes one",
    "-F": "all goroutines are read at once, and not sampled: -i TIME repeats that",
    "-H": "gofunclatency --of EXPR makes histograms of a value, as in --of n main.handle",
    "-I": "types are read from the program, and -i TIME prints so often",
    "-L": "--tid N is for one thread, -p PID for a process",
    "-V": "--version prints the version",
    "-a": "a program's path is for all processes that run it, as in ./shop:main.handle",
    "-i": "-i TIME is for the tools that add up: goalloc, gofunccount, gofunclatency, gooffcpu,"
    " gooncpu",
    "-s": "-Z BYTES shows more of strings, --stack-depth N prints N frames",
    "-u": "--uid USER is for the processes of a user",
}
_SLOW = dict.fromkeys(
    ("--threshold", "--min", "--slower", "--longer"),
    "a predicate chooses slow calls, as in 'main.handle ($duration > 10ms)'",
)
#: The same where a tool has something else.
_OF_TOOLS: dict[str, dict[str, str]] = {
    "gofunccount": {
        **dict.fromkeys(("-K", "-U", "-k", "-s", "--stack"), _EVERY),
        "-C": "--by EXPR counts each value of an argument, as in --by n main.handle",
        "-P": "--by '$pid' has a row for each process",
        "-n": "-d TIME ends a run, --top N prints the N largest",
        "-t": "-p PID is for one process",
    },
    "gofunclatency": {
        "-n": "-d TIME ends a run, --top N prints the N largest",
        **dict.fromkeys(("--threshold", "--min", "--longer"), "--slower TIME prints slow calls"),
    },
    "gotrace": {
        **dict.fromkeys(("--limit", "--count"), "-M N ends after N calls"),
        "-n": f"-M N ends after N calls; {_PROCESS}",
        **_SLOW,
        "--args": "a call's line has its arguments: leave it out",
    },
    "gooffcpu": {
        **dict.fromkeys(("-K", "-U", "-k", "-u"), _GOROUTINES),
        "-m": "--top N prints the longest",
        "-t": "-p PID is for one process",
    },
    "goalloc": {
        **dict.fromkeys(("-K", "-U", "-k", "-u"), _GOROUTINES),
        "-F": "the program's runtime chooses what is sampled: leave it out",
    },
    "gooncpu": {
        **dict.fromkeys(("-U", "-a", "-k", "-u"), "-K shows the kernel's functions as well"),
        **dict.fromkeys(("-L", "-t"), "-p PID is for one process"),
        "-C": "all CPUs are sampled",
        "--call-graph": "stacks are always followed, by frame pointers: leave it out",
    },
    "gostacks": {
        **dict.fromkeys(("-K", "-U", "-k", "-u"), _GOROUTINES),
        **dict.fromkeys(("-l", "-t"), "-a prints each goroutine with its stack"),
        **dict.fromkeys(("-s", "-w"), "--state, --reason and a PATTERN choose goroutines"),
        "--by-label": "--by '$label(\"KEY\")' keeps goroutines apart by a label",
    },
    "gotop": {
        **dict.fromkeys(("-o", "--output"), "type gotop -b --json -p PID > FILE"),
        **dict.fromkeys(("-d", "--delay"), "-i TIME looks so often"),
    },
}

#: Options of the commands that add calls up, and their advice where calls are shown one by one.
_ADDED = {
    **dict.fromkeys(
        (
            *("--by", "--diff", "--function", "--goroutine", "--interval", "--rows"),
            *("--sort", "--top"),
        ),
        "gofunccount and gofunclatency, which add calls up, have it",
    ),
    **dict.fromkeys(
        ("--heat", "--of", "--outermost"), "gofunclatency, which adds calls up, has it"
    ),
    **dict.fromkeys(("--inlined", "--places"), "only gofunccount counts inlined calls"),
    **dict.fromkeys(("--microseconds", "--milliseconds"), "durations have units: leave it out"),
}

#: First words of gotrace that trace nothing, and those that give calls another form.
_PLAIN, _FORMS = ("compile", "doctor", "recipes"), ("flight", "record", "tree")
#: First words of gotrace that are commands of their own, each with a module of this package.
SUBCOMMANDS = (*_PLAIN, *_FORMS, "assert", "examine")
_ONCE = {
    **{f"--{word}": f"type gotrace {word}" for word in SUBCOMMANDS},
    **dict.fromkeys(("--when", "--memory"), "type gotrace flight TIME"),
    "--critical": "type gotrace tree ROOT",
}
_OF_TOOLS["gotrace"] |= {**_ADDED, **_ONCE}
#: Those that had a value, and its name.
_OLD = {"--flight": "TIME", "--tree": "ROOT"}
_ALL = "all calls are needed to know what belongs together: leave it out"
for _word in _FORMS:
    _OF_TOOLS[f"gotrace {_word}"] = {
        **_SLOW,
        **_ADDED,
        **_ONCE,
        **dict.fromkeys(("--goid", "--tid", "--budget"), _ALL),
        **dict.fromkeys(("-C", "--cpu", "--entry"), "it is of gotrace alone: leave it out"),
        **dict.fromkeys(("-U", "-f", "--stack-depth"), "stacks are of gotrace alone: leave it out"),
        "-M": "-d TIME ends a run",
    }

#: Advice on the value of an option that is given without one.
_VALUES = {
    "-c/--cmd": "-c starts a command, as in -c './server -v', and gofunccount counts calls",
    "-g/--goroutine": "-g takes the number of a goroutine, and without it all are shown",
    "-p/--pid": "-p takes the number or the name of a process",
    "--core": "type --core CORE PROGRAM",
}
#: Messages about a first word that is missing.
_FIRST = {
    "ROOT": "which requests? Give a ROOT, as in gotrace tree -p PID main.handle",
    "TIME": "how long? Give a TIME, as in gotrace flight 5s -p PID -o x-%n.trace",
}
_DUMPS = "-a prints each goroutine, as debug=2 of net/http/pprof does"

_COMMANDS = frozenset(
    (
        *("attach", "b", "break", "core", "dump", "exec", "goroutine", "goroutines"),
        *("probe", "record", "stat", "top", "trace"),
    )
)
#: Of these a pattern chooses what is printed, and all is read without any.
_READING = ("goalloc", "gooncpu", "gostacks")
#: Those with options of their own that are like each other's.
_TOOLS = (
    *("gofunccount", "gofunclatency", "gotrace", "gooffcpu", "gooncpu", "goalloc", "gostacks"),
    "gotop",
)
_ALIKE = 0.75  # one letter of four, or two of a longer word
_LEAST_PID = 300  # kernel threads have those below it; nobody asks for as many seconds
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:ms|s|m)?")
_UNITS = frozenset(("ns", "us", "ms", "s", "sec", "m", "min", "h"))
_VERB = re.compile(r"%[-+# \d.]*[a-z],?")
_SHELL = frozenset(("&&", "||", "|", ";", "&", ">", "<", ">>"))


def mistake(parser: argparse.ArgumentParser, message: str) -> str:
    """Return the message in place of one of argparse's."""
    help = f"(see {parser.prog} --help)"
    if found := re.match(r"unrecognized arguments: (\S+)", message):
        word = found[1]
        if parser.prog.partition(" ")[2] in _PLAIN:
            return f"{parser.prog} traces nothing: leave out {quote(word)} {help}"
        is_option = word.startswith("-")
        advice = _instead(parser, word) if is_option else _stray(parser.prog, word)
        if advice:
            return f"there is no {word} here: {advice} {help}"
    found = re.match(r"argument (\S+): expected .*argument", message)
    if found and found[1] in _VALUES:
        return f"{message}: {_VALUES[found[1]]}"
    if found := re.match(r"argument (\S+): ignored explicit argument", message):
        advice = f": {_DUMPS}" if parser.prog == "gostacks" and found[1] == "--debug" else ""
        return f"{found[1]} takes no value{advice} {help}"
    if found := re.match(r"the following arguments are required: (ROOT|TIME)", message):
        return f"{_FIRST[found[1]]} {help}"
    if message.startswith("one of the arguments -p/--pid"):
        return f"which process? Type {parser.prog} -p PID, or {parser.prog} --core CORE PROGRAM"
    return f"{message} {help}"


def _instead(parser: argparse.ArgumentParser, word: str) -> str:
    """Return advice in place of another tool's option; "" if it is not known."""
    option = word.partition("=")[0]
    if not option.startswith("--"):
        option = option[:2]
    if found := _OF_TOOLS.get(parser.prog, {}).get(option) or _ELSEWHERE.get(option):
        return found
    if having := _having(parser.prog, option):
        return f"{' and '.join(having)} {'have' if len(having) > 1 else 'has'} it"
    import difflib

    known = [name for name in parser._option_string_actions if name.startswith("--")]
    alike = difflib.get_close_matches(option, known, 1) if option.startswith("--") else []
    return f"did you mean {alike[0]}?" if alike else ""


def _having(tool: str, option: str) -> list[str]:
    """Return the other tools that have a long option."""
    if not option.startswith("--"):
        return []
    from importlib import import_module  # options.py imports this module

    parsers = (import_module(f"gotrace.cli.{one}")._parser() for one in _TOOLS if one != tool)
    return [one.prog for one in parsers if option in one._option_string_actions]


def _stray(tool: str, word: str) -> str:
    """Return advice on a word that no option takes, for a tool that has no patterns."""
    if tool in ("gotop", "gotrace examine"):
        return f"type {tool} -p {quote(word)}"
    if tool != "gooffcpu":
        return ""
    if _NUMBER.fullmatch(word):
        return _number(word, has_interval=True)
    if os.path.isfile(word):
        return f"type {tool} -- {word} to start it, -p PID for a process"
    return f"--in {quote(word)} is for waits within a function's calls"


def _number(word: str, has_interval: bool) -> str:
    if word.isdecimal() and int(word) >= _LEAST_PID and os.path.exists(f"/proc/{word}"):
        return f"-p {word} is for the process, -p PID,{word} for several"
    interval = f", -i {word} prints so often" if has_interval else ""
    return f"-d {word} ends a run after that time{interval}, -p {word} is for a process"


def refuse_long_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Raise UsageError for a long option with one dash, as Go's own tools have them.

    It would be read as several short ones. So it does for a subcommand that was typed as an option,
    whose value would be read as a pattern.
    """
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        old, _, value = word.partition("=")
        if parser.prog == "gotrace" and old in _OLD:
            from shlex import quote as quoted

            command = f"gotrace {old[2:]}"
            typed = quoted(value or after or _OLD[old])
            raise UsageError(
                f"there is no {old} here: type {command} {typed} (see {command} --help)"
            )
        option = f"-{old}"
        if re.fullmatch(r"--[a-z][a-z-]+", option) and option in parser._option_string_actions:
            raise UsageError(f"long options have two dashes: type -{word}")


def check_words(tool: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError for words that cannot be meant where they are, before anything starts.

    Alone among other patterns they would be one of several that come to nothing.
    """
    files: list[str] = given.get("output", [])
    for asked in files:
        if asked in ("json", "text", "ndjson"):
            raise UsageError(f"-o names a file: type --json for JSON, -o ./{asked} for such a file")
        if asked == "-":
            raise UsageError("-o names a file: results go to standard output without -o")
        if [os.path.realpath(one) for one in files].count(os.path.realpath(asked)) > 1:
            raise UsageError(f"-o {quote(asked)} is given twice: leave one of them out")
        from gotrace.cli.files import check_name

        check_name(tool, asked)
    for path in given.get("exclude", ()):
        if "/" in path and os.path.isfile(path):
            raise UsageError(
                f"-x leaves functions out, and {quote(path)} is a file: type"
                f" {quote(f'{path}:main.*')} for functions in it"
            )
    root = given.get("root")
    patterns: list[str] = given.get("patterns") or given.get("functions") or []
    patterns = [*([root] if root else []), *patterns]
    if patterns and not given.get("regexp"):
        _check_patterns(tool, patterns, given["processes"], "interval" in given)


def _check_patterns(
    tool: str, patterns: Sequence[str], processes: Sequence[str], has_interval: bool
) -> None:
    (first, *others), has_process = patterns, bool(processes)
    _check_files(patterns)
    if first in ("help", "version"):
        raise UsageError(f"{first} is an option here: type {tool} --{first}")
    if tool == "gotrace":
        _check_subcommands(patterns, processes)
    if first in _COMMANDS and (others or not has_process or tool in _READING):
        process = "" if has_process else ", and give the process by -p PID"
        raise UsageError(f"{tool} has no such subcommand: leave out {quote(first)}{process}")
    for word in patterns:
        others = [other for other in patterns if other != word]
        if _NUMBER.fullmatch(word):
            advice = _number(word, has_interval)
            raise UsageError(f"{quote(word)} is not a function: {advice}")
        if word in _UNITS:
            raise UsageError(
                f"{quote(word)} is not a function: a time and its unit are one word, 5s"
            )
        if _VERB.fullmatch(word):
            raise UsageError(
                f"{quote(word)} is a part of a format: put the whole probe into single quotes, as"
                " in 'main.handle \"%d\", n'"
            )
        if others and "/" in word and ":" not in word and os.path.isfile(word):
            raise UsageError(
                f"{quote(word)} is a file: type {quote(f'{word}:{others[0]}')} for all processes"
                f" that run it, {tool} {quote(others[0])} -- {word} to start it"
            )
        if others and not has_process and word.isidentifier() and _is_process(word):
            raise UsageError(f"{quote(word)} is not a function: -p {word} is for the process")


def _check_files(patterns: Sequence[str]) -> None:
    """Raise UsageError for names of files that a shell has put in place of a pattern."""
    files = [word for word in patterns if os.path.basename(word) == word and os.path.isfile(word)]
    sources = [word for word in files if word.endswith(".go")]
    others = len(files) > 1 and all(map(os.path.exists, patterns))
    if sources or others:
        pattern = "*" if others else f"{sources[0].removesuffix('go')}*"
        raise UsageError(
            f"{quote((sources or files)[0])} is a file: the shell puts files in place of {pattern}:"
            f" type {quote(pattern)} in quotes"
        )


def _check_subcommands(patterns: Sequence[str], processes: Sequence[str]) -> None:
    for word in patterns:
        if word in SUBCOMMANDS:
            text = f"{quote(word)} is the first word, before options: type gotrace {word}"
            raise UsageError(f"{text} (a function of this name is BINARY:{word})")
        if _NUMBER.fullmatch(word) and (meant := meant_subcommand(patterns, processes)):
            raise UsageError(f"{quote(word)} is not a function: type {meant}")


def meant_subcommand(patterns: Sequence[str], processes: Sequence[str]) -> str:
    """Return the line with the subcommand that the first word resembles, "" if it does not."""
    import difflib
    from shlex import join

    first, *others = patterns
    if not first.isidentifier():
        return ""
    alike = difflib.get_close_matches(first.lower(), SUBCOMMANDS, 1, _ALIKE)
    if not alike:
        return ""
    if alike == ["flight"] and not (others and _NUMBER.fullmatch(others[0])):
        others = ["TIME", *others]
    given = ["-p", ",".join(processes)] if processes else []
    words = [] if alike[0] in _PLAIN else [*given, *others]
    return join(["gotrace", *alike, *words])


def module_of(word: str) -> str:
    """Return the module of a subcommand: that of its word, if it is not a word of Python's."""
    return f"gotrace.cli.{'asserts' if word == 'assert' else word}"


def completed_word() -> str:
    """Return the first word of the line that a shell completes, if another one follows it.

    If it is a subcommand, its own parser completes the line: argcomplete leaves out the command.
    """
    words = os.environ.get("COMP_LINE", "").split(maxsplit=2)
    has_ended = len(words) > 2 or os.environ.get("COMP_LINE", "").endswith(" ")
    if len(words) < 2 or words[1] not in SUBCOMMANDS or not has_ended:
        return ""
    os.environ["_ARGCOMPLETE"] = "2"
    return words[1]


def _is_process(name: str) -> bool:
    from gotrace.target.process import processes_called

    return bool(processes_called(name))


def check_shell(text: str) -> None:
    """Raise UsageError for a command that a shell would have to read."""
    if shell := _SHELL.intersection(text.split()):
        raise UsageError(
            f"-c starts no shell, so {quote(min(shell))} means nothing: give one program and its"
            " arguments"
        )


def two_targets(command: Sequence[str]) -> str:
    """Return the message about a command beside another one, or beside a process."""
    if command[:1] == ["sleep"] and len(command) > 1:
        return f"-- starts what is traced, and not the clock: type -d {command[1]} to end a run"
    return "give only one of -p PID, -c CMD and -- CMD"


def which_functions(tool: str, command: Sequence[str] | None, has_excluded: bool) -> str:
    """Return the message about a missing pattern."""
    if command:
        where = f" before --: {tool} 'main.*' -- {command[0]}"
    elif has_excluded:
        where = ": -x only leaves some of its functions out"
    else:
        where = f", as in 'main.*' (see {tool} --help)"
    return f"which functions? Give a PATTERN{where}"
