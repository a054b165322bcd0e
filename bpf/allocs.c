/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * goalloc: add up the allocations that Go's runtime samples for its own profile, by their stacks.
 *
 * The runtime draws at random which allocations it samples, one for so many bytes on average, and
 * calls a function for each of them. That is probed.
 *
 * Settings (common.h), beside those of samples.h:
 *   GOTRACE_SIZE_ARGUMENT  the number of the function's argument with the object's size, from 0 on
 *   GOTRACE_ARGUMENTS_ON_STACK  1 where arguments are above the return address
 *   GOTRACE_RATE_DISTANCE  from the site to runtime.MemProfileRate, as an unsigned number
 */
#include "samples.h"

#define LARGE_BITS 15 /* sizes from 32 KiB on: there is a class for each smaller one */
#define KEPT_BITS 3   /* of a large size, below the first one that is set */

/* Return the size of a row for an object: many large objects may each have a size of their own. */
static __always_inline u64 row_size(u64 size)
{
    u64 bits = 0, rest = size;
    if (!(size >> LARGE_BITS))
        return size;
#pragma clang loop unroll(full)
    for (int step = 32; step; step >>= 1) {
        if (!(rest >> step))
            continue;
        rest >>= step;
        bits += step;
    }
    bits -= KEPT_BITS;
    return size >> bits << bits;
}

static __always_inline u64 object_size(struct pt_regs *ctx, u64 cookie)
{
    if (GOTRACE_ARGUMENTS_ON_STACK) {
        u64 entry = registers_sp(ctx) + (cookie >> COOKIE_SP_SHIFT);
        return read_word(entry + 8 + 8 * GOTRACE_SIZE_ARGUMENT);
    }
    u64 second = GO_REGISTER(ctx, 1), third = GO_REGISTER(ctx, 2);
    return GOTRACE_SIZE_ARGUMENT == 1 ? second : third;
}

/* At each call of runtime.mProf_Malloc. */
int on_sample(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    struct sample_row key = {};
    u64 size = object_size(ctx, cookie);
    key.size = row_size(size);
    key.rate = read_word(registers_pc(ctx) + GOTRACE_RATE_DISTANCE);
    sample_find(interrupted_at(ctx), &key);
    sample_add(&key, size);
    return 0;
}
