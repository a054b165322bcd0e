# SPDX-License-Identifier: Apache-2.0
"""Results that are stacks: folded on standard output, and as files."""

from __future__ import annotations

from gotrace.cli.stack_options import StackOptions
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import write_profile
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.text import printable


def wants_stacks(options: StackOptions) -> bool:
    """Return whether anything is written of the whole run."""
    return bool(_folds_whole(options) or options.pprof or options.speedscope)


def _folds_whole(options: StackOptions) -> bool:
    return options.folded and options.interval is None


def fold(output: Output, profile: StackProfile) -> None:
    """Print folded stacks."""
    output.out.write(folded(profile))
    output.out.flush()


def write_stacks(options: StackOptions, output: Output, profile: StackProfile, what: str) -> None:
    """Write the profiles of the whole run; ``what`` says how much they have."""
    if _folds_whole(options):
        fold(output, profile)
    for path, make in ((options.pprof, None), (options.speedscope, speedscope)):
        if path:
            write_profile(path, profile, make)
            text = f"wrote {what} to {printable(path)}"
            output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
