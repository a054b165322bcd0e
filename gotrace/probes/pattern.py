# SPDX-License-Identifier: Apache-2.0
"""Match functions by the user's words: `[BINARY:]PATTERN`, exact names, globs, expressions.

A pattern is first of all a name: where a function is called exactly that, it is meant and nothing
else. Otherwise only ``*`` is special (any run of characters, dots and slashes included), and not
even that where Go itself writes it: a ``*`` right after ``(`` and before an identifier is the
literal star of a pointer receiver, so that ``main.(*T).*`` means the methods of ``*T`` alone
(``main.(*).*``: those of every pointer; ``main.(**Server).*``: of every pointer to a type whose
name ends so).

A name or pattern that matches nothing so is one whose package is written by the end of its import
path: ``etcdserver.(*EtcdServer).Put``, ``server/etcdserver.*``.
"""

from __future__ import annotations

import os.path
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gotrace.errors import UsageError, said
from gotrace.gotypes.symbols import display_name, elide_type_arguments
from gotrace.records import dataclass
from gotrace.text import quote

_PATH_MAX = 4096  # limits.h: no file name is longer
# Symbols with a colon that the compiler makes: their first word is not a file's name.
_COMPILER_SYMBOL = re.compile(r"type:\.|go:\(?\*?struct\b")
_LIKE_A_FILE = re.compile(r"[\w./+@%,=~-]+")
_TYPE_HELPER = re.compile(r"type(?:\.|:)\.")
_PATH = re.compile(r"(?!type\.\.)[^][():{}\s]*")
_WILDCARD = re.compile(r"(?<!\()\*|\*(?!\w)")

QUOTES = '"`'
CLOSING = {"(": ")", "[": "]", "{": "}"}


class NoFileError(UsageError):
    """A file before a pattern that is not there."""

    def __init__(self, file: str, pattern: str) -> None:
        text = quote(f"{file}:{pattern}")
        super().__init__(
            f"no file {quote(file)} (given in {text})"
            if "/" in file
            else f"no file {quote(file)} here or on PATH, and no program of this name is traced"
            f" (given in {text}): type its path, or"
            f" {said(f'-p PROCESS {quote(pattern)}', 'attach to its process')}"
        )
        self.file = file
        self.pattern = pattern


def is_recipe(text: str) -> bool:
    """Return whether a user means a recipe: ``@name``, after a binary and a colon or alone."""
    return text.startswith("@") or ":@" in text.split(" ", 1)[0]


def closing(text: str, at: int) -> int:
    """Return where the bracket at an index is closed, -1 when it is not; quotes are passed over."""
    open_brackets = [text[at]]
    at += 1
    while at < len(text):
        character = text[at]
        if character in QUOTES:
            at = _quote_end(text, at)
            continue
        if character in CLOSING:
            open_brackets.append(character)
        elif character in CLOSING.values():
            if CLOSING[open_brackets.pop()] != character:
                return -1
            if not open_brackets:
                return at
        at += 1
    return -1


def _quote_end(text: str, at: int) -> int:
    """Return the index after a quoted string that begins at an index."""
    mark = text[at]
    at += 1
    while at < len(text) and text[at] != mark:
        at += 2 if text[at] == "\\" and mark == '"' else 1
    return at + 1


def whole_probes(words: Iterable[str], *, regexp: bool = False) -> list[str]:
    """Return the probes of a command line: predicates and formats go with the word before them.

    A word that one pair of parentheses encloses is a predicate (if ``regexp``, it is a pattern),
    and one that begins with a double quote or a back quote is a format. ``(*Store).Get`` goes on
    after its parenthesis, so it is a pattern. Raises UsageError where no function comes before.

    >>> whole_probes(["main.serve", "(status == 999)", "main.f"])
    ['main.serve (status == 999)', 'main.f']
    """
    probes: list[str] = []
    for word in words:
        text = word.strip()
        is_predicate = text.startswith("(") and closing(text, 0) == len(text) - 1
        if text[:1] and text[:1] in QUOTES:
            kind = "format"
        elif is_predicate and not regexp:
            kind = "predicate"
        else:
            probes.append(word)
            continue
        if not probes:
            raise UsageError(
                f"{quote(word)} is a {kind}: give the function before it, as in"
                f" {quote(f'main.serve {word}')}"
            )
        probes[-1] = f"{probes[-1]} {word}"
    return probes


