# SPDX-License-Identifier: Apache-2.0
"""The names that a probe's expressions may use, and the meaning of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum

from gotrace.gotypes.contexts import CONTEXT
from gotrace.gotypes.symbols import display_name, short_name
from gotrace.gotypes.types import GoType, Kind, OpaqueType, Parameter, Signature, basic_type
from gotrace.probes.parser import LABEL, SPAN_NAMES
from gotrace.records import dataclass


class Phase(Enum):
    """When a value is available: at the call's entry, or only at its return."""

    ENTRY = "entry"
    RETURN = "return"


class RootKind(Enum):
    """The meaning of a name in the traced function."""

    PARAMETER = "parameter"
    RESULT = "result"
    CAPTURED = "captured variable"  # of a closure
    EXIT = "parameter, at the return"  # what it leads to then; itself it is as at the entry
    SAVED = "parameter, for the return"  # its bytes, no value of its own
    DICTIONARY = "dictionary of a generic function's instance"
    LABEL = "label"  # a pprof label of the goroutine: the name is its key


@dataclass(frozen=True, slots=True)
class Root:
    """A parameter, result or captured variable: ``index`` from 0 in the signature, receiver first.

    Results are there on return only; ``name`` is what messages call it.
    """

    kind: RootKind
    index: int
    name: str

    @property
    def phase(self) -> Phase:
        """Return when the value is available."""
        is_late = self.kind in (RootKind.RESULT, RootKind.EXIT)
        return Phase.RETURN if is_late else Phase.ENTRY


class SpecialName(Enum):
    """Values that every call has; they are written with a dollar sign before them."""

    GOID = "goid"
    PID = "pid"
    TID = "tid"
    COMM = "comm"
    DURATION = "duration"
    PANICKED = "panicked"
    FUNC = "func"
    CALLER = "caller"
    STACK = "stack"
    RUNNING = "running"
    RUNNABLE = "runnable"
    BLOCKED = "blocked"
    SYSCALL = "syscall"
    GC = "gc"
    PREEMPTED = "preempted"
    THROTTLED = "throttled"


#: The parts of a call's time, in the order of enum why_class in bpf/why.h.
PART_SPECIALS = (
    SpecialName.RUNNING,
    SpecialName.RUNNABLE,
    SpecialName.BLOCKED,
    SpecialName.SYSCALL,
    SpecialName.GC,
    SpecialName.PREEMPTED,
    SpecialName.THROTTLED,
)
#: Those that are durations.
DURATION_SPECIALS = frozenset({SpecialName.DURATION, *PART_SPECIALS})
#: Those that are known when the call has ended.
LATE_SPECIALS = DURATION_SPECIALS | {SpecialName.PANICKED}


#: Bytes of a label's key: as many as of the constants that the kernel compares with.
MAX_LABEL_KEY = 64
#: A type that has a context in its field ctx.
REQUEST = "net/http.Request"
#: The name of the type of ``$stack``.
STACK_TYPE = "stack"
_INT = basic_type(Kind.INT)
_STRING = basic_type(Kind.STRING)

#: The types that specials have in expressions; identifiers are int so that programs' own compare.
SPECIAL_TYPES: dict[SpecialName, GoType] = {
    SpecialName.GOID: _INT,
    SpecialName.PID: _INT,
    SpecialName.TID: _INT,
    SpecialName.COMM: _STRING,
    SpecialName.FUNC: _STRING,
    **dict.fromkeys(DURATION_SPECIALS, basic_type(Kind.INT64, "time.Duration")),
    SpecialName.PANICKED: basic_type(Kind.BOOL),
    SpecialName.CALLER: _STRING,
    SpecialName.STACK: OpaqueType(STACK_TYPE, Kind.INVALID, 0, 1),
}

