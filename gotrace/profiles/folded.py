# SPDX-License-Identifier: Apache-2.0
"""Write stacks folded, one a line with its weight, as flame graph tools read them.

The form is that of stackcollapse-perf.pl and of bcc's ``-f``: frames from the outermost on, divided
by semicolons, then a space and a number.
"""

from __future__ import annotations

from collections import Counter

from gotrace.profiles.rows import StackProfile
from gotrace.text import printable


def folded(profile: StackProfile) -> str:
    """Return stacks, each from its outermost frame on, with its weight; the largest come first.

    Equal ones are added up. Semicolons in names, which those of generic instances may have, become
    commas.
    """
    weights: Counter[str] = Counter()
    for lines, weight in profile.weighted():
        weights[";".join(printable(line.function).replace(";", ",") for line in lines)] += weight
    ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{stack} {weight}\n" for stack, weight in ranked)