def split_target(
    text: str,
    exists: Callable[[str], bool] = os.path.isfile,
    which: Callable[[str], str | None] = shutil.which,
) -> tuple[str | None, str]:
    """Split `[BINARY:]PATTERN` into the binary's path (None when not given) and the pattern.

    Both parts may hold colons. The binary is the longest text up to some colon that ``exists``
    calls a regular file, else the longest that ``which`` finds, on PATH and among programs that
    are traced.

    Raises UsageError when the text begins like a path to a file that is not there, or when one of
    the two parts is missing.
    """
    colons = [at for at, char in enumerate(text[:_PATH_MAX]) if char == ":"]
    heads = [text[:at] for at in reversed(colons) if at]
    if not _COMPILER_SYMBOL.match(text.replace("\\", "")):  # -r patterns escape the dot
        for head in heads:
            if exists(head):
                return head, _pattern_after(head, text)
        for head in heads:
            if path := which(head):
                return path, _pattern_after(head, text)
    if not text or text.startswith(":"):
        raise UsageError(f"no function pattern in {quote(text)}: expected [BINARY:]PATTERN")
    if "/" in text and exists(text):
        raise UsageError(f"{quote(text)} is a file: say what to match in it, {_example(text)}")
    if heads and _names_a_file(heads[-1]):
        head = heads[-1]
        if advice := _of_other_tools(head, text[len(head) + 1 :]):
            raise UsageError(advice)
        raise NoFileError(head, text[len(head) + 1 :])
    return None, text


#: How other tools begin probes of functions of programs, and of anything else.
_OF_FUNCTIONS = frozenset(("p", "r", "u", "ur", "uprobe", "uretprobe"))
_OF_OTHERS = frozenset(
    (
        *("c", "pthread", "t", "tracepoint", "rawtracepoint", "k", "kprobe", "kr", "kretprobe"),
        *("kfunc", "kretfunc", "fentry", "fexit", "usdt", "interval", "profile", "software"),
    )
)


#: Lines as editors and debuggers have them.
_LINES_SIGN = re.compile(r"[L+]")
_LINES = re.compile(r"[L+]*\d+(?:-[L+]*\d+)?")


def _of_other_tools(head: str, rest: str) -> str:
    """Return advice for a probe in the syntax of other tools, "" for others."""
    if head in _OF_FUNCTIONS:
        probe = re.sub(r"\s*[{/] .*|\s*\{.*", "", rest.lstrip(":"))
        found = re.fullmatch(r'([^"]*)"([^"]*)"', probe)
        probe = "".join(found.groups()) if found and ":" in found[1] else probe
        return f"'{head}:' is left out, as calls have entry and return: type {quote(probe)}"
    if head in _OF_OTHERS:
        return (
            f"{quote(f'{head}:{rest}')} is not of a Go program, and these tools trace such only:"
            " use bpftrace or bcc"
        )
    if head.endswith(".go") and rest.isdecimal():
        return (
            f"{quote(f'{head}:{rest}')} is a line: {said('gofunccount', 'count()')} takes it;"
            " else give the function that it is in; "
            + said("--list shows", "functions() has")
            + " where functions begin, as in "
            + said("--list 'main.*'", "functions('main.*')")
        )
    if head.endswith(".go") and _LINES.fullmatch(rest):
        return f"for lines of {quote(head)} type {quote(head + ':' + _LINES_SIGN.sub('', rest))}"
    if rest.isdecimal() and "." in head and "/" not in head and ".so" not in head:
        return (
            f"{quote(f'{head}:{rest}')} is not a line: type FILE.go:{rest}, or"
            f" {quote(f'{head}:+{rest}')} for one counted from that of func"
        )
    name = rest.lstrip(":")
    if head.isidentifier() and name.isidentifier():
        return (
            f"no file {quote(head)} here or on PATH: if a function is meant, type"
            f" {quote(f'{head}.{name}')}"
        )
    return ""


