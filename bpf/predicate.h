/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Decide whether a call is wanted: a predicate's operations work on a stack of words. Where an
 * operand is not there, or a string goes on after what can be searched here, the call is marked and
 * user space decides.
 */
#pragma once
#include "payload.h"

static __always_inline void predicate_push(struct work *w, u64 value)
{
    u64 top = w->values_top++;
    BOUND(top, PREDICATE_STACK - 1);
    w->values[top] = value;
}

static __always_inline u64 predicate_pop(struct work *w)
{
    u64 top = --w->values_top;
    BOUND(top, PREDICATE_STACK - 1);
    return w->values[top];
}

static __always_inline void predicate_push_field(struct work *w, struct op *op)
{
    u64 word = 0;
    u32 width = op->reg & 0xf, shift = 64 - 8 * width;
    if (w->full || !payload_block_word(w, op->block, op->at, width, &word))
        w->unknown = 1;
    word <<= shift & 63;
    predicate_push(w, op->reg & SIGNED_OPERAND ? (u64)((s64)word >> (shift & 63))
                                               : word >> (shift & 63));
}

static __always_inline void predicate_compare(struct work *w, u32 how)
{
    u64 b = predicate_pop(w), a = predicate_pop(w);
    bool less = how & SIGNED_OPERAND ? (s64)a < (s64)b : a < b;
    bool equal = a == b;
    switch (how & 7) {
    case COMPARE_EQUAL:
        predicate_push(w, equal);
        break;
    case COMPARE_NOT_EQUAL:
        predicate_push(w, !equal);
        break;
    case COMPARE_LESS:
        predicate_push(w, less);
        break;
    case COMPARE_LESS_EQUAL:
        predicate_push(w, less || equal);
        break;
    case COMPARE_GREATER:
        predicate_push(w, !less && !equal);
        break;
    default: /* COMPARE_GREATER_EQUAL */
        predicate_push(w, !less);
    }
}

/*
 * Compute as Go does with numbers of op->size bytes; op->limit: the number on the right is signed,
 * whatever the result is. What Go would panic at, division by zero and a shift by less than zero, is
 * unknown. All operands are extended to 64 bits by their own sign.
 */
static __always_inline void predicate_arithmetic(struct work *w, struct op *op)
{
    u64 b = predicate_pop(w), a = predicate_pop(w), result = 0,
        is_signed = op->reg & SIGNED_OPERAND;
    u64 sign_a = is_signed ? a >> 63 : 0, sign_b = is_signed ? b >> 63 : 0;
    u64 size_a = (a ^ -sign_a) + sign_a, size_b = (b ^ -sign_b) + sign_b;
    u32 how = op->reg & 0xf, shift = 64 - 8 * (op->size & 0xf);
    switch (how) {
    case ARITHMETIC_ADD:
        result = a + b;
        break;
    case ARITHMETIC_SUBTRACT:
        result = a - b;
        break;
    case ARITHMETIC_MULTIPLY:
        result = a * b;
        break;
    case ARITHMETIC_DIVIDE:
    case ARITHMETIC_REMAINDER: {
        if (!size_b) {
            w->unknown = 1;
            size_b = 1;
        }
        u64 quotient = size_a / size_b, sign = sign_a;
        result = size_a - quotient * size_b;
        if (how == ARITHMETIC_DIVIDE) {
            result = quotient;
            sign ^= sign_b;
        }
        result = (result ^ -sign) + sign;
        break;
    }
    case ARITHMETIC_BIT_AND:
        result = a & b;
        break;
    case ARITHMETIC_BIT_OR:
        result = a | b;
        break;
    case ARITHMETIC_BIT_XOR:
        result = a ^ b;
        break;
    case ARITHMETIC_BIT_CLEAR:
        result = a & ~b;
        break;
    default: /* shifts */
        if (op->limit && b >> 63)
            w->unknown = 1;
        if (how == ARITHMETIC_SHIFT_LEFT)
            result = b > 63 ? 0 : a << (b & 63);
        else if (is_signed)
            result = (s64)a >> (b > 63 ? 63 : b & 63);
        else
            result = b > 63 ? 0 : a >> (b & 63);
    }
    result <<= shift & 63;
    predicate_push(w, is_signed ? (u64)((s64)result >> (shift & 63)) : result >> (shift & 63));
}

/* Return whether a constant is at a place of the payload; any bytes may follow it. */
static __always_inline bool is_at(struct work *w, u64 place, struct constant *constant)
{
    u64 differs = 0;
    BOUND(place, GOTRACE_PAYLOAD - 1);
#pragma clang loop unroll(full)
    for (int i = 0; i < CONSTANT_WORDS; i++)
        differs |= (payload_get_word(payload_bytes(w) + place + 8 * i) & constant->masks[i]) ^
                   constant->words[i];
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
        u64 differs = (payload_get_word(payload_bytes(w) + place + i) & mask) ^ word,
            negative = -differs;
        asm volatile("" : "+r"(negative));
        differs = (differs | negative) >> 63;
        asm volatile("" : "+r"(differs));
        found = i + (found - i) * differs;
    }
    return found;
}

/*
 * Test a string against a constant; where that goes on, it is by the same operation once more.
 * op->size is how many bytes of a string are captured at most: one of that size may go
 * on. Where the search has not found the constant and that is so, or the search ends for its own
 * bounds, user space decides.
 */
static __always_inline enum progress predicate_string_test(struct work *w, struct op *op)
{
    u32 number = op->limit;
    struct constant *constant = constants.lookup(&number);
    struct block *block = payload_block(w, op->block);
    if (!constant || !block->start) {
        w->unknown = 1;
        predicate_push(w, 0);
        return ENDED;
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
                predicate_push(w, 1);
                return ENDED;
            }
            at++;
        }
        w->search = at;
        if (op->reg == TEST_CONTAINS && ++w->search_steps < SEARCH_STEPS)
            return GOES_ON;
    }
    if (op->reg == TEST_CONTAINS && (size >= op->size || at + length <= size))
        w->unknown = 1;
    w->search = 0;
    w->search_steps = 0;
    predicate_push(w, 0);
    return ENDED;
}
