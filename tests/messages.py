# SPDX-License-Identifier: Apache-2.0
"""The messages of the code: what is raised, noted and logged, with words for what differs."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

CLONE = Path(__file__).parent.parent
SOURCES = CLONE / "gotrace"
#: Of a message with alternatives within: more would be a list of words and not a message.
_MOST = 12
_DEEPEST = 6

#: Calls that make a message, and the place of its text among their arguments.
_MAKERS = {
    **dict.fromkeys(("ArgumentTypeError", "LostCalls", "_Declined", "_MethodUnavailable"), 0),
    **dict.fromkeys(("error", "_error", "error_at", "kind"), -1),
    **dict.fromkeys(("damaged", "Note", "Notice"), 1),
    **dict.fromkeys(("Conflict", "Needs"), 2),
}
#: Exceptions of Python that no user sees, and records that are called so.
_OTHERS = {"NotImplementedError", "AssertionError", "AttributeError", "TypeError", "OSError"}
_OTHERS |= {"GoError", "FrozenInstanceError", "IndexError", "KeyError", "ProcessLookupError"}
_LEVELS = {"warning", "error", "info", "exception"}
#: Methods that return a message of a run.
_TEXTS = {"text", "warning"}
_RUNS = ("gotrace/session/", "gotrace/live/")


@dataclass(frozen=True, order=True)
class Message:
    """The texts that a place in the code may have for a user."""

    file: str
    line: int
    texts: tuple[str, ...]
    is_notice: bool  # not raised, but said while work goes on


@dataclass(frozen=True)
class _Scope:
    """Where names of an expression are looked up."""

    module: Module
    function: ast.AST | None
    known: Mapping[str, Sequence[str]]
    depth: int = 0


class Module:
    """A file of the code, and what is defined in it."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(CLONE))
        self.tree = ast.parse(path.read_text())
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.constants: dict[str, ast.expr] = {}
        self.within: dict[ast.AST, ast.FunctionDef | None] = {}
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.constants[name] = value
        self._place(self.tree, None)

    def _place(self, node: ast.AST, function: ast.FunctionDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            self.within[child] = function
            if isinstance(child, ast.FunctionDef):
                self.functions.setdefault(child.name, []).append(child)
                self._place(child, child)
            else:
                self._place(child, function)


MODULES = [Module(path) for path in sorted(SOURCES.rglob("*.py")) if "viewer" not in path.parts]


def _functions(name: str, scope: _Scope) -> list[tuple[Module, ast.FunctionDef]]:
    """Return the definitions that a call may mean: those of its own module, or of one elsewhere."""
    here = [(scope.module, one) for one in scope.module.functions.get(name, ())]
    if here:
        return here
    there = [(other, one) for other in MODULES for one in other.functions.get(name, ())]
    return there if len(there) == 1 else []


#: What names of the code are for a reader.
_CLEARER = {"display": "FILE", "strerror": "ERROR", "tgid": "PID"}


def _shown(node: ast.expr) -> str:
    """Return a word for a value that is not known before it is there."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _CLEARER.get(name, name.strip("_").upper())
        case ast.Call(args=[first, *_]):
            return _shown(first)
        case ast.Call(func=function):
            return _shown(function)
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _shown(value)
        case ast.BinOp(left=left):
            return _shown(left)
    return "..."


def templates(node: ast.expr, scope: _Scope) -> list[str]:
    """Return the texts that an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            found = [templates(part, scope) for part in parts]
            return ["".join(each) for each in itertools.islice(itertools.product(*found), _MOST)]
        case ast.FormattedValue(value=value):
            return templates(value, scope) or [_shown(value)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, last = templates(left, scope), templates(right, scope)
            if not first and not last:
                return []
            both = itertools.product(first or [_shown(left)], last or [_shown(right)])
            return [a + b for a, b in itertools.islice(both, _MOST)]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mult()):  # of a plural
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            return (templates(body, scope) or [_shown(body)]) + (
                templates(orelse, scope) or [_shown(orelse)]
            )
        case ast.BoolOp(values=values):
            return [text for value in values for text in templates(value, scope) or [_shown(value)]]
        case ast.Dict(values=values):
            return [text for value in values for text in templates(value, scope)]
        case ast.Subscript(value=ast.Name(id=name)) if name in scope.module.constants:
            return templates(scope.module.constants[name], scope)
        case ast.Call():
            return _called(node, scope)
        case ast.Name(id=name, lineno=line):
            return _named(name, line, scope)
    return []


def _named(name: str, line: int, scope: _Scope) -> list[str]:
    if name in scope.known:
        return list(scope.known[name])
    if scope.depth > _DEEPEST:
        return []
    deeper = replace(scope, depth=scope.depth + 1)
    if scope.function is not None:
        values = _assigned(scope.function, name, line)
        again = [value for value in values if name in _names(value)]
        found = [
            text
            for value in values
            if value not in again
            for text in templates(value, deeper) or [_shown(ast.Name(name))]
        ]
        if found:
            before = replace(deeper, known={**scope.known, name: found})
            found += [text for value in again for text in templates(value, before)]
            return list(dict.fromkeys(found))[:_MOST]
    here = scope.module.constants.get(name)
    known = [here] if here else [one.constants[name] for one in MODULES if name in one.constants]
    return templates(known[0], deeper) if len(known) == 1 else []


def _assigned(function: ast.AST, name: str, line: int) -> list[ast.expr]:
    """Return what a name may be set to where a line of a function uses it.

    An assignment counts from the last one on that is made whichever way the line is reached.
    """
    found = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.NamedExpr) and node.target.id == name
    ]
    last = 0
    for block in _blocks(function):
        for each in block:
            value = _set_to(each, name)
            if value is None or each.lineno > line:
                continue
            found.append(value)
            if (block[-1].end_lineno or 0) >= line and name not in _names(value):
                last = max(last, value.lineno)
    return sorted((one for one in found if last <= one.lineno <= line), key=lambda one: one.lineno)


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a function, outer ones first."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _set_to(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what a statement sets a name to, None if it does not."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return value
        case ast.AugAssign(target=ast.Name(id=target), value=value) if target == name:
            before = ast.Name(name, lineno=statement.lineno)
            return ast.BinOp(before, ast.Add(), value, lineno=statement.lineno)
    return None


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


