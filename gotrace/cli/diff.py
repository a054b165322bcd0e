# SPDX-License-Identifier: Apache-2.0
"""``--diff A B``: the changes between two recordings, in place of a run."""

from __future__ import annotations

from typing import TypeVar

from gotrace.cli.conflicts import given_options
from gotrace.cli.options import (
    OptionParser,
    RunOptions,
    SummaryOptions,
)
from gotrace.cli.run import open_output
from gotrace.errors import UsageError
from gotrace.profiles.write import write_content
from gotrace.report.diff import diff_page, write_diff
from gotrace.report.output import Notice, NoticeKind
from gotrace.results.changes import diff
from gotrace.text import counted, printable

_S = TypeVar("_S", bound=SummaryOptions)
#: Options that are for a comparison; it reads two files, and asks nothing else.
_FOR_DIFF = {"--diff", "--names", "--stacks", "--top", "--json", "--output", "--quiet", "--debug"}


def _check_alone(options: SummaryOptions, parser: OptionParser[_S]) -> None:
    """Raise UsageError if anything is given that a comparison does not take."""
    strange = [words[-1] for words in given_options(parser, options) if not _FOR_DIFF & {*words}]
    if isinstance(options, RunOptions) and options.named.command:
        strange.append("the command")
    if strange:
        raise UsageError(f"--diff reads two files: leave out {', '.join(strange)}")


def compare(options: SummaryOptions, parser: OptionParser[_S]) -> int:
    """Write the changes and return the exit status. Raises GotraceError, UsageError among these."""
    assert options.diff is not None
    stacks = getattr(options, "stacks", False)  # of gooncpu
    _check_alone(options, parser)
    quiet = isinstance(options, RunOptions) and options.quiet
    found = diff(*options.diff)
    if found.a.tool != options.tool:
        raise UsageError(f"{found.a.name} is of {found.a.tool}: type {found.a.tool} --diff")
    if getattr(options, "names", False) and not found.a.asked.get("names"):
        raise UsageError(f"{found.a.name} has no system calls by name: record with --names")
    options = options.with_form_of_files()
    files = options.files
    for path in files.profiles:
        if not path.endswith(".html"):
            raise UsageError(
                f"-o {path} is a profile, and --diff has none: give x.html, or type go tool pprof"
                " -diff_base A.pb.gz B.pb.gz"
            )
    tool = None if quiet else options.tool
    output = open_output(files, options.json, quiet, starting=tool)
    for one in (found.a, found.b):
        for text in one.lost:
            output.notice(Notice(NoticeKind.WARNING, f"{printable(one.name)}: {text}"))
    asked = [one.patterns for one in (found.a, found.b)]
    if all(asked) and asked[0] != asked[1]:
        each = (f"{one.name} is of {', '.join(sorted(one.patterns))}" for one in (found.a, found.b))
        text = f"{printable(', '.join(each))}: a function that is new or gone may be one not traced"
        output.notice(Notice(NoticeKind.WARNING, text))
    for form in () if options.only_stacks else output.forms:
        write_diff(form, found, options.top, stacks)
    for page in files.profiles:
        if not any(one.key.stack for one in found.changes):
            text = f"-o {page} draws stacks, and there are none: record with --by '$stack'"
            raise UsageError(text)
        write_content(page, diff_page(found))
        text = f"wrote {counted('{:,} stack{s}', len(found.changes))} to {printable(page)}"
        output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": page}))
    return 0
