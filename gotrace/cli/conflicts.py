# SPDX-License-Identifier: Apache-2.0
"""Which options are not for each other: rows that a command has, and the one check of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from gotrace.errors import UsageError

#: The text of a conflict between the forms of a result.
ONE_OF = "give only one of {}"


class Conflict(NamedTuple):
    """Options that are refused beside others, all by their spellings.

    In the text {0} is all those given, {1} the first of the options, and {2} the first of the
    others. ``--state=x`` is an option with this value, ``-o=profile`` one with such a file.
    """

    options: str
    others: str
    text: str = "{0} cannot be combined: leave out the first, which would do nothing"


class Needs(NamedTuple):
    """Options that are refused without one of others; see ``Conflict``."""

    options: str
    others: str
    text: str


Rule = Conflict | Needs


def check_options(
    parser: argparse.ArgumentParser,
    options: object,
    rows: Iterable[Rule],
    files: Mapping[str, str] | None = None,
    besides: str = "",
) -> None:
    """Raise UsageError for the first row that the given options break; ``besides`` do not count.

    ``files`` are what rows call that of ``-o``, with its words.
    """
    given = {word: word for word in _given(parser, options) - {*besides.split()}}
    given.update(files or {})
    for row in rows:
        mine = [given[word] for word in row.options.split() if word in given]
        others = [given[word] for word in row.others.split() if word in given]
        others = [word for word in others if word not in mine[:1]]
        if mine and bool(others) is isinstance(row, Conflict):
            both = " and ".join(dict.fromkeys([*mine, *others]))
            raise UsageError(row.text.format(both, mine[0], *others[:1]))


def given_options(parser: argparse.ArgumentParser, options: object) -> list[Sequence[str]]:
    """Return the options that are not as they would be by themselves, each by its spellings."""
    return [
        action.option_strings or [str(action.metavar)]
        for action in parser._actions
        if getattr(options, action.dest, None) not in (action.default, [], None)
    ]


def _given(parser: argparse.ArgumentParser, options: object) -> set[str]:
    """Return the spellings of options that are not as they would be by themselves."""
    given: set[str] = set()
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        words = action.option_strings or [str(action.metavar)]
        values = value if isinstance(value, list) else [value] if isinstance(value, Enum) else []
        for one in values:
            given.update(f"{word}={getattr(one, 'value', one)}" for word in words)
        if value != action.default and value != []:
            given.update(words)
    return given
