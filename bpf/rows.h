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
#include "interpreter.h"
#if GOTRACE_TIMES
#include "histogram.h"
#endif

#define ROW_OF_OTHERS 0
/* How often to try to take a row that other CPUs want as well. */
#define ROW_TRIES 8

struct sample {
    struct event event;
    u8 payload[GOTRACE_PAYLOAD];
};

/* rows: key = that of calls; value = their row. Only ever added to. */
BPF_HASH(rows, struct row_key, u32, GOTRACE_KEYS);

/* rows_taken: value 0 = how many rows are in use beside the first. Only ever added to. */
BPF_ARRAY(rows_taken, u64, 1);

/* samples: key = row; the first call of that row. Complete before the row's key is inserted. */
BPF_ARRAY(samples, struct sample, GOTRACE_KEYS);

/* row_calls: key = row; value = calls seen by this CPU. Only ever added to. */
BPF_PERCPU_ARRAY(row_calls, u64, GOTRACE_KEYS);

#if GOTRACE_OF
/* row_unmeasured: key = row; value = calls seen by this CPU whose value could not be read. */
BPF_PERCPU_ARRAY(row_unmeasured, u64, GOTRACE_KEYS);
#endif

/* Take a row for a key that has none; return that of others where there is none left. */
static __always_inline u32 take_row(struct call *call)
{
    u32 zero = 0, row = ROW_OF_OTHERS;
    u64 *taken = rows_taken.lookup(&zero);
    if (!taken)
        return ROW_OF_OTHERS;
#pragma clang loop unroll(disable)
    for (int i = 0; i < ROW_TRIES; i++) {
        u64 seen = *taken;
        if (seen + 1 >= GOTRACE_KEY_ROWS)
            return ROW_OF_OTHERS;
        if (compare_and_swap(taken, seen, seen + 1) == seen) {
            row = seen + 1;
            break;
        }
    }
    struct sample *sample = row == ROW_OF_OTHERS ? 0 : samples.lookup(&row);
    u64 size = call->length;
    BOUND(size, 2 * GOTRACE_PAYLOAD - 1);
    if (!sample || size > GOTRACE_PAYLOAD)
        return ROW_OF_OTHERS;
    bpf_probe_read_kernel(sample, sizeof(struct event) + size, &call->event);
    rows.insert(&call->key, &row);
    /* Another CPU may have been first with this key. */
    u32 *found = rows.lookup(&call->key);
    return found ? *found : ROW_OF_OTHERS;
}

static __always_inline void add_call(struct call *call, u64 duration)
{
    if (call->event.flags & EVENT_UNDECIDED) {
        count_diagnostic(CALLS_UNDECIDED, 1);
        return;
    }
    u32 row = ROW_OF_OTHERS;
    if (!call->key_full) {
        u32 *found = rows.lookup(&call->key);
        row = found ? *found : take_row(call);
    }
    u64 *calls = row_calls.lookup(&row);
    if (calls)
        __sync_fetch_and_add(calls, 1);
#if GOTRACE_OF
    if (call->is_unmeasured) {
        u64 *unmeasured = row_unmeasured.lookup(&row);
        if (unmeasured)
            __sync_fetch_and_add(unmeasured, 1);
        return;
    }
    if (call->is_negative)
        row += GOTRACE_KEY_ROWS;
    duration = call->measured;
#endif
#if GOTRACE_TIMES
    u32 number = 0;
    add_to_row(row, duration, call->event.hits, &number);
#endif
}
