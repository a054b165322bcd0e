/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunclatency: pair entries with returns and add the time between to histograms.
 *
 * Compile-time settings, beside those of site.h and goroutine.h:
 *   GOTRACE_ROWS         functions that have a histogram of their own, 1 without -F
 *   GOTRACE_HALVES       2 where intervals are told apart, else 1
 *   GOTRACE_STRIPES      copies of each histogram that CPUs are spread over
 *   GOTRACE_STACKS       goroutines that can have calls open at once
 *   GOTRACE_FRAMES       open calls that can have another traced call inside
 *   GOTRACE_GOROUTINES   rows of histograms per goroutine, with -g only
 *   GOTRACE_SLOWER       nanoseconds from which on a call is reported by itself
 */
#include "site.h"
#include "goroutine.h"
#include "histogram.h"

/* Frames dropped at one hit; those beyond are dropped at the goroutine's next. */
#define MOST_DROPPED 16
/* Functions that can have led to one another by tail jumps and return at one RET. */
#define MOST_TAIL_JUMPS 4

/* What could not be done or did not match; order shared with gotrace/session/latency.py. */
enum diagnostic {
    UNMATCHED,     /* returns of calls that were entered before the probes were there */
    UNWOUND,       /* calls ended by a panic or by runtime.Goexit instead of a RET */
    STACKS_FULL,   /* calls not measured: too many goroutines with open calls */
    FRAMES_FULL,   /* calls not measured: too many open calls inside one another */
    NO_GOROUTINE,  /* hits where no g was found */
    ENDED_FULL,    /* ended goroutines whose rows stay, for want of room in the queue */
    SLOW_LOST,     /* slow calls that could not be reported */
    DIAGNOSTICS
};

struct caller_key {
    u64 caller; /* struct caller's id */
    u64 tgid;
};

struct frame_key {
    u64 caller;
    u32 tgid;
    u32 level;
};

/* One open call. A call is told from all others of its caller by its depth. */
struct frame {
    u64 depth; /* stack_hi - SP at entry: survives moves of the stack */
    u64 start; /* ns */
    u64 function;
};

struct stack {
    struct frame top;
    u64 level; /* open calls, top included */
};

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
};

/* diagnostics: key = enum diagnostic; value = how often on this CPU. Only ever added to. */
BPF_PERCPU_ARRAY(diagnostics, u64, DIAGNOSTICS);

/* generation: value 0 = which half of histograms is written, changed from user space by interval. */
BPF_ARRAY(generation, u32, 1);

/*
 * histograms: key = (generation * ROWS + row) * STRIPES + cpu % STRIPES. Counts and sums only ever
 * grow; minimum and maximum are cleared from user space before the half is written again.
 */
BPF_ARRAY(histograms, struct histogram, GOTRACE_HALVES * GOTRACE_ROWS * GOTRACE_STRIPES);

/* stacks: the open calls of a caller, its latest one in place. Gone when none is open. */
BPF_HASH(stacks, struct caller_key, struct stack, GOTRACE_STACKS);

/* frames: open calls below the latest; level 1 is the outermost. Gone when on top again. */
BPF_HASH(frames, struct frame_key, struct frame, GOTRACE_FRAMES);

#ifdef GOTRACE_GOROUTINES
/* by_goroutine: filled on first use, emptied from user space once the goroutine has ended. */
BPF_HASH(by_goroutine, struct goroutine_key, struct goroutine_row, GOTRACE_GOROUTINES);

/* empty: value 0 is all zeros, too large for a program's stack. */
BPF_ARRAY(empty, struct goroutine_row, 1);

/* folded: key = row; times of goroutines for which by_goroutine had no room. */
BPF_ARRAY(folded, struct histogram, GOTRACE_ROWS);

/* ended: goroutines that have ended, for user space to take their rows. */
BPF_QUEUE(ended, struct goroutine_key, 65536);
#endif

