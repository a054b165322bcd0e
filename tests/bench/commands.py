# SPDX-License-Identifier: Apache-2.0
"""Write the command lines of this project's tools and of the tracers beside them."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from gotrace.kernel.compiler import bpf_directory
from tests.bench.targets import FRAMED, Calls, Framed
from tests.bench.tracers import Command, Tracer, opened_perf_buffers, printed
from tests.delve import delve
from tests.tools.harness import CLONE

PEERS = Path(__file__).parent / "peers"


class Missing(Exception):
    """Report a tracer that this machine does not have."""


def ours(name: str, *words: str) -> Command:
    """Return the command that runs a tool of this clone. Raises Missing."""
    path = CLONE / "tools" / name
    if not path.exists():
        raise Missing(f"there is no tools/{name}")
    marker = b'"kind":"attached"' if "--json" in words else b"Tracing "
    if "landing" in words:  # of --returns, with --json
        marker = b'"kind":"moved"'
    return Command((str(path), *words), printed(marker))


def gotrace(pid: int, function: str = FRAMED) -> Command:
    """Return gotrace on one function's entries, as JSON. Raises Missing."""
    return ours("gotrace", "--json", "--entry", "-p", str(pid), function)


def perf_record(target: Calls, hertz: str) -> Command:
    """Return perf record of a process, with call graphs, to no file. Raises Missing."""
    perf = shutil.which("perf")
    if perf is None:
        raise Missing("perf is not installed: linux-perf (Debian)")
    words = ("record", "-F", hertz, "-g", "-o", os.devnull, "-p", str(target.pid))
    return Command((perf, *words), opened_perf_buffers)


def gooncpu(target: Calls, hertz: str) -> Command:
    """Return gooncpu of a process. Raises Missing."""
    return ours("gooncpu", "--json", "-F", hertz, "-p", str(target.pid))


def _bcc_tool(name: str) -> str:
    """Return the path of one of bcc's tools, which Debian renames and Fedora keeps off PATH."""
    places = f"/usr/share/bcc/tools:/usr/sbin:{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(f"{name}-bpfcc", path=places) or shutil.which(name, path=places)
    # Other projects have a command named trace, and its name says nothing.
    if found is None or b"from bcc import" not in Path(found).read_bytes():
        raise Missing(f"bcc's {name} is not installed: bpfcc-tools (Debian), bcc-tools (Fedora)")
    return found


@functools.cache
def _bcc_env() -> dict[str, str]:
    """Return what bcc's tools need to compile: stand-ins where the kernel's headers are missing."""
    if Path(f"/lib/modules/{os.uname().release}/build").exists():
        return {}
    directory = tempfile.mkdtemp(prefix="gotrace-bench-")
    atexit.register(shutil.rmtree, directory)
    for tree in (bpf_directory() / "include", PEERS / "include"):
        shutil.copytree(tree, Path(directory) / "include", dirs_exist_ok=True)
    return {"BCC_KERNEL_SOURCE": directory}


def bcc_count(binary: Path, pattern: str, pid: int | None) -> Command:
    """Return bcc's funccount on the functions that match. Raises Missing."""
    only = ("-p", str(pid)) if pid else ()
    words = (_bcc_tool("funccount"), *only, f"{binary}:{pattern}")
    env = {**_bcc_env(), "PYTHONUNBUFFERED": "1"}
    return Command(words, printed(b"Tracing "), env, patience=60.0)


def bcc_trace(binary: Path, pid: int) -> Command:
    """Return bcc's trace with the function's first two arguments by C's ABI. Raises Missing.

    Go's ABI has them elsewhere; what it costs to read two registers is the same.
    """
    probe = f'p:{binary}:{FRAMED} "%d %d", arg1, arg2'
    words = (_bcc_tool("trace"), "-b", "1024", "-p", str(pid), probe)
    return Command(words, opened_perf_buffers, _bcc_env())


def bcc_latency(framed: Framed, pid: int) -> Command:
    """Return bcc in the manner of funclatency with a probe on the RET. Raises Missing."""
    _bcc_tool("funccount")
    script = str(PEERS / "bcc_latency.py")
    words = ("/usr/bin/python3", script, str(pid), str(framed.binary), FRAMED, hex(framed.ret))
    return Command(words, printed(b"Tracing "), _bcc_env())


def bpftrace(script: str, binary: Path, *words: str, pid: int | None = None) -> Command:
    """Return bpftrace on one of the scripts beside this module. Raises Missing."""
    found = shutil.which("bpftrace")
    if found is None:
        raise Missing("bpftrace is not installed")
    only = ("-p", str(pid)) if pid else ()
    command = (found, "--unsafe", *only, str(PEERS / script), str(binary), *words)
    # bpftrace prints first once it polls, which is after it has attached everything.
    limits = {"BPFTRACE_MAX_PROBES": "100000", "BPFTRACE_MAX_BPF_PROGS": "100000"}
    return Command(command, printed(b"ready\n"), limits, patience=60.0)


def bpftrace_attaches_all_at_once() -> bool:
    """Return whether bpftrace attaches and detaches many functions through one link."""
    if shutil.which("bpftrace") is None:
        return False
    done = subprocess.run(["bpftrace", "--info"], capture_output=True, text=True)
    return re.search(r"uprobe_multi: yes", done.stdout + done.stderr) is not None


def dlv_trace(target: Calls) -> Command:
    """Return ``dlv trace``, which stops the target at each call. Raises Missing.

    It says nothing when it is ready, so that calls are made until one of them shows.
    """
    found = delve()
    if found is None:
        raise Missing("dlv is not installed")

    def shows_a_call(tracer: Tracer) -> bool:
        target.run(1)
        return b"goroutine(" in tracer.head() + tracer.errors().encode()

    words = (str(found), "trace", "-p", str(target.pid), f"^{FRAMED.replace('.', '[.]')}$")
    return Command(words, shows_a_call)
