# SPDX-License-Identifier: Apache-2.0
"""Check the machine's state: privileges, system calls, mounts, limits, libraries."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from importlib import import_module
from pathlib import Path

from gotrace.architecture import ARCHITECTURES, HOST
from gotrace.doctor.finding import CheckState, Finding
from gotrace.doctor.privileges import Privileges
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.btf import task_fsbase_offset
from gotrace.kernel.compiler import import_binding
from gotrace.kernel.own_function import own_code, own_function
from gotrace.kernel.privileges import Capability
from gotrace.kernel.program_cache import cached_programs, packaged_programs
from gotrace.target.process import in_initial_pid_namespace

_ROOT = Path("/")
_OLDEST_CAPSTONE = (4, 0, 2)
_OLDEST_PYELFTOOLS = (0, 29)
_OLDEST_TABULATE = (0, 8, 9)
_ENOUGH_FILES = 4096  # for 1,000 functions: an entry and a RET of two descriptors each


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def architecture() -> Finding:
    """Check that the machine is one whose instructions and calling convention are known."""
    if HOST is not None:
        found = "" if HOST.was_tried else ": not tried on hardware, only on emulated machines"
        return Finding("architecture", CheckState.OK, HOST.name + found)
    names = " or ".join(arch.name for arch in ARCHITECTURES)
    advice = f"use an {names} machine: programs are traced on no other"
    return Finding("architecture", CheckState.FAIL, os.uname().machine, advice)


def kernel_release() -> Finding:
    """Return the kernel's release; its features are probed, as distributions backport them."""
    return Finding("kernel", CheckState.OK, f"Linux {os.uname().release}")


def python() -> Finding:
    """Return which interpreter runs this: it has to be one that sees the BCC binding."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", CheckState.OK, f"{version}, {sys.executable}")


def privileges(own: Privileges) -> Finding:
    """Check the effective capabilities."""
    lacking = own.lacks(Capability.BPF, Capability.PERFMON)
    if own.in_user_namespace or lacking:
        found = "those of a user namespace" if own.in_user_namespace else f"no {', '.join(lacking)}"
        return Finding("privileges", CheckState.FAIL, found, own.advice())
    if not own.has(Capability.SYS_PTRACE):
        advice = "-p cannot name processes of others, or with more rights"
        return Finding("privileges", CheckState.WARN, "no CAP_SYS_PTRACE", advice)
    who = "root" if own.is_root else "not root, but"
    return Finding("privileges", CheckState.OK, f"{who} with all capabilities that matter")


def bpf_call(own: Privileges) -> Finding:
    """Check that bpf(2) may be called."""
    try:
        os.close(kernel.create_array_map(value_size=8))
    except OSError as error:
        advice = own.advice()
        if error.errno == errno.ENOSYS and not own.has_seccomp_filter:
            advice = "use a kernel with CONFIG_BPF_SYSCALL"
        return Finding("bpf(2)", CheckState.FAIL, error.strerror or str(error), advice)
    return Finding("bpf(2)", CheckState.OK, "may be called")


def perf_call(own: Privileges) -> Finding:
    """Check that perf_event_open(2) gives a uprobe, on a function of this process.

    It wants CAP_SYS_ADMIN even where CAP_PERFMON is enough for other events (perf_uprobe_event_init
    in kernel/events/core.c); event buffers are such others.
    """
    name = "perf_event_open(2)"
    try:
        with own_function(own_code().emulated) as function:
            os.close(kernel.open_uprobe(function.path, 0))
    except OSError as error:
        found = error.strerror or str(error)
        if error.errno == errno.ENOENT:  # there is no /sys/bus/event_source/devices/uprobe
            advice = "perf-cookie and perf-ip need Linux 4.17 and, in a container, all of /sys"
            return Finding(name, CheckState.WARN, found, advice)
        if not own.has(Capability.SYS_ADMIN):
            advice = "perf-cookie and perf-ip need CAP_SYS_ADMIN; multi does not"
            return Finding(name, CheckState.WARN, f"no uprobes: {found}", advice)
        return Finding(name, CheckState.FAIL, found, own.advice())
    return Finding(name, CheckState.OK, "may be called, for uprobes too")


def mounts(root: Path = _ROOT) -> Finding:
    """Check that /proc is this pid namespace's and that /sys is there."""
    try:
        seen = os.readlink(root / "proc/self")
    except OSError:
        seen = ""
    if seen != str(os.getpid()):
        found = "/proc is another pid namespace's" if seen else "/proc is not mounted"
        return Finding("mounts", CheckState.FAIL, found, "mount -t proc proc /proc")
    if not (root / "sys/devices/system/cpu/possible").exists():
        advice = "mount -t sysfs -o ro sysfs /sys, or -v /sys:/sys:ro for the container"
        return Finding("mounts", CheckState.FAIL, "/sys is not mounted", advice)
    return Finding("mounts", CheckState.OK, "/proc and /sys are there")


