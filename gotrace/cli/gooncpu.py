# SPDX-License-Identifier: Apache-2.0
"""gooncpu: where CPU time goes, by function, by stack and by group of goroutines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import ONE_OF, Conflict, Needs, check_options
from gotrace.cli.options import (
    OptionParser,
    add_command_options,
    add_interval_options,
    add_watching_options,
    new_parser,
    parse,
    positive,
)
from gotrace.cli.pace import pace, running
from gotrace.cli.run import process_of, run_output
from gotrace.cli.stack_files import (
    STACK_CONFLICTS,
    StackOptions,
    add_stack_options,
    fold,
    wants_stacks,
    write_stacks,
)
from gotrace.cli.why import PriceWatch
from gotrace.profiles.rows import StackProfile
from gotrace.report.cpu import write_cpu
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.report.wall import write_wall
from gotrace.session.choices import HERTZ
from gotrace.session.oncpu.groups import WALL_FORM, wall_groups, wall_head
from gotrace.session.oncpu.meter import CpuMeter, CpuPeriod, CpuRequest, CpuRow, sum_samples
from gotrace.session.oncpu.naming import FORM, CpuNames, NamedSamples, cpu_head, function_rows
from gotrace.session.oncpu.wall import WallRequest
from gotrace.session.probing import Probing
from gotrace.session.row_cells import RowStacks
from gotrace.session.run import Run
from gotrace.target.target import Target
from gotrace.text import counted

_M = TypeVar("_M", bound=Probing)

#: Functions that are printed unless a user says which, or how many.
_FUNCTIONS = 30

_EPILOG = """\
examples:
  gooncpu -p 1234 -d 5                      which functions take its CPU time, for five seconds
  gooncpu -p 1234 -d 5 'main.*'             only the program's own functions in the table
  gooncpu -p 1234 --in 'main.(*Store).*'    only within calls of these functions
  gooncpu -p 1234 -d 5 -g                   by the go statements that have made the goroutines
  gooncpu -p 1234 -d 5 --by '$label("user")'   by a pprof label of the goroutines
  gooncpu -p 1234 -d 5 --stacks --top 3     the stacks that take most
  gooncpu -p 1234 -d 5 -K                   with the kernel's functions
  gooncpu -p 1234 -F 999 -i 1 --top 5       more samples, every second
  gooncpu -p 1234 -d 5 --off                all of goroutines' time, waits included
  gooncpu -p 1234 -d 5 -o x.pb.gz           for go tool pprof
  gooncpu -d 5 -o x.html -p 1234   a flame graph, for any browser