#: Functions that return their argument, for a reader.
_SAME = {"str", "printable", "dedent"}


def _called(node: ast.Call, scope: _Scope) -> list[str]:
    """Return the texts that a call may return."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case _:
            return []
    if name in _SAME and len(node.args) == 1:
        return templates(node.args[0], scope)
    if name == "said":  # the library's words are others for the same
        return templates(node.args[0], scope)
    if name == "described":
        return ["a TYPE"]
    if name == "counted" and node.args:
        return [_counted(text) for text in templates(node.args[0], scope)]
    if name in ("format", "join", "quote") or scope.depth > _DEEPEST:
        return []
    found: list[str] = []
    for module, function in _functions(name, scope):
        known = dict(_arguments(node, function, scope))
        inner = _Scope(module, function, known, scope.depth + 1)
        for each in ast.walk(function):
            if isinstance(each, ast.Return) and each.value is not None:
                found += templates(each.value, inner)
    return list(dict.fromkeys(found))[:_MOST]


def _counted(text: str) -> str:
    """Return a template of counted() for several."""
    text = re.sub(r"\bNOT\b", "not shown", re.sub(r"\{[:,]*\}", "N", text))
    return re.sub(r"\{(\w+)(?:,\w*)?\}", r"\1", text)


def _arguments(
    node: ast.Call, function: ast.FunctionDef, scope: _Scope
) -> Iterator[tuple[str, list[str]]]:
    names = [one.arg for one in function.args.args if one.arg not in ("self", "cls")]
    for name, value in zip(names, node.args, strict=False):
        yield name, templates(value, scope) or [_shown(value)]
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield keyword.arg, templates(keyword.value, scope) or [_shown(keyword.value)]


def _made(node: ast.AST, scope: _Scope) -> tuple[list[str], bool]:
    """Return the texts of what makes a message, and whether it is said while work goes on."""
    match node:
        case ast.Return(value=ast.expr() as value) if getattr(
            scope.function, "name", ""
        ) in _TEXTS and scope.module.name.startswith(_RUNS):
            return templates(value, scope), True
        case ast.AnnAssign(target=ast.Name(id="text"), value=ast.Constant() as value):
            return templates(value, scope), False
        case ast.Constant(value=str(text)) if "{s}" in text and scope.function is None:
            return [_counted(text)], True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[text, *more]):
            words = [_shown(each) for each in more]
            found = templates(text, scope) if level in _LEVELS else []
            return [_filled(each, words) for each in found], True
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(attr=of) | ast.Name(id=of), attr="append"),
            args=[text],
        ) if of.strip("_") == "problems":
            return templates(text, scope), True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_] as given):
            place = _MAKERS.get(name, 0 if name.endswith("Error") else None)
            if name not in _OTHERS and place is not None and place < len(given):
                return templates(given[place], scope), name in ("Note", "Notice")
    return [], False


def _filled(text: str, words: Sequence[str]) -> str:
    left = iter(words)
    return re.sub(r"%[\d.]*[sdrf]", lambda _: next(left, "..."), text)


def _tidied(text: str) -> str:
    """Return a text in one line, with words for what str.format fills in."""
    text = re.sub(r"\{:,\}", "N", text.replace("%%", "%"))
    text = re.sub(r"\ban (?=[A-Z_]{2,}\b)", "a ", re.sub(r"\{\}", "OPTIONS", text))
    return " ".join(re.sub(r"\{\d\}", "OPTION", text).split())


#: A message has words of its own, not only those of others.
_WORDS = re.compile(r"(?=.*[a-z]{3,}).* ")


@functools.cache
def messages() -> list[Message]:
    """Return all messages, by file and line."""
    found = []
    for module in MODULES:
        for node, function in module.within.items():
            texts, is_notice = _made(node, _Scope(module, function, {}))
            said = tuple(dict.fromkeys(_tidied(text) for text in texts if _WORDS.match(text)))
            if said:
                assert isinstance(node, ast.expr | ast.stmt)
                found.append(Message(module.name, node.lineno, said, is_notice))
    return sorted(found)
