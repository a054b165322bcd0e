# SPDX-License-Identifier: Apache-2.0
"""Try for real what versions and return codes do not show: programs, ways to attach, signals.

Each trial runs in a child process, all at the same time: LLVM ends its process where it cannot
generate code for an old kernel, and compiling takes most of the time.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gotrace.doctor.finding import CheckState, Finding
from gotrace.doctor.needs import ATOMICS, UPROBES, without
from gotrace.errors import GotraceError
from gotrace.kernel.attach import Attached, Point, ProbeGroup, attach
from gotrace.kernel.btf import task_fsbase_offset
from gotrace.kernel.children import Child
from gotrace.kernel.compiler import LoadError, NoCompilerError, ProgramOrigin, load_compiler
from gotrace.kernel.cookie import cookie
from gotrace.kernel.features import multi_filters_by_process
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.own_function import OwnFunction, own_code, own_function
from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.kernel.program_cache import is_packaged
from gotrace.kernel.syscalls import CPU_CLOCK
from gotrace.records import dataclass
from gotrace.session.trace import buffer_pages
from gotrace.settings import (
    AllocSettings,
    CountSettings,
    HistogramSettings,
    LatencySettings,
    OnCpuSettings,
    ProgramSettings,
    SignalSettings,
    SiteSettings,
    SyscallSettings,
    TaskSettings,
    TraceSettings,
    TrialSettings,
    WaitSettings,
)
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site, SiteKind
from gotrace.target.process import Process
from gotrace.target.target import Target

_CALLS = 3
_SIGNAL_WAIT = 0.5  # seconds
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial, with its name for when its process dies, and its action."""

    name: str
    run: Callable[[], Sequence[Finding]]


def run_trials() -> Iterator[Finding]:
    """Run all trials and yield their findings, in a fixed order. Takes a second or two."""
    running: list[tuple[_Trial, Child | GotraceError]] = []
    try:
        for trial in _TRIALS:
            try:
                running.append((trial, Child(f"that tries {trial.name}", partial(_run, trial))))
            except GotraceError as error:
                running.append((trial, error))
        for trial, child in running:
            yield from _findings(trial, child)
    finally:
        for _, child in running:
            if isinstance(child, Child):
                child.end()


def _run(trial: _Trial, answer: int) -> None:
    with open(answer, "wb", closefd=False) as results:
        pickle.dump(trial.run(), results)


def _findings(trial: _Trial, child: Child | GotraceError) -> Sequence[Finding]:
    advice = "use a newer kernel or BCC: the BPF compiler cannot serve this pair"
    if isinstance(child, GotraceError):
        return [Finding(trial.name, CheckState.FAIL, str(child))]
    data = child.whole_answer()
    child.wait()
    if not data:
        return [Finding(trial.name, CheckState.FAIL, child.why_ended(), advice)]
    found: Sequence[Finding] = pickle.loads(data)
    return found


_NEWER = "use a newer kernel or BCC; gotrace doctor --debug shows the whole log"
_PAIRED = ("on_entry", "on_return", "on_recovery", "on_goexit")


def _here() -> SiteSettings:
    return Target(process=Process(os.getpid())).settings()


# The needs of the commands, at their usual sizes.


def _callers() -> TaskSettings:
    offset = task_fsbase_offset()
    return TaskSettings(task_fsbase=offset, tls_g=None if offset is None else 0)


def _latency_settings() -> LatencySettings:
    return LatencySettings(
        site=_here(),
        tasks=_callers(),
        stacks=1 << 14,
        outer_calls=1 << 14,
        times=HistogramSettings.of(1, 2, 1),
        goroutines=1 << 13,
        slower=1,
    )


def _trace_settings() -> TraceSettings:
    return TraceSettings(
        site=_here(),
        tasks=_callers(),
        stacks=1 << 14,
        outer_calls=1 << 14,
        payload=4096,
        returns=True,
        floats=True,
        interfaces=True,
        predicates=True,
        steps=32,
        functions=1,
        saved=1 << 8,
        ops=1 << 10,
        types=1 << 10,
        constants=1,
        signals=SignalSettings(waiting=1 << 10),
    )


