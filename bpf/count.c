/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunccount: add one to the counter of the function that was entered. Where the program carries
 * out RETs that may be seen at the RET that the function leads straight to.
 *
 * Settings (common.h): GOTRACE_COUNTERS, the number of counters; those of site.h.
 */
#include "ret.h"
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
    ret_begin(ctx, &cookie); /* ret_end() takes back what it did */
    u32 counter = cookie & COOKIE_INDEX_MASK;
    u64 *count = counts.lookup(&counter);
    /* Atomic although per CPU: the kernel may preempt a uprobe's program between load and store. */
    if (count)
        __sync_fetch_and_add(count, 1);
    ret_end(ctx); /* what that costs elsewhere is measured with this program */
    return 0;
}
