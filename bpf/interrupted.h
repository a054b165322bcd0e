/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Where a thread is, by its registers in user space, at any instruction.
 *
 * A function of Go that has no frame, or has not made its own yet, does not appear between the
 * thread's address and the first frame pointer: its caller's address is on top of the stack
 * instead, or in the link register. Whether that is so only the function's table says, which user
 * space has. So such a word that points into the program's code is kept in the stack with a mark.
 *
 * Settings (common.h), beside those of goroutine.h and frames.h:
 *   GOTRACE_TEXT_START, GOTRACE_TEXT_END  where the program's code is, at run time
 *   GOTRACE_MORESTACK, GOTRACE_MORESTACK_SIZE  where runtime.morestack and, after it,
 *                         morestack_noctxt are, at run time
 *   GOTRACE_MORESTACK_MASK  the bits of an address that are known of it
 *   GOTRACE_G_SCHED_SP, GOTRACE_SCHED_BP  offsets in runtime.g, and from gobuf.sp to gobuf.bp
 */
#pragma once
#include "frames.h"
#include "goroutine.h"

/* Marks of the second address of a stack; shared with gotrace/goroutines/interrupted.py. */
#define CALLER_AT_0 (1ULL << 62) /* the word that SP points to */
#define CALLER_AT_8 (1ULL << 61) /* the one above that */
#define CALLER_IN_LINK (1ULL << 60)
#define CALLER_IN_LINK_ONLY (1ULL << 59) /* the same, where SP says that no frame is made */
#define CALLER_MARKS (CALLER_AT_0 | CALLER_AT_8 | CALLER_IN_LINK | CALLER_IN_LINK_ONLY)

#define GROWING_FRAMES 48 /* most below runtime.morestack */

/* What is needed of a thread's registers. */
struct interrupted {
    u64 pc;
    u64 sp;
    u64 frame;
    u64 link;
    u64 g;
};

#define interrupted_at(ctx)                              \
    ((struct interrupted){.pc = registers_pc(ctx),       \
                          .sp = registers_sp(ctx),       \
                          .frame = registers_frame(ctx), \
                          .link = registers_link(ctx),   \
                          .g = registers_g(ctx)})

static __always_inline bool is_code(u64 address)
{
    return address - GOTRACE_TEXT_START < GOTRACE_TEXT_END - GOTRACE_TEXT_START;
}

#if CALL_PUSHES
/* Return what may be the address of the caller of the function at pc, with its mark; 0 if nothing. */
static __always_inline u64 hidden_caller(struct interrupted at)
{
    u64 words[2] = {};
    bpf_probe_read_user(words, sizeof(words), (void *)at.sp);
    if (is_code(words[0]))
        return words[0] | CALLER_AT_0;
    /* With a frame pointer there, the frame is made. */
    if (at.frame != at.sp && is_code(words[1]))
        return words[1] | CALLER_AT_8;
    return 0;
}

/* Find the current thread's goroutine; return false where there is no g. */
static __always_inline bool interrupted_task(struct interrupted at, struct task *task)
{
    return goroutine_find_task(0, COOKIE_G_TLS, task);
}
#else
static __always_inline u64 hidden_caller(struct interrupted at)
{
    if (!is_code(at.link))
        return 0;
    /* A frame record is just below SP: the function's own or, if it has no frame, its caller's. */
    return at.link | (at.frame == at.sp - 8 ? CALLER_IN_LINK : CALLER_IN_LINK_ONLY);
}

/*
 * Whether the register of g holds that, which C code uses as it likes: then its thread runs it, or
 * has it for its own stack, or SP is on its stack, as on gsignal's.
 */
static __always_inline bool is_running(u64 g, u64 sp)
{
    u64 m = read_word(g + GOTRACE_G_M);
    u64 hi = read_word(g + GOTRACE_G_STACK_HI), lo = read_word(g + GOTRACE_G_STACK_HI - 8);
    if (!m)
        return false;
    return read_word(m + GOTRACE_M_CURG) == g || read_word(m) == g /* m.g0 */ || sp - lo < hi - lo;
}

static __always_inline bool interrupted_task(struct interrupted at, struct task *task)
{
    return is_running(at.g, at.sp) && goroutine_fill_task(at.g, 0, task);
}
#endif

static __always_inline bool is_morestack(u64 pc)
{
    return ((pc - GOTRACE_MORESTACK) & GOTRACE_MORESTACK_MASK) < GOTRACE_MORESTACK_SIZE;
}

/* Return whether this is a system stack that a goroutine's runtime.morestack has come to. */
static __always_inline bool is_growing(struct frames_start from)
{
    if (is_morestack(from.caller & ~CALLER_MARKS)) /* of runtime.newstack, as it begins or ends */
        return true;
#pragma clang loop unroll(disable)
    for (int i = 0; i < GROWING_FRAMES; i++) {
        u64 pc = next_frame(&from);
        if (!pc)
            return false;
        if (is_morestack(pc))
            return true;
    }
    return false;
}

/* Return whether a saved address is the one after a call of runtime.morestack. */
static __always_inline bool called_morestack(u64 pc)
{
    s32 distance = 0;
    bpf_probe_read_user(&distance, sizeof(distance), (void *)(pc - sizeof(distance)));
    return is_morestack(pc + distance);
}

/*
 * Return where a goroutine is whose stack the runtime has left for another one. A function that has
 * called runtime.morestack, for more stack or since it is to be preempted, has no frame yet: its
 * caller's address is on top of the stack or, where calls do not push it, in gobuf.lr, the word
 * before gobuf.bp, which is 0 otherwise (src/runtime/asm_*.s, Go 1.15 to 1.27).
 */
static __always_inline struct frames_start saved_frames(u64 g)
{
    u64 sched = g + GOTRACE_G_SCHED_SP, bp = sched + GOTRACE_SCHED_BP;
    struct frames_start from = {.pc = read_word(sched + 8), .frame = read_word(bp), .end = ~0ULL};
    if (!CALL_PUSHES)
        from.caller = read_word(bp - 8);
    else if (called_morestack(from.pc))
        from.caller = read_word(read_word(sched));
    return from;
}

/* Keep the current thread's stack, and find its goroutine; return the hash, 0 without room. */
static __always_inline u64 interrupted_stack(struct interrupted at, struct task *task)
{
    struct frames_start from = {.pc = at.pc, .frame = at.frame, .end = ~0ULL};
    from.caller = hidden_caller(at);
    /* Without a goroutine a system stack's frame pointers lead on to the last one's. */
    if (!interrupted_task(at, task))
        return frames_keep(from);
    if (!task->g)
        from.end = task->stack_hi;
    else if (task->row != task->g && is_growing(from)) {
        from.low = read_word(task->row + GOTRACE_G_STACK_HI - 8);
        from.end = task->stack_hi;
        from.outer = frames_keep(saved_frames(task->g));
    }
    return frames_keep(from);
}
