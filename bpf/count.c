/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunccount: add one to the counter of the function that was entered.
 *
 * Settings (common.h): GOTRACE_COUNTERS, the number of counters; GOTRACE_FAULTS, that of faults; those
 * of site.h.
 */
#include "site.h"

/*
 * counts: key = counter, as in the cookie; value = calls seen by this CPU. Lives as long as the run
 * and is only ever added to, so that an interval's count is a difference and loses nothing.
 */
BPF_PERCPU_ARRAY(counts, u64, GOTRACE_COUNTERS);

static __always_inline void count_call(u32 counter)
{
    u64 *count = counts.lookup(&counter);
    /* Atomic although per CPU: the kernel may preempt a uprobe's program between load and store. */
    if (count)
        __sync_fetch_and_add(count, 1);
}

int on_entry(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit_entry(ctx, &cookie))
        count_call(cookie & COOKIE_INDEX_MASK);
    return 0;
}

#if defined(ARCHITECTURE_ARM64)
/*
 * An instruction between a function's entry and its entry site that may fault: by how much its
 * address is above that of sigpanic's site, and the index in the cookie of that. Shared with
 * gotrace/session/count.py.
 */
struct fault {
    s64 distance;
    u64 file;
};

/* faults: key = such an instruction; value = the function's counter. Written from user space alone. */
BPF_HASH(faults, struct fault, u32, GOTRACE_FAULTS);

/* At the entry of runtime.sigpanic, which seems to be called by the instruction that has faulted. */
int on_fault(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    struct fault fault = {
        .distance = registers_link(ctx) - registers_pc(ctx),
        .file = cookie & COOKIE_INDEX_MASK,
    };
    u32 *counter = faults.lookup(&fault);
    if (counter)
        count_call(*counter);
    return 0;
}
#endif
