# SPDX-License-Identifier: Apache-2.0
"""``--diff A B``: the changes between two recordings, in place of a run."""

from __future__ import annotations

from gotrace.cli.options import SummaryOptions, files_of, is_json
from gotrace.cli.run import open_output
from gotrace.errors import UsageError
from gotrace.profiles.write import write_content
from gotrace.report.diff import diff_page, write_diff
from gotrace.report.output import Notice, NoticeKind
from gotrace.results.changes import diff
from gotrace.text import counted, printable


def compare(options: SummaryOptions, has_target: bool, quiet: bool = False) -> int:
    """Write the changes and return the exit status.

    ``has_target`` is whether the options name anything to read beside two files. Raises
    GotraceError.
    """
    assert options.diff is not None
    if has_target or options.processes or options.interval or options.duration:
        raise UsageError("--diff reads two files: leave out processes, functions, -i and -d")
    found = diff(*options.diff)
    if found.a.tool != options.tool:
        raise UsageError(f"{found.a.name} is of {found.a.tool}: type {found.a.tool} --diff")
    file, pages, *_ = files_of(options.output)
    for path in pages:
        if not path.endswith(".html"):
            raise UsageError(
                f"-o {path} is a profile, and --diff has none: give x.html, or type go tool pprof"
                " -diff_base A.pb.gz B.pb.gz"
            )
    output = open_output(
        file, options.json or is_json(file), quiet, starting=None if quiet else options.tool
    )
    for one in (found.a, found.b):
        for text in one.lost:
            output.notice(Notice(NoticeKind.WARNING, f"{printable(one.name)}: {text}"))
    if file or options.json or not pages:
        write_diff(output, found, options.top)
    for page in pages:
        if not any(one.key.stack for one in found.changes):
            text = f"-o {page} draws stacks, and there are none: record with --by '$stack'"
            raise UsageError(text)
        write_content(page, diff_page(found))
        text = f"wrote {counted('{:,} stack{s}', len(found.changes))} to {printable(page)}"
        output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": page}))
    return 0