#ifdef GOTRACE_SLOWER
/* slow: one record a slow call. */
BPF_PERF_OUTPUT(slow);
#endif

static inline __attribute__((always_inline)) void note(u32 what, u64 times)
{
    u64 *count = diagnostics.lookup(&what);
    if (count)
        __sync_fetch_and_add(count, times);
}

/* Make the next outer frame the top again. */
static inline __attribute__((always_inline)) void pop(struct caller_key *who, struct stack *stack)
{
    stack->level--;
    if (!stack->level)
        return;
    struct frame_key key = {.caller = who->caller, .tgid = who->tgid, .level = stack->level};
    struct frame *outer = frames.lookup(&key);
    if (outer)
        stack->top = *outer;
    frames.delete(&key);
}

/* Drop calls at a depth greater than depth: they were unwound, their RET never comes. */
static inline __attribute__((always_inline)) void drop_deeper(struct caller_key *who,
                                                              struct stack *stack, u64 depth)
{
#pragma clang loop unroll(disable)
    for (int i = 0; i < MOST_DROPPED; i++) {
        if (!stack->level || stack->top.depth <= depth)
            return;
        note(UNWOUND, 1);
        pop(who, stack);
    }
}

/* Fill in who and depth; return 0 where the hit has to be ignored. */
static inline __attribute__((always_inline)) int locate(struct pt_regs *ctx, u64 cookie,
                                                        struct caller *caller,
                                                        struct caller_key *who, u64 *depth)
{
    if (!find_caller(ctx, cookie, caller)) {
        note(NO_GOROUTINE, 1);
        return 0;
    }
    who->caller = caller->id;
    who->tgid = bpf_get_current_pid_tgid() >> 32;
    *depth = caller->stack_hi - (ctx->sp + (cookie >> COOKIE_SP_SHIFT));
    return 1;
}

int on_entry(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct caller caller = {};
    struct caller_key who = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &caller, &who, &depth))
        return 0;
    struct stack *stack = stacks.lookup(&who);
    if (!stack) {
        struct stack none = {};
        stacks.update(&who, &none);
        stack = stacks.lookup(&who);
        if (!stack) {
            note(STACKS_FULL, 1);
            return 0;
        }
    }
    u64 function = cookie & COOKIE_INDEX_MASK;
    drop_deeper(&who, stack, depth);
    /* At the same depth only a tail jump can have come from another function. */
    if (stack->level && stack->top.depth == depth && stack->top.function == function) {
        note(UNWOUND, 1);
        pop(&who, stack);
    }
    if (stack->level) {
        struct frame_key key = {.caller = who.caller, .tgid = who.tgid, .level = stack->level};
        struct frame outer = stack->top;
        if (frames.update(&key, &outer)) {
            note(FRAMES_FULL, 1);
            return 0;
        }
    }
    stack->level++;
    stack->top.depth = depth;
    stack->top.function = function;
    stack->top.start = bpf_ktime_get_ns(); /* last: what came before is not the call's time */
    return 0;
}

#ifdef GOTRACE_GOROUTINES
static inline __attribute__((always_inline)) void add_to_goroutine(struct caller *caller,
                                                                   struct caller_key *who,
                                                                   u32 number, u64 elapsed)
{
    struct goroutine_key key = {.goid = caller->goid, .tgid = who->tgid, .row = number};
    struct goroutine_row *found = by_goroutine.lookup(&key);
    if (!found) {
        u32 zero = 0;
        struct goroutine_row *blank = empty.lookup(&zero);
        if (!blank)
            return;
        by_goroutine.update(&key, blank);
        found = by_goroutine.lookup(&key);
        if (found && caller->g) {
            found->startpc = read_word(caller->g + GOTRACE_G_STARTPC);
            found->gopc = read_word(caller->g + GOTRACE_G_GOPC);
        }
    }
    if (found) {
        add_value(&found->times, elapsed);
        return;
    }
    u32 row = number % GOTRACE_ROWS;
    struct histogram *rest = folded.lookup(&row);
    if (rest)
        add_value(rest, elapsed);
}
#endif

