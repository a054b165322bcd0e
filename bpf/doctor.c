/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gotrace doctor: try what not every kernel can do, one thing at a time.
 *
 * Settings (common.h): GOTRACE_FETCH or GOTRACE_SIGNAL, what to try; those of site.h.
 */
#include "atomic.h"
#include "site.h"

#define SIGURG 23

#if GOTRACE_FETCH
BPF_ARRAY(words, u64, 1);

/* Atomic operations that return the value found: Linux 5.12. */
int fetch(struct pt_regs *ctx)
{
    u32 zero = 0;
    u64 *word = words.lookup(&zero);
    return word ? atomic_compare_and_swap(word, 0, 1) & 1 : 0;
}
#endif

#if GOTRACE_SIGNAL
/* Linux 5.5. */
int send_signal(struct pt_regs *ctx)
{
    if (site_is_target())
        bpf_send_signal_thread(SIGURG);
    return 0;
}
#endif
