# SPDX-License-Identifier: Apache-2.0
"""Select functions from a binary's function table, and explain when there are none.

The explanation is the larger part: a name that was inlined away, written without its package, in
another case, without the parentheses of a pointer receiver or the brackets of a generic function,
or simply mistyped is the everyday failure of a tracer, and each has an answer in the table.
"""

from __future__ import annotations

import fnmatch
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import Protocol
from weakref import WeakKeyDictionary, WeakMethod

from gotrace.architecture import Architecture
from gotrace.elf.buildinfo import GoVersion
from gotrace.errors import NoMatchError, UsageError, said
from gotrace.gotypes.symbols import display_name, elide_type_arguments, package_of
from gotrace.probes.pattern import Match, NameList, Pattern
from gotrace.records import dataclass, field
from gotrace.sites.inlined import is_known
from gotrace.text import printable, quote

_SHOWN = 3  # suggestions, inlined places, patterns: as many as one line bears
_MAX_FUZZY = 200  # characters: longer names are pasted, not mistyped
_MAX_STARS = 3  # as a regular expression takes its time with more
_GRAMS = 20
_FINALISTS = 200  # names compared letter by letter
# Made by the compiler, but not in place of another function: their calls are calls of their own.
_TYPE_HELPERS = ("type:.", "type..")
_NO_POINTER = str.maketrans("", "", "(*)")
#: The compiler's suffix of a function's name, or of its receiver's, if it compiles that for
#: vectors of several sizes (cmd/compile/internal/midway/rewrite.go, Go 1.27).
_VARIANT = re.compile(r"@simd\d+")
_ALIKE_LAST = 0.6  # difflib's own idea of close, for a name's last component
_ALIKE = 0.7  # for the whole name


class _Image(Protocol):
    @property
    def display(self) -> str: ...
    @property
    def arch(self) -> Architecture: ...


class _Function(Protocol):
    @property
    def entry(self) -> int: ...
    @property
    def origin(self) -> Enum: ...


