/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Where a thread is, by its registers in user space, at any instruction.
 *
 * A function of Go that has no frame, or has not made its own yet, does not appear between the
 * thread's address and the first frame pointer: its caller's address is on top of the stack
 * instead. Whether that is so only the function's table says, which user space has. So a word on top
 * that points into the program's code is kept in the stack with a mark.
 *
 * Settings (common.h), beside those of goroutine.h and frames.h:
 *   GOTRACE_TEXT_START, GOTRACE_TEXT_END  where the program's code is, at run time
 */
#pragma once
#include "frames.h"
#include "goroutine.h"

/* Marks of the second address of a stack; shared with gotrace/goroutines/interrupted.py. */
#define CALLER_AT_0 (1ULL << 62) /* the word that SP points to */
#define CALLER_AT_8 (1ULL << 61) /* the one above that */

static __always_inline bool is_code(u64 address)
{
    return address - GOTRACE_TEXT_START < GOTRACE_TEXT_END - GOTRACE_TEXT_START;
}

/* Return what may be the address of the caller of the function at pc, with its mark; 0 if nothing. */
static __always_inline u64 hidden_caller(u64 sp, u64 frame)
{
    u64 words[2] = {};
    bpf_probe_read_user(words, sizeof(words), (void *)sp);
    if (is_code(words[0]))
        return words[0] | CALLER_AT_0;
    /* With a frame pointer there, the frame is made. */
    if (frame != sp && is_code(words[1]))
        return words[1] | CALLER_AT_8;
    return 0;
}

/* Keep the current thread's stack, and find its goroutine; return the hash, 0 without room. */
static __always_inline u64 interrupted_stack(u64 pc, u64 sp, u64 frame, struct task *task)
{
    struct frames_start from = {.pc = pc, .frame = frame, .end = ~0ULL};
    from.caller = hidden_caller(sp, frame);
    /* Without a goroutine a system stack's frame pointers lead on to the last one's. */
    if (goroutine_find_task(0, COOKIE_G_TLS, task) && !task->g)
        from.end = task->stack_hi;
    return frames_keep(from);
}
