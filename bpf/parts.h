/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Add up what the time of calls went into, for each histogram and each bucket of it.
 *
 * Settings (common.h), beside those of why.h and histogram.h:
 *   GOTRACE_WHY_BANDS    rows of parts, one for each bucket of a histogram that has calls
 *   GOTRACE_HISTOGRAM_ROWS  histograms, twice where intervals are kept apart
 */
#pragma once
#include "histogram.h"
#include "why.h"

#ifdef GOTRACE_WHY_BANDS

/* The parts of calls, added up. */
struct why_sums {
    u64 ns[WHY_PARTS];
    u64 calls[WHY_PARTS]; /* that have such a part */
};

struct why_band {
    u32 row; /* generation * ROWS + row */
    u32 bucket;
};

/* why_bands: parts of calls by duration; filled on first use, emptied like histograms. */
BPF_HASH(why_bands, struct why_band, struct why_sums, GOTRACE_WHY_BANDS);

/* why_rest: key = generation * ROWS + row; parts of calls for which why_bands had no room. */
BPF_ARRAY(why_rest, struct why_sums, GOTRACE_HISTOGRAM_ROWS);

/* why_none: value 0 is all zeros, too large for a program's stack. */
BPF_ARRAY(why_none, struct why_sums, 1);

/* Where the parts of calls of a duration are added up. */
static __always_inline struct why_sums *why_sums(u32 number, u64 elapsed)
{
    struct why_band key = {.row = number, .bucket = histogram_bucket(elapsed)};
    struct why_sums *sums = why_bands.lookup(&key);
    if (sums)
        return sums;
    u32 zero = 0;
    struct why_sums *blank = why_none.lookup(&zero);
    if (blank) {
        why_bands.insert(&key, blank);
        sums = why_bands.lookup(&key);
    }
    return sums ? sums : why_rest.lookup(&number);
}

/* Add the parts of a call. */
static __always_inline void add_parts(struct why_row *row, struct why_sums *sums)
{
#pragma clang loop unroll(disable)
    for (int i = 0; i < WHY_PARTS && i < row->owned; i++) {
        u64 cell = row->own[i], part = cell & WHY_CELL_MASK;
        __sync_fetch_and_add(&sums->ns[part], cell >> WHY_CELL_BITS);
        __sync_fetch_and_add(&sums->calls[part], 1);
    }
}

/* Add the time of a call whose parts are not known. */
static __always_inline void add_unknown(struct why_sums *sums, u64 ns)
{
    __sync_fetch_and_add(&sums->ns[WHY_UNKNOWN], ns);
    __sync_fetch_and_add(&sums->calls[WHY_UNKNOWN], 1);
}

/* Add the parts of a call that ends to those of others; row is 0 where they are not known. */
static __always_inline void parts_add(struct why_row *row, u64 elapsed, struct why_sums *sums)
{
    if (!sums)
        return;
    if (row)
        add_parts(row, sums);
    else
        add_unknown(sums, elapsed);
}

/* A call that has ended, for the parts of all calls of its row. */
struct parted {
    struct why_key row;
    struct call_key place;
    u64 number; /* of the histogram that its time is in */
    u64 elapsed;
};

/*
 * Add the parts of a call. Called: inlined, the verifier would follow its two loops over parts for
 * each call that can return at once.
 */
int add_to_parts(struct pt_regs *argument)
{
    struct parted *call = opaque(argument);
    if (!call)
        return 0;
    call = opaque(call);
    struct why_key key = call->row;
    struct call_key place = call->place;
    parts_add(why_own(&key, &place), call->elapsed, why_sums(call->number, call->elapsed));
    return 0;
}

static u64 (*call_add_to_parts)(struct parted *call) = CALLED(ADD_TO_PARTS, struct parted);

/* Add the parts of a call that ends to those of the histogram, of a number, that its time is in. */
static __always_inline void parts_add_call(struct why_key *row, struct call_key *place, u64 number,
                                           u64 elapsed)
{
    struct parted call = {.row = *row, .place = *place, .number = number, .elapsed = elapsed};
    call_add_to_parts(&call);
}
#else
static __always_inline void parts_add_call(struct why_key *row, struct call_key *place, u64 number,
                                           u64 elapsed)
{
}
#endif