class _InlinedCall(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


class _InlinedCalls(Protocol):
    @property
    def names(self) -> Sequence[str]: ...
    def of(self, name: str, /) -> Iterator[_InlinedCall]: ...


class SymbolTable(Protocol):
    """The part of `gotrace.elf.functions.FunctionTable` that selection needs.

    The rows of one origin are in the order of their addresses.
    """

    @property
    def image(self) -> _Image: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def has_pclntab(self) -> bool: ...
    @property
    def is_go(self) -> bool: ...
    @property
    def go_version(self) -> GoVersion | None: ...
    def function(self, row: int, /) -> _Function: ...
    def rows_named(self, name: str, /) -> list[int]: ...
    def is_wrapper(self, row: int, /) -> bool: ...
    def inlined_by_name(self) -> _InlinedCalls | None: ...
    def inlined_into(self, row: int, /) -> Collection[str]: ...


_NAMES: WeakKeyDictionary[SymbolTable, NameList] = WeakKeyDictionary()
_INLINED: WeakKeyDictionary[SymbolTable, NameList] = WeakKeyDictionary()


def _names_of(table: SymbolTable) -> NameList:
    """Return the names of a table, which many selectors may look at."""
    if (names := _NAMES.get(table)) is None:
        weak = WeakMethod(table.rows_named)  # or the table would be kept by what is made of it

        def find(name: str) -> list[int]:
            method = weak()
            assert method is not None
            return method(name)

        names = _NAMES[table] = NameList(table.names, gccgo=not table.has_pclntab, find=find)
    return names


def _inlined_names_of(table: SymbolTable) -> NameList:
    """Return the names of all functions that are inlined anywhere in a program."""
    if (names := _INLINED.get(table)) is None:
        calls = table.inlined_by_name()
        names = _INLINED[table] = NameList(sorted(calls.names) if calls else [])
    return names


class InlinedScope(Enum):
    """The functions whose inlined calls are seen."""

    NONE = "none"
    NAMED = "those whose names are spelled out"
    MATCHED = "all that patterns match"


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected rows, by address.

    ``unmatched`` has a line of explanation for each pattern that matched nothing while others did.
    ``stand_ins`` are those of ``rows`` that are selected for a method that is inlined there, and
    the method's name. ``inlined`` are the names of functions whose inlined calls are seen.
    """

    rows: list[int]
    unmatched: tuple[str, ...] = ()
    stand_ins: Mapping[int, str] = field(default_factory=dict)
    inlined: frozenset[str] = frozenset()


class Selector:
    """The functions that any of the patterns matches and none of the excludes does.

    A wrapper (an autogenerated method wrapper, or the wrapper of two functions of one name) is
    selected where a pattern spells out its name and nothing but wrappers bears it, and where a
    method that is meant has been inlined into it: calls of the one are calls of the other.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        excludes: Iterable[str] = (),
        *,
        regex: bool = False,
        unless: str | None = None,
    ) -> None:
        """Prepare patterns and excludes, all of one syntax; raises UsageError for a bad one.

        Nothing is selected in a program that has the function ``unless``.
        """
        self.unless = unless
        self.patterns = [Pattern(text, regex=regex) for text in patterns]
        self.excludes = [Pattern(text, regex=regex) for text in excludes]

    def only(self, patterns: Iterable[Pattern]) -> Selector:
        """Return a selector of some of the patterns, with the same excludes."""
        chosen = Selector((), unless=self.unless)
        chosen.patterns, chosen.excludes = list(patterns), self.excludes
        return chosen

    def select(
        self,
        table: SymbolTable,
        *,
        verb: str = "count",
        inlined: InlinedScope = InlinedScope.NONE,
    ) -> Selection:
        """Select rows of the table; ``verb`` is what the user wants done to them, for messages.

        Without it nothing is explained, which takes longer than to select.
        ``inlined`` says of which functions also inlined calls are selected.

        Raises NoMatchError, with the nearest names, when there is nothing to select; UsageError
        where a pattern leaves out the beginning of import paths, and fits several packages.
        """
        names = _names_of(table)
        if self.unless is not None and self.unless in table.names:
            where = printable(table.image.display)
            raise NoMatchError(f"{quote(self.unless)} in {where} has the calls")
        chosen: set[int] = set()
        unmatched = []
        stand_ins: dict[int, str] = {}
        seen_inlined: set[str] = set()
        for pattern in self.patterns:
            match = self._matched(table, names, pattern)
            kept, skipped = _split_wrappers(table, match)
            chosen.update(kept)
            found = dict(self._stand_ins(table, names, pattern, match, skipped))
            stand_ins.update(found)
            places = self._inlined(table, pattern, kept, inlined)
            seen_inlined |= places
            if not kept and not found and not places:
                why = (
                    _Explanation(table, names, pattern, verb).text(skipped, inlined) if verb else ""
                )
                unmatched.append(why)
        stand_ins = {row: name for row, name in stand_ins.items() if row not in chosen}
        chosen.update(stand_ins)
        if not chosen and seen_inlined:
            return Selection([], tuple(unmatched), {}, frozenset(seen_inlined))
        if not chosen:
            raise NoMatchError("; ".join(unmatched[:_SHOWN]))
        matches = (self._matched(table, names, pattern) for pattern in self.excludes)
        excluded = {row for match in matches for row in match.rows} & chosen
        if excluded == chosen:
            texts = [said("-x ", "exclude ") + quote(pattern.text) for pattern in self.excludes]
            by = _listed(texts, "and")
            raise NoMatchError(
                f"nothing is left to {verb}: {by} excludes all {len(chosen):,} matching functions"
            )
        rows = _by_address(table, sorted(chosen - excluded))
        stand_ins = {row: stand_ins[row] for row in rows if row in stand_ins}
        return Selection(rows, tuple(unmatched), stand_ins, frozenset(seen_inlined))

    def _inlined(
        self,
        table: SymbolTable,
        pattern: Pattern,
        kept: Sequence[int],
        scope: InlinedScope,
    ) -> set[str]:
        """Return the functions that a pattern means and whose inlined calls are selected.

        ``kept`` are its rows.
        """
        if not pattern.has_wildcard and kept and scope is not InlinedScope.NONE:
            return {table.names[row] for row in kept}
        least = InlinedScope.MATCHED if pattern.has_wildcard else InlinedScope.NAMED
        if scope not in (least, InlinedScope.MATCHED):
            return set()
        found = _inlined_names_of(table)
        match = pattern.match(found)
        heads = pattern.match(_names_of(table)).heads if kept else match.heads[:1]
        if match.heads and match.heads != heads:
            return set()
        excluded = {row for each in self.excludes for row in each.match(found).rows}
        return {found.names[row] for row in match.rows if row not in excluded}

    def spells(self, name: str) -> bool:
        """Return whether a pattern without a wildcard matches a name."""
        spelled = NameList([name])
        return any(
            pattern.match(spelled).rows for pattern in self.patterns if not pattern.has_wildcard
        )

    def _stand_ins(
        self,
        table: SymbolTable,
        names: NameList,
        pattern: Pattern,
        match: Match,
        skipped: Sequence[int],
    ) -> Iterator[tuple[int, str]]:
        """Yield the wrappers that have a method inlined which a pattern means, and its name."""
        rows = set(skipped)
        if not pattern.expression and not pattern.has_wildcard:
            meant = {table.names[row] for row in match.rows} or {pattern.text}
            for name in chain.from_iterable(map(_wrappers_of, meant)):
                rows.update(Pattern(name).match(names).rows)

        inlined = {row: table.inlined_into(row) for row in sorted(rows) if table.is_wrapper(row)}
        found = set(chain.from_iterable(inlined.values()))
        found = _meant(pattern, match.heads, found)
        for exclude in self.excludes:
            found -= _meant(exclude, match.heads, found)
        for row, calls in inlined.items():
            for name in found.intersection(calls):
                yield row, name

    def means(self, name: str) -> bool:
        """Return whether any of the patterns matches a name."""
        names = NameList([name])
        return any(pattern.match(names).rows for pattern in self.patterns)

    def only_inlined(self, table: SymbolTable, inlined: Iterable[str]) -> list[str]:
        """Return which functions, of those ``inlined``, are meant by patterns and are nowhere else.

        A pattern without a wildcard means one function, which it selects.
        """
        patterns = [pattern for pattern in self.patterns if pattern.has_wildcard]
        if not patterns:
            return []
        own = set(map(elide_type_arguments, table.names))
        others = {name for name in inlined if elide_type_arguments(name) not in own}
        found = NameList(sorted(others))
        selected = _names_of(table)

        def rows(pattern: Pattern) -> Iterable[int]:
            match = pattern.match(found)
            # If it leaves out the beginning of import paths, it must be the same one.
            is_same = not match.heads or match.heads == pattern.match(selected).heads
            return match.rows if is_same else ()

        chosen = {row for pattern in patterns for row in rows(pattern)}
        chosen -= {row for pattern in self.excludes for row in rows(pattern)}
        return [found.names[row] for row in sorted(chosen)]

    @staticmethod
    def _matched(table: SymbolTable, names: NameList, pattern: Pattern) -> Match:
        """Return a pattern's match; raise UsageError if it fits several packages."""
        match = pattern.match(names)
        if len(match.heads) > 1:
            where = printable(table.image.display)
            meant = _listed([quote(head + pattern.text) for head in match.heads], "and")
            raise UsageError(
                f"{quote(pattern.text)} is ambiguous: {where} has {meant}; give the package's path"
            )
        return match