_ARGUMENT = re.compile(r"arg([0-9]{1,3})", re.ASCII)
_RESULT = re.compile(r"ret([0-9]{0,3})", re.ASCII)
_SHOWN = 12
_ERROR = "err"


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that one function's probe can use.

    ``captured`` are the variables that a closure captured. Parameters come before results and
    both before captured variables where names are the same. ``arg1`` is the first parameter (a
    method's receiver), ``$ret1`` and ``$ret`` the first result, ``$ret2`` the second, ``$err`` the
    last one that is an error. ``types`` finds a type by what the user wrote, and whether interfaces
    hold its values themselves, not pointers to them; it raises SignatureError. ``spans`` returns
    why contexts hold no spans in this program, None where they may. Of ``unordered`` kinds the
    numbers are not known. ``labels`` returns why labels of goroutines cannot be read, None where
    they can. ``hashes`` returns those by which types of a name are distinguished, none where the
    program has no such type; it raises SignatureError. ``declared`` returns the names of its types.
    ``notes`` takes what the user is to know; None if nobody has typed the probe. ``recipes`` finds
    those that describe a function, if nothing else does. ``replaced`` are a recipe's own names:
    their expressions are in their place, and users may type them.
    """

    function: str
    signature: Signature
    captured: tuple[Parameter, ...] = ()
    types: Callable[[str], tuple[GoType, bool]] | None = None
    spans: Callable[[], str | None] | None = None
    unordered: frozenset[RootKind] = frozenset()
    labels: Callable[[], str | None] | None = None
    hashes: Callable[[str], Collection[int]] | None = None
    declared: Callable[[], Iterable[str]] = tuple
    notes: dict[str, str] | None = None
    recipes: Callable[[str], Sequence[str]] | None = None
    replaced: tuple[str, ...] = ()

    def named(self, name: str) -> tuple[Root, GoType] | None:
        """Find the meaning of a plain name, None if it means nothing here."""
        for kind, parameters in self._groups():
            for index, parameter in enumerate(parameters):
                if parameter.name == name and name != "_":
                    return Root(kind, index, name), parameter.type
        match = _ARGUMENT.fullmatch(name)
        return self._numbered(RootKind.PARAMETER, name, match[1]) if match else None

    def context(self) -> tuple[Root, GoType] | None:
        """Find the first parameter that is a context.Context or an *http.Request."""
        for index, parameter in enumerate(self.signature.parameters):
            if parameter.type.name in (CONTEXT, f"*{REQUEST}"):
                name = parameter.name or f"arg{index + 1}"
                return Root(RootKind.PARAMETER, index, name), parameter.type
        return None

    def result(self, special: str) -> tuple[Root, GoType] | None:
        """Find the result that ``ret``, ``ret1`` and so on mean, None when there is none."""
        if special == _ERROR:
            results = self.signature.results
            found = [index for index, result in enumerate(results) if result.type.name == "error"]
            return self._numbered(RootKind.RESULT, "$err", str(found[-1] + 1)) if found else None
        match = _RESULT.fullmatch(special)
        if match is None:
            return None
        return self._numbered(RootKind.RESULT, f"${special}", match[1] or "1")

    def _groups(self) -> tuple[tuple[RootKind, tuple[Parameter, ...]], ...]:
        return (
            (RootKind.PARAMETER, self.signature.parameters),
            (RootKind.RESULT, self.signature.results),
            (RootKind.CAPTURED, self.captured),
        )

    def _numbered(self, kind: RootKind, name: str, number: str) -> tuple[Root, GoType] | None:
        values = dict(self._groups())[kind]
        index = int(number) - 1
        if not 0 <= index < len(values) or (kind in self.unordered and name != "$err"):
            return None
        return Root(kind, index, values[index].name or name), values[index].type

    def all_names(self) -> list[str]:
        """Return all names, those of calls with their dollar sign."""
        return [*self._names(), *(f"${name}" for name in self._specials())]

    def no_such_name(self, name: str) -> str:
        """Return the error for a plain name that means nothing here, with the names that do."""
        if match := _ARGUMENT.fullmatch(name):
            return self._no_such_number("parameter", "arg", int(match[1]))
        names = self._names()
        specials = [f"${special}" for special in self._specials()]
        if f"${name}" in specials:
            return f"{self.function} has no {name!r}: did you mean ${name}?"
        if self.recipes is not None:
            has = f"words only, {names[0]} and others" if names else "nothing with a name"
            return self._not_described(f"has no {name!r}, but {has}", f"x int, {name} string")
        names = [*self.replaced, *names]
        hint = did_you_mean(name, [*names, *specials]) if name != "retval" else "did you mean $ret?"
        numbered = {
            one.name: f"{one.name} ({_short_type(one.type)})"
            for one in self.signature.parameters
            if _ARGUMENT.fullmatch(one.name)
        }
        if numbered and not hint:
            shown = listed([numbered.get(name, name) for name in names])
            return (
                f"{self.function} has no {name!r}, since the file has no such names: type {shown}"
            )
        return f"{self.function} has no {name!r}: {hint or self._there_is(names, specials)}"

    def no_such_special(self, name: str) -> str:
        """Return the error for a ``$`` name that means nothing here, with the names that do."""
        if match := _RESULT.fullmatch(name):
            return self._no_such_number("result", "$ret", int(match[1] or "1"))
        if name == _ERROR:
            problem = "has no result of type error"
            if self.recipes is not None:
                return self._not_described(f"{problem} that is known", "x int")
            return f"{self.function} {problem}"
        if name == "exit":
            return "$exit takes an argument in parentheses, as in $exit(p)"
        if name == "like":
            return "$like takes a text in parentheses, as in $like(path)"
        if name == "label":
            return f'{LABEL} takes a key in parentheses, as in {LABEL}("user")'
        if self.named(name):
            return f"there is no ${name}: parameters and results are named without $, {name}"
        specials = [f"${special}" for special in self._specials()]
        return f"there is no ${name}: {did_you_mean(f'${name}', specials) or listed(specials)}"

    def _not_described(self, problem: str, parameters: str) -> str:
        """Return the error for a function of which no debug information says what it takes."""
        found = self.recipes(self.function) if self.recipes is not None else ()
        typed = f"give a signature, as in '{self.function}({parameters}) error'"
        recipe = f"type {' or '.join(found)}, or " if found else ""
        return f"{self.function} {problem}: no debug information describes it: {recipe}{typed}"

    def _no_such_number(self, what: str, prefix: str, number: int) -> str:
        group = RootKind.PARAMETER if what == "parameter" else RootKind.RESULT
        count = len(dict(self._groups())[group])
        if not count:
            return f"{self.function} has no {what}s"
        if group in self.unordered:
            names = listed([parameter.name for parameter in dict(self._groups())[group]])
            return (
                f"{what}s of {self.function} have no certain numbers, since its compiler has not"
                f" written down where those without a size belong: use a name, {names}"
            )
        if not number:
            return f"{what}s are numbered from 1: {prefix}1 is the first"
        last = f" to {prefix}{count}" if count > 1 else ""
        return f"{self.function} has {count} {what}{'s' * (count > 1)}: {prefix}1{last}"

    def _names(self) -> list[str]:
        """List the names that can be typed: not the blank one, nor the compiler's ``~r0``."""
        names = [parameter.name for _, group in self._groups() for parameter in group]
        return [name for name in dict.fromkeys(names) if name.isidentifier() and name != "_"]

    def _specials(self) -> list[str]:
        count = len(self.signature.results)
        results = ["ret", *(f"ret{n}" for n in range(2, count + 1))] if count else []
        if self.result(_ERROR):
            results.append(_ERROR)
        spans = SPAN_NAMES if self.context() else ()
        return [*results, *(special.value for special in SpecialName), LABEL[1:], *spans]

    def _there_is(self, names: list[str], specials: list[str]) -> str:
        return f"there {'is' if len(names) == 1 else 'are'} {listed([*names, *specials])}"


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """Suggest the names that are most like the wanted one; an empty text when none is."""
    import difflib

    names = list(names)
    by_lower = {name.lower(): name for name in reversed(names)}
    same = by_lower.get(wanted.lower())
    close = difflib.get_close_matches(wanted.lower(), by_lower, 3)
    near = [same] if same else [by_lower[lower] for lower in close]
    return f"did you mean {' or '.join(near)}?" if near else ""


def _short_type(of: GoType) -> str:
    name = display_name(of.name)
    target = name.lstrip("*")
    return "*" * (len(name) - len(target)) + short_name(target)


def listed(names: list[str]) -> str:
    """Join names for a message, a long list cut."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
