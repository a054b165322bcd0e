/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Build the key that calls are aggregated by, from what a plan has captured.
 *
 * A key is a sequence of parts that are distinct without knowing where they came from: the
 * type word of an interface comes before what that type's plan adds.
 */
#pragma once
#include "predicate.h"

#if GOTRACE_KEY

#define KEY_CUT (1ULL << 32) /* in a text's first word, with its size: the text goes on */

static __always_inline void key_begin(struct call *call, u32 function)
{
    call->key.function = function;
    call->key.length = 0;
    call->key.unknown = 0;
    call->key_parts = 0;
    call->key_full = 0;
    call->measured = 0;
    call->is_negative = 0;
    call->is_unmeasured = 1;
    /* In words: of bytes, clang would make a call of memset. */
#pragma clang loop unroll(full)
    for (int i = 0; i < GOTRACE_KEY; i += 8)
        *(volatile u64 *)(call->key.parts + i) = 0;
}

/* Append a word; known: whether it could be read. */
static __always_inline void key_word(struct work *w, u64 word, bool known)
{
    struct call *call = &w->call;
    u64 at = call->key.length, part = call->key_parts++;
    if (at + 8 > GOTRACE_KEY) {
        call->key_full = 1;
        return;
    }
    BOUND(at, GOTRACE_KEY - 8);
    if (known)
        payload_put_word(call->key.parts + at, word);
    else
        call->key.unknown |= 1ULL << (part & 63);
    call->key.length = at + 8;
}

/* Keep the value that histograms are of, which a predicate's operations have left. */
static __always_inline void key_measure(struct work *w, struct op *op)
{
    struct call *call = &w->call;
    u64 value = predicate_pop(w);
    u64 sign = op->reg & SIGNED_OPERAND ? value >> 63 : 0;
    call->is_negative = sign;
    call->measured = (value ^ -sign) + sign;
    call->is_unmeasured = w->unknown;
    w->unknown = 0;
}

static __always_inline void key_field(struct work *w, struct op *op)
{
    u64 word = 0;
    bool known = !w->full && payload_block_word(w, op->block, op->at, op->reg & 0xf, &word);
    u32 shift = 64 - 8 * (op->reg & 0xf);
    word <<= shift & 63;
    key_word(w, word >> (shift & 63), known);
}

/* Append a text: how much of it was captured, and that. */
static __always_inline void key_text(struct work *w, struct op *op)
{
    struct call *call = &w->call;
    struct block *block = payload_block(w, op->at2);
    u64 length = 0, size = block->size, place = block->start;
    bool known = !w->full && payload_block_word(w, op->block, op->at, 8, &length);
    if (!length)
        size = 0;
    else if (!place || !size)
        known = false;
    if (size > op->limit)
        size = op->limit;
    key_word(w, length > size ? size | KEY_CUT : size, known);
    if (!known || !size)
        return;
    u64 at = call->key.length;
    if (at + size > GOTRACE_KEY) {
        call->key_full = 1;
        return;
    }
    BOUND(at, GOTRACE_KEY - 1);
    BOUND(place, GOTRACE_PAYLOAD - 1);
    BOUND(size, 2 * KEY_TEXT_BYTES - 1);
    if (size > KEY_TEXT_BYTES)
        return;
    bpf_probe_read_kernel(call->key.parts + at, size, payload_bytes(w) + place);
    call->key.length = at + ((size + 7) & ~7ULL);
}
#else
static __always_inline void key_begin(struct call *call, u32 function)
{
}

static __always_inline void key_word(struct work *w, u64 word, bool known)
{
}
#endif
