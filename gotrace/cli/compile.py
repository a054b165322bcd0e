# SPDX-License-Identifier: Apache-2.0
"""Run gotrace --compile."""

from __future__ import annotations

from gotrace.cli.options import FunctionOptions
from gotrace.doctor.precompile import precompile
from gotrace.errors import UsageError
from gotrace.text import printable


def run_compile(options: FunctionOptions) -> int:
    """Compile the programs that runs usually need and return the exit status, 0.

    Raises UsageError where the options name something to trace, and GotraceError.
    """
    if options.patterns or options.named.command is not None or options.named.pid is not None:
        raise UsageError("--compile takes no other options: it traces nothing")
    kept = precompile()
    place = printable(str(kept.path))
    print(f"{kept.programs} compiled programs, {kept.size >> 10} kB, are kept in {place}")
    return 0
