/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Find the OpenTelemetry span that a context.Context holds.
 *
 * A context is an interface, and most hold another one, their parent: the way goes from parent to
 * parent to the first context.valueCtx whose key is that of spans. gotrace/gotypes/contexts.py knows
 * which types there are, and where each has its parent; both sides share these records.
 *
 * Settings (common.h):
 *   GOTRACE_SPANS     1 where plans have SPAN operations
 *   GOTRACE_CONTEXTS  types of contexts and spans
 */
#pragma once
#include "payload.h"

/* Most contexts that are looked at on the way to a span. */
#define MAX_CONTEXTS 64
#define ITAB_TYPE 8 /* where an itab has the type: after the interface's */

enum context_kind {
    CONTEXT_ROOT = 1,    /* a context without a parent */
    CONTEXT_PARENT = 2,  /* one whose parent is at context_type.at */
    CONTEXT_VALUE = 3,   /* context.valueCtx: a parent, a key and a value, of two words each */
    CONTEXT_SPAN = 4,    /* a span whose trace.SpanContext is at context_type.at */
    CONTEXT_NO_SPAN = 5, /* a span that belongs to no trace */
};

struct context_type {
    u32 kind;
    u32 at;
    u64 key; /* of CONTEXT_VALUE: link-time address of the type that keys of spans have */
};

/*
 * context_types: key = file << TYPE_FILE_SHIFT | link-time address of a runtime type or itab. Filled
 * before attaching.
 */
BPF_HASH(context_types, u64, struct context_type, GOTRACE_CONTEXTS);

/* The beginning of a trace.SpanContext, and its flags: the traceparent's. */
#define IDS_SIZE 25
#define FLAG_SAMPLED 1

static __always_inline struct context_type *context_type_of(struct work *w, u64 word)
{
    u64 place = word - (w->call.event.flags & ~(u64)EVENT_FLAGS);
    u64 key = w->file << TYPE_FILE_SHIFT | place;
    return place >> TYPE_FILE_SHIFT ? 0 : context_types.lookup(&key);
}

/* Forget what an earlier plan has found. */
static __always_inline void context_begin(struct work *w)
{
    if (!GOTRACE_SPANS)
        return;
    w->walk.tab = 0;
    w->walk.found = 0;
}

/* Return the address of the context that the running plan was asked for, 0 if of none. */
static __always_inline u64 context_asked(struct work *w)
{
    return GOTRACE_SPANS && w->walk.found ? w->walk.contexts[0] : 0;
}

/* Append the addresses of all contexts that the running plan was asked for to an empty payload. */
static __always_inline void context_append_found(struct work *w)
{
    u32 found = GOTRACE_SPANS ? w->walk.found : 0;
    u64 *words = (u64 *)w->call.payload;
#pragma clang loop unroll(full)
    for (u32 i = 0; i < MAX_REPORTED_CONTEXTS; i++) {
        if (i < found)
            words[i] = w->walk.contexts[i];
    }
    w->call.length = 8 * (found & (CONTEXTS_SLOTS - 1));
}

/* Return eight hexadecimal digits for four bytes. */
static __always_inline u64 hexadecimal(u64 bytes)
{
    bytes &= 0xffffffff;
    bytes = (bytes | bytes << 16) & 0x0000ffff0000ffff;
    bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ff;
    u64 digits = (bytes >> 4 & 0x000f000f000f000f) | (bytes & 0x000f000f000f000f) << 8;
    u64 letters = (digits + 0x0606060606060606) >> 4 & 0x0101010101010101;
    return digits + 0x3030303030303030 + letters * ('a' - '0' - 10);
}