def _pattern_after(head: str, text: str) -> str:
    if len(text) == len(head) + 1:
        raise UsageError(f"no function pattern after {quote(text)}: add one, {_example(head)}")
    return text[len(head) + 1 :]


def _example(binary: str) -> str:
    return f"as in {quote(binary + ':main.*')}"


def _names_a_file(head: str) -> bool:
    """Return whether the text before the first colon cannot be the beginning of a pattern."""
    if head.startswith(("/", "./", "../")):
        return True
    return head not in ("go", "type") and _LIKE_A_FILE.fullmatch(head) is not None


#: Names that are looked for one by one.
_FEW = 3


class NameList:
    """A binary's function names by row, with the other spellings that people use.

    ``spoken`` and ``elided`` list (row, spelling) only for rows where that differs from the symbol:
    import path escapes resolved (``yaml%2ev3`` is ``yaml.v3``; with ``gccgo`` its mangling), and
    type arguments written ``[...]`` as Go's tracebacks do.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        gccgo: bool = False,
        find: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Take the names by row; ``gccgo`` says whose they are, ``find`` has an index of them."""
        self.names = names
        self.gccgo = gccgo
        self._find = find or (lambda name: self._index.get(name, []))
        self._asked = 0

    def rows(self, text: str) -> list[int]:
        """Return the rows of a name as it is, or of one in another spelling."""
        self._asked += 1
        if self._asked > _FEW:  # to index names takes as long as to look for a few
            return self._find(text) or [row for row, name in self.spoken if name == text]
        for spellings in (enumerate(self.names), self.spoken):
            if rows := [row for row, name in spellings if name == text]:
                return rows
        return []

    @cached_property
    def _index(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row, name in enumerate(self.names):
            found.setdefault(name, []).append(row)
        return found

    @cached_property
    def text(self) -> str:
        """Return all names and other spellings, but those with type arguments elided."""
        return "\n".join([*self.names, *(name for _, name in self.spoken)])

    @cached_property
    def spoken(self) -> list[tuple[int, str]]:
        """Return the rows whose symbol a Go programmer would write differently."""
        mark = "_" if self.gccgo else "%"
        rows = [(row, name) for row, name in enumerate(self.names) if mark in name]
        spoken = [(row, name, display_name(name, gccgo=self.gccgo)) for row, name in rows]
        return [(row, new) for row, old, new in spoken if new != old]

    @cached_property
    def elided(self) -> list[tuple[int, str]]:
        """Return the rows that have type arguments."""
        spoken = dict(self.spoken)
        rows = [(row, name) for row, name in enumerate(self.names) if "[" in name]
        return [(row, elide_type_arguments(spoken.get(row, name))) for row, name in rows]

    @cached_property
    def all_spoken(self) -> list[str]:
        """Return every row's display name."""
        names = list(self.names)
        for row, name in self.spoken:
            names[row] = name
        return names


@dataclass(frozen=True, slots=True)
class Match:
    """The rows that a pattern matches, ascending, and whether it names them exactly.

    ``heads`` is what the pattern leaves out of the rows' import paths, each once: ``"net/"`` where
    ``http.Get`` means ``net/http.Get``; none where it is matched as it is.
    """

    rows: list[int]
    exact: bool
    heads: tuple[str, ...] = ()


_Filter = Callable[[Iterable[tuple[int, str]]], list[int]]


class Pattern:
    """Match names against one pattern: exact or with ``*``, or a regular expression in full."""

    def __init__(self, text: str, *, regex: bool = False) -> None:
        """Prepare the pattern; raises UsageError for a bad regular expression, with its place."""
        self.text = text
        self.expression = _compiled(text) if regex else None
        self._pieces = [] if regex else _WILDCARD.split(text)
        if self.expression is None:
            self._filter = _glob_filter(self._pieces)
        else:
            self._filter = _regex_filter(self.expression)

    @property
    def has_wildcard(self) -> bool:
        """Return whether the pattern may match more than one name."""
        return self.expression is not None or len(self._pieces) > 1

    def match(self, names: NameList) -> Match:
        """Find the rows that the pattern means.

        A name that is exactly the pattern's text comes first, then one that is so in another
        spelling (see NameList), then the wildcards, then names whose import path goes on before
        it. Only a pattern with ``[...]`` in it is held against names with their type arguments
        elided.
        """
        if self.expression is None:
            elided = names.elided if self._is_elided else ()
            rows = names.rows(self.text) or [row for row, name in elided if name == self.text]
            if rows:
                return Match(rows, exact=True)
        matching: set[int] = set()
        if self.has_wildcard:
            for spellings in self._spellings(names):
                matching.update(self._filter(spellings))
        return Match(sorted(matching), exact=False) if matching else self._match_end(names)

    def _match_end(self, names: NameList) -> Match:
        """Find the rows whose names are matched but for the beginning of their import path."""
        start = self._pieces[0] if self._pieces else ""
        if "." not in start or _TYPE_HELPER.match(start):
            return Match([], exact=False)
        found: dict[int, str] = {}
        if not self._is_elided and "/" + start not in names.text:
            return Match([], exact=not self.has_wildcard)
        for spellings in self._spellings(names):
            for row, name in spellings:
                at = name.find("/" + start) + 1
                if at and _PATH.fullmatch(name, 0, at) and self._filter([(row, name[at:])]):
                    found.setdefault(row, name[:at])
        heads = tuple(sorted(set(found.values())))
        return Match(sorted(found), not self.has_wildcard, heads)

    def _spellings(self, names: NameList) -> Iterable[Iterable[tuple[int, str]]]:
        yield enumerate(names.names)
        yield names.spoken
        if self._is_elided:
            yield names.elided

    @property
    def _is_elided(self) -> bool:
        return "[...]" in self.text and self.expression is None


def _compiled(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():  # Python's advice on its own future syntax
            warnings.simplefilter("ignore")
            return re.compile(text)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}"
        hint = f"; without {said('-r', 'regexp=True')} only '*' is special" if "*" in text else ""
        raise UsageError(f"bad regular expression {quote(text)}: {error.msg}{at}{hint}") from error
    except (OverflowError, RecursionError) as error:
        raise UsageError(f"regular expression too large or too deep: {quote(text[:60])}") from error


def _regex_filter(expression: re.Pattern[str]) -> _Filter:
    fullmatch = expression.fullmatch
    return lambda names: [row for row, name in names if fullmatch(name)]


def _glob_filter(pieces: Sequence[str]) -> _Filter:
    """Match literal pieces in order, the first and last at the ends: linear, unlike a regex."""
    if len(pieces) == 1:
        return lambda names: [row for row, name in names if name == pieces[0]]
    first, *middle, last = pieces
    rarest = max(middle, key=len, default="")
    shortest = len(first) + len(last)

    def in_order(name: str) -> bool:
        at, end = len(first), len(name) - len(last)
        for piece in middle:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    def matching(names: Iterable[tuple[int, str]]) -> list[int]:
        rows = [(row, name) for row, name in names if rarest in name] if rarest else names
        return [
            row
            for row, name in rows
            if name.startswith(first)
            and name.endswith(last)
            and len(name) >= shortest
            and (not middle or in_order(name))
        ]

    return matching
