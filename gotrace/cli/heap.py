# SPDX-License-Identifier: Apache-2.0
"""Runs of goalloc --heap: what is in use, by the profile that the program's runtime keeps."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from gotrace.cli.run import process_of, run_output
from gotrace.cli.stack_files import begin_table, write_stacks
from gotrace.cli.stack_options import GoallocOptions
from gotrace.goroutines.core import CoreGoroutines
from gotrace.goroutines.live import GoFiles, LiveGoroutines
from gotrace.profiles.rows import StackProfile
from gotrace.report.output import JsonOutput
from gotrace.report.samples import FUNCTIONS, write_heap
from gotrace.session.heap import HEAP_FORM, heap_rows, named_buckets
from gotrace.text import counted


def heap(options: GoallocOptions) -> int:
    """Write what is in use now, or was as a core file was made, and return the exit status."""
    output = run_output(options)
    with ExitStack() as opened:
        source: LiveGoroutines | CoreGoroutines
        if options.core:
            core, binary = options.core
            source = opened.enter_context(CoreGoroutines(core, binary, options.debug_file))
            pid, what = None, os.path.basename(binary)
        else:
            target = opened.enter_context(process_of(options, "goalloc --heap reads"))
            GoFiles(target).check_functions([*options.inside, *options.functions])
            source = opened.enter_context(LiveGoroutines(target))
            pid, what = target.pid, f"process {target.pid}"
        profile = source.heap()
        now = time.time()
        buckets = named_buckets(source.program, profile, options.inside)
        fields = {"pid": pid, "ts": round(now, 6)}
        head, functions, rows = heap_rows(buckets, profile.rate, fields, options.functions)
        shown = [] if options.folded or options.only_stacks else output.forms
        few = not (options.functions or options.stacks)
        top = options.top or (FUNCTIONS if few else None)
        for form in shown:
            if isinstance(form, JsonOutput):
                form.rows([head, *functions[: options.top], *rows[: options.top]])
            else:
                out = begin_table(options, form)
                write_heap(out, head, functions, rows, what, top, options.stacks)
        written = [one.profile_row() for one in buckets]
        mappings = source.program.mappings()
        title = f"memory in use of {what}"
        made = StackProfile(HEAP_FORM, written, title, mappings, round(now * 1e9))
        write_stacks(options, output, made, counted("{:,} stack{s}", len(written)))
    return 0