def _meant(pattern: Pattern, heads: tuple[str, ...], names: set[str]) -> set[str]:
    """Return the names that a pattern means, if it leaves ``heads`` out of import paths or nothing.

    It is matched with each name alone if a match of one name may exclude another.
    """
    if pattern.has_wildcard and not heads:
        all_names = NameList(sorted(names))
        match = pattern.match(all_names)
        if not match.exact:
            return set() if match.heads else {all_names.names[row] for row in match.rows}

    def is_meant(name: str) -> bool:
        match = pattern.match(NameList([name]))
        return bool(match.rows) and match.heads in ((), heads)

    return set(filter(is_meant, names))


def _split_wrappers(table: SymbolTable, match: Match) -> tuple[list[int], list[int]]:
    names = table.names
    wrappers = {
        row
        for row in match.rows
        if table.is_wrapper(row) and not names[row].startswith(_TYPE_HELPERS)
    }
    if match.exact and len(wrappers) == len(match.rows):
        return match.rows, []
    return [row for row in match.rows if row not in wrappers], sorted(wrappers)


def _wrappers_of(name: str) -> list[str]:
    """Return the possible names of a method's wrappers: of its value, and of its pointer."""
    head, _, method = name.rpartition(".")
    package, _, receiver = head.rpartition(".")
    names = [f"{name}-fm"]
    if package and receiver.isidentifier():
        pointer = f"{package}.(*{receiver}).{method}"
        names += [pointer, f"{pointer}-fm"]
    return names


def _by_address(table: SymbolTable, rows: list[int]) -> list[int]:
    if table.function(rows[0]).origin is table.function(rows[-1]).origin:
        return rows
    return sorted(rows, key=lambda row: table.function(row).entry)


