# SPDX-License-Identifier: Apache-2.0
"""Run gotrace doctor."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from gotrace.cli.options import LookOptions, OptionParser, new_parser
from gotrace.cli.run import make_output
from gotrace.doctor.examine import examine
from gotrace.doctor.finding import Finding
from gotrace.doctor.report import write_findings
from gotrace.target.process import one_process
from gotrace.text import printable


def parser() -> OptionParser[LookOptions]:
    """Return the parser of the words after ``doctor``."""
    text = "Check what tracing needs here, and with -p of a process. Nothing is traced."
    return new_parser("gotrace doctor", text, "", LookOptions)


def run(options: LookOptions) -> int:
    """Check the needs of tracing and return the exit status, 0 if it is possible.

    With ``--debug`` the logs of compiler and verifier go to stderr. Raises UsageError.
    """
    possible = write_findings(make_output(options), _examined(options))
    return 0 if possible else 1


def _examined(options: LookOptions) -> Iterator[Finding]:
    pid = one_process(options.processes, "gotrace doctor examines") if options.processes else None
    for finding in examine(pid):
        yield finding
        if options.debug and finding.log:
            for line in finding.log.splitlines():
                print(printable(line), file=sys.stderr)
