#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measure a function's latency as bcc's funclatency does, but with a probe on its RET.

Usage: bcc_latency.py PID BINARY FUNCTION ADDRESS-OF-ITS-RET. funclatency itself uses a return
probe, which crashes Go programs.
"""

from __future__ import annotations

import signal
import sys

from bcc import BPF

PROGRAM = """
#include <uapi/linux/ptrace.h>
BPF_HASH(start, u32);
BPF_HISTOGRAM(dist);

int on_entry(struct pt_regs *ctx)
{
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 pid = pid_tgid;
    if (pid_tgid >> 32 != PID)
        return 0;
    u64 now = bpf_ktime_get_ns();
    start.update(&pid, &now);
    return 0;
}

int on_return(struct pt_regs *ctx)
{
    u32 pid = bpf_get_current_pid_tgid();
    u64 *began = start.lookup(&pid);
    if (began == 0)
        return 0;
    u64 took = bpf_ktime_get_ns() - *began;
    start.delete(&pid);
    dist.atomic_increment(bpf_log2l(took));
    return 0;
}
"""


def main(pid: str, binary: str, function: str, address: str) -> None:
    """Measure until interrupted, then print the histogram."""
    bpf = BPF(text=PROGRAM, cflags=[f"-DPID={int(pid)}"])
    bpf.attach_uprobe(name=binary, sym=function, fn_name="on_entry", pid=int(pid))
    bpf.attach_uprobe(name=binary, addr=int(address, 0), fn_name="on_return", pid=int(pid))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("Tracing ", function, flush=True)
    signal.sigwait({signal.SIGINT})
    bpf["dist"].print_log2_hist("nsecs")


if __name__ == "__main__":
    main(*sys.argv[1:])
