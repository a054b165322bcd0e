# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace examine: looks at a program, and what its time goes into."""

from __future__ import annotations

from contextlib import ExitStack, closing

from gotrace.cli.examine_options import ExamineOptions
from gotrace.cli.run import make_output
from gotrace.errors import UsageError
from gotrace.live.examination import Examiner
from gotrace.report.causes import write_findings
from gotrace.report.output import Notice, NoticeKind
from gotrace.target.process import one_process
from gotrace.target.target import Target
from gotrace.target.wait import Reason, SignalWaiter


def examine(options: ExamineOptions) -> int:
    """Examine a program, and return the exit status. Raises GotraceError."""
    if not options.processes:
        raise UsageError("which process? Type gotrace examine -p PID")
    pid = one_process(options.processes, "gotrace examine looks at")
    output = make_output(options)
    with ExitStack() as opened:
        waiter = opened.enter_context(SignalWaiter())
        target = opened.enter_context(closing(Target.of(pid, None)))
        examiner = opened.enter_context(Examiner(target, options.budget))
        for look in examiner.looks(options.duration, lambda t: waiter.wait(t) is Reason.TIME):
            if look == 1:
                text = f"Looking at process {pid} for {options.duration:g} s..."
                text += " Hit Ctrl-C to end."
                output.notice(Notice(NoticeKind.ATTACHED, text, {"pid": pid}))
        if examiner.ended is not None:
            output.notice(Notice(NoticeKind.EXITED, str(examiner.ended), {"pid": pid}))
        write_findings(output, examiner.result())
    return 0
