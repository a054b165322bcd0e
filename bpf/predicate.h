/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Decide whether a call is wanted: a predicate's operations work on a stack of words. Where an
 * operand is not there, the call is marked and user space decides.
 */
#pragma once
#include "payload.h"

static inline __attribute__((always_inline)) void push(struct work *w, u64 value)
{
    u64 top = w->values_top++;
    BOUND(top, 15);
    w->values[top] = value;
}

static inline __attribute__((always_inline)) u64 pull(struct work *w)
{
    u64 top = --w->values_top;
    BOUND(top, 15);
    return w->values[top];
}

static inline __attribute__((always_inline)) void push_field(struct work *w, struct op *op)
{
    u64 word = 0;
    u32 width = op->reg & 0xf, shift = 64 - 8 * width;
    if (w->full || !block_word(w, op->block, op->at, width, &word))
        w->unknown = 1;
    word <<= shift & 63;
    push(w, op->reg & 0x80 ? (u64)((s64)word >> (shift & 63)) : word >> (shift & 63));
}

static inline __attribute__((always_inline)) void compare(struct work *w, u32 how)
{
    u64 b = pull(w), a = pull(w);
    int less = how & 0x80 ? (s64)a < (s64)b : a < b;
    int equal = a == b;
    switch (how & 7) {
    case 0:
        push(w, equal);
        break;
    case 1:
        push(w, !equal);
        break;
    case 2:
        push(w, less);
        break;
    case 3:
        push(w, less || equal);
        break;
    case 4:
        push(w, !less && !equal);
        break;
    default:
        push(w, !less);
    }
}

/* Tell whether a string's bytes stand at an offset of the payload. */
static inline __attribute__((always_inline)) int same_bytes(struct work *w, u32 start,
                                                            struct constant *constant)
{
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < CONSTANT_WORDS; i++) {
        if (8 * i >= constant->length)
            break;
        u64 place = start + 8 * i, word;
        BOUND(place, GOTRACE_PAYLOAD - 1);
        __builtin_memcpy(&word, payload(w) + place, 8);
        word ^= constant->words[i];
        u32 left = constant->length - 8 * i;
        if (left < 8)
            word <<= (64 - 8 * left) & 63;
        if (word)
            return 0;
    }
    return 1;
}

/* Test a string against a constant; return 1 where the operation has to be run once more. */
static inline __attribute__((always_inline)) int string_test(struct work *w, struct op *op)
{
    u32 number = op->limit;
    struct constant *constant = constants.lookup(&number);
    struct block *block = block_of(w, op->block);
    if (!constant || !block->start) {
        w->unknown = 1;
        push(w, 0);
        return 0;
    }
    u32 at = w->search, size = block->size;
    if (op->reg == TEST_CONTAINS && size > SEARCHED_BYTES)
        size = SEARCHED_BYTES;
    int over = at + constant->length > size;
    if (op->reg == TEST_EQUAL)
        over = size != constant->length;
    int same = !over && same_bytes(w, block->start + at, constant);
    if (op->reg == TEST_CONTAINS && !over && !same) {
        w->search++;
        return 1;
    }
    w->search = 0;
    push(w, same);
    return 0;
}
