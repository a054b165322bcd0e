/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Run a capture plan over a struct work.
 *
 * Settings (common.h), beside those of plan.h and payload.h:
 *   GOTRACE_STEPS        operations, and steps of searches, that a plan may take
 *   GOTRACE_INTERFACES   1 where a plan has IFACE operations
 *   GOTRACE_PREDICATES   1 where a plan has predicates, or keys
 *   GOTRACE_ARITHMETIC   1 where these have arithmetic
 *   GOTRACE_SPANS        1 where a plan has SPAN operations, as context.h has it
 *   GOTRACE_SAVED_WORDS  1 where a return's plan has SAVED operations
 *   GOTRACE_LABELS       1 where a plan has LABEL operations, as labels.h has it
 *                        (these keep the verifier's work down to what the run needs)
 */
#pragma once
#include <uapi/linux/ptrace.h>
#include "context.h"
#include "key.h"
#include "predicate.h"

/* Return whether the block that an operation makes has no number left. */
static __always_inline bool beyond_blocks(struct work *w, struct op *op)
{
    return w->base + op->reg >= MAX_BLOCKS;
}

/* Return whether the block that an operation looks at had no number left. */
static __always_inline bool source_beyond(struct work *w, struct op *op)
{
    return !(op->block & OTHER_PHASE) && w->base + op->block >= MAX_BLOCKS;
}

/* Note what is missing of a text or slice, for OP_MORE. */
static __always_inline void note_rest(struct work *w, struct op *op, u64 pointer, u64 count)
{
    u64 most = op->more & ~MORE_ELEMENTS, index = w->noted;
    u64 size = count > most ? most : count * op->size;
    if (size > most)
        size = most;
    if (size <= op->limit || index >= MAX_RESTS)
        return;
    BOUND(index, MAX_RESTS - 1);
    u32 is_elements = !!(op->more & MORE_ELEMENTS);
    w->rests[index].address = pointer + op->limit;
    w->rests[index].size = size - op->limit;
    w->rests[index].is_elements = is_elements;
    w->left[is_elements]++;
    w->noted++;
}

/* Divide the room that what is usual has left: what comes next may take a part of it. */
static __always_inline void give_room(struct work *w, struct op *op)
{
    u32 length = (w->call.length + 7) & ~7;
    if (op->at) {
        u32 end = payload_block(w, 0)->start + op->limit;
        if (end > w->end)
            end = w->end;
        w->spare = end > length ? end - length : 0;
    }
    u32 limit = length + (w->spare * op->size / (op->at2 ? op->at2 : 1) & ~7);
    w->limit = limit < w->end ? limit : w->end;
}

/* Copy the next rest of a kind, as far as its share of the room goes. */
static __always_inline enum progress copy_rest(struct work *w, struct op *op)
{
    u64 index = w->next_rest;
    if (index >= w->noted || index >= MAX_RESTS) {
        w->next_rest = 0;
        return ENDED;
    }
    w->next_rest++;
    BOUND(index, MAX_RESTS - 1);
    u64 address = w->rests[index].address;
    u32 size = w->rests[index].size, is_elements = !!op->at;
    if (w->rests[index].is_elements != is_elements)
        return GOES_ON;
    u32 left = w->left[is_elements]--;
    u32 *header = payload_begin_block(w);
    if (!header)
        return GOES_ON;
    /* With what the next one's header takes; so no share is smaller than one before it. */
    u32 share = (w->limit - w->call.length + 16) / (left ? left : 1);
    share = share > 16 ? share - 16 : 0;
    if (size > share)
        size = share;
    *header = size;
    if (size && !payload_append_memory(w, address, size)) {
        size = MEMORY_PAGE - (address & (MEMORY_PAGE - 1));
        *header = size;
        if (!payload_has_room(w, size) || !payload_append_memory(w, address, size))
            *header = BLOCK_FAULT;
    }
    return GOES_ON;
}

/* Copy what a pointer leads to into a new block; return whether the operations on it can go on. */
static __always_inline bool run_deref(struct work *w, struct op *op)
{
    struct block *block = payload_block(w, op->reg);
    if (!beyond_blocks(w, op)) {
        block->start = 0;
        block->size = 0;
    }
    u64 pointer = 0, count = 1, size = op->size;
    if (source_beyond(w, op) || !payload_block_word(w, op->block, op->at, 8, &pointer))
        return false;
    if (op->code == OP_DEREF_N) {
        if (!payload_block_word(w, op->block, op->at2, 8, &count))
            return false;
        count = count > op->start ? count - op->start : 0;
        size = count > op->limit ? op->limit : count * size;
        if (size > op->limit)
            size = op->limit;
        pointer += pointer ? (u64)op->start * op->size : 0;
    } else {
        pointer += pointer ? op->limit : 0;
    }
    u32 *header = payload_begin_block(w);
    if (!header)
        return false;
    if (!count) {
        if (!beyond_blocks(w, op))
            block->start = w->call.length;
        return false;
    }
    if (!pointer) {
        *header = BLOCK_NIL;
        return false;
    }
    if (!payload_has_room(w, size) || beyond_blocks(w, op)) {
        *header = BLOCK_LIMIT;
        return false;
    }
    u32 start = w->call.length;
    *header = size;
    if (!payload_append_memory(w, pointer, size)) {
        /* Of a page that was never touched, user space may know what it would hold. */
        u32 first = MEMORY_PAGE - (pointer & (MEMORY_PAGE - 1));
        if (first >= size || !payload_append_memory(w, pointer, first)) {
            *header = BLOCK_FAULT;
            return false;
        }
        *header = first | BLOCK_CUT;
        /* Conditions on a text are not decided by a part of it. */
        if (op->code == OP_DEREF_N && op->size == 1)
            return false;
        size = first;
    } else if (op->more) {
        note_rest(w, op, pointer, count);
    }
    block->start = start;
    block->size = size;
    return true;
}

/* Go on with the plan of an interface's dynamic type; return whether it has one. */
static __always_inline bool run_iface(struct work *w, struct op *op)
{
    u64 type = 0, data = 0, bias = w->call.event.flags & ~(u64)EVENT_FLAGS;
    if (source_beyond(w, op) || !payload_block_word(w, op->block, op->at, 8, &type) ||
        !payload_block_word(w, op->block, op->at2, 8, &data))
        return false;
    if (GOTRACE_KEY && !w->nested)
        w->keyed = op->size;
    if (GOTRACE_KEY && w->keyed)
        key_word(w, type ? type - bias : 0, true);
    u32 *header = payload_begin_block(w);
    if (!header)
        return false;
    if (!type) {
        *header = BLOCK_NIL;
        return false;
    }
    /* Types are known by where they are in the file: each process may have that elsewhere. */
    u64 key = w->file << TYPE_FILE_SHIFT | (type - bias);
    if (op->limit)
        key |= DEEP;
    u32 *plan = (type - bias) >= DEEP ? 0 : types.lookup(&key);
    if (!plan) {
        *header = BLOCK_UNKNOWN_TYPE;
        return false;
    }
    u64 level = w->nested;
    if (level >= MAX_NESTING || beyond_blocks(w, op)) {
        *header = BLOCK_LIMIT;
        return false;
    }
    *header = BLOCK_KNOWN_TYPE;
    u32 start = payload_block(w, op->block)->start + op->at2;
    BOUND(level, NESTED_SLOTS - 1);
    w->pcs[level] = w->pc;
    w->bases[level] = w->base;
    w->nested++;
    w->base += op->reg;
    w->pc = *plan;
    struct block *word = payload_block(w, 0);
    word->start = start;
    word->size = 8;
    return true;
}

/* Append the string that a label of the goroutine is, or, from op->at2 on, a part of it. */
static __always_inline void append_label(struct work *w, struct op *op)
{
    u32 number = op->limit;
    struct constant *wanted = constants.lookup(&number);
    if (!wanted)
        return;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_KEY_WORDS; i++)
        w->label.wanted[i] = wanted->words[i];
    w->label.wanted_length = wanted->length;
    w->label.is_map = op->reg;
    label_find(&w->label, w->g, op->at);
    if (!op->at2)
        payload_append_word(w, w->label.value.at, 8);
    if (op->at2 + op->size > 8)
        payload_append_word(w, w->label.value.length, 8);
}