class _Explanation:
    """The reason why one pattern selects nothing, and patterns that would select something."""

    def __init__(self, table: SymbolTable, names: NameList, pattern: Pattern, verb: str) -> None:
        self.table = table
        self.names = names
        self.pattern = pattern
        self.verb = verb
        self.typed = pattern.text

    def text(self, wrappers: Sequence[int], inlined: InlinedScope) -> str:
        """Return the explanation in one line; ``wrappers`` are rows that match but are skipped.

        ``inlined`` says of which functions inlined calls are looked for.
        """
        where = printable(self.table.image.display)
        if not self.table.is_go:
            where += ", which is not a Go program"
        if wrappers:
            example = quote(self.names.all_spoken[wrappers[0]])
            return (
                f"{quote(self.typed)} matches only autogenerated wrappers in {where} "
                f"({len(wrappers):,}, such as {example}): give one's full name to {self.verb} it"
            )
        if text := self._inlined(inlined):
            return text
        if self.pattern.expression:
            problem = f"no function matches the regular expression {quote(self.typed)} in {where}"
            partly = next(filter(self.pattern.expression.search, self.names.all_spoken), None)
            if partly is None:
                return problem + self._how_many()
            return f"{problem}: it must match all of a name, not a part as in {quote(partly)}"
        problem = f"no function matches {quote(self.typed)} in {where}"
        names = self._like_the_glob() if self.pattern.has_wildcard else self._like_the_name()
        if not names:
            other = self._other_syntax() if self.table.is_go else ""
            return f"{problem}: {other}" if other else problem + self._how_many()
        suggestions = [quote(name) for name in names[:_SHOWN]]
        return f"{problem}: did you mean {_listed(suggestions, 'or')}?"

    def _how_many(self) -> str:
        shows = said("gofunccount -l shows", "functions('*') has")
        return f" (it has {len(self.names.names):,} in all: {shows} them)"

    def _other_syntax(self) -> str:
        """Return advice for words that match as a regular expression, a shell's pattern, a list.

        Only * is special in a pattern; commas and spaces are between the words of a command line.
        """
        if len(self.typed) > _MAX_FUZZY or self.typed.count("*") > _MAX_STARS:
            return ""
        words = re.split(r"[\s,;|]+", self.typed)
        found = [word for word in words if word and Pattern(word).match(self.names).rows]
        if found:
            return f"a pattern is one word: type {' '.join(map(quote, found[:_SHOWN]))}"
        braces = self.typed.translate(str.maketrans("{,}", "(|)"))
        shell = fnmatch.translate(self.typed).removeprefix("(?s:").rpartition(")")[0]
        for text in (self.typed, self.typed.strip("/"), braces, shell):
            with suppress(UsageError):
                if Pattern(text, regex=True).match(self.names).rows:
                    typed = said(f"-r {quote(text)}", f"{text!r} with regexp=True")
                    return f"only * is special in a pattern: for this type {typed}"
        return ""

    def _inlined(self, scope: InlinedScope) -> str:
        """Explain a function that exists only where it was inlined, or several such functions."""
        calls = self.table.inlined_by_name()
        if calls is None or not (names := self._inlined_names(_inlined_names_of(self.table))):
            return ""
        if len(names) > 1:
            shown = [printable(display_name(name)) for name in names[:_SHOWN]]
            return (
                f"no function matches {quote(self.typed)} in {printable(self.table.image.display)},"
                f" and {_listed(shown, 'and', len(names))} exist only inlined:"
                f" {self._advice(scope, '', '-gcflags=all=-l')}"
            )
        (name,) = names
        places = dict.fromkeys((c.caller, c.file, c.line) for c in calls.of(name))
        shown = [
            f"{printable(caller)} ({printable(file.rpartition('/')[2])}:{line})"
            for caller, file, line in list(places)[:_SHOWN]
        ]
        # Without a pattern of packages the flag reaches those on the command line only, and it is
        # the callers' packages whose compilation it has to reach (go help build).
        only_main = all(caller.startswith("main.") for caller, _, _ in places)
        flag = "-gcflags=-l" if only_main else "-gcflags=all=-l"
        return (
            f"{printable(display_name(name))} is inlined into"
            f" {_listed(shown, 'and', len(places))}:"
            f" {self._advice(scope, display_name(name), flag)}"
        )

    def _advice(self, scope: InlinedScope, name: str, flag: str) -> str:
        """Return advice for a function that exists only inlined, or without a name for several."""
        it, its = ("it", "its") if name else ("them", "their")
        match = self.pattern.match(_inlined_names_of(self.table))
        # --inlined does not help a name that is spelled otherwise, or that fits several packages.
        is_matched = self.pattern.has_wildcard and bool(match.rows) and len(match.heads) <= 1
        if scope is not InlinedScope.NONE:
            is_count = self.verb == "count"
            if is_count and not name and is_matched and scope is InlinedScope.NAMED:
                return f"{said('--inlined', 'inlined=True')} counts them"
            return f"type {quote(name) if name else 'the whole name of one'} to {self.verb} it"
        build = f"build with {flag} to {self.verb} {it}"
        if not is_known(self.table.go_version, self.table.image.arch):
            return build
        without = said(" without --by", " without by") if self.verb == "count" else ""
        if name:
            typed = said(f"gofunccount {quote(name)}", f"count({name!r})")
        elif is_matched:
            typed = said(f"gofunccount --inlined {quote(self.typed)}", "count(inlined=True)")
        else:
            one = f"the calls of one by its whole name{without}"
            return f"{said('gofunccount', 'count()')} counts {one}, or {build}"
        return f"{typed}{without} counts {its} calls where that is exact, or {build}"

    def _inlined_names(self, names: NameList) -> list[str]:
        """Return those of ``names`` that are meant: by the pattern, else by another spelling.

        A function that exists comes before an inlined one of another spelling.
        """
        rows = self.pattern.match(names).rows
        if not rows and not self.pattern.expression:
            spoken, typed = names.all_spoken, self.typed.translate(_NO_POINTER)

            def has_case(name: str) -> bool:
                return name.translate(_NO_POINTER).endswith(typed)

            if not any(has_case(self.names.all_spoken[row]) for row in self._respelled(self.keys)):
                spoken = names.all_spoken
                rows = [
                    row for row in self._respelled(list(map(_key, spoken))) if has_case(spoken[row])
                ]
        found = [names.names[row] for row in rows]
        return [name for name in found if name == f"main.{self.typed}"] or found

    @cached_property
    def keys(self) -> list[str]:
        """Return each row's name as `_key` folds it."""
        return list(map(_key, self.names.all_spoken))

    def _respelled(self, keys: Sequence[str]) -> list[int]:
        """Find rows that are the typed name but for package, case, parentheses and brackets."""
        wanted = _key(self.typed)
        if not wanted:
            return []
        tails = ("." + wanted, "/" + wanted)
        return [row for row, key in enumerate(keys) if key == wanted or key.endswith(tails)]

    def _like_the_name(self) -> list[str]:
        """Return names that may have been meant by one without a wildcard, the likeliest first."""
        spoken = self.names.all_spoken
        wanted = _key(self.typed)

        def rank(row: int) -> tuple[bool, bool, bool, bool, int, str]:
            name = spoken[row]
            is_function = name == f"{self._package(row)}.{self.typed}"
            has_case = name.endswith(self.typed)
            is_alien = not name.startswith("main.")
            other = self.keys[row] != wanted
            return not is_function, other, not has_case, is_alien, len(name), name

        rows = sorted(self._respelled(self.keys), key=rank)
        if not rows and self._is_package():
            return [f"{self.typed}.*"]
        rows = rows or self._methods_of_package() or _similar(wanted, self.keys)
        rows = rows or self._in_other_packages()
        rows.sort(key=self.table.is_wrapper)
        names = [spoken[row] for row in rows]
        if "[" not in self.typed.replace("[...]", ""):
            names = list(map(elide_type_arguments, names))
        if "@" not in self.typed:
            names = [_VARIANT.sub("@*", name) for name in names]
        names = list(dict.fromkeys(names or self._inlined_elsewhere()))[:_SHOWN]
        if self._is_package():
            names[_SHOWN - 1 :] = [f"{self.typed}.*"]
        return names

    def _methods_of_package(self) -> list[int]:
        """Return the methods of a name whose type was left out: of http.ServeHTTP."""
        package = package_of(self.typed)
        last = "." + _key(self.typed.removeprefix(package).lstrip("."))
        rows = [row for row, key in enumerate(self.keys) if key.endswith(last)] if package else []
        paths = ((row, self._package(row)) for row in rows if last.count(".") == 1)
        found = [row for row, path in paths if path == package or path.endswith(f"/{package}")]
        return sorted(found, key=lambda row: len(self.keys[row]))

    def _in_other_packages(self) -> list[int]:
        wanted = "." + _key(self.typed.removeprefix(package_of(self.typed)).lstrip("."))
        rows = [row for row, key in enumerate(self.keys) if key.endswith(wanted)]
        return [row for row in rows if _key(self._package(row)) + wanted == self.keys[row]]

    def _inlined_elsewhere(self) -> list[str]:
        """Return functions of other packages with the typed name that exist only inlined."""
        wanted = "." + _key(self.typed.removeprefix(package_of(self.typed)).lstrip("."))
        names = _inlined_names_of(self.table).names
        return [name for name in names if _key(name) == _key(package_of(name)) + wanted]

    def _package(self, row: int) -> str:
        names = self.names.all_spoken if self.names.gccgo else self.names.names
        return package_of(names[row])

    def _is_package(self) -> bool:
        """Return whether a package is typed, or the end of its path."""
        ends = (self.typed, f"/{self.typed}")
        paths = (self._package(row) for row in range(len(self.names.names)))
        return any(path == ends[0] or path.endswith(ends[1]) for path in paths)

    def _like_the_glob(self) -> list[str]:
        """Return names that a glob misses by case or parentheses, else globs that match some."""
        lowered = NameList([name.lower() for name in self.names.all_spoken])
        rows = self._respelled(self.keys) or Pattern(self.typed.lower()).match(lowered).rows
        if rows:
            return list(dict.fromkeys(self.names.all_spoken[row] for row in rows))
        package = package_of(self.typed)
        globs = [f"*.{self.typed}", f"*/{self.typed}"]
        if package:
            globs = [
                path + self.typed.removeprefix(package) for path in self._packages_near(package)
            ]
        return [glob for glob in globs if Pattern(glob).match(self.names).rows]

    def _packages_near(self, package: str) -> list[str]:
        import difflib

        paths = sorted(filter(None, set(map(self._package, range(len(self.names.names))))))
        last = package.rpartition("/")[2]
        last_elements = {path.rpartition("/")[2] for path in paths}
        alike = difflib.get_close_matches(last, last_elements, _SHOWN)
        near = [path for path in paths if path.endswith("/" + package)]
        near += difflib.get_close_matches(package, paths, _SHOWN)
        near += [path for name in alike for path in paths if path.endswith("/" + name)]
        return list(dict.fromkeys(near))