def lockdown(root: Path = _ROOT) -> Finding:
    """Check the kernel's lockdown mode (kernel_lockdown(7)).

    Confidentiality takes bpf_probe_read_kernel away: kernel commit 9d1f8be5cf42.
    """
    text = _read(root / "sys/kernel/security/lockdown")
    mode = re.search(r"\[(\w+)\]", text or "")
    if mode is None:
        return Finding("lockdown", CheckState.OK, "not in force, as far as can be seen")
    if mode[1] != "confidentiality":
        return Finding("lockdown", CheckState.OK, mode[1])
    advice = (
        "boot with lockdown=integrity: gofunclatency and gotrace have BPF programs that read"
        " kernel memory"
    )
    return Finding("lockdown", CheckState.FAIL, mode[1], advice)


def unprivileged_bpf(root: Path = _ROOT) -> Finding:
    """Return kernel.unprivileged_bpf_disabled, which never gives others enough for tracing."""
    value = _read(root / "proc/sys/kernel/unprivileged_bpf_disabled")
    found = "not there" if value is None else value
    return Finding(
        "unprivileged_bpf_disabled", CheckState.OK, f"{found}: concerns no privileged user"
    )


def ptrace_scope(own: Privileges, root: Path = _ROOT) -> Finding:
    """Check Yama's ptrace_scope: reads of others' memory are as attaching a debugger is.

    Sources: mm_access in kernel/fork.c, yama_ptrace_access_check in security/yama/yama_lsm.c.
    """
    value = _read(root / "proc/sys/kernel/yama/ptrace_scope")
    if value is None or value == "0":
        return Finding("ptrace_scope", CheckState.OK, value or "no Yama")
    if value != "3" and own.has(Capability.SYS_PTRACE):
        return Finding("ptrace_scope", CheckState.OK, f"{value}: CAP_SYS_PTRACE overrides it")
    advice = "goroutines of running processes cannot be read, by gostacks and gotop for example"
    if value != "3":
        advice += ": that takes CAP_SYS_PTRACE"
    return Finding("ptrace_scope", CheckState.WARN, value, advice)


def btf() -> Finding:
    """Check that the kernel's BTF says where it keeps a thread's TLS base."""
    if HOST is not None and HOST.keeps_g:
        return Finding("BTF", CheckState.OK, "not needed: all of Go's code keeps g in a register")
    offset = task_fsbase_offset()
    if offset is not None:
        return Finding("BTF", CheckState.OK, f"a thread's TLS base is at {offset} in task_struct")
    advice = (
        "calls of assembly functions, and of programs built with Go 1.16 or older, are counted but"
        " not timed or shown: that takes a kernel with CONFIG_DEBUG_INFO_BTF, seen through /sys"
    )
    found = "/sys/kernel/btf/vmlinux does not say where a thread's TLS base is"
    return Finding("BTF", CheckState.WARN, found, advice)


def pid_namespace() -> Finding:
    """Check whether all processes have a number here."""
    if in_initial_pid_namespace():
        return Finding("pid namespace", CheckState.OK, "the initial one")
    advice = (
        "without -p or -c, processes of other containers that run the same file are traced too,"
        " and shown with PID 0"
    )
    return Finding("pid namespace", CheckState.WARN, "not the initial one", advice)


def open_files(own: Privileges) -> Finding:
    """Check RLIMIT_NOFILE, of which each perf event and link takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, may be raised to {_limit(hard)}"
    if own.has(Capability.SYS_RESOURCE):
        return Finding("open files", CheckState.OK, f"{_limit(soft)}, may be raised")
    if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES:
        return Finding("open files", CheckState.OK, found)
    advice = "attaching by perf events is limited to few functions: raise ulimit -n"
    return Finding("open files", CheckState.WARN, found, advice)


def memory_limits(own: Privileges, root: Path = _ROOT) -> Finding:
    """Return the limits of locked memory: event buffers, and before Linux 5.11 BPF maps.

    Source: perf_mmap in kernel/events/core.c.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limits = f"RLIMIT_MEMLOCK {_bytes(soft)}, may be raised to {_bytes(hard)}"
    per_cpu = _read(root / "proc/sys/kernel/perf_event_mlock_kb")
    limits += f"; perf_event_mlock_kb {per_cpu} for each CPU"
    free = "; CAP_IPC_LOCK lifts them for event buffers" if own.has(Capability.IPC_LOCK) else ""
    return Finding("locked memory", CheckState.OK, limits + free)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _bytes(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value >> 10} kB"


