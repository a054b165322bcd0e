/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Stacks that are followed by frame pointers and kept once each, by their hash.
 *
 * Settings (common.h):
 *   GOTRACE_STACKS        most distinct stacks
 */
#pragma once
#include "diagnostics.h"
#include "walk.h"

#define MAX_FRAMES 128 /* of a stack; shared with gotrace/kernel/kept_stacks.py */

/*
 * Return addresses, innermost first, 0 after the last; shared with gotrace/kernel/kept_stacks.py.
 * outer is the hash of the stack that this one goes on with, or 0.
 */
struct kept_stack {
    u64 pcs[MAX_FRAMES];
    u64 outer;
};

/*
 * Where a stack begins: an address, and the frame pointer of the function that holds it or, if
 * that one has not made its frame, of its caller. caller is one more address between the two, or 0.
 * low and end are the stack's bounds, or 0 and ~0. outer is as above.
 */
struct frames_start {
    u64 pc;
    u64 caller;
    u64 frame;
    u64 low;
    u64 end;
    u64 outer;
};

/* kept_stacks: key = hash. Only ever added to; complete before its hash is handed out. */
BPF_HASH(kept_stacks, u64, struct kept_stack, GOTRACE_STACKS);

/* blank_stack: value 0 is all zeros, too large for a program's stack. */
BPF_ARRAY(blank_stack, struct kept_stack, 1);

/* Step to the caller: return its address and store its frame pointer; 0 after the last. */
static __always_inline u64 next_frame(struct frames_start *from)
{
    u64 link[2] = {};
    if (!from->frame || from->frame - from->low >= from->end - from->low)
        return 0;
    bpf_probe_read_user(link, sizeof(link), (void *)from->frame);
    from->frame = link[0];
    return link[1];
}

static __always_inline u64 hash_stack(struct frames_start from)
{
    u64 hash = walk_mix(0x9e3779b97f4a7c15ULL ^ from.outer, from.pc);
    if (from.caller)
        hash = walk_mix(hash, from.caller);
#pragma clang loop unroll(disable)
    for (int i = 1; i < MAX_FRAMES; i++) {
        u64 pc = next_frame(&from);
        if (!pc)
            break;
        hash = walk_mix(hash, pc);
    }
    return hash | 1;
}

/* The same way again, to store it. */
static __always_inline void store_stack(struct kept_stack *stack, struct frames_start from)
{
    u64 pc = from.pc;
    stack->outer = from.outer;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_FRAMES; i++) {
        stack->pcs[i] = pc;
        pc = from.caller;
        from.caller = 0;
        if (!pc)
            pc = next_frame(&from);
        if (!pc)
            break;
    }
}

/* Keep a stack and return its hash, 0 if the map is full, which is counted. */
static __always_inline u64 frames_keep(struct frames_start from)
{
    u64 hash = hash_stack(from);
    u32 zero = 0;
    if (kept_stacks.lookup(&hash))
        return hash;
    struct kept_stack *blank = blank_stack.lookup(&zero);
    if (!blank)
        return 0;
    kept_stacks.insert(&hash, blank);
    struct kept_stack *stack = kept_stacks.lookup(&hash);
    if (!stack) {
        diagnostics_count(KEPT_FULL, 1);
        return 0;
    }
    store_stack(stack, from);
    return hash;
}
