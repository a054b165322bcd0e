# SPDX-License-Identifier: Apache-2.0
"""Run gotrace --doctor."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from gotrace.cli.options import FunctionOptions
from gotrace.cli.run import make_output
from gotrace.doctor.examine import examine
from gotrace.doctor.finding import Finding
from gotrace.doctor.report import write_findings
from gotrace.errors import UsageError
from gotrace.text import printable


def run_doctor(options: FunctionOptions) -> int:
    """Check the needs of tracing and return the exit status, 0 if it is possible.

    With ``--debug`` the logs of compiler and verifier go to stderr. Raises UsageError where the
    options name something to trace.
    """
    if options.patterns or options.named.command is not None:
        raise UsageError("--doctor traces nothing: give it no more than -p PID")
    if len(options.named.pids) > 1:
        raise UsageError("--doctor examines one process: give one -p PID")
    possible = write_findings(make_output(options), _examined(options))
    return 0 if possible else 1


def _examined(options: FunctionOptions) -> Iterator[Finding]:
    for finding in examine(options.named.pid):
        yield finding
        if options.debug and finding.log:
            for line in finding.log.splitlines():
                print(printable(line), file=sys.stderr)
