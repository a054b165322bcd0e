# SPDX-License-Identifier: Apache-2.0
"""Write findings: the largest first, then what is fine, small means, and what was not looked at."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.live.causes import Measured, TimeFinding, fine, means
from gotrace.report.message import laid_out
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of
from gotrace.text import printable


def write_findings(
    output: Output, measured: Measured, found: Sequence[TimeFinding], unseen: Sequence[str]
) -> None:
    """Write all of an examination."""
    good, averages = list(fine(measured, found)), list(means(measured, found))
    if isinstance(output, JsonOutput):
        for one in found:
            fields = {"share": one.share, "text": one.text, "evidence": list(one.evidence)}
            output.write("finding", {"what": one.kind, **fields, "deeper": one.deeper})
        output.write("examined", {"fine": good, "means": averages, "unseen": list(unseen)})
        return
    lines = []
    for number, one in enumerate(found, 1):
        lines += [f"{number}. {one.text}", *(f"   {text}" for text in one.evidence)]
        lines += [f"   more: {one.deeper}", ""]
    if not found:
        lines += ["Nothing takes much of the time of its work.", ""]
    lines += [f"fine: {text}" for text in good] + averages
    lines += [f"not looked at: {text}" for text in unseen]
    columns = columns_of(output.out)
    output.out.writelines(f"{laid_out(printable(line), columns)}\n" for line in lines)
    output.out.flush()
