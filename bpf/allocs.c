/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * goalloc: add up the allocations that Go's runtime samples for its own profile, by their stacks.
 *
 * The runtime draws at random which allocations it samples, one for so many bytes on average, and
 * calls a function for each of them. That is probed.
 *
 * If it samples none, the allocations that need a new span are added up in their place, each with
 * the bytes that its processor took from the last one, and those that are a span of their own.
 * Which allocation needs a span follows from the program's rhythm. Between two flushes of a
 * processor's cache by the collector all may be in one step. So these are kept apart in parts, from
 * whose difference the error follows. Spans that were not empty when the processor took them are
 * kept apart from others, by how many objects they had.
 *
 * Settings (common.h), beside those of samples.h:
 *   GOTRACE_SIZE_ARGUMENT  the number of the function's argument with the object's size, from 0 on
 *   GOTRACE_ARGUMENTS_ON_STACK  1 where arguments are above the return address
 *   GOTRACE_RATE_DISTANCE  from the site to runtime.MemProfileRate, as an unsigned number
 *   GOTRACE_MCACHE_ALLOC, GOTRACE_MCACHE_FLUSH_GEN  offsets in the target's runtime.mcache
 *   GOTRACE_MSPAN_ALLOC_COUNT  offset in the target's runtime.mspan
 */
#include "samples.h"

#define LARGE_BITS 15 /* sizes from 32 KiB on: there is a class for each smaller one */
#define KEPT_BITS 3   /* of a large size, below the first one that is set */
#define PAGE_BYTES 8192ULL
#define PARTS 16
#define FLUSHED (~(u64)0) /* as a part: of spans that were not used up, which nobody is hit for */
#define SPAN_CLASSES 136  /* since Go 1.16 */

/* What is read of a runtime.mspan, from its allocCount on. */
struct used_span {
    u16 alloc_count;
    u16 others[2];
    u16 count_before_cache; /* allocCount when the processor took it */
    u64 size;               /* of its objects */
};

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

/* Add the objects that a processor took from its span of a class to a row. */
static __always_inline void add_used(u64 cache, u64 class, struct sample_row *key)
{
    struct used_span used = {};
    u64 span = read_word(cache + GOTRACE_MCACHE_ALLOC + 8 * class);
    if (bpf_probe_read_user(&used, sizeof(used), (void *)(span + GOTRACE_MSPAN_ALLOC_COUNT)))
        return;
    u64 objects = (u16)(used.alloc_count - used.count_before_cache);
    key->size = used.size;
    if (key->part != FLUSHED && used.count_before_cache)
        key->part = 1 + PARTS + walk_mix(0, used.count_before_cache) % PARTS;
    if (objects) /* else there was none: the cache was flushed */
        sample_add(key, objects * used.size);
}

static __always_inline u64 part_of(u64 cache)
{
    u64 flush = read_word(cache + GOTRACE_MCACHE_FLUSH_GEN) & 0xffffffff;
    return 1 + walk_mix(walk_mix(0, cache), flush) % PARTS;
}

/* At each call of runtime.(*mcache).refill: the span of a class is used up, or was flushed. */
int on_refill(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 cache = GO_REGISTER(ctx, 0);
    struct sample_row key = {.part = part_of(cache)};
    sample_find(interrupted_at(ctx), &key);
    add_used(cache, GO_REGISTER(ctx, 1) & 0xff, &key);
    return 0;
}

/* At each call of runtime.(*mcache).releaseAll: the collector flushes a processor's cache. */
int on_release(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 cache = GO_REGISTER(ctx, 0);
    struct sample_row key = {.part = FLUSHED};
#pragma clang loop unroll(disable)
    for (int class = 0; class < SPAN_CLASSES; class++)
        add_used(cache, class, &key);
    return 0;
}

/* At each call of runtime.(*mcache).allocLarge: the object is a span of its own. */
int on_large(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 size = (GO_REGISTER(ctx, 1) + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    struct sample_row key = {.size = row_size(size)};
    sample_find(interrupted_at(ctx), &key);
    sample_add(&key, size);
    return 0;
}
