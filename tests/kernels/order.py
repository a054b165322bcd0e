# SPDX-License-Identifier: Apache-2.0
"""What the host orders a guest to check, and the results that come back, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

_PREFIX = "@check "

#: The checks of a guest with many more possible processors than there are online, and a program of
#: more functions than a chunk of a map has counters for then.
POSSIBLE = ("possible: counts", "possible: latencies", "possible: keys", "possible: waits")
MANY, MANY_FUNCTIONS = "live_functions", 5_000
#: How names of programs end that are position-independent, that have C in them, or no symbols.
PIE, CGO, STRIPPED = "1.27-pie", "1.27-cgo", "1.27-stripped"
LIBRARY, HOST_OF_LIBRARY, PLUGIN = "1.27.so", "c", "1.27.so"
GCCGO = "gccgo"
#: The oldest release, which passes arguments on the stack.
OLDEST = "1.15"
#: Go's own reader of what its runtime has traced.
DECODER = "go-trace"
#: Measurements, and a check of what make bundle makes: made if they are asked for.
COSTS, MEMORY, BUNDLE = "costs", "memory", "bundle"


@dataclass(frozen=True, slots=True)
class Order:
    """What to check in a guest.

    ``methods`` are the ways to attach that the kernel is known to have, best first;
    ``full_methods`` those with which all is checked, with the others only counts; ``minors`` the Go
    releases with the best one. ``pairs`` is whether it has what gofunclatency and gotrace need,
    ``is_quick`` whether time is short. ``rounds`` is how often migrating goroutines play; ``only``
    are the names of the checks to run, all where it is empty; ``seed`` is what random choices begin
    with.
    """

    methods: Sequence[str]
    full_methods: Sequence[str]
    minors: Sequence[str]
    pairs: bool
    is_quick: bool
    rounds: int
    only: Sequence[str] = field(default_factory=list)
    seed: int = 0

    def wants(self, check: str) -> bool:
        """Return whether a check is to be run that is not among those for which to ask."""
        return not self.only or check in self.only

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_order(path: Path) -> Order:
    """Return the order that lies in a guest's file."""
    return Order(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class Result:
    """What one check found.

    ``method`` is empty for what does not depend on it. ``seconds`` are by the guest's clock.
    ``detail`` is what was seen, and why the check failed where ``ok`` is false. ``last`` marks the
    end of all checks.
    """

    check: str
    method: str
    ok: bool
    seconds: float
    detail: str
    last: bool = False

    def to_line(self) -> str:
        return f"{_PREFIX}{json.dumps(asdict(self))}\n"


def parse_result(line: str) -> Result | None:
    """Return the result in a line from a guest's serial port, None where there is none.

    >>> line = Result("counts", "multi", True, 1.5, "171,499 calls").to_line()
    >>> parse_result(line).check
    'counts'
    >>> parse_result("[    1.2] random: crng init done")
    """
    _, found, text = line.partition(_PREFIX)
    if not found:
        return None
    try:
        return Result(**json.loads(text))
    except (ValueError, TypeError):  # cut by the end of a guest
        return None
