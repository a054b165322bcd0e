# SPDX-License-Identifier: Apache-2.0
"""Check one process: may it be looked into, and which facts about its program are known."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gotrace.doctor.finding import CheckState, Finding
from gotrace.elf.functions import FunctionTable
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.goroutines.live import LiveGoroutines
from gotrace.gotypes.binary import Binary
from gotrace.kernel.btf import task_fsbase_offset
from gotrace.session.choices import WaitState
from gotrace.session.count import CountRequest
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.session.waits.probes import wait_probes
from gotrace.target.process import Process
from gotrace.target.target import Target, TargetBinary

# Run once, before a program's own code: no process hits probes there.
_QUIET = ("runtime.schedinit", "main.main", "main")


def examine_target(pid: int, attach: bool) -> Iterator[Finding]:
    """Yield findings about the process ``pid``; ``attach``: also try to attach to it."""
    try:
        target = Target.of(pid, None)
    except GotraceError as error:
        advice = "give the number of a live process that this user may look into"
        yield Finding("process", CheckState.FAIL, str(error), advice)
        return
    try:
        assert target.process is not None
        yield _process(target.process)
        try:
            binary = target.binary(None)
            image, table = binary.image, binary.functions
        except GotraceError as error:
            advice = "trace an ELF file for this machine that has a Go function table or symbols"
            yield Finding("program", CheckState.FAIL, str(error), advice)
            return
        yield _program(target.process, image, table)
        yield _go_version(image, table)
        yield _runtime(binary)
        yield _stacks(target)
        yield _scheduler(target)
        yield _symbols(image, table)
        yield _debugging_information(binary)
        if attach:
            yield _attach(target, table)
    finally:
        target.close()


def _process(process: Process) -> Finding:
    found = f"{process.tgid} may be looked into"
    same = process.pid_namespace() == Process(os.getpid()).pid_namespace()
    inner = "" if same else ", and has another number in its own pid namespace"
    return Finding("process", CheckState.OK, found + inner)


def _program(process: Process, image: ElfImage, table: FunctionTable) -> Finding:
    deleted = os.readlink(process.executable).endswith(" (deleted)")
    replaced = ", deleted or replaced since it was started" if deleted else ""
    kind = "position independent" if image.is_pie else "at fixed addresses"
    found = f"{image.display}{replaced}: {len(table.names)} functions, {kind}"
    return Finding("program", CheckState.OK, found)


def _go_version(image: ElfImage, table: FunctionTable) -> Finding:
    if table.go_version is not None:
        return Finding("Go version", CheckState.OK, table.go_version.text)
    if table.has_pclntab:
        return Finding("Go version", CheckState.OK, "not recorded; a Go function table is there")
    advice = "its functions are known from symbols, its calls are distinguished by thread"
    return Finding("Go version", CheckState.WARN, f"{image.display} is not Go's linker's", advice)


def _runtime(binary: Binary) -> Finding:
    name = "goroutines"
    if not binary.functions.has_pclntab:
        return Finding(name, CheckState.WARN, "no Go runtime that is known", "threads are used")
    only_counts = "gofunccount works, gofunclatency and gotrace do not"
    try:
        layout = binary.runtime
    except GotraceError as error:
        return Finding(name, CheckState.WARN, str(error), only_counts)
    if layout.assumed:
        advice = "its goroutines are assumed to look like those of the nearest release known"
        return Finding(name, CheckState.WARN, "this Go release is not known", advice)
    if not layout.g_in_register and (layout.tls_offset is None or task_fsbase_offset() is None):
        found = "found through thread-local storage only, which cannot be reached"
        return Finding(name, CheckState.WARN, found, only_counts)
    where = "the g register" if layout.g_in_register else "thread-local storage"
    found = f"found through {where}; offsets from {_SOURCES[layout.source.value]}"
    return Finding(name, CheckState.OK, found)


def _stacks(target: Target) -> Finding:
    """Read all goroutines, as gostacks does."""
    name = "their stacks"
    try:
        with LiveGoroutines(target) as goroutines:
            count = len(goroutines.take().goroutines)
    except GotraceError as error:
        return Finding(name, CheckState.WARN, str(error), "gostacks does not work, the others do")
    return Finding(name, CheckState.OK, f"gostacks reads {count:,} goroutines, without stopping it")


def _scheduler(target: Target) -> Finding:
    """Find the places at which a goroutine's state changes, for gooffcpu and --why."""
    name = "their waits"
    try:
        probes = wait_probes(target, WaitState.WAITING)
    except GotraceError as error:
        advice = "gooffcpu and --why do not work, all else does"
        return Finding(name, CheckState.WARN, str(error), advice)
    if not probes.reasons:
        advice = "gooffcpu and gostacks do not say why, --why does not work"
        return Finding(name, CheckState.WARN, "why goroutines wait was not found in it", advice)
    found = f"gooffcpu and --why know its scheduler and {len(probes.reasons)} reasons to wait"
    return Finding(name, CheckState.OK, found)


_SOURCES = {"dwarf": "the program's DWARF", "table": "what is known of the release"}


def _symbols(image: ElfImage, table: FunctionTable) -> Finding:
    if image.section(".symtab") is not None:
        return Finding("symbols", CheckState.OK, "not stripped")
    names = "; names come from Go's function table" if table.has_pclntab else ""
    return Finding("symbols", CheckState.OK, f"stripped{names}")


def _debugging_information(binary: TargetBinary) -> Finding:
    image = binary.debug_image
    if image.debug_section("info") is not None:
        where = "there" if image is binary.image else f"in {image.display}"
        found = f"{where}: gotrace knows parameters, results and types"
        return Finding("DWARF", CheckState.OK, found)
    if binary.dwarf_problem is not None:
        return Finding("DWARF", CheckState.WARN, binary.dwarf_problem)
    advice = (
        "gotrace shows values of functions whose signature it is given:"
        " 'main.add(x int, y int) int'; gofunccount and gofunclatency need none"
    )
    return Finding("DWARF", CheckState.WARN, "none", advice)


def _attach(target: Target, table: FunctionTable) -> Finding:
    """Attach for a moment to a function that is not called any more."""
    name = "attach to it"
    chosen = next((each for each in _QUIET if table.rows_named(each)), None)
    if chosen is None:
        return Finding(name, CheckState.OK, f"not tried: there is none of {', '.join(_QUIET)}")
    try:
        request = CountRequest(target=target, asked=Asked([chosen]))
        with open_run(request) as run:
            attached = run.attached
    except GotraceError as error:
        return Finding(name, CheckState.FAIL, str(error), "see the kernel's log, and --debug")
    if attached.failed:
        reason = next(iter(attached.failed.values()))
        advice = "the file system that the program is on may not support uprobes"
        return Finding(name, CheckState.FAIL, f"{chosen}: {reason.strerror}", advice)
    return Finding(name, CheckState.OK, f"works through {attached.method.value}")
