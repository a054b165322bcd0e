/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Find the value that a goroutine's pprof labels have for a key.
 *
 * g.labels leads to a map[string]string up to Go 1.23, a classic one, and to a slice of keys and
 * values since Go 1.24; gotrace/goroutines/labels.py names the sources. Neither is changed once a
 * goroutine has it. All slots of a map are looked at: its hash is seeded by the program.
 *
 * Settings (common.h):
 *   GOTRACE_LABELS  1 where labels are asked for
 */
#pragma once
#include "common.h"

#define LABEL_KEY_WORDS 8   /* of the longest key, as many as of a constant */
#define MAX_LABEL_POWER 5   /* of two: how many buckets a map has, at most */
#define MAX_LABEL_STEPS 576 /* of a search: 64 buckets, chained ones included */
#define BUCKET_SLOTS 8      /* runtime/map.go: bucketCnt */
#define BUCKET_KEYS 8       /* bytes before them */
#define BUCKET_SIZE (BUCKET_KEYS + 2 * 16 * BUCKET_SLOTS + 8)
#define LEAST_TOPHASH 5  /* runtime/map.go: minTopHash */
#define SAME_SIZE_GROW 8 /* of hmap.flags */

/* A string. */
struct label_text {
    u64 at;
    u64 length;
};

/* A search. It is in map memory, of which the verifier knows nothing, and goes step by step. */
struct label_walk {
    u64 is_map;
    u64 wanted[LABEL_KEY_WORDS]; /* the key, with zeros after it */
    u64 wanted_length;
    u64 key[2 * LABEL_KEY_WORDS]; /* that has been read; twice as large for the verifier's bounds */
    u64 first;                    /* of a list's labels, or of a map's buckets */
    u64 count;                    /* of these */
    u64 old_first;                /* of the buckets that the map grows out of, and how many */
    u64 old_count;
    u64 next; /* number of the next label or bucket */
    u64 bucket;
    u64 slot;                /* the next one in it */
    struct label_text value; /* the result */
};

/* The result: no such label, which is "" as for pprof.Label; what cannot be read. */
static __always_inline void label_is_missing(struct label_walk *walk)
{
    walk->value.at = 0;
    walk->value.length = 0;
}

static __always_inline void label_is_unknown(struct label_walk *walk)
{
    walk->value.at = 1;
    walk->value.length = 1;
}

/* Return whether a key is the wanted one. One that cannot be read is not. */
static __always_inline bool label_is_wanted(struct label_walk *walk, u64 at, u64 length)
{
    u64 size = walk->wanted_length, differs = 0;
    if (length != size)
        return false;
    size &= 16 * LABEL_KEY_WORDS - 1;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_KEY_WORDS; i++)
        walk->key[i] = 0;
    if (bpf_probe_read_user(walk->key, size, (void *)at))
        return false;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_KEY_WORDS; i++)
        differs |= walk->key[i] ^ walk->wanted[i];
    return !differs;
}

/* Go on to a map's next bucket; return whether there is one. */
static __always_inline bool next_bucket(struct label_walk *walk)
{
    u64 next = walk->next, count = walk->count, chained = 0;
    if (walk->bucket)
        chained = read_word(walk->bucket + BUCKET_SIZE - 8);
    walk->slot = 0;
    if (chained) {
        walk->bucket = chained;
        return true;
    }
    walk->next = next + 1;
    walk->bucket = next < count ? walk->first + next * BUCKET_SIZE
                                : walk->old_first + (next - count) * BUCKET_SIZE;
    return next < count + walk->old_count;
}

/* Called: look at the next label; return whether that has ended the search. */
int find_label(struct pt_regs *argument)
{
    struct label_walk *walk = opaque(argument);
    if (!walk)
        return ENDED;
    walk = opaque(walk);
    struct label_text key = {}, value = {};
    if (walk->is_map) {
        u64 slot = walk->slot++, bucket = walk->bucket;
        u8 hash = 0;
        if (slot >= BUCKET_SLOTS) {
            if (next_bucket(walk))
                return GOES_ON;
            label_is_missing(walk);
            return ENDED;
        }
        u64 place = bucket + BUCKET_KEYS + 16 * slot;
        if (bpf_probe_read_user(&hash, sizeof(hash), (void *)(bucket + slot)))
            return ENDED;
        if (hash < LEAST_TOPHASH)
            return GOES_ON;
        if (bpf_probe_read_user(&key, sizeof(key), (void *)place) ||
            bpf_probe_read_user(&value, sizeof(value), (void *)(place + 16 * BUCKET_SLOTS)))
            return ENDED;
    } else {
        u64 place = walk->first + 32 * walk->next;
        if (walk->next++ >= walk->count) {
            label_is_missing(walk);
            return ENDED;
        }
        if (bpf_probe_read_user(&key, sizeof(key), (void *)place) ||
            bpf_probe_read_user(&value, sizeof(value), (void *)(place + 16)))
            return ENDED;
    }
    if (!label_is_wanted(walk, key.at, key.length))
        return GOES_ON;
    walk->value = value;
    return ENDED;
}

static u64 (*call_find_label)(struct label_walk *walk) = CALLED(FIND_LABEL, struct label_walk);

/* Return whether a map of labels can be searched. */
static __always_inline bool begin_map(struct label_walk *walk, u64 map)
{
    u64 head[4]; /* how many it has; flags and the power of two; buckets; those it grows out of */
    walk->next = 0;
    walk->bucket = 0;
    walk->slot = BUCKET_SLOTS;
    walk->count = 0;
    walk->old_count = 0;
    if (!map)
        return true;
    if (bpf_probe_read_user(head, sizeof(head), (void *)map))
        return false;
    u64 power = head[1] >> 8 & 0xff;
    if (!head[0])
        return true; /* it may have no bucket */
    if (power > MAX_LABEL_POWER)
        return false;
    walk->first = head[2];
    walk->count = 1 << (power & 7);
    walk->old_first = head[3];
    walk->old_count = !head[3] ? 0 : head[1] & SAME_SIZE_GROW ? walk->count : walk->count >> 1;
    return true;
}

/* Find it for a goroutine; offset is that of g.labels. Without a goroutine nothing is known. */
static __always_inline void label_find(struct label_walk *walk, u64 g, u64 offset)
{
    u64 labels = 0;
    struct label_text list = {};
    label_is_unknown(walk);
    if (!g || bpf_probe_read_user(&labels, sizeof(labels), (void *)(g + offset)))
        return;
    if (!labels) {
        label_is_missing(walk);
        return;
    }
    if (bpf_probe_read_user(&list, walk->is_map ? 8 : 16, (void *)labels))
        return;
    walk->next = 0;
    walk->first = list.at;
    walk->count = list.length;
    if (walk->is_map && !begin_map(walk, list.at))
        return;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_LABEL_STEPS; i++)
        if (call_find_label(walk) == ENDED)
            return;
}
