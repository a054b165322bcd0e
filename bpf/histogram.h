/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Log-linear histograms of nanoseconds: 16 buckets an octave, so that a bucket's bounds are within
 * 6.25% of each other. Layout and buckets are shared with gotrace/histogram.py.
 *
 * Settings (common.h):
 *   GOTRACE_UNIT         nanoseconds of the display unit, where it is not 1
 *   GOTRACE_ROWS         histograms
 *   GOTRACE_STRIPES      copies of each histogram that CPUs are spread over
 *   GOTRACE_WIDE         1 where they are not of times, and values may be of any size
 *   GOTRACE_HISTOGRAMS   all copies of all histograms, twice where intervals are kept apart
 */
#pragma once
#include <uapi/linux/ptrace.h>
#include "sums.h"

#ifdef GOTRACE_HISTOGRAMS

#define SUB_BITS 4
#define SUB_BUCKETS (1 << SUB_BITS)
/* 2^44 ns is 4.9 hours; longer calls share the last bucket. Values that are not times may be any. */
#define MAX_EXPONENT (GOTRACE_WIDE ? 63 : 43)
#define UNIT_ROWS 64
#define BUCKETS ((MAX_EXPONENT - SUB_BITS + 2) * SUB_BUCKETS)
#define BUCKET_MASK 1023 /* of the next power of two */

struct histogram {
    u64 count;
    u64 sum;
    u64 inverted_min; /* all ones minus the minimum, so that zero means none yet */
    u64 max;
    u64 hits; /* of probes within all these calls */
    u64 buckets[BUCKETS];
    u64 units[UNIT_ROWS]; /* by power of two of GOTRACE_UNIT; index 0 holds zero as well */
};

/*
 * histograms: key = (generation * ROWS + row) * STRIPES + cpu % STRIPES. Cleared from user space
 * before that half is written again.
 */
BPF_ARRAY(histograms, struct histogram, GOTRACE_HISTOGRAMS);

/* 1 where value, below 2^63, is more than limit. */
static __always_inline u64 above(u64 value, u64 limit)
{
    return (limit - value) >> 63;
}

/*
 * The exponent of the highest power of two not above value; 0 for 0. No branches: the verifier
 * would follow each of 64 results through all that comes after.
 */
static __always_inline u64 log2_of(u64 value)
{
    u64 exponent = above(value, 0xffffffff) << 5;
    exponent += above(value >> exponent, 0xffff) << 4;
    exponent += above(value >> exponent, 0xff) << 3;
    exponent += above(value >> exponent, 0xf) << 2;
    exponent += above(value >> exponent, 0x3) << 1;
    return exponent + above(value >> exponent, 0x1);
}

static __always_inline u64 histogram_bucket(u64 value)
{
    if (value < SUB_BUCKETS)
        return value;
    u64 exponent = log2_of(value >> 1) + 1; /* log2_of takes no value of 2^63 and more */
    if (exponent > MAX_EXPONENT)
        return BUCKETS - 1;
    u64 sub = (value >> (exponent - SUB_BITS)) & (SUB_BUCKETS - 1);
    return (exponent - SUB_BITS + 1) * SUB_BUCKETS + sub;
}

/*
 * Add one value, and the hits of probes that it contains the cost of. Atomic: rows may be shared by
 * CPUs, and the kernel may preempt this program.
 */
static __always_inline void histogram_add_value(struct histogram *row, u64 value, u64 hits)
{
    u64 bucket = histogram_bucket(value);
    /*
     * What a compiler knows of it, it leaves out or says in other registers: not to the verifier.
     * That of Linux 6.1 follows a branch that is never taken, with bounds that exclude each other,
     * and refuses what is added to: a mask gives it bounds again.
     */
    asm volatile("%0 &= %1" : "+r"(bucket) : "i"(BUCKET_MASK));
    if (bucket >= BUCKETS)
        return;
    __sync_fetch_and_add(&row->buckets[bucket], 1);
    __sync_fetch_and_add(&row->count, 1);
    __sync_fetch_and_add(&row->sum, value);
    if (hits)
        __sync_fetch_and_add(&row->hits, hits);
    if (GOTRACE_UNIT > 1) {
        u64 unit = log2_of(value / GOTRACE_UNIT);
        asm volatile("%0 &= %1" : "+r"(unit) : "i"(UNIT_ROWS - 1)); /* as above */
        __sync_fetch_and_add(&row->units[unit], 1);
    }
    atomic_max(&row->max, value);
    atomic_max(&row->inverted_min, ~value);
}

/* Store a row's number, which is within the half that is written; return whether there is one. */
static __always_inline bool histogram_number(u32 row, u32 *number)
{
    *number = sums_half() * GOTRACE_ROWS + row;
    return true;
}

/* Add a value to the histogram of a row, by that number. */
static __always_inline void histogram_add(u32 number, u64 value, u64 hits)
{
    u32 index = number * GOTRACE_STRIPES + bpf_get_smp_processor_id() % GOTRACE_STRIPES;
    struct histogram *values = histograms.lookup(&index);
    if (values)
        histogram_add_value(values, value, hits);
}

/* Add a value to the histogram of a row, whose number is stored; return whether there is one. */
static __always_inline bool histogram_add_to_row(u32 row, u64 value, u64 hits, u32 *number)
{
    if (!histogram_number(row, number))
        return false;
    histogram_add(*number, value, hits);
    return true;
}
#else
static __always_inline bool histogram_add_to_row(u32 row, u64 value, u64 hits, u32 *number)
{
    return false;
}
#endif
