# SPDX-License-Identifier: Apache-2.0
"""Lay out tables that are printed whole.

Other tables have a layout of their own, where they are written. Those of calls may have 100,000
rows, for which tabulate takes a second more, in the second that there is for writing after the end
of a run. Those of functions and of checks are written as they are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.errors import GotraceError


def table_lines(rows: Sequence[Sequence[str]], right: int = 0) -> list[str]:
    """Return the lines of a table, in which the last ``right`` columns are aligned to the right.

    Heads of columns are the first row: tabulate adds two spaces to what it knows for heads.
    """
    try:
        from tabulate import tabulate  # takes 15 ms, which no start is to take
    except ImportError as missing:
        raise GotraceError(
            f"cannot lay out a table: tabulate cannot be imported ({missing}): install"
            " python3-tabulate (Debian, Ubuntu, Fedora), or pip install 'tabulate>=0.8.9'"
        ) from missing
    align = ["left"] * (len(rows[0]) - right) + ["right"] * right
    return tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True).splitlines()
