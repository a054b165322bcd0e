/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunclatency: pair entries with returns and add the time between to histograms.
 *
 * Compile-time settings, beside those of calls.h and histogram.h:
 *   GOTRACE_ROWS         functions that have a histogram of their own, 1 without -F
 *   GOTRACE_GOROUTINES   rows of histograms per goroutine, with -g only
 *   GOTRACE_OUTERMOST    leave out calls within other traced calls of the same goroutine
 *   GOTRACE_SLOWER       nanoseconds from which on a call is reported by itself
 */
#include "calls.h"
#include "histogram.h"

/* In a key's tgid: of a process that has no number in the user's pid namespace. */
#define OTHER_NAMESPACE (1U << 31)

struct goroutine_key {
    u64 goid;
    u32 tgid;
    u32 row; /* generation * ROWS + row */
};

struct goroutine_row {
    struct histogram times;
    u64 startpc; /* entry of the function that the go statement started */
    u64 gopc;    /* pc after the go statement */
};

struct slow_call {
    u64 end; /* ns since boot */
    u64 duration;
    u64 goid;
    u32 tgid;
    u32 tid;
    u64 function;
    u64 hits; /* of probes within the call */
};

#ifdef GOTRACE_GOROUTINES
/* by_goroutine: filled on first use, emptied from user space at each interval or the end. */
BPF_HASH(by_goroutine, struct goroutine_key, struct goroutine_row, GOTRACE_GOROUTINES);

/* empty: value 0 is all zeros, too large for a program's stack. */
BPF_ARRAY(empty, struct goroutine_row, 1);

/*
 * folded: key = generation * ROWS + row; times of goroutines for which by_goroutine had no room.
 * Cleared from user space before that half is written again.
 */
BPF_ARRAY(folded, struct histogram, (GOTRACE_HALVES * GOTRACE_ROWS));

/* named: key with row 0 = goroutines that have had a row; gone when they end. */
BPF_HASH(named, struct goroutine_key, u8, GOTRACE_GOROUTINES * 4);

/* ended: goroutines of those that have ended, for user space to take their rows. */
BPF_QUEUE(ended, struct goroutine_key, 65536);
#endif

#ifdef GOTRACE_SLOWER
/* slow: one record a slow call. */
BPF_PERF_OUTPUT(slow);
#endif

int on_entry(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &task, &owner, &depth))
        return 0;
    struct stack *stack = enter(&task, &owner, depth, cookie);
    if (stack)
        stack->top.start = bpf_ktime_get_ns(); /* last: what came before is not the call's time */
    return 0;
}

#ifdef GOTRACE_GOROUTINES
/* The process in a goroutine's key: as the user sees it, else a number that no process has. */
static __always_inline u32 shown_process(struct task_key *owner)
{
    u32 seen = user_pid_tgid() >> 32;
    return seen ? seen : OTHER_NAMESPACE | owner->tgid;
}

static __always_inline void add_to_goroutine(struct task *task, struct task_key *owner, u32 number,
                                             u64 elapsed, u64 hits)
{
    struct goroutine_key key = {.goid = task->goid, .tgid = shown_process(owner), .row = number};
    struct goroutine_row *found = by_goroutine.lookup(&key);
    if (!found) {
        u32 zero = 0;
        struct goroutine_row *blank = empty.lookup(&zero);
        if (!blank)
            return;
        /* Threads without a goroutine share a row: what one has added, another must not replace. */
        by_goroutine.insert(&key, blank);
        found = by_goroutine.lookup(&key);
        if (found) {
            u8 yes = 1;
            struct goroutine_key name = {.goid = key.goid, .tgid = key.tgid};
            if (named.update(&name, &yes))
                count_diagnostic(ENDED_FULL, 1);
        }
        if (found && task->g) {
            found->startpc = read_word(task->g + GOTRACE_G_STARTPC);
            found->gopc = read_word(task->g + GOTRACE_G_GOPC);
        }
    }
    if (found) {
        add_value(&found->times, elapsed, hits);
        return;
    }
    struct histogram *rest = folded.lookup(&number);
    if (rest)
        add_value(rest, elapsed, hits);
}
#endif

static __always_inline void record(struct pt_regs *ctx, struct task *task, struct task_key *owner,
                                   struct open_call *call, u64 hits, u64 now)
{
    u64 elapsed = now - call->start;
    u32 number = 0;
    if (!add_to_row(GOTRACE_ROWS > 1 ? call->function : 0, elapsed, hits, &number))
        return;
#ifdef GOTRACE_GOROUTINES
    add_to_goroutine(task, owner, number, elapsed, hits);
#endif
#ifdef GOTRACE_SLOWER
    if (elapsed >= GOTRACE_SLOWER) {
        u64 seen = user_pid_tgid();
        struct slow_call report = {
            .end = now,
            .duration = elapsed,
            .goid = task->goid,
            .tgid = seen >> 32,
            .tid = seen,
            .function = call->function,
            .hits = hits,
        };
        if (slow.perf_submit(ctx, &report, sizeof(report)))
            count_diagnostic(SLOW_LOST, 1);
    }
#endif
}

int on_return(struct pt_regs *ctx)
{
    u64 now = bpf_ktime_get_ns(); /* first: what comes after is not the call's time */
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &task, &owner, &depth))
        return 0;
    struct stack *stack = leaving(&task, &owner, depth, cookie & COOKIE_INDEX_MASK);
    if (!stack)
        return 0;
    /* Functions that came here by tail jumps return with this one. */
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_TAIL_JUMPS; i++) {
        if (!stack->level || stack->top.depth != depth)
            break;
        if (i && stack->top.return_pc != read_word(ctx->sp))
            break;
        struct open_call call = stack->top;
        u64 hits = hits_within(stack);
        pop_call(&owner, stack);
#ifdef GOTRACE_OUTERMOST
        if (stack->level)
            continue;
#endif
        record(ctx, &task, &owner, &call, hits, now);
    }
    stack->hits++;
    if (!stack->level)
        stacks.delete(&owner);
    return 0;
}

int on_goexit(struct pt_regs *ctx)
{
    struct task task = {};
    struct task_key owner = {};
    if (!goroutine_ended(ctx, &task, &owner))
        return 0;
#ifdef GOTRACE_GOROUTINES
    struct goroutine_key key = {.goid = task.goid, .tgid = shown_process(&owner)};
    if (!named.lookup(&key))
        return 0;
    named.delete(&key);
    if (ended.push(&key, 0))
        count_diagnostic(ENDED_FULL, 1);
#endif
    return 0;
}
