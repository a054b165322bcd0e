# SPDX-License-Identifier: Apache-2.0
"""Keep the figures that the long run measures, one JSON object a line."""

from __future__ import annotations

import json
import os

#: GOTRACE_REAL=1 runs these tests; pytest alone leaves them out.
FULL = os.environ.get("GOTRACE_REAL") == "1"


def rounds(quick: int, full: int) -> int:
    """Return how often to repeat: GOTRACE_REAL_ROUNDS, else by what is being run."""
    return int(os.environ.get("GOTRACE_REAL_ROUNDS") or (full if FULL else quick))


def figures(subject: str, **values: object) -> None:
    """Append measured values to the file that GOTRACE_REAL_FIGURES names, and print them."""
    line = json.dumps({"subject": subject, **values})
    print(line)
    if name := os.environ.get("GOTRACE_REAL_FIGURES"):
        with open(name, "a") as file:
            file.write(line + "\n")
