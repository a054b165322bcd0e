# SPDX-License-Identifier: Apache-2.0
"""Write stacks folded, one a line with its weight, as flame graph tools read them.

The form is that of stackcollapse-perf.pl and of bcc's ``-f``: frames from the outermost on, divided
by semicolons, then a space and a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TextIO

from gotrace.text import printable

__all__ = ["write_folded"]


def write_folded(out: TextIO, stacks: Iterable[tuple[Sequence[str], int]]) -> None:
    """Write stacks, each from its outermost frame on, with its weight; the largest come first.

    Equal ones are added up. Semicolons in names, which those of generic instances may have, become
    commas.
    """
    weights: Counter[str] = Counter()
    for frames, weight in stacks:
        weights[";".join(printable(frame).replace(";", ",") for frame in frames)] += weight
    for line, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        out.write(f"{line} {weight}\n")
