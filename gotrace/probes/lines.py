# SPDX-License-Identifier: Apache-2.0
"""Lines of the source as users write them: ``store.go:120-140``, ``main.f:+5``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.pclntab.functab import SourceLine
from gotrace.errors import NoMatchError, UsageError
from gotrace.probes.select import Selector, SymbolTable
from gotrace.records import dataclass
from gotrace.text import printable, quote

#: A drive letter does not name a program.
_IN_FILE = re.compile(r"(?:.+:)??(?P<file>(?:[A-Za-z]:[\\/])?[^:]+\.go):(\d+)(?:-(\d+))?")
_IN_FUNCTION = re.compile(r"(?P<function>.+):\+(\d+)(?:-\+?(\d+))?")
#: A name has neither: ``go`` is a keyword.
_FILE = re.compile(r"[^:*]+\.go")
_OFFSET = re.compile(r"((?:[^*+]|\(\*)+[\w)\]])\+(\d+)")
_MAX_DIGITS = 9
#: From this release on programs have the line of ``func``.
_SAYS_BEGINNING = (1, 20)
_SHOWN = 3

#: Splits a binary from a pattern.
_Split = Callable[[str], "tuple[str | None, str]"]


class LineTable(SymbolTable, Protocol):
    """The part of `gotrace.elf.functions.FunctionTable` that finding lines needs."""

    @property
    def go_version(self) -> GoVersion | None: ...
    def source_files(self) -> Collection[str]: ...
    def declared_at(self, row: int, /) -> SourceLine | None: ...


@dataclass(frozen=True, slots=True)
class LineWord:
    """Some lines that a user asks for, in a file, or counted from a function's first line.

    ``text`` are the words.
    """

    text: str
    file: str | None
    function: str | None
    first: int
    last: int

    def place(self, table: LineTable) -> tuple[str, range]:
        """Return the file that is meant, and the lines of it.

        Raises NoMatchError, and UsageError if several are meant.
        """
        if self.file is not None:
            return _file_called(table, self.file), range(self.first, self.last + 1)
        assert self.function is not None
        if table.go_version is not None and table.go_version.release < _SAYS_BEGINNING:
            raise UsageError(
                f"{quote(self.text)}: programs of this release of Go do not say where functions"
                " begin: give a line as FILE.go:LINE"
            )
        rows = Selector([self.function]).select(table).rows
        begun = {at for row in rows if (at := table.declared_at(row)) is not None}
        if len(begun) != 1:
            raise UsageError(
                f"{quote(self.function)} is not one function: give a line as FILE.go:LINE"
            )
        (at,) = begun
        return at.file, range(at.line + self.first, at.line + self.last + 1)


def parse_lines(text: str, split: _Split) -> tuple[str | None, LineWord] | None:
    """Return the binary, if one is given, and the lines that a text means, None of others.

    If the file before the colon is a program, it is not a source file. Raises UsageError.
    """
    if found := _IN_FILE.fullmatch(text):
        file = found["file"]
        if _is_program(file):
            return None
        binary = None if len(file) == found.start(2) - 1 else split(text)[0]
        word = text if binary is None else text[len(binary) + 1 :]
        return binary, _checked(word, file, None, found[2], found[3])
    if (found := _IN_FUNCTION.fullmatch(text)) and not found["function"].endswith(".go"):
        binary, function = split(found["function"])
        word = text if binary is None else text[len(binary) + 1 :]
        return binary, _checked(word, None, function, found[2], found[3])
    _check_unlike(text)
    return None


def _check_unlike(text: str) -> None:
    """Raise UsageError for a file, or a function and an offset, that no function is called."""
    if found := _OFFSET.fullmatch(text):
        raise UsageError(
            f"{quote(text)} is not a function: for a line counted from that of func type"
            f" {quote(f'{found[1]}:+{found[2]}')}, which gofunccount takes"
        )
    if _FILE.fullmatch(text):
        raise UsageError(
            f"{quote(text)} is a file: gofunccount takes lines of it, as"
            f" {quote(f'{text}:FIRST-LAST')}"
        )


def _is_program(file: str) -> bool:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(4) == b"\x7fELF"
    except (OSError, ValueError):
        return False


def _checked(
    text: str, file: str | None, function: str | None, first: str, last: str | None
) -> LineWord:
    if max(len(first), len(last or "")) > _MAX_DIGITS:
        raise UsageError(f"{quote(text)}: no file has so many lines")
    begin, end = int(first), int(last or first)
    if end < begin:
        raise UsageError(f"{quote(text)}: the last line comes before the first")
    return LineWord(text, file, function, begin, end)


def _file_called(table: LineTable, name: str) -> str:
    """Return the source file whose path ends so."""
    files = table.source_files()
    tail = name.removeprefix("./").replace("\\", "/")
    found = sorted(file for file in files if file == tail or file.endswith("/" + tail))
    if len(found) == 1 or tail in found:
        return tail if tail in found else found[0]
    where = printable(table.image.display)
    if found:
        shown = _listed(quote(short_name(file, files)) for file in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        raise UsageError(f"{quote(name)} is ambiguous: {where} has {shown}{more}: type more of it")
    base = tail.rpartition("/")[2]
    names = {file.rpartition("/")[2] for file in files}
    close = difflib.get_close_matches(base, names, _SHOWN)
    hint = f": did you mean {_listed(map(quote, close), 'or')}?" if close else ""
    raise NoMatchError(f"no code of a file {quote(name)} in {where}{hint}")


def short_name(file: str, files: Iterable[str]) -> str:
    """Return the shortest end of a path, in whole parts, that no other of some files has."""
    parts = file.split("/")
    others = [other for other in files if other != file]
    for length in range(1, len(parts)):
        end = "/".join(parts[-length:])
        if not any(other == end or other.endswith("/" + end) for other in others):
            return end
    return file


def _listed(words: Iterable[str], last: str = "and") -> str:
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end
