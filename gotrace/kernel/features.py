# SPDX-License-Identifier: Apache-2.0
"""Try out the running kernel's features, if versions and return codes do not say."""

from __future__ import annotations

import os
import threading
from functools import cache

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.instructions import EXIT, encode
from gotrace.kernel.own_function import own_code, own_function


@cache
def has_multi_links() -> bool:
    """Return whether there are uprobe-multi links (Linux 6.6), which take no CAP_SYS_ADMIN."""
    opened: list[int] = []
    try:
        opened.append(kernel.create_array_map(value_size=8))
        opened.append(kernel.load_counting_program(opened[0]))
        with own_function(own_code().emulated) as function:
            opened.append(kernel.link_uprobe_multi(opened[1], function.path, [0], [0], 0))
        return True
    except OSError:
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


@cache
def multi_filters_by_process() -> bool:
    """Return whether a uprobe-multi link with a pid sees all threads of that process.

    Linux 6.6 to 6.9 compare with one thread only (fixed by kernel commit 46ba0e49b642) and lose
    the other threads' hits without a word. Tried on a function of this process that another of
    its threads calls. False also where there are no such links.
    """
    opened: list[int] = []
    try:
        counter = kernel.create_array_map(value_size=8)
        opened.append(counter)
        opened.append(kernel.load_counting_program(counter))
        with own_function(own_code().emulated) as function:
            link = kernel.link_uprobe_multi(opened[-1], function.path, [0], [0], os.getpid())
            opened.append(link)
            caller = threading.Thread(target=function.call)
            caller.start()
            caller.join()
        return kernel.map_lookup(counter, bytes(4), 8) == (1).to_bytes(8, "little")
    except (OSError, RuntimeError):  # or no thread can be started
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


@cache
def preempts_at_system_calls() -> bool:
    """Return whether a raw tracepoint's program can be preempted where system calls begin and end.

    The kernel that lets such a program sleep there (Linux 7.2) has that whether it sleeps or not:
    __BPF_DECLARE_TRACE_SYSCALL in include/trace/bpf_probe.h.
    """
    code = encode((0xB7, 0x00, 0, 0), (EXIT, 0, 0, 0))  # r0 = 0
    kind, flags = kernel.PROGRAM_RAW_TRACEPOINT, kernel.PROGRAM_SLEEPS
    try:
        os.close(kernel.load_program(code, b"GPL", kind, 0, flags=flags))
        return True
    except OSError:
        return False
