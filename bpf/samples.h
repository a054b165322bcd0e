/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Samples of a program's threads, added up by stack, goroutine and label.
 *
 * Settings (common.h), beside those of interrupted.h:
 *   GOTRACE_ROWS           most combinations of stack, goroutine's creation and state
 *   GOTRACE_G_GOPC, GOTRACE_G_STATUS  offsets in the target's runtime.g
 * and, where a label of the goroutines distinguishes rows, beside those of labels.h:
 *   GOTRACE_LABEL_ROWS     most values of it
 *   GOTRACE_G_LABELS       offset in runtime.g
 *   GOTRACE_LABELS_ARE_MAP  1 up to Go 1.23
 */
#pragma once
#include "interrupted.h"
#include "labels.h"

/* What distinguishes rows; shared with gotrace/session/oncpu/meter.py. */
struct sample_row {
    u64 stack;      /* hash, 0 where it is not known */
    u64 kernel;     /* hash of the stack in the kernel, 0 where there is none */
    u64 created_by; /* return address of the go statement, 0 without a goroutine */
    u64 status;     /* the goroutine's */
    u64 label; /* hash of the label's value, 0 where none is asked for, or without a goroutine */
    u64 size;  /* of an allocation: its object's, of large ones about; 0 of an event */
    u64 rate;  /* of an allocation: in how many bytes one is sampled on average; 0 of an event */
    u64 part;  /* of a span: of which part (allocs.c); else 0 */
};

/* The sums of a row. */
struct sample_sums {
    u64 samples;
    u64 bytes; /* of the sampled objects, or of the span; 0 of an event */
};

/* sample_rows: only ever added to, so that an interval's sums are differences. */
BPF_HASH(sample_rows, struct sample_row, struct sample_sums, GOTRACE_ROWS);

/* other_samples: value 0 = those of samples that found no row. */
BPF_ARRAY(other_samples, struct sample_sums, 1);

#define LABEL_WORDS 32          /* of a value, as many as --by compares */
#define LABEL_UNKNOWN (~(u64)0) /* as a length: what cannot be read */

/* A key or a value of labels: its first bytes, zeros after it, and its whole length. */
struct label_content {
    u64 length;
    u64 words[LABEL_WORDS];
};

/* label_key: value 0 = the key that is asked for. */
BPF_ARRAY(label_key, struct label_content, 1);

/* label_scratch: value 0 is of the event that is handled: nothing else runs there meanwhile. */
struct label_scratch {
    struct label_walk walk;
    struct label_content value;
};
BPF_PERCPU_ARRAY(label_scratch, struct label_scratch, 1);

/* label_values: key = hash. Only ever added to. */
BPF_HASH(label_values, u64, struct label_content, GOTRACE_LABEL_ROWS);

/* Keep the value of the goroutine's label and return its hash, or 0 if the table is full. */
static __always_inline u64 keep_label(u64 g)
{
    if (!GOTRACE_LABELS)
        return 0;
    u32 zero = 0;
    struct label_scratch *scratch = label_scratch.lookup(&zero);
    struct label_content *key = label_key.lookup(&zero);
    if (!scratch || !key)
        return 0;
    struct label_content *value = &scratch->value;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_KEY_WORDS; i++)
        scratch->walk.wanted[i] = key->words[i];
    scratch->walk.wanted_length = key->length;
    scratch->walk.is_map = GOTRACE_LABELS_ARE_MAP;
    label_find(&scratch->walk, g, GOTRACE_G_LABELS);
    u64 at = scratch->walk.value.at, size = scratch->walk.value.length;
    value->length = size;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_WORDS; i++)
        value->words[i] = 0;
    if (size > sizeof(value->words))
        size = sizeof(value->words);
    if (size && bpf_probe_read_user(value->words, size, (void *)at))
        value->length = LABEL_UNKNOWN;
    u64 hash = walk_mix(0, value->length);
#pragma clang loop unroll(disable)
    for (int i = 0; i < LABEL_WORDS; i++)
        hash = walk_mix(hash, value->words[i]);
    hash |= 1;
    label_values.insert(&hash, value);
    if (label_values.lookup(&hash))
        return hash;
    return 0;
}

/* Fill in the row of where a thread is, but for the stack in the kernel. */
static __always_inline void sample_find(struct interrupted at, struct sample_row *key)
{
    struct task task = {};
    key->stack = interrupted_stack(at, &task);
    if (task.g) {
        key->created_by = read_word(task.g + GOTRACE_G_GOPC);
        key->status = read_word(task.g + GOTRACE_G_STATUS) & G_STATUS_MASK;
        key->label = keep_label(task.g);
    }
}

static __always_inline void sample_add(struct sample_row *key, u64 bytes)
{
    u32 zero = 0;
    struct sample_sums none = {}, *sums = sample_rows.lookup_or_try_init(key, &none);
    if (!sums)
        sums = other_samples.lookup(&zero);
    if (!sums)
        return;
    __sync_fetch_and_add(&sums->samples, 1);
    if (bytes)
        __sync_fetch_and_add(&sums->bytes, bytes);
}
