# SPDX-License-Identifier: Apache-2.0
"""Complete command lines in the shell: options, processes, files, functions of the target.

argcomplete runs the command itself at every press of the key, with ``_ARGCOMPLETE`` in the
environment; its shell function takes the completions from file descriptor 8.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gotrace.cli.habits import SUBCOMMANDS
from gotrace.elf.functions import FunctionTable
from gotrace.elf.name_cache import kept_names
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.model import State
from gotrace.gotypes.symbols import short_name
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.pattern import NameList, split_target
from gotrace.session.choices import ReturnMode, WaitState
from gotrace.session.order import Order
from gotrace.target.command import resolve_command
from gotrace.target.process import file_test, process_numbers, runs_go
from gotrace.target.target import Target, TargetBinary

_MAX_NAMES = 200  # beyond which names are completed up to the next dot or slash only
_ELF_MAGIC = b"\x7fELF"
#: The operand that an expression ends in, with its fields.
_PATH = re.compile(r"\$?(?:\w+\.)*\w*$")


class _Given(Protocol):
    """Options that come before the completed word."""

    processes: Sequence[str]
    cmd: str | None
    patterns: Sequence[str] | None


def complete(parser: argparse.ArgumentParser) -> NoReturn:
    """Write the completions of the shell's command line, and end the process."""
    try:
        argcomplete: Any = importlib.import_module("argcomplete")
    except ImportError:
        raise SystemExit(1) from None
    for action in parser._actions:
        if action.dest in _COMPLETERS:
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]
    nothing = argcomplete.completers.SuppressCompleter()
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=nothing)
    raise SystemExit(1)


def stepwise(names: Iterable[str], prefix: str, most: int = _MAX_NAMES) -> list[str]:
    """Return the names that begin with ``prefix``, or when there are more than ``most`` of them,
    how they go on up to the next dot or slash: at least two ways.
    """
    matching = {name for name in names if name.startswith(prefix)}
    known = prefix
    while len(matching) > most:
        steps = {_next_step(name, len(known)) for name in matching}
        if len(steps) > 1:
            return sorted(steps)
        known = steps.pop()
    return sorted(matching)


def _next_step(name: str, start: int) -> str:
    ends = [at for mark in "./" if (at := name.find(mark, start)) >= 0]
    return name[: min(ends) + 1] if ends else name


def _is_first(prefix: str) -> bool:
    """Return whether the completed word is the first after the command."""
    return len(os.environ.get("COMP_LINE", "").split()) == (2 if prefix else 1)


def _first_words(
    prefix: str, parsed_args: _Given, parser: argparse.ArgumentParser, **_: object
) -> list[str]:
    """Complete a function, or a subcommand as the first word of gotrace."""
    is_first = parser.prog == "gotrace" and _is_first(prefix)
    words = [word for word in SUBCOMMANDS if word.startswith(prefix)] if is_first else []
    return [*words, *_functions(prefix, parsed_args)]


def _functions(prefix: str, parsed_args: _Given) -> list[str]:
    """Complete `[BINARY:]PATTERN`, or a word in its predicate or format.

    Where no target is known it is the name of a file; after an @ it is a recipe.
    """
    if prefix.startswith("@"):
        return _recipes(prefix)
    if found := re.match(r"(\S+) +[(\"].*", prefix, re.DOTALL):
        return _operands(prefix, parsed_args, [found[1]])
    exists = file_test(_pid(parsed_args))
    try:
        binary, pattern = split_target(prefix + "*", exists)
        if binary is None and _pid(parsed_args) is None and parsed_args.cmd is None:
            return [*_files(prefix, ":")]
        partial = pattern[:-1]
        head = prefix[: len(prefix) - len(partial)]
        return [head + name for name in _names(parsed_args, binary, partial)]
    except (GotraceError, OSError, ValueError):
        return []


def _recipe(prefix: str, **_given: object) -> list[str]:
    """Complete the name of a recipe."""
    return _recipes(prefix if prefix.startswith("@") else f"@{prefix}")


def _recipes(prefix: str) -> list[str]:
    from gotrace.probes.recipes import recipes

    try:
        return [f"@{recipe.name}" for recipe in recipes() if f"@{recipe.name}".startswith(prefix)]
    except GotraceError:
        return []


def _keys(prefix: str, parsed_args: _Given, **_: object) -> list[str]:
    """Complete an expression of the functions that are named before."""
    return _operands(prefix, parsed_args, parsed_args.patterns or [])


def _operands(prefix: str, options: _Given, patterns: Sequence[str]) -> list[str]:
    """Complete the last operand of an expression: a parameter, its fields, or what calls have."""
    match = _PATH.search(prefix)
    if match is None or (prefix[: match.start()].count('"') % 2 and "%" not in prefix):
        return []
    *way, last = match[0].split(".")
    try:
        names = _names_after(options, patterns, way)
    except (GotraceError, OSError, ValueError):
        return []
    head = prefix[: len(prefix) - len(last)]
    return [head + name for name in names if name.startswith(last) and name.isprintable()]


