# SPDX-License-Identifier: Apache-2.0
"""Run gotrace compile."""

from __future__ import annotations

from gotrace.cli.options import OptionParser, Options, new_parser
from gotrace.cli.run import make_output
from gotrace.doctor.precompile import precompile
from gotrace.report.output import JsonOutput
from gotrace.text import printable


def parser() -> OptionParser[Options]:
    """Return the parser of the words after ``compile``."""
    text = "Compile the BPF programs that these tools usually load, and keep them."
    return new_parser("gotrace compile", text, "", Options)


def run(options: Options) -> int:
    """Compile the programs that runs usually need and return the exit status, 0.

    Raises GotraceError.
    """
    output, kept = make_output(options), precompile()
    if isinstance(output, JsonOutput):
        fields = {"programs": kept.programs, "bytes": kept.size, "path": str(kept.path)}
        output.write("compiled", fields)
    else:
        place = printable(str(kept.path))
        text = f"{kept.programs} compiled programs, {kept.size >> 10} kB, are kept in {place}"
        output.out.write(f"{text}\n")
    output.out.flush()
    return 0