def _key(name: str) -> str:
    """Remove the parts of a name that people leave out: case, parentheses, stars, types."""
    if "[" in name:
        name = elide_type_arguments(name).replace("[...]", "")
    if "*" in name or "(" in name:
        name = name.translate(_NO_POINTER)
    if "@" in name:
        name = _VARIANT.sub("", name)
    return name.lower().removesuffix(".abi0")


def _similar(wanted: str, keys: Sequence[str]) -> list[int]:
    """Find rows whose key is close to the wanted one, the closest first.

    Common three-letter pieces, import path left out, choose the few that difflib then compares: it
    would take seconds for a whole binary.
    """
    import difflib

    local = wanted.rpartition("/")[2]
    tail = local.rpartition(".")[2]
    grams = list(dict.fromkeys(local[at : at + 3] for at in range(len(local) - 2)))
    if len(wanted) > _MAX_FUZZY:
        return []
    shared: Counter[int] = Counter()
    for gram in grams[:: len(grams) // _GRAMS + 1]:
        shared.update([row for row, key in enumerate(keys) if gram in key])

    def closeness(row: int) -> tuple[int, int]:
        return shared[row], -abs(len(keys[row]) - len(wanted))

    scores = {}
    whole, last = difflib.SequenceMatcher(b=wanted), difflib.SequenceMatcher(b=tail)
    for row in heapq.nlargest(_FINALISTS, shared, key=closeness):
        whole.set_seq1(keys[row][: 2 * _MAX_FUZZY])
        last.set_seq1(keys[row].rpartition(".")[2][:_MAX_FUZZY])
        scores[row] = last.ratio() + whole.ratio()
        if last.ratio() < _ALIKE_LAST or (tail != wanted and whole.ratio() < _ALIKE):
            del scores[row]
    return sorted(scores, key=lambda row: -scores[row])


def _listed(items: Sequence[str], conjunction: str, total: int = 0) -> str:
    """Join items as in a sentence; a larger total than shown ends in "and N more"."""
    if total > len(items):
        items = [*items, f"{total - len(items):,} more"]
    *first, last = items
    return f"{', '.join(first)} {conjunction} {last}" if first else last