static inline __attribute__((always_inline)) void record(struct pt_regs *ctx,
                                                         struct caller *caller,
                                                         struct caller_key *who,
                                                         struct frame *call, u64 now)
{
    u64 elapsed = now - call->start;
    u32 zero = 0, row = GOTRACE_ROWS > 1 ? call->function : 0;
    u32 *half = generation.lookup(&zero);
    if (!half)
        return;
    u32 stripe = bpf_get_smp_processor_id() % GOTRACE_STRIPES;
    u32 number = *half * GOTRACE_ROWS + row;
    u32 index = number * GOTRACE_STRIPES + stripe;
    struct histogram *times = histograms.lookup(&index);
    if (times)
        add_value(times, elapsed);
#ifdef GOTRACE_GOROUTINES
    add_to_goroutine(caller, who, number, elapsed);
#endif
#ifdef GOTRACE_SLOWER
    if (elapsed >= GOTRACE_SLOWER) {
        struct slow_call report = {
            .end = now,
            .duration = elapsed,
            .goid = caller->goid,
            .tgid = who->tgid,
            .tid = (u32)bpf_get_current_pid_tgid(),
            .function = call->function,
        };
        if (slow.perf_submit(ctx, &report, sizeof(report)))
            note(SLOW_LOST, 1);
    }
#endif
}

int on_return(struct pt_regs *ctx)
{
    u64 now = bpf_ktime_get_ns(); /* first: what comes after is not the call's time */
    u64 cookie = 0, depth = 0;
    struct caller caller = {};
    struct caller_key who = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &caller, &who, &depth))
        return 0;
    struct stack *stack = stacks.lookup(&who);
    if (!stack) {
        note(UNMATCHED, 1);
        return 0;
    }
    drop_deeper(&who, stack, depth);
    u64 function = cookie & COOKIE_INDEX_MASK;
    if (!stack->level || stack->top.depth != depth || stack->top.function != function) {
        note(UNMATCHED, 1);
    } else {
        /* Functions that came here by tail jumps return with this one. */
#pragma clang loop unroll(disable)
        for (int i = 0; i < MOST_TAIL_JUMPS; i++) {
            if (!stack->level || stack->top.depth != depth)
                break;
            struct frame call = stack->top;
            pop(&who, stack);
            record(ctx, &caller, &who, &call, now);
        }
    }
    if (!stack->level)
        stacks.delete(&who);
    return 0;
}

/*
 * At runtime.recovery's call of gogo: gp.sched.sp is where the deferring function goes on. All
 * calls below it have been unwound by the panic.
 */
int on_recovery(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct caller caller = {};
    struct caller_key who = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &caller, &who, &depth) || !caller.g)
        return 0;
    who.caller = caller.goid;
    struct stack *stack = stacks.lookup(&who);
    if (!stack)
        return 0;
    u64 hi = read_word(caller.g + GOTRACE_G_STACK_HI);
    u64 sp = read_word(caller.g + GOTRACE_G_SCHED_SP);
    drop_deeper(&who, stack, hi - sp);
    if (!stack->level)
        stacks.delete(&who);
    return 0;
}

/* At runtime.goexit1: the goroutine has run its last frame, whatever is open was unwound. */
int on_goexit(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct caller caller = {};
    struct caller_key who = {};
    if (!site_hit(ctx, &cookie) || !locate(ctx, cookie, &caller, &who, &depth))
        return 0;
    struct stack *stack = stacks.lookup(&who);
    if (stack) {
        drop_deeper(&who, stack, 0);
        stacks.delete(&who);
    }
#ifdef GOTRACE_GOROUTINES
    struct goroutine_key key = {.goid = caller.goid, .tgid = who.tgid};
    if (ended.push(&key, 0))
        note(ENDED_FULL, 1);
#endif
    return 0;
}
