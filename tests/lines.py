# SPDX-License-Identifier: Apache-2.0
"""Print how large the project is, and what in it is too large: python -m tests.lines.

Blank lines, docstrings, comments, imports and `__all__` are not lines of code. A function's
cyclomatic number is 1 and one more for each branch, loop, comprehension, handler, `and` and `or`;
functions within it count for themselves.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CLONE = Path(__file__).parent.parent
#: Bars of a function, in `gotrace` held by tests/test_lines.py.
MAX_WAYS = 25
MAX_LINES = 60

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.match_case)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Function(NamedTuple):
    """One function: its cyclomatic number, and its lines with decorators and docstring."""

    ways: int
    lines: int
    name: str

    @property
    def is_over(self) -> bool:
        """Return whether it is over a bar."""
        return self.ways > MAX_WAYS or self.lines > MAX_LINES


def functions(path: Path) -> Iterator[Function]:
    """Yield the functions of a module, with its path in the clone before their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _DEFINITIONS) and node.end_lineno is not None:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            name = f"{path.relative_to(CLONE)}:{node.name}"
            yield Function(1 + sum(map(_ways, _own(node))), node.end_lineno - first + 1, name)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, without the functions and classes within it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_DEFINITIONS, ast.ClassDef)):
            yield child
            yield from _own(child)


def _ways(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return isinstance(node, _BRANCHES)


def lines_of_code(text: str) -> int:
    """Return how many lines of a module are code."""
    read = tokenize.generate_tokens(io.StringIO(text).readline)
    coded = {
        line
        for token in read
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and _is_no_code(node):
            coded.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(coded)


def _is_no_code(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def lines_of_c(text: str) -> int:
    """Return how many lines of a C file are code."""
    without = re.sub(
        r"/\*.*?\*/|//[^\n]*|^#include[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE
    )
    return sum(not line.isspace() for line in without.splitlines() if line)


def modules(*folders: str) -> list[Path]:
    """Return the Python modules of folders of the clone."""
    return sorted(path for folder in folders for path in (CLONE / folder).rglob("*.py"))


def twice(paths: list[Path]) -> list[str]:
    """Return the names of public classes that two modules or more define."""
    names = Counter(
        node.name
        for path in paths
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def main() -> None:
    """Print the figures."""
    print(f"{'':10}{'files':>7}{'lines':>9}{'code':>9}")
    for folder in ("gotrace", "tests"):
        texts = [path.read_text() for path in modules(folder)]
        whole, code = (sum(map(count, texts)) for count in (_lines, lines_of_code))
        print(f"{folder:10}{len(texts):7,}{whole:9,}{code:9,}")
    texts = [path.read_text() for path in sorted((CLONE / "bpf").glob("*.[ch]"))]
    print(f"{'bpf':10}{len(texts):7,}{sum(map(_lines, texts)):9,}{sum(map(lines_of_c, texts)):9,}")
    for folder in ("gotrace", "tests"):
        paths = modules(folder)
        found = [function for path in paths for function in functions(path)]
        over = [each for each in found if each.is_over]
        worst, longest = max(found), max(found, key=lambda each: each.lines)
        print(f"\n{folder}: {len(found):,} functions")
        print(f"worst cyclomatic number: {worst.ways}, {worst.name}")
        print(f"longest function: {longest.lines} lines, {longest.name}")
        print(f"public classes of one name: {', '.join(twice(paths)) or 'none'}")
        for each in sorted(over, reverse=True):
            print(f"{each.ways:5} ways {each.lines:5} lines  {each.name}")


def _lines(text: str) -> int:
    return text.count("\n")


if __name__ == "__main__":
    main()