/* Take the ids of the span that is the value of a valueCtx, whose words have been read. */
static __always_inline void take_span(struct work *w)
{
    struct span_walk *walk = &w->walk;
    walk->result = WALK_NO_SPAN;
    if (!walk->words[4])
        return;
    struct context_type *type = context_type_of(w, walk->words[4]);
    if (!type || type->kind < CONTEXT_SPAN) {
        walk->result = WALK_UNKNOWN_SPAN;
        walk->type = walk->words[4];
        return;
    }
    if (type->kind == CONTEXT_NO_SPAN)
        return;
    walk->words[3] = 0;
    if (bpf_probe_read_user(walk->words, IDS_SIZE, (void *)(walk->words[5] + type->at))) {
        walk->result = WALK_FAULT;
        return;
    }
    u64 *ids = walk->words;
    /* What the API takes for invalid: either is zero. */
    if (!(ids[0] | ids[1]) || !ids[2])
        return;
#pragma clang loop unroll(full)
    for (int i = 0; i < 3; i++) {
        walk->digits[2 * i] = hexadecimal(ids[i]);
        walk->digits[2 * i + 1] = hexadecimal(ids[i] >> 32);
    }
    walk->is_sampled = ids[3] & FLAG_SAMPLED;
    walk->result = WALK_FOUND;
}

/* Return the type of a context by what its interface has; walk.type is one that is not known. */
static __always_inline struct context_type *context_type_at(struct work *w, u64 tab)
{
    struct context_type *type = context_type_of(w, tab);
    if (type)
        return type;
    /* An itab that the runtime has made, for a conversion that the compiler did not see. */
    u64 place = 0;
    bpf_probe_read_user(&place, sizeof(place), (void *)(tab + ITAB_TYPE));
    w->walk.type = place;
    return context_type_of(w, place);
}

/*
 * Follow the contexts from walk.tab and walk.data to a span. Called: inlined into what runs a plan's
 * operations, each of these would be followed with the whole way again.
 */
int find_span(struct pt_regs *argument)
{
    struct work *w = opaque(argument);
    if (!w)
        return 0;
    w = opaque(w);
    struct span_walk *walk = &w->walk;
    u64 tab = walk->tab, data = walk->data;
    walk->result = WALK_TOO_LONG;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_CONTEXTS; i++) {
        if (!tab)
            goto no_span;
        struct context_type *type = context_type_at(w, tab);
        if (!type || type->kind > CONTEXT_VALUE) {
            walk->result = WALK_UNKNOWN_CONTEXT;
            return 0;
        }
        if (type->kind == CONTEXT_ROOT)
            goto no_span;
        if (type->kind == CONTEXT_PARENT) {
            if (bpf_probe_read_user(walk->words, 16, (void *)(data + type->at)))
                goto fault;
        } else {
            if (bpf_probe_read_user(walk->words, 48, (void *)data))
                goto fault;
            u64 key = 0;
            if (walk->words[2] - (w->call.event.flags & ~(u64)EVENT_FLAGS) == type->key) {
                /* Where it cannot be read it is a constant, which the program compares by place. */
                bpf_probe_read_user(&key, sizeof(key), (void *)walk->words[3]);
                if (!key) {
                    take_span(w);
                    return 0;
                }
            }
        }
        tab = walk->words[0];
        data = walk->words[1];
    }
    return 0;
no_span:
    walk->result = WALK_NO_SPAN;
    return 0;
fault:
    walk->result = WALK_FAULT;
    return 0;
}

/*
 * Collect the contexts from walk.tab and walk.data on, each in the one before it: without those that
 * have no parent, which all share, and up to one of a type that is not known.
 */
int find_contexts(struct pt_regs *argument)
{
    struct work *w = opaque(argument);
    if (!w)
        return 0;
    w = opaque(w);
    struct span_walk *walk = &w->walk;
    u64 tab = walk->tab, data = walk->data;
    walk->found = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_REPORTED_CONTEXTS; i++) {
        struct context_type *type = tab ? context_type_at(w, tab) : 0;
        if (!type || (type->kind != CONTEXT_PARENT && type->kind != CONTEXT_VALUE))
            return 0;
        walk->contexts[i & (CONTEXTS_SLOTS - 1)] = data;
        walk->found = i + 1;
        u32 at = type->kind == CONTEXT_PARENT ? type->at : 0;
        if (bpf_probe_read_user(walk->words, 16, (void *)(data + at)))
            return 0;
        tab = walk->words[0];
        data = walk->words[1];
    }
    return 0;
}