"""


_CONFLICTS = (
    *STACK_CONFLICTS,
    Conflict("-g", "--stacks", ONE_OF),
    Conflict("-g", "--by", ONE_OF),
    Conflict(
        "--off",
        "--in PATTERN --stacks --by -i",
        "--off is for all of the run: leave out --in, PATTERN, --stacks, --by and -i",
    ),
    Needs("--force", "--off", "--force is for --off: give both, or leave it out"),
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GooncpuOptions(StackOptions):
    """The options of gooncpu."""

    frequency: int
    goroutines: bool
    label: str | None
    stacks: bool
    kernel: bool
    off: bool
    functions: list[str]


def _parser() -> OptionParser[GooncpuOptions]:
    parser = new_parser(
        "gooncpu",
        "Sample where the threads of a Go program spend CPU time, added up in the kernel.",
        _EPILOG,
        GooncpuOptions,
    )
    add_command_options(parser)
    parser.add_argument(
        "-F",
        "--frequency",
        type=positive,
        metavar="HERTZ",
        default=HERTZ,
        help=f"samples a second of each CPU (default {HERTZ})",
    )
    parser.add_argument(
        "-g", "--goroutines", action="store_true", help="by group of goroutines, not by function"
    )
    parser.add_argument(
        "--by",
        dest="label",
        metavar="LABEL",
        help="by a pprof label of the goroutines, such as '$label(\"user\")', not by function",
    )
    parser.add_argument("--stacks", action="store_true", help="by stack, not by function")
    parser.add_argument(
        "-K", "--kernel", action="store_true", help="with the kernel's own functions"
    )
    parser.add_argument(
        "--in",
        dest="inside",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only time within calls of such functions; only * is special (may be repeated)",
    )
    parser.add_argument(
        "--off",
        action="store_true",
        help="all of goroutines' time, by group: running, runnable, system calls, waiting",
    )
    parser.add_argument(
        "--force", action="store_true", help="use --off whatever it takes of the program's time"
    )
    add_stack_options(parser)
    add_interval_options(parser)
    add_watching_options(parser, has_budget=False)
    parser.add_argument(
        "functions",
        metavar="PATTERN",
        nargs="*",
        help="only such functions in the table; only * is special",
    )
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, options.pprof, bool(options.named.command), options.quiet)
    check_options(parser, options, _CONFLICTS)
    output = run_output(options)
    with process_of(options, "gooncpu samples") as target:
        request = CpuRequest(
            target=target,
            forced=options.attach,
            hertz=options.frequency,
            kernel=options.kernel,
            inside=[*options.inside, *options.functions],
            by=options.label,
        )
        if options.off:
            _run_off(options, request, output)
        else:
            _run_on(options, request, output)
    return 0


def _run_on(options: GooncpuOptions, request: CpuRequest, output: Output) -> None:
    with running(request, output) as run:
        writer = _Writer(options, run.meter, run.target, output)
        _begun(options, run, output)
        for length in pace(options, run, output):
            writer.write(run.meter.take(), length)
        writer.finish()
        _say_lost(output, run.meter.lost_stacks())


def _run_off(options: GooncpuOptions, request: CpuRequest, output: Output) -> None:
    """Add up all of the time, and write it at the end."""
    asked = WallRequest(target=request.target, forced=request.forced, cpu=request, is_priced=True)
    watch = PriceWatch(options, output, "--off")
    with running(asked, output, watch.accept) as run:
        names, began = CpuNames(run.meter.cpu), time.time_ns()
        _begun(options, run, output)
        for _ in pace(options, run, output, watch=watch):
            pass
        length = (run.attached.stopped_at or run.began) - run.began
        rows, others, period = run.meter.take()
        samples = names.named(period.rows)
        groups = wall_groups(rows, samples, names, run.meter.cpu.period)
        what = f"process {run.target.pid}"
        found = [row for group in groups for row in group.profile_rows(names)]
        span = round(length * 1e9)
        name = f"time of goroutines of {what}"
        profile = StackProfile(WALL_FORM, found, name, names.mappings(), began, span)
        fields = {"pid": run.target.pid, "ts": round(time.time(), 6), "seconds": length}
        head, stacks_of = wall_head(groups, others, fields), RowStacks(names.program)
        tables = [group.table_rows(stacks_of) for group in groups]
        if isinstance(output, JsonOutput):
            output.rows([head, *chain.from_iterable(tables[: options.top])])
        elif not options.folded:
            clock = f"{time.strftime('%H:%M:%S')} " if options.timestamp else ""
            output.out.write(f"\n{clock}")
            write_wall(output.out, head, [rows[0] for rows in tables], what, options.top)
        write_stacks(options, output, profile, f"{len(found):,} stacks")
        unseen, stacks = run.meter.losses()
        if unseen:
            text = f"{unseen:,} not counted: there were too many goroutines"
            output.notice(Notice(NoticeKind.LOST, text, {"what": "unseen", "count": unseen}))
        _say_lost(output, stacks)


def _begun(options: GooncpuOptions, run: Run[_M, None], output: Output) -> None:
    for note in run.warnings():
        output.notice(Notice(NoticeKind.WARNING, note.text, note.fields))
    output.notice(_attached(options, run.target))


def _attached(options: GooncpuOptions, target: Target) -> Notice:
    text = f"Sampling process {target.pid} at {options.frequency} Hz... Hit Ctrl-C to end."
    fields = {"pid": target.pid, "hertz": options.frequency, "ts": time.time()}
    return Notice(NoticeKind.ATTACHED, text, fields)


class _Writer:
    """The results of a run: printed for each interval, or written at the end."""

    def __init__(
        self,
        options: GooncpuOptions,
        meter: CpuMeter,
        target: Target,
        output: Output,
    ) -> None:
        self._options = options
        self._target = target
        self._output = output
        self._period = meter.period
        self._names = CpuNames(meter)
        self._rows: list[CpuRow] = []
        self._began = time.time_ns()
        self._length = 0.0

    def write(self, period: CpuPeriod, length: float) -> None:
        """Write an interval's samples."""
        options, output = self._options, self._output
        self._length += length
        self._rows = sum_samples([*self._rows, *period.rows])
        if options.folded and options.interval is None:
            return
        samples = self._names.named(period.rows, options.inside)
        if options.folded:
            fold(output, self._profile(samples))
            return
        functions = function_rows(samples, self._period, options.functions)
        rows = [one.row(self._period, options.label) for one in samples]
        own_clock = None if options.inside else period.cpu_ns
        fields = {"pid": self._target.pid, "ts": round(time.time(), 6), "seconds": length}
        head = cpu_head(samples, period.others, self._period, own_clock, fields)
        if isinstance(output, JsonOutput):
            output.rows([head, *functions[: options.top], *rows[: options.top]])
            return
        clock = f"{time.strftime('%H:%M:%S')} " if options.timestamp else ""
        output.out.write(f"\n{clock}")
        what = f"process {self._target.pid}"
        by = "GROUP" if options.goroutines else options.label
        few = not (options.functions or by or options.stacks)
        top = options.top or (_FUNCTIONS if few else None)
        write_cpu(output.out, head, functions, rows, what, top, by, options.stacks)

    def _profile(self, samples: Sequence[NamedSamples]) -> StackProfile:
        rows = self._names.profile_rows(samples, self._period)
        name = f"CPU time of process {self._target.pid}"
        length = round(self._length * 1e9)
        return StackProfile(FORM, rows, name, self._names.mappings(), self._began, length)

    def finish(self) -> None:
        """Write the results of the whole run."""
        if wants_stacks(self._options):
            samples = self._names.named(self._rows, self._options.inside)
            count = sum(one.samples for one in samples)
            what = f"{count:,} samples"
            write_stacks(self._options, self._output, self._profile(samples), what)


def _say_lost(output: Output, stacks: int) -> None:
    """Print a notice of samples without a stack."""
    if stacks:
        text = counted("{} stack{s} of samples were not kept: there were too many", stacks)
        output.notice(Notice(NoticeKind.LOST, text, {"what": "stacks", "count": stacks}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gooncpu", _run, sys.argv[1:] if arguments is None else arguments)
