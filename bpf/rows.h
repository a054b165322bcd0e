/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Add calls up by their keys, in place of reporting each of them.
 *
 * A key is given a row when it is first seen, together with a sample of the calls that have it: user
 * space shows the key by the sample's values. A call whose key finds no row is counted in the first
 * row, so that the rows always add up to the calls.
 *
 * Settings (common.h), beside those of payload.h:
 *   GOTRACE_KEY_ROWS     rows, the first one included; the maps of rows have GOTRACE_KEYS, as many
 *   GOTRACE_TIMES        1 where rows have histograms, with the settings of histogram.h
 *   GOTRACE_OF           1 where these are of a value, not of durations: values below zero have
 *                        histograms of their own, after those of all rows
 */
#pragma once
#include "atomic.h"
#include "diagnostics.h"
#include "histogram.h"
#include "payload.h"

#if GOTRACE_KEY

#define ROW_OF_OTHERS 0
/* How often to try to take a row that other CPUs want as well. */
#define ROW_TRIES 8

struct sample {
    struct event event;
    u8 payload[];
};

/*
 * rows: key = that of calls; value = their row. User space may remove keys that no call has had for
 * long, and gives their rows back later (free_rows): calls that have found them are counted by then.
 */
BPF_HASH(rows, struct row_key, u32, GOTRACE_KEYS);

/* taken_rows: value 0 = rows in use beside the first, or in free_rows. Only ever added to. */
BPF_ARRAY(taken_rows, u64, 1);

/*
 * free_rows: rows that no key has any more, from user space, or never had. Each is there once at
 * most, so there is always room for one.
 */
BPF_QUEUE(free_rows, u32, GOTRACE_KEYS);

/* samples: key = row; the first call of that row. Complete before the row's key is inserted. */
BPF_ARRAY(samples, struct sample, GOTRACE_KEYS);

/* row_calls: key = row; value = calls seen by this CPU. Only ever added to. */
BPF_PERCPU_ARRAY(row_calls, u64, GOTRACE_KEYS);

#if GOTRACE_OF
/* row_unmeasured: key = row; value = calls seen by this CPU whose value could not be read. */
BPF_PERCPU_ARRAY(row_unmeasured, u64, GOTRACE_KEYS);

static __always_inline u64 *unmeasured_calls(u32 row)
{
    return row_unmeasured.lookup(&row);
}
#else
static __always_inline u64 *unmeasured_calls(u32 row)
{
    return 0;
}
#endif

#if ROWS_HAVE_OWN
/*
 * row_own: key = row; value = ns that calls seen by this CPU took, without the calls within them that
 * have rows as well. So the rows of calls that make one another add up. Only ever added to.
 */
BPF_PERCPU_ARRAY(row_own, u64, GOTRACE_KEYS);

static __always_inline void add_own(u32 row, struct call *call)
{
    u64 *own = row_own.lookup(&row);
    if (own)
        __sync_fetch_and_add(own, call->own_ns);
}
#else
static __always_inline void add_own(u32 row, struct call *call)
{
}
#endif

/* Return the number of a row that no key has, that of others where there is none left. */
static __always_inline u32 new_row(u64 *taken)
{
#pragma clang loop unroll(disable)
    for (int i = 0; i < ROW_TRIES; i++) {
        u64 seen = *taken;
        if (seen + 1 >= GOTRACE_KEY_ROWS)
            break;
        if (atomic_compare_and_swap(taken, seen, seen + 1) == seen)
            return seen + 1;
    }
    u32 freed = ROW_OF_OTHERS;
    return free_rows.pop(&freed) ? ROW_OF_OTHERS : freed;
}

/* Take a row for a key that has none; return that of others where there is none left. */
static __always_inline u32 take_row(struct call *call)
{
    u32 zero = 0;
    u64 *taken = taken_rows.lookup(&zero);
    if (!taken)
        return ROW_OF_OTHERS;
    u32 row = new_row(taken);
    struct sample *sample = row == ROW_OF_OTHERS ? 0 : samples.lookup(&row);
    u64 size = call->length;
    BOUND(size, 2 * GOTRACE_PAYLOAD - 1);
    if (!sample || size > GOTRACE_PAYLOAD)
        return ROW_OF_OTHERS;
    bpf_probe_read_kernel(sample, sizeof(struct event) + size, &call->event);
    rows.insert(&call->key, &row);
    u32 *found = rows.lookup(&call->key);
    /* Another CPU may have been first with this key: the row waits for the next one. */
    if (!found || *found != row)
        free_rows.push(&row, BPF_ANY);
    return found ? *found : ROW_OF_OTHERS;
}

/* Add a call; return whether its row has a histogram that it is in, whose number is then stored. */
static __always_inline bool rows_add_call(struct call *call, u64 duration, u32 *number)
{
    if (call->event.flags & EVENT_UNDECIDED) {
        diagnostics_count(CALLS_UNDECIDED, 1);
        return false;
    }
    if (GOTRACE_TIMES && !GOTRACE_OF && !call->event.start)
        return false; /* its function never returns: there is no duration */
    u32 row = ROW_OF_OTHERS;
    if (!call->key_full) {
        u32 *found = rows.lookup(&call->key);
        row = found ? *found : take_row(call);
    }
    u64 *calls = row_calls.lookup(&row);
    if (calls)
        __sync_fetch_and_add(calls, 1);
    add_own(row, call);
    if (GOTRACE_OF && call->is_unmeasured) {
        u64 *unmeasured = unmeasured_calls(row);
        if (unmeasured)
            __sync_fetch_and_add(unmeasured, 1);
        return false;
    }
    if (GOTRACE_OF && call->is_negative)
        row += GOTRACE_KEY_ROWS;
    u64 value = GOTRACE_OF ? call->measured : duration;
    return GOTRACE_TIMES && histogram_add_to_row(row, value, call->event.hits, number);
}
#endif