def _names_after(options: _Given, patterns: Sequence[str], way: Sequence[str]) -> list[str]:
    """Return the names that may come after some fields, of the first function that is named.

    Raises GotraceError.
    """
    from gotrace.session.operands import names_after

    exists = file_test(_pid(options))
    for text in patterns:
        binary, pattern = split_target(text.partition(" ")[0], exists)
        with _target(options, binary) as file:
            names = names_after(file, pattern, way)
            if names:
                return names
    return []


def _excluded(prefix: str, parsed_args: _Given, **_: object) -> list[str]:
    """Complete a PATTERN to be excluded, a function of the files that the others name."""
    exists = file_test(_pid(parsed_args))
    try:
        binaries = {split_target(text, exists)[0] for text in parsed_args.patterns or []} or {None}
        return [name for binary in binaries for name in _names(parsed_args, binary, prefix)]
    except (GotraceError, OSError, ValueError):
        return []


def _pid(options: _Given) -> int | None:
    """Return the process of ``-p``, the first of several: these run the same program."""
    try:
        return process_numbers(options.processes)[0] if options.processes else None
    except UsageError:
        return None


def _names(options: _Given, binary: str | None, prefix: str) -> list[str]:
    """Return completions of a function's name in one file of the target; raises GotraceError."""
    with _target(options, binary) as file:
        spoken = kept_names(file.image, lambda: _spoken(file.functions))
    names = [name for name in spoken if name.startswith(prefix)]
    if not names and "." in prefix:  # the package by the end of its import path
        names = [name for name in map(short_name, spoken) if name.startswith(prefix)]
    # The shell shows completions as they are.
    return stepwise((name for name in names if name.isprintable()), prefix)


@contextmanager
def _target(options: _Given, binary: str | None) -> Iterator[TargetBinary]:
    """Open a file of the target. Raises GotraceError."""
    with closing(Target.of(_pid(options), None)) as target:
        command = getattr(options, "cmd", None)
        if binary is None and command is not None:
            binary = resolve_command(shlex.split(command))
        yield target.binary(binary)


def _spoken(table: FunctionTable) -> list[str]:
    """Return the names of all functions, but of those that the compiler made up to call others."""
    spoken = NameList(table.names, gccgo=not table.has_pclntab).all_spoken
    written = {name for row, name in enumerate(spoken) if not table.is_wrapper(row)}
    return list(dict.fromkeys(name for name in spoken if name in written))


def _files(prefix: str, end: str) -> Iterator[str]:
    """Yield directories and programs that ``prefix`` may go on to, the latter with ``end``."""
    directory, start = os.path.split(prefix)
    try:
        entries = sorted(os.scandir(directory or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if not entry.name.isprintable():  # the shell would show it as it is
            continue
        if entry.is_dir():
            yield os.path.join(directory, entry.name) + "/"
        elif _is_program(entry.path):
            yield os.path.join(directory, entry.name) + end


def _is_program(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_ELF_MAGIC)) == _ELF_MAGIC and os.access(path, os.X_OK)
    except OSError:
        return False


def _commands(prefix: str, **_: object) -> list[str]:
    return [*_files(prefix, "")]


def _processes(prefix: str, **_: object) -> Iterator[str]:
    """Yield the numbers and names of processes that run Go programs which this user may look into.

    Several are divided by commas.
    """
    before, comma, prefix = prefix.rpartition(",")
    offered = set()
    for process, name in _go_processes():
        for word in (process, name):
            if word.startswith(prefix) and word not in offered and word.isprintable():
                offered.add(word)
                yield before + comma + word


def _go_processes() -> Iterator[tuple[str, str]]:
    seen: dict[tuple[int, int], bool] = {}
    for process in Path("/proc").glob("[0-9]*"):
        program = process / "exe"
        try:
            status = os.stat(program)
            name = os.path.basename(os.readlink(program).removesuffix(" (deleted)"))
        except OSError:
            continue
        file = status.st_dev, status.st_ino
        if file not in seen:
            seen[file] = runs_go(str(program))
        if seen[file]:
            yield process.name, name


def _inside(prefix: str, parsed_args: _Given, **_: object) -> list[str]:
    """Complete a PATTERN of functions of the process, wherever they are called."""
    try:
        return _names(parsed_args, None, prefix)
    except (GotraceError, OSError, ValueError):
        return []


def _states(parser: argparse.ArgumentParser, **_: object) -> list[str]:
    states = WaitState if parser.prog == "gooffcpu" else State
    return [state.value for state in states]


def _rungs(**_: object) -> list[str]:
    return [method.value for method in AttachMethod]


def _returns(**_: object) -> list[str]:
    return [choice.value for choice in ReturnMode]


def _orders(parser: argparse.ArgumentParser, **_: object) -> list[str]:
    only = (Order.COUNT, Order.NAME)
    return [order.value for order in (only if parser.prog == "gofunccount" else Order)]


_COMPLETERS = {
    "recipes": _recipe,
    "patterns": _first_words,
    "exclude": _excluded,
    "by": _keys,
    "of": _keys,
    "pid": _processes,  # of gostacks
    "processes": _processes,
    "cmd": _commands,
    "attach": _rungs,
    "returns": _returns,
    "inside": _inside,
    "functions": _inside,
    "requests": _inside,
    "root": _first_words,
    "when": _inside,
    "sort": _orders,
    "state": _states,
}