def _has_compiler() -> bool:
    try:
        load_compiler()
    except NoCompilerError:
        return False
    return True


def _program(settings: ProgramSettings, functions: Sequence[str]) -> BpfProgram:
    """Load a program as a run would: of the package, compiled now, or kept. Raises LoadError."""
    fresh = not is_packaged(settings) and _has_compiler()
    program = BpfProgram(settings, fresh)
    program.load(functions, AttachKind.PERF_EVENT)
    return program


def _program_of(tool: str, program: BpfProgram | LoadError) -> Finding:
    """Return where a tool's program comes from and whether it has been verified."""
    name = f"program of {tool}"
    if isinstance(program, LoadError):
        return Finding(name, CheckState.FAIL, str(program), _NEWER, program.log)
    found = _COMES[program.origin]
    return Finding(name, CheckState.OK, f"{found}, and the kernel's verifier accepts it")


_COMES = {
    ProgramOrigin.PACKAGE: "comes with the package",
    ProgramOrigin.CACHE: "is kept",
    ProgramOrigin.COMPILER: "compiles",
}


def _program_trial(
    tool: str,
    settings: Callable[[], ProgramSettings],
    functions: Sequence[str] = (),
    use: Callable[[BpfProgram], object] | None = None,
) -> _Trial:
    """Return a trial of a tool's program; ``use`` may have a finding more."""

    def run() -> list[Finding]:
        try:
            program = _program(settings(), functions)
            found = use(program) if use is not None else None
        except LoadError as error:
            return [_program_of(tool, error)]
        return [_program_of(tool, program), *([found] if isinstance(found, Finding) else ())]

    return _Trial(f"program of {tool}", run)


def _wait_settings() -> WaitSettings:
    return WaitSettings(
        site=_here(), tasks=_callers(), state=4, followed=1 << 13, stacks=1 << 13, rows=1 << 13
    )


def _syscall_settings() -> SyscallSettings:
    return SyscallSettings(
        site=_here(),
        tasks=_callers(),
        times=HistogramSettings.of(512, 1, 1),
        calls=1 << 15,
        errors=1 << 12,
        stack_rows=1 << 13,
        stacks=1 << 13,
    )


def _oncpu_settings() -> OnCpuSettings:
    return OnCpuSettings(
        site=_here(), tasks=_callers(), kernel=False, rows=1 << 13, stacks=1 << 13, g_status=0
    )


def _alloc_settings() -> AllocSettings:
    return AllocSettings(
        site=_here(),
        tasks=_callers(),
        rows=1 << 13,
        stacks=1 << 13,
        g_status=0,
        size_argument=1,
        rate_distance=0,
    )


def _buffers(program: BpfProgram) -> Finding:
    """Map event buffers of the size that gotrace uses."""
    name = "event buffers"
    pages = buffer_pages()
    size = f"{pages * _PAGE >> 10} kB for each CPU"
    try:
        program.open_events("events", pages)
    except LoadError as error:
        advice = (
            "gotrace and gofunclatency --slower need CAP_IPC_LOCK, or"
            f" sysctl kernel.perf_event_mlock_kb={(pages + 1) * _PAGE >> 10}"
        )
        return Finding(name, CheckState.FAIL, f"{size}: not permitted", advice, error.log)
    return Finding(name, CheckState.OK, size)


def _fetch() -> list[Finding]:
    name = "atomic fetch"
    try:
        BpfProgram(TrialSettings(fetch=1)).load(["fetch"], AttachKind.PERF_EVENT)
    except LoadError as error:
        advice = f"use Linux {ATOMICS} or newer: all need it but {', '.join(without(ATOMICS))}"
        return [Finding(name, CheckState.FAIL, str(error), advice, error.log)]
    return [Finding(name, CheckState.OK, "the kernel knows the instructions")]


