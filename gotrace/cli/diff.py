# SPDX-License-Identifier: Apache-2.0
"""``--diff A B``: what changed between two recordings, in place of a run."""

from __future__ import annotations

import argparse

from gotrace.cli.run import run_output
from gotrace.errors import UsageError
from gotrace.profiles.write import is_profile, write_content
from gotrace.report.diff import diff_page, write_diff
from gotrace.report.output import Notice, NoticeKind
from gotrace.results.changes import diff
from gotrace.text import printable

__all__ = ["compare"]


def compare(options: argparse.Namespace) -> int:
    """Write what changed, and return the exit status. Raises GotraceError."""
    given = ("processes", "cmd", "command", "patterns", "core", "interval", "duration")
    if any(getattr(options, name, None) for name in given):
        raise UsageError("--diff reads two files: leave out processes, functions, -i and -d")
    found = diff(*options.diff)
    if found.a.tool != options.tool:
        raise UsageError(f"{found.a.name} is of {found.a.tool}: type {found.a.tool} --diff")
    path = getattr(options, "output", None) or getattr(options, "pprof", None)
    page = path if path and path.endswith(".html") else None
    if path and not page and is_profile(path):
        raise UsageError(
            f"-o {path} is a profile, and --diff has none: give x.html, or type go tool pprof"
            " -diff_base A.pb.gz B.pb.gz"
        )
    options.output = None if page else path
    options.quiet = getattr(options, "quiet", False)
    output = run_output(options)
    for one in (found.a, found.b):
        for text in one.lost:
            output.notice(Notice(NoticeKind.WARNING, f"{printable(one.name)}: {text}"))
    write_diff(output, found, options.top)
    if page:
        if not any(one.key.stack for one in found.changes):
            text = f"-o {page} draws stacks, and there are none: record with --by '$stack'"
            raise UsageError(text)
        write_content(page, diff_page(found))
        text = f"wrote {len(found.changes):,} stacks to {printable(page)}"
        output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": page}))
    return 0
