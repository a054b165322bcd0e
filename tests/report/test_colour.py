# SPDX-License-Identifier: Apache-2.0
"""When there is colour, and of what."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from gotrace.report.colour import Colour, of_duration, paint, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
        ({}, False),
    ],
)
def test_colour_is_for_terminals_of_who_wants_it(
    environment: Mapping[str, str], wanted: bool
) -> None:
    assert wants_colour(Terminal(), environment) is wanted
    assert not wants_colour(io.StringIO(), environment)


def test_slow_calls_have_a_colour() -> None:
    times = [None, 99_999_999, 100_000_000, 999_999_999, 1_000_000_000]
    assert list(map(of_duration, times)) == [
        *(None, None),
        *(Colour.SLOW, Colour.SLOW),
        Colour.VERY_SLOW,
    ]
    assert paint("x", None) == "x"
