# SPDX-License-Identifier: Apache-2.0
"""Print the probes that a configuration would have on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.config import Config, FlightSpec, MetricSpec, SpanSpec
from gotrace.fleet.leaving import leaving
from gotrace.fleet.probing import metric_request, open_target
from gotrace.fleet.targets import Finder, Program, ProgramKey
from gotrace.fleet.telemetry.waits import plan_waits
from gotrace.fleet.trusted import check_folder
from gotrace.fleet.web import check_listen
from gotrace.live.runtime import plan_runtime
from gotrace.session.plan import ProbePlan
from gotrace.session.tasks import find_tasks
from gotrace.target.target import Target
from gotrace.text import printable

_MAX_NAMES = 5


def check(config: Config, out: TextIO) -> int:
    """Write the functions to trace and return the exit status.

    That is 3 if something is asked for that is in none of the programs that are here, though there
    are some of its targets. Raises GotraceError if files cannot be kept or sent.
    """
    finder = Finder(config.targets)
    programs = finder.look()
    _check_targets(config, finder, programs, out)
    is_found: dict[str, bool] = {}
    for program in programs.values():
        for what, is_there in _checked(config, program, out):
            is_found[what] = is_found.get(what, False) or is_there
    nowhere = [what for what, is_there in is_found.items() if not is_there]
    for what in nowhere:
        print(f"{printable(what)}: in none of the programs that are here", file=out)
    print(f"budget: {config.budget:.2%} of one CPU for each target", file=out)
    if config.host_budget is not None:
        print(f"host_budget: {config.host_budget:.2%} of one CPU for all targets", file=out)
    _check_outlets(config, out)
    return NoMatchError.exit_code if nowhere else 0


def _check_targets(
    config: Config, finder: Finder, programs: Mapping[ProgramKey, Program], out: TextIO
) -> None:
    for target in config.targets:
        found = [program for key, program in programs.items() if key.target == target.name]
        if target.name in finder.problems:
            print(f"target {target.name}: {printable(finder.problems[target.name])}", file=out)
        elif not found:
            print(f"target {target.name}: not here, and looked for every second", file=out)
        for program in found:
            count = len(program.processes)
            number = f"{count} process{'' if count == 1 else 'es'}"
            print(f"target {target.name}: {printable(program.shown)}, {number}", file=out)


def _checked(config: Config, program: Program, out: TextIO) -> Iterator[tuple[str, bool]]:
    """Write the part of a configuration that is in a program; yield whether each job is there."""
    opened = open_target(program, config.planning)
    try:
        for spec in config.metrics:
            if program.key.target in spec.targets:
                yield f"metric {spec.name}", _check_metric(spec, opened, program, out)
        if config.waits is not None and program.key.target in config.waits.targets:
            yield "waits", _check_waits(opened, program, out)
        runtimes = config.runtime_metrics
        if runtimes is not None and program.key.target in runtimes.targets:
            yield "runtime_metrics", _check_runtime(opened, program, out)
        for flight in config.flights:
            if program.key.target in flight.targets:
                yield f"flight {flight.name}", _check_flight(flight, opened, program, out)
        for span in config.spans:
            if program.key.target in span.targets:
                yield f"span {span.name or span.probe}", _check_span(span, opened, program, out)
    finally:
        opened.close()


def _check_outlets(config: Config, out: TextIO) -> None:
    """Write the data that leave this host, and try where they go to. Raises GotraceError."""
    print("what leaves this host:", file=out)
    for line in leaving(config):
        print(f"  {printable(line)}", file=out)
    for folder in _folders(config):
        if os.path.lexists(folder):
            check_folder(folder)
    for listen in filter(None, (config.listen, config.web.health)):
        check_listen(listen)
    if config.otlp is not None:
        from gotrace.fleet.transport import check_sender  # loads protobuf

        check_sender(config.otlp)


def _folders(config: Config) -> Iterator[str]:
    yield from (flight.folder for flight in config.flights)
    if config.otlp is not None and config.otlp.disk is not None:
        yield config.otlp.disk


def _check_metric(spec: MetricSpec, target: Target, program: Program, out: TextIO) -> bool:
    what = f"metric {spec.name} in {program.key.target}"
    try:
        plan = metric_request(spec, target, program).plan().plan
    except GotraceError as error:
        print(f"{what}: nothing: {printable(str(error))}", file=out)
        return False
    print(f"{what}: {_listed(plan)}", file=out)
    with suppress(GotraceError):
        inlined = (one.text("counted") for one in plan.inlined())
        for problem in (*plan.problems, *map(str, plan.failed), *inlined):
            print(f"  {printable(problem)}", file=out)
    return True


def _check_waits(target: Target, program: Program, out: TextIO) -> bool:
    what = f"waits in {program.key.target}"
    try:
        plan_waits(target, program)
    except GotraceError as error:
        print(f"{what}: nothing: {printable(str(error))}", file=out)
        return False
    print(f"{what}: what they cost is counted before they are attached", file=out)
    return True


def _check_runtime(target: Target, program: Program, out: TextIO) -> bool:
    what = f"runtime_metrics in {program.key.target}"
    try:
        problem = plan_runtime(target.binary(program.path)).heap_problem
    except GotraceError as error:
        print(f"{what}: nothing: {printable(str(error))}", file=out)
        return False
    found = f"goroutines, without the heap: {problem}" if problem else "goroutines and heap"
    print(f"{what}: {printable(found)}", file=out)
    return True


def _check_flight(spec: FlightSpec, target: Target, program: Program, out: TextIO) -> bool:
    from gotrace.fleet.flights import flight_request

    what = f"flight {spec.name} in {program.key.target}"
    try:
        prepared = flight_request(spec, target, program).prepare(None, None)
    except GotraceError as error:
        print(f"{what}: nothing: {printable(str(error))}", file=out)
        return False
    print(f"{what}: {_listed(prepared.plan)}", file=out)
    for problem in prepared.plan.problems:
        print(f"  {printable(problem)}", file=out)
    return True


def _check_span(spec: SpanSpec, target: Target, program: Program, out: TextIO) -> bool:
    from gotrace.fleet.spans import edges_problem, has_context, plan_span  # loads the SDK

    what = f"span {spec.name or spec.probe} in {program.key.target}"
    try:
        traced = plan_span(spec, target, program)
        tasks = find_tasks(target, traced.plan)
    except GotraceError as error:
        print(f"{what}: nothing: {printable(str(error))}", file=out)
        return False
    print(f"{what}: {_listed(traced.plan)}", file=out)
    within = [call.function.function.name for call in traced.calls if has_context(call)]
    if within and spec.trace_context:
        print(f"  in the program's own traces, by their contexts: {_names(within)}", file=out)
    alone = edges_problem(target, tasks) if spec.inherit else None
    for problem in (*traced.plan.problems, *filter(None, [alone])):
        print(f"  {printable(problem)}", file=out)
    return True


def _listed(plan: ProbePlan) -> str:
    return _names([function.name for function in plan.functions])


def _names(functions: Sequence[str]) -> str:
    names = [printable(name) for name in functions]
    more = len(names) - _MAX_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"{', '.join(names[:_MAX_NAMES])}{rest}"