def _signal() -> list[Finding]:
    """Send this thread, from a BPF program, the signal that makes float registers readable."""
    name = "signals from BPF"
    advice = "give gotrace --no-fp: values in float registers cannot be shown"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    try:
        with own_function(own_code().emulated) as function:
            attached = _attach(function, "send_signal", TrialSettings(site=_here(), signal=1), None)
            try:
                function.call()
                seen = signal.sigtimedwait({signal.SIGURG}, _SIGNAL_WAIT)
            finally:
                attached.close()
    except GotraceError as error:
        return [Finding(name, CheckState.WARN, str(error), advice, getattr(error, "log", ""))]
    if seen is None:
        return [Finding(name, CheckState.WARN, "sent, but never came", advice)]
    return [Finding(name, CheckState.OK, "a thread gets its SIGURG")]


def _attach(
    function: OwnFunction,
    program: str,
    settings: ProgramSettings,
    method: AttachMethod | None,
) -> Attached:
    site = Site(0, SiteKind.ENTRY, SiteForm.EMULATED, 0)
    points = [Point(0, 0, cookie(1, site))]
    display = "a function of its own"
    group = ProbeGroup(program, function.path, display, points, function.address, os.getpid())
    return attach(settings, [group], method)


def _rungs() -> list[Finding]:
    problems = {method: _rung_problem(method) for method in AttachMethod}
    return rung_findings(problems, multi_filters_by_process())


def _rung_problem(method: AttachMethod) -> str | None:
    """Count calls of an own function, by its cookie; return the fault, None if there is none."""
    try:
        with own_function(own_code().emulated) as function:
            settings = CountSettings(site=_here(), counters=2)
            attached = _attach(function, "on_entry", settings, method)
            try:
                for _ in range(_CALLS):
                    function.call()
                counted = attached.program.map("counts").sums()[1]
            finally:
                attached.close()
    except GotraceError as error:
        return str(error)
    if counted != _CALLS:
        return f"counts {counted} calls where there were {_CALLS}"
    return None


def rung_findings(problems: Mapping[AttachMethod, str | None], filters: bool) -> list[Finding]:
    """Return a finding for each way to attach, beside the others.

    ``problems`` has None for each that works; ``filters`` says whether uprobe-multi links see all
    threads of the process that they are for.
    """
    best = next((method for method in AttachMethod if problems[method] is None), None)
    return [_rung_finding(method, problems[method], best, filters) for method in AttachMethod]


def _rung_finding(
    method: AttachMethod, problem: str | None, best: AttachMethod | None, filters: bool
) -> Finding:
    name = f"attach: {method.value}"
    if problem is None and method is AttachMethod.MULTI and not filters:
        advice = "the programs filter by themselves: hits of other processes cost more (Linux 6.10)"
        return Finding(name, CheckState.WARN, "works, but not for one process only", advice)
    if problem is None:
        return Finding(name, CheckState.OK, "works" + (", and is used" if method is best else ""))
    if best is None:
        return Finding(name, CheckState.FAIL, problem, f"use {_NEEDS[method]}")
    return Finding(name, CheckState.WARN, problem, f"{best.value} is used instead")


_NEEDS = {
    AttachMethod.MULTI: "Linux 6.6 or newer",
    AttachMethod.COOKIE: "Linux 5.15 or newer",
    AttachMethod.ADDRESS: f"Linux {UPROBES} or newer, with CONFIG_UPROBES and /sys mounted",
}

_TRIALS = (
    _program_trial("gofunccount", lambda: CountSettings(site=_here(), counters=1), ["on_entry"]),
    _program_trial("gofunclatency", _latency_settings, _PAIRED),
    _program_trial("gotrace", _trace_settings, (*_PAIRED, "on_signal"), _buffers),
    _program_trial("gooffcpu", _wait_settings, ["on_status"]),
    _program_trial(
        "--names",
        _syscall_settings,
        use=lambda program: program.attach_system_calls("on_syscall_enter", "on_syscall_exit"),
    ),
    _program_trial(
        "gooncpu",
        _oncpu_settings,
        use=lambda program: program.attach_events("on_event", CPU_CLOCK, 10**7),
    ),
    _program_trial(
        "goalloc", _alloc_settings, ["on_sample", "on_refill", "on_release", "on_large"]
    ),
    _Trial("attach", _rungs),
    _Trial("atomic fetch", _fetch),
    _Trial("signals from BPF", _signal),
)
