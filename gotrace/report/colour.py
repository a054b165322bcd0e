# SPDX-License-Identifier: Apache-2.0
"""Colour on terminals, by the sequences of ECMA-48 that all of them know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import TextIO

#: From which duration on a call is slow, and very slow, in nanoseconds.
SLOW, VERY_SLOW = 100_000_000, 1_000_000_000
#: Goes to the upper left, and erases the screen.
CLEAR = "\x1b[H\x1b[2J"


class Colour(Enum):
    """Colours, and their parameters of Select Graphic Rendition."""

    NAME = "1"  # bold
    ERROR = "31"  # red
    SLOW = "33"  # yellow
    VERY_SLOW = "1;31"


def paint(text: str, colour: Colour | None) -> str:
    """Return text in a colour, as it is without one."""
    return text if colour is None else f"\x1b[{colour.value}m{text}\x1b[0m"


def of_duration(nanoseconds: int | None) -> Colour | None:
    """Return a duration's colour: none below 100 ms, nor of a call that was not seen to end."""
    if nanoseconds is None or nanoseconds < SLOW:
        return None
    return Colour.SLOW if nanoseconds < VERY_SLOW else Colour.VERY_SLOW


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream is a terminal that shows colours, and the user wants to see them.

    ``NO_COLOR`` in the environment, unless empty, says no (https://no-color.org).
    """
    if environ.get("NO_COLOR") or environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
