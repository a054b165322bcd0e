# SPDX-License-Identifier: Apache-2.0
"""Read YAML as plain data with the line of each value.

A subset that cannot surprise: one document, no anchors and aliases, no tags, no key twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from gotrace.errors import UsageError
from gotrace.records import dataclass, field
from gotrace.text import encodable

#: Keys and numbers that lead from the whole document to a value.
Path = tuple[str | int, ...]

_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}

_MAX_DEPTH = 64
_BEGINS = (
    *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
)
_ENDS = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


@dataclass
class Document:
    """The data of a file, and where in it each value is: lines count from 1."""

    name: str
    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Sequence[str | int]) -> int:
        """Return the line of a value, or of the nearest that holds it."""
        there = tuple(path)
        while there not in self.lines and there:
            there = there[:-1]
        return self.lines.get(there, 1)

    def error(self, path: Sequence[str | int], reason: str) -> UsageError:
        """Return the error for a value, with its place."""
        return self.error_at(self.line(path), reason)

    def error_at(self, line: int, reason: str) -> UsageError:
        return UsageError(f"{self.name}, line {line}: {reason}")


def read_yaml(name: str, text: str) -> Document:
    """Parse a file's text; ``name`` is what messages call the file. Raises UsageError."""
    document = Document(name)
    try:
        loader = yaml.SafeLoader(text)
        _refuse_tokens(document, text)
        node = loader.get_single_node()
        if node is None:
            raise document.error_at(1, "the file is empty")
        document.data = _value(document, loader, node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise document.error_at(line, f"this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise document.error_at(1, f"this is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise document.error_at(1, "values are nested too deeply") from error
    return document


def _refuse_tokens(document: Document, text: str) -> None:
    """Refuse aliases, and depths for which the parser takes time in squares."""
    depth = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        line = token.start_mark.line + 1
        depth += isinstance(token, _BEGINS) - isinstance(token, _ENDS)
        if depth > _MAX_DEPTH:
            raise document.error_at(line, "values are nested too deeply")
        if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
            reason = "anchors and aliases are not supported: write the value out"
            raise document.error_at(line, reason)


def _value(document: Document, loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Any:
    line = node.start_mark.line + 1
    document.lines[path] = line
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise document.error_at(at, "a key is a word")
            key = _text(document, key_node)
            if key in found:
                raise document.error_at(at, f"{key!r} is there twice")
            below = (*path, key)
            found[key] = _value(document, loader, value_node, below)
            if isinstance(value_node, yaml.ScalarNode):
                document.lines[below] = at
        return found
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [
            _value(document, loader, child, (*path, number))
            for number, child in enumerate(node.value)
        ]
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _PLAIN:
            _text(document, node)
            try:
                return loader.construct_object(node)
            except ValueError as error:
                raise document.error_at(line, f"{node.value!r}: {error}") from error
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value  # nothing here is one
    raise document.error_at(line, f"{node.tag} is not supported: plain values only")


def _text(document: Document, node: yaml.ScalarNode) -> str:
    text: str = node.value
    if encodable(text) != text:
        line = node.start_mark.line + 1
        raise document.error_at(line, f"{text!a} cannot be written as UTF-8")
    return text