static u64 (*call_find_contexts)(struct work *w) = CALLED(FIND_CONTEXTS, struct work);

/* Append a block with the contexts that the one at a place is made of: their size, and the words. */
static __always_inline void context_append_all(struct work *w, struct op *op, u64 tab, u64 data)
{
    struct span_walk *walk = &w->walk;
    struct block *block = payload_block(w, op->reg), *words = payload_block(w, op->reg + 1);
    u32 *header = payload_begin_block(w);
    if (!header)
        return;
    if (!payload_has_room(w, 8 + 8 * MAX_REPORTED_CONTEXTS)) {
        *header = BLOCK_LIMIT;
        return;
    }
    walk->tab = tab;
    walk->data = data;
    call_find_contexts(w);
    u32 found = walk->found, size = 8 * found;
    block->start = w->call.length;
    block->size = 8;
    words->start = block->start + 8;
    words->size = size;
    *header = 8 + size;
    /* All of them, found or not: with a test for each, the verifier of Linux 6.1 gives up. */
    u64 at = w->call.length;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    u8 *place = payload_bytes(w) + at;
    payload_put_word(place, size);
#pragma clang loop unroll(full)
    for (u32 i = 0; i < MAX_REPORTED_CONTEXTS; i++)
        payload_put_word(place + 8 + 8 * i, walk->contexts[i]);
    w->call.length += 8 + size;
    walk->tab = 0;
}

static u64 (*call_find_span)(struct work *w) = CALLED(FIND_SPAN, struct work);

/*
 * Append a block with what op->at2 asks for of the span that the context at a place holds: how many
 * digits the id has and the digits, or whether the trace is sampled. The block after that has the
 * digits alone. Where neither a span nor its absence is known, both have no bytes here, and what user
 * space is sent says why.
 */
static __always_inline void context_append_span(struct work *w, struct op *op)
{
    struct span_walk *walk = &w->walk;
    struct block *block = payload_block(w, op->reg), *digits = payload_block(w, op->reg + 1);
    u64 tab = 0, data = 0, size = 0;
    u32 what = op->at2;
    bool is_within = w->base + op->reg + 1 < MAX_BLOCKS;
    if (is_within) {
        block->start = digits->start = 0;
        block->size = digits->size = 0;
    }
    if (!payload_block_word(w, op->block, op->at, 8, &tab) ||
        !payload_block_word(w, op->block, op->at + 8, 8, &data))
        return;
    if (what == SPAN_CONTEXTS) {
        if (is_within)
            context_append_all(w, op, tab, data);
        return;
    }
    u32 *header = payload_begin_block(w);
    if (!header)
        return;
    if (!payload_has_room(w, 40) || !is_within) {
        *header = BLOCK_LIMIT;
        return;
    }
    if (tab != walk->tab || data != walk->data) {
        walk->tab = tab;
        walk->data = data;
        call_find_span(w);
    }
    u32 result = tab ? walk->result : WALK_NO_SPAN;
    if (result == WALK_FAULT) {
        *header = BLOCK_FAULT;
        return;
    }
    if (result > WALK_FOUND) {
        *header = 16;
        payload_append_word(w, -(u64)result, 8);
        payload_append_word(w, walk->type, 8);
        return;
    }
    block->start = w->call.length;
    block->size = 8;
    if (result == WALK_FOUND)
        size = what == SPAN_TRACE_ID ? 32 : what == SPAN_SPAN_ID ? 16 : 0;
    payload_append_word(w, what == SPAN_SAMPLED ? result == WALK_FOUND && walk->is_sampled : size,
                        8);
    digits->start = w->call.length;
    digits->size = size;
    *header = 8 + size;
    u64 first = what == SPAN_SPAN_ID ? 4 : 0;
#pragma clang loop unroll(full)
    for (u64 i = 0; i < 4; i++) {
        u64 at = (first + i) & 7;
        if (8 * i < size)
            payload_append_word(w, walk->digits[at], 8);
    }
}