def bcc_binding() -> Finding:
    """Check that the BCC binding can be imported and is BCC's."""
    cure = (
        "install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora); a virtual environment"
        " needs --system-site-packages and the system's python3"
    )
    try:
        bcc = import_binding()
    except (ImportError, OSError) as error:  # OSError: there is no libbcc.so
        return _no_compiler(f"cannot be imported: {error}", cure)
    where = os.path.dirname(bcc.__file__ or "")
    if not hasattr(bcc, "BPF"):
        found = f"{where} is PyPI's package of that name, which is something else"
        return _no_compiler(found, f"pip uninstall bcc, then {cure}")
    found = f"{getattr(bcc, '__version__', 'unknown version')}, {where}"
    return Finding("bcc", CheckState.OK, found)


def _no_compiler(found: str, cure: str) -> Finding:
    """Return a finding that nothing can be compiled: programs that are kept can still run."""
    packaged = packaged_programs()
    if packaged is not None and packaged.problem is None:
        found += ": what neither comes with the package nor is kept cannot run"
        return Finding("bcc", CheckState.WARN, found, cure)
    if not cached_programs().programs:
        return Finding("bcc", CheckState.FAIL, found, cure)
    return Finding("bcc", CheckState.WARN, f"{found}: what is not kept cannot run", cure)


def packaged_compiled() -> Finding:
    """Say how many compiled programs the package carries, and who has compiled them."""
    name, packaged = "packaged programs", packaged_programs()
    if packaged is None:
        return Finding(
            name, CheckState.OK, "not there: this is a clone, or was installed from sources"
        )
    found = f"{packaged.programs}, {packaged.size >> 10} kB, {packaged.path}"
    if packaged.problem is not None:
        advice = "install the package for this machine again: until then each program is compiled"
        return Finding(name, CheckState.WARN, f"{found} is not used: {packaged.problem}", advice)
    return Finding(name, CheckState.OK, f"{found}, compiled by {packaged.compiler}")


def compiled_programs() -> Finding:
    """Say how many compiled programs are kept, and where, or why none are."""
    name, kept = "kept programs", cached_programs()
    refused = "; ".join(f"{path} is not used: {why}" for path, why in kept.refused)
    if kept.path is None:
        advice = "set XDG_CACHE_HOME to a folder of your own: without it each start compiles"
        return Finding(name, CheckState.WARN, refused or "no folder can be written to", advice)
    found = f"{kept.programs}, {kept.size >> 10} kB, {kept.path}"
    return Finding(name, CheckState.OK, f"{found}; {refused}" if refused else found)


def capstone_library() -> Finding:
    """Check the version of capstone, which finds the RET instructions."""
    return _library("capstone", "capstone", _OLDEST_CAPSTONE)


def elf_library() -> Finding:
    """Check the version of pyelftools, which decodes debugging information."""
    return _library("pyelftools", "elftools", _OLDEST_PYELFTOOLS)


def table_library() -> Finding:
    """Check the version of tabulate, which lays out tables."""
    return _library("tabulate", "tabulate", _OLDEST_TABULATE)


def _library(name: str, module: str, oldest: tuple[int, ...]) -> Finding:
    wanted = f"{name}>={'.'.join(map(str, oldest))}"
    advice = f"pip install '{wanted}', or python3-{name} of the distribution"
    try:
        library = import_module(module)
    except ImportError as error:
        return Finding(name, CheckState.FAIL, f"cannot be imported: {error}", advice)
    found = f"{library.__version__}, {os.path.dirname(library.__file__ or '')}"
    numbers = tuple(int(number) for number in re.findall(r"\d+", library.__version__)[:3])
    # tabulate knows its version from the metadata beside it, which a copy may lack.
    return (
        Finding(name, CheckState.OK, found)
        if not numbers or numbers >= oldest
        else Finding(name, CheckState.FAIL, found, advice)
    )