/* Execute an operation of a predicate. */
static __always_inline void decide(struct work *w, struct op *op)
{
    switch (op->code) {
    case OP_PUSH_CONST:
        predicate_push(w, op->limit | (u64)op->size << 32);
        break;
    case OP_PUSH_FIELD:
        predicate_push_field(w, op);
        break;
    case OP_PUSH_SPECIAL:
#if GOTRACE_WHY
        if (GOTRACE_WHY_CLASSES && op->reg >= SPECIAL_PARTS) {
            predicate_push(w, w->classes[op->reg & (WHY_CLASSES - 1)]);
            break;
        }
#endif
        predicate_push(w, op->reg == SPECIAL_GOID  ? w->call.event.goid
                          : op->reg == SPECIAL_PID ? w->call.event.tgid
                          : op->reg == SPECIAL_TID ? w->call.event.tid
                                                   : w->duration);
        break;
    case OP_COMPARE:
        predicate_compare(w, op->reg);
        break;
    case OP_ARITHMETIC:
        if (GOTRACE_ARITHMETIC)
            predicate_arithmetic(w, op);
        break;
    case OP_AND: {
        u64 b = predicate_pop(w);
        u64 a = predicate_pop(w);
        predicate_push(w, a && b);
        break;
    }
    case OP_OR: {
        u64 b = predicate_pop(w);
        u64 a = predicate_pop(w);
        predicate_push(w, a || b);
        break;
    }
    case OP_NOT:
        predicate_push(w, !predicate_pop(w));
        break;
    case OP_STRING_TEST:
        if (predicate_string_test(w, op) == GOES_ON)
            w->pc--;
        break;
    case OP_KEEP_IF: {
        u64 is_wanted = predicate_pop(w);
        if (w->unknown)
            w->call.event.flags |= EVENT_UNDECIDED;
        else if (!is_wanted)
            w->dropped = 1;
        w->unknown = 0; /* a later condition that is false decides */
        break;
    }
    }
}

