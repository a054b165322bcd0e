# SPDX-License-Identifier: Apache-2.0
"""Complete command lines in the shell: options, processes, files, functions of the target.

argcomplete runs the command itself at every press of the key, with ``_ARGCOMPLETE`` in the
environment; its shell function takes the completions from file descriptor 8.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from gotrace.elf.functions import FunctionTable
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.model import State
from gotrace.gotypes.symbols import short_name
from gotrace.kernel.attach import AttachMethod
from gotrace.kernel.rets import EmulateRet
from gotrace.probes.pattern import NameList, split_target
from gotrace.session.waits.probes import WaitState
from gotrace.target.command import resolve_command
from gotrace.target.process import file_test, process_numbers
from gotrace.target.target import Target

__all__ = ["complete", "stepwise"]

_MAX_NAMES = 200  # beyond which names are completed up to the next dot or slash only
_ELF_MAGIC = b"\x7fELF"


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


def _functions(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Complete `[BINARY:]PATTERN`; where no target is known, the name of a file."""
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


def _excluded(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Complete a PATTERN to be excluded, a function of the files that the others name."""
    exists = file_test(_pid(parsed_args))
    try:
        binaries = {split_target(text, exists)[0] for text in parsed_args.patterns or []} or {None}
        return [name for binary in binaries for name in _names(parsed_args, binary, prefix)]
    except (GotraceError, OSError, ValueError):
        return []


def _pid(options: argparse.Namespace) -> int | None:
    """Return the process of ``-p``, the first of several: these run the same program."""
    try:
        return process_numbers(options.processes)[0] if options.processes else None
    except UsageError:
        return None


def _names(options: argparse.Namespace, binary: str | None, prefix: str) -> list[str]:
    """Return what functions of one file of the target go on with; raises GotraceError."""
    target = Target.of(_pid(options), None)
    if binary is None and options.cmd is not None:
        binary = resolve_command(shlex.split(options.cmd))
    try:
        return _names_in(target.binary(binary).functions, prefix)
    finally:
        target.close()


def _names_in(table: FunctionTable, prefix: str) -> list[str]:
    spoken = NameList(table.names, gccgo=not table.has_pclntab).all_spoken
    rows = [row for row, name in enumerate(spoken) if name.startswith(prefix)]
    if not rows and "." in prefix:  # the package by the end of its import path
        spoken = list(map(short_name, spoken))
        rows = [row for row, name in enumerate(spoken) if name.startswith(prefix)]
    if len(rows) <= _MAX_NAMES:
        rows = [row for row in rows if not table.is_wrapper(row)] or rows
    # The shell shows completions as they are.
    return stepwise((spoken[row] for row in rows if spoken[row].isprintable()), prefix)


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
    """Yield the numbers of processes that run Go programs which this user may look into."""
    seen: dict[tuple[int, int], bool] = {}
    for process in Path("/proc").glob("[0-9]*"):
        program = process / "exe"
        if not process.name.startswith(prefix):
            continue
        try:
            status = os.stat(program)
        except OSError:
            continue
        file = status.st_dev, status.st_ino
        if file not in seen:
            seen[file] = _is_go(str(program))
        if seen[file]:
            yield process.name


def _is_go(path: str) -> bool:
    try:
        with ElfImage.open(path) as image:
            names = (".go.buildinfo", ".gopclntab", ".data.rel.ro.gopclntab")
            return any(image.section(name) is not None for name in names)
    except GotraceError:
        return False


def _inside(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
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


def _choices(**_: object) -> list[str]:
    return [choice.value for choice in EmulateRet]


_COMPLETERS = {
    "patterns": _functions,
    "exclude": _excluded,
    "pid": _processes,  # of gostacks
    "processes": _processes,
    "cmd": _commands,
    "attach": _rungs,
    "emulate_ret": _choices,
    "inside": _inside,
    "state": _states,
}
