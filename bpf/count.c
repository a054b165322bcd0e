/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunccount: add one to the counter of the function that was entered.
 *
 * Settings (common.h): GOTRACE_COUNTERS, the number of counters; those of site.h.
 */
#include "site.h"

/*
 * counts: key = counter, as in the cookie; value = calls seen by this CPU. Lives as long as the run
 * and is only ever added to, so that an interval's count is a difference and loses nothing.
 */
BPF_PERCPU_ARRAY(counts, u64, GOTRACE_COUNTERS);

int on_entry(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit_entry(ctx, &cookie))
        return 0;
    u32 counter = cookie & COOKIE_INDEX_MASK;
    u64 *count = counts.lookup(&counter);
    /* Atomic although per CPU: the kernel may preempt a uprobe's program between load and store. */
    if (count)
        __sync_fetch_and_add(count, 1);
    return 0;
}
