/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a BPF program of type perf_event sees: include/uapi/linux/bpf_perf_event.h. */
#pragma once
#include <uapi/linux/ptrace.h>
struct bpf_perf_event_data {
    struct pt_regs regs;
    unsigned long long sample_period;
    unsigned long long addr;
};
