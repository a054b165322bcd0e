# SPDX-License-Identifier: Apache-2.0
"""Which options are not for each other: rows that a command has, and the one check of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from gotrace.errors import UsageError

__all__ = ["ONE_OF", "Conflict", "Needs", "check_options"]

#: The text of a conflict between the forms of a result.
ONE_OF = "give only one of {}"


class Conflict(NamedTuple):
    """Options that are refused beside others, all by their spellings; {} is those given."""

    options: str
    others: str
    text: str = "{} cannot be combined: leave out the first, which would do nothing"


class Needs(NamedTuple):
    """Options that are refused without one of others; an enum's value is named as --state=x."""

    options: str
    others: str
    text: str


def check_options(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    rows: Iterable[Conflict | Needs],
    besides: str = "",
) -> None:
    """Raise UsageError for the first row that the given options break; ``besides`` do not count."""
    given = _given(parser, options) - set(besides.split())
    for row in rows:
        mine = [word for word in row.options.split() if word in given]
        others = [word for word in row.others.split() if word in given and word not in mine[:1]]
        if mine and bool(others) is isinstance(row, Conflict):
            both = " and ".join(dict.fromkeys([*mine, *others]))
            raise UsageError(row.text.format(both))


def _given(parser: argparse.ArgumentParser, options: argparse.Namespace) -> set[str]:
    """Return the spellings of what is not as it would be by itself."""
    given: set[str] = set()
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        words = action.option_strings or [str(action.metavar)]
        if isinstance(value, Enum):
            given.update(f"{word}={value.value}" for word in words)
        if value and value != action.default:
            given.update(words)
    return given
