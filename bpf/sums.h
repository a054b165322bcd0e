/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Rows of sums that are kept by interval: programs write those of one half, while user space reads
 * and removes those of the other (gotrace/kernel/sums.py).
 *
 * Settings (common.h):
 *   GOTRACE_ROWS         rows; without that there are no halves
 */
#pragma once
#include "atomic.h"

#ifdef GOTRACE_ROWS
/* generation: value 0 = the half that is written; set from user space by interval. */
BPF_ARRAY(generation, u32, 1);

/* Shared with gotrace/kernel/sums.py. */
struct sums {
    u64 count;
    u64 ns;
    u64 most; /* ns of the longest */
};

/* Return the half that is written. */
static __always_inline u32 sums_half(void)
{
    u32 zero = 0, *half = generation.lookup(&zero);
    return half ? *half : 0;
}

/* Add one to a row; row may be 0. */
static __always_inline void sums_add(struct sums *row, u64 ns)
{
    if (!row)
        return;
    __sync_fetch_and_add(&row->count, 1);
    __sync_fetch_and_add(&row->ns, ns);
    atomic_max(&row->most, ns);
}
#endif
