# SPDX-License-Identifier: Apache-2.0
"""Write findings: the largest first, then what is fine, small means, and what was not looked at."""

from __future__ import annotations

from gotrace.live.findings import Examination
from gotrace.report.message import laid_out
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of
from gotrace.text import printable


def write_findings(output: Output, found: Examination) -> None:
    """Write all of an examination."""
    if isinstance(output, JsonOutput):
        for one in found.findings:
            fields = {"share": one.share, "text": one.text, "evidence": list(one.evidence)}
            output.write("finding", {"what": one.kind, **fields, "deeper": one.deeper})
        rest = {"fine": list(found.fine), "means": list(found.means)}
        output.write("examined", {**rest, "unseen": list(found.unseen)})
        return
    lines = []
    for number, one in enumerate(found.findings, 1):
        lines += [f"{number}. {one.text}", *(f"   {text}" for text in one.evidence)]
        lines += [f"   more: {one.deeper}", ""]
    if not found.findings:
        lines += ["Nothing takes much of the time of its work.", ""]
    lines += [*(f"fine: {text}" for text in found.fine), *found.means]
    lines += [f"not looked at: {text}" for text in found.unseen]
    columns = columns_of(output.out)
    output.out.writelines(f"{laid_out(printable(line), columns)}\n" for line in lines)
    output.out.flush()
