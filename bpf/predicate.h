/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Decide whether a call is wanted: a predicate's operations work on a stack of words. Where an
 * operand is not there, or a string goes on after what can be searched here, the call is marked and
 * user space decides.
 */
#pragma once
#include "payload.h"

static __always_inline void push(struct work *w, u64 value)
{
    u64 top = w->values_top++;
    BOUND(top, PREDICATE_STACK - 1);
    w->values[top] = value;
}

static __always_inline u64 pop(struct work *w)
{
    u64 top = --w->values_top;
    BOUND(top, PREDICATE_STACK - 1);
    return w->values[top];
}

static __always_inline void push_field(struct work *w, struct op *op)
{
    u64 word = 0;
    u32 width = op->reg & 0xf, shift = 64 - 8 * width;
    if (w->full || !block_word(w, op->block, op->at, width, &word))
        w->unknown = 1;
    word <<= shift & 63;
    push(w, op->reg & SIGNED_OPERAND ? (u64)((s64)word >> (shift & 63)) : word >> (shift & 63));
}

static __always_inline void compare(struct work *w, u32 how)
{
    u64 b = pop(w), a = pop(w);
    int less = how & SIGNED_OPERAND ? (s64)a < (s64)b : a < b;
    int equal = a == b;
    switch (how & 7) {
    case COMPARE_EQUAL:
        push(w, equal);
        break;
    case COMPARE_NOT_EQUAL:
        push(w, !equal);
        break;
    case COMPARE_LESS:
        push(w, less);
        break;
    case COMPARE_LESS_EQUAL:
        push(w, less || equal);
        break;
    case COMPARE_GREATER:
        push(w, !less && !equal);
        break;
    default: /* COMPARE_GREATER_EQUAL */
        push(w, !less);
    }
}

/* Return whether a constant is at a place of the payload; any bytes may follow it. */
static __always_inline int is_at(struct work *w, u64 place, struct constant *constant)
{
    u64 differs = 0;
    BOUND(place, GOTRACE_PAYLOAD - 1);
#pragma clang loop unroll(full)
    for (int i = 0; i < CONSTANT_WORDS; i++)
        differs |= (get_word(payload(w) + place + 8 * i) & constant->masks[i]) ^ constant->words[i];
    return !differs;
}

/*
 * Return which of SEARCH_STRIDE places is the first that has a constant's first word, SEARCH_STRIDE
 * where none has. Without branches, which the verifier would follow at each step: what has passed
 * through asm no compiler knows to be a comparison.
 */
static __always_inline u64 first_match(struct work *w, u64 place, struct constant *constant)
{
    u64 found = SEARCH_STRIDE, word = constant->words[0], mask = constant->masks[0];
    BOUND(place, GOTRACE_PAYLOAD - 1);
#pragma clang loop unroll(full)
    for (int i = SEARCH_STRIDE - 1; i >= 0; i--) {
        u64 differs = (get_word(payload(w) + place + i) & mask) ^ word, negative = -differs;
        asm volatile("" : "+r"(negative));
        differs = (differs | negative) >> 63;
        asm volatile("" : "+r"(differs));
        found = i + (found - i) * differs;
    }
    return found;
}

/*
 * Test a string against a constant; return 1 where a search has to go on, by the same operation
 * once more. op->size is how many bytes of a string are captured at most: one of that size may go
 * on. Where the search has not found the constant and that is so, or the search ends for its own
 * bounds, user space decides.
 */
static __always_inline int string_test(struct work *w, struct op *op)
{
    u32 number = op->limit;
    struct constant *constant = constants.lookup(&number);
    struct block *block = block_of(w, op->block);
    if (!constant || !block->start) {
        w->unknown = 1;
        push(w, 0);
        return 0;
    }
    u64 at = w->search, length = constant->length, size = block->size, skipped = 0;
    if (op->reg == TEST_CONTAINS)
        skipped = first_match(w, block->start + at, constant);
    at += skipped;
    if (at + length <= size && at < SEARCHED_BYTES && (op->reg != TEST_EQUAL || length == size)) {
        if (skipped < SEARCH_STRIDE) {
            if (is_at(w, block->start + at, constant)) {
                w->search = 0;
                w->search_steps = 0;
                push(w, 1);
                return 0;
            }
            at++;
        }
        w->search = at;
        if (op->reg == TEST_CONTAINS && ++w->search_steps < SEARCH_STEPS)
            return 1;
    }
    if (op->reg == TEST_CONTAINS && (size >= op->size || at + length <= size))
        w->unknown = 1;
    w->search = 0;
    w->search_steps = 0;
    push(w, 0);
    return 0;
}