/* Execute one operation of a plan. */
static __always_inline enum progress step(struct work *w, struct op *op)
{
    bool succeeded = true;
    switch (op->code) {
    case OP_REG: {
        u64 number = op->reg == CLOSURE_CONTEXT ? REGISTERS - 1 : op->reg & 0xf;
        if (number < REGISTERS)
            payload_append_word(w, w->regs[number], op->size & 0xf);
        break;
    }
    case OP_ZERO:
        if (payload_has_room(w, op->size)) {
            /* The buffer holds what earlier events left: clear in words, the last one rounded. */
#pragma clang loop unroll(disable)
            for (u32 i = 0; i < 8; i++) {
                u64 at = w->call.length + 8 * i;
                if (8 * i >= op->size)
                    break;
                BOUND(at, GOTRACE_PAYLOAD - 1);
                payload_put_word(payload_bytes(w) + at, 0);
            }
            w->call.length += op->size;
        } else {
            w->full = 1;
        }
        break;
    case OP_STACK:
        if (!payload_has_room(w, op->size) ||
            !payload_append_memory(w, w->sp + (s32)op->limit, op->size))
            w->full = 1;
        break;
    case OP_DEREF:
    case OP_DEREF_N:
        succeeded = run_deref(w, op);
        break;
    case OP_ROOM:
        give_room(w, op);
        break;
    case OP_MORE:
        if (copy_rest(w, op) == GOES_ON)
            w->pc--;
        break;
    case OP_LABEL:
        if (GOTRACE_LABELS)
            append_label(w, op);
        break;
    case OP_SAVED: {
        u64 word = 0;
        if (!GOTRACE_SAVED_WORDS)
            break;
        if (payload_block_word(w, OTHER_PHASE, op->at, op->size & 0xf, &word))
            payload_append_word(w, word, op->size & 0xf);
        else
            w->full = 1;
        break;
    }
    case OP_IFACE:
        if (GOTRACE_INTERFACES)
            succeeded = run_iface(w, op);
        break;
    case OP_SPAN:
        if (GOTRACE_SPANS)
            context_append_span(w, op);
        break;
    case OP_PUSH_CONST ... OP_KEEP_IF:
    case OP_ARITHMETIC:
        if (GOTRACE_PREDICATES)
            decide(w, op);
        break;
#if GOTRACE_KEY
    case OP_KEY_FIELD:
        if (!w->nested || w->keyed)
            key_field(w, op);
        break;
    case OP_KEY_TEXT:
        if (!w->nested || w->keyed)
            key_text(w, op);
        break;
    case OP_KEY_CALLER:
        key_word(w, payload_return_pc(w), true);
        break;
    case OP_KEY_VALUE: {
        u64 value = predicate_pop(w);
        key_word(w, value, !w->unknown);
        w->unknown = 0;
        break;
    }
    case OP_MEASURE:
        key_measure(w, op);
        break;
#endif
    default: /* OP_END */
        if (!w->nested)
            return ENDED;
        w->nested--;
        u64 level = w->nested;
        BOUND(level, NESTED_SLOTS - 1);
        w->pc = w->pcs[level];
        w->base = w->bases[level];
    }
    if (!succeeded)
        w->pc += op->skip;
    return GOES_ON;
}

/*
 * Run a plan's next operation; return an enum progress. Called: inlined, the verifier would
 * follow all branches again for each operation that a plan may have.
 */
int run_operation(struct pt_regs *argument)
{
    struct work *w = opaque(argument);
    if (!w)
        return ENDED;
    w = opaque(w);
    u32 pc = w->pc++;
    struct op *op = ops.lookup(&pc);
    if (!op || w->dropped)
        return ENDED;
    return step(w, op);
}

static u64 (*call_run_operation)(struct work *w) = CALLED(RUN_OPERATION, struct work);

/* Run a phase's plan from its first operation; the payload's next byte begins block 0. */
static __always_inline void interpreter_run(struct work *w, u32 first)
{
    w->pc = first;
    w->base = 0;
    w->nested = 0;
    w->values_top = 0;
    w->search = 0;
    w->search_steps = 0;
    w->unknown = 0;
    w->dropped = 0;
    w->full = 0;
    w->end = w->limit;
    w->noted = 0;
    w->next_rest = 0;
    w->left[0] = 0;
    w->left[1] = 0;
    context_begin(w);
    struct block *root = payload_block(w, 0);
    root->start = w->call.length;
    root->size = 0xffff; /* filled as the plan says, which does not look beyond, unless full */
#pragma clang loop unroll(disable)
    for (int i = 0; i < GOTRACE_STEPS; i++)
        if (call_run_operation(w) == ENDED)
            return;
    w->call.event.flags |= EVENT_UNDECIDED;
}
