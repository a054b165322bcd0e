/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gofunclatency: pair entries with returns and add the time between to histograms.
 *
 * Settings (common.h), beside those of calls.h and histogram.h:
 *   GOTRACE_ROWS         functions that have a histogram of their own, 1 without -F
 *   GOTRACE_BY_FILE      not functions have one of their own, but files, by their numbers
 *   GOTRACE_GOROUTINES   rows of histograms per goroutine, with -g only
 *   GOTRACE_OUTERMOST    leave out calls within other traced calls of the same goroutine
 *   GOTRACE_SLOWER       nanoseconds from which on a call is reported by itself
 *   GOTRACE_WHY          1 where the parts of times are added up, with the settings of why.h and
 *                        parts.h
 *   GOTRACE_HISTOGRAM_ROWS  histograms, twice where intervals are kept apart
 */
#define COUNTS_UNWOUND 1
#include "calls.h"
#include "histogram.h"
#include "parts.h"

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
#if GOTRACE_WHY
    struct why_sums why;
#endif
};

struct slow_call {
    u64 end; /* ns since boot */
    u64 duration;
    u64 goid;
    u32 tgid;
    u32 tid;
    u64 function;
    u64 hits; /* of probes within the call */
#if GOTRACE_WHY
    u64 parts; /* how many cells there are; 0 where they are not known */
    u64 cells[WHY_PARTS];
#endif
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
BPF_ARRAY(folded, struct histogram, GOTRACE_HISTOGRAM_ROWS);

/* named: key with row 0 = goroutines that have had a row; gone when they end. */
BPF_HASH(named, struct goroutine_key, u8, GOTRACE_GOROUTINES * 4);

/* ended: goroutines of those that have ended, for user space to take their rows. */
BPF_QUEUE(ended, struct goroutine_key, 65536);

/* A call that has ended, for the histograms of its goroutine. */
struct measured {
    u64 goid;
    u64 g;
#if GOTRACE_WHY
    u64 row; /* of a struct task */
#endif
    u64 tgid; /* of a struct task_key */
    u64 number;
    u64 elapsed;
    u64 hits;
#ifdef GOTRACE_LAYOUTS
    u64 cookie;
#endif
};

static __always_inline struct layout *layout_of(struct measured *call)
{
#ifdef GOTRACE_LAYOUTS
    return goroutine_layout(call->cookie);
#else
    return goroutine_layout(0);
#endif
}

/* The process in a goroutine's key: as the user sees it, else a number that no process has. */
static __always_inline u32 shown_process(u64 tgid)
{
    u32 seen = site_user_pid_tgid() >> 32;
    return seen ? seen : OTHER_NAMESPACE | (u32)tgid;
}

/*
 * Add a call's time. Called: inlined, the verifier would follow all branches for each call that can
 * return at once.
 */
int add_to_goroutine(struct pt_regs *argument)
{
    struct measured *call = opaque(argument);
    if (!call)
        return 0;
    call = opaque(call);
    u32 number = call->number;
    struct goroutine_key key = {
        .goid = call->goid, .tgid = shown_process(call->tgid), .row = number};
    struct goroutine_row *found = by_goroutine.lookup(&key);
    if (!found) {
        u32 zero = 0;
        struct goroutine_row *blank = empty.lookup(&zero);
        if (!blank)
            return 0;
        /* Threads without a goroutine share a row: what one has added, another must not replace. */
        by_goroutine.insert(&key, blank);
        found = by_goroutine.lookup(&key);
        if (found) {
            u8 yes = 1;
            struct goroutine_key name = {.goid = key.goid, .tgid = key.tgid};
            if (named.update(&name, &yes))
                diagnostics_count(ENDED_FULL, 1);
        }
        struct layout *layout = layout_of(call);
        if (found && call->g && layout) {
            found->startpc = read_word(call->g + OFFSET(layout, g_startpc, GOTRACE_G_STARTPC));
            found->gopc = read_word(call->g + OFFSET(layout, g_gopc, GOTRACE_G_GOPC));
        }
    }
    if (found) {
#if GOTRACE_WHY
        struct why_key row = {.id = call->row, .tgid = call->tgid};
        parts_add(why_rows.lookup(&row), call->elapsed, &found->why);
#endif
        histogram_add_value(&found->times, call->elapsed, call->hits);
        return 0;
    }
    struct histogram *rest = folded.lookup(&number);
    if (rest)
        histogram_add_value(rest, call->elapsed, call->hits);
    return 0;
}

static u64 (*call_add_to_goroutine)(struct measured *call) = CALLED(ADD_TO_GOROUTINE,
                                                                    struct measured);

/* Add the time of a call to the histograms of its goroutine. */
static __always_inline void record_goroutine(u64 cookie, struct task *task, struct task_key *owner,
                                             u32 number, u64 elapsed, u64 hits)
{
    struct measured measured = {.goid = task->goid,
                                .g = task->g,
#if GOTRACE_WHY
                                .row = task->row,
#endif
                                .tgid = owner->tgid,
                                .number = number,
                                .elapsed = elapsed,
#ifdef GOTRACE_LAYOUTS
                                .cookie = cookie,
#endif
                                .hits = hits};
    call_add_to_goroutine(&measured);
}

/* Let user space take the rows of a goroutine that has ended. */
static __always_inline void end_goroutine(struct task *task, struct task_key *owner)
{
    struct goroutine_key key = {.goid = task->goid, .tgid = shown_process(owner->tgid)};
    if (!named.lookup(&key))
        return;
    named.delete(&key);
    if (ended.push(&key, 0))
        diagnostics_count(ENDED_FULL, 1);
}
#else
static __always_inline void record_goroutine(u64 cookie, struct task *task, struct task_key *owner,
                                             u32 number, u64 elapsed, u64 hits)
{
}

static __always_inline void end_goroutine(struct task *task, struct task_key *owner)
{
}
#endif

#ifdef GOTRACE_SLOWER
/* slow: one record a slow call. */
BPF_PERF_OUTPUT(slow);

#if GOTRACE_WHY
/* reports: key = task whose call returns; room for what is reported, gone when it is. */
BPF_HASH(reports, struct task_key, struct slow_call, GOTRACE_WHY_ROWS);
BPF_ARRAY(report_blank, struct slow_call, 1);
#endif

/* Report a call by itself if it is slow. */
static __always_inline void report_slow(struct pt_regs *ctx, struct task *task,
                                        struct task_key *owner, struct open_call *call, u64 hits,
                                        u64 now)
{
    if (now - call->start < GOTRACE_SLOWER)
        return;
    u64 seen = site_user_pid_tgid();
#if GOTRACE_WHY
    /* With its parts it is too large for a program's stack. */
    u32 zero = 0;
    struct slow_call *blank = report_blank.lookup(&zero), *report = 0;
    if (blank && !reports.update(owner, blank))
        report = reports.lookup(owner);
    if (!report) {
        diagnostics_count(SLOW_LOST, 1);
        return;
    }
    struct why_key key = {.id = task->row, .tgid = owner->tgid};
    struct why_row *row = why_rows.lookup(&key);
    if (row)
        bpf_probe_read_kernel(&report->parts, 8 + 8 * WHY_PARTS, &row->owned);
    u64 size = sizeof(*report) - 8 * (WHY_PARTS - (report->parts & WHY_CELL_MASK));
#else
    struct slow_call local = {}, *report = &local;
    u64 size = sizeof(*report);
#endif
    report->end = now;
    report->duration = now - call->start;
    report->goid = task->goid;
    report->tgid = seen >> 32;
    report->tid = seen;
    report->function = call->function;
    report->hits = hits;
    if (slow.perf_submit(ctx, report, size))
        diagnostics_count(SLOW_LOST, 1);
#if GOTRACE_WHY
    reports.delete(owner);
#endif
}
#else
static __always_inline void report_slow(struct pt_regs *ctx, struct task *task,
                                        struct task_key *owner, struct open_call *call, u64 hits,
                                        u64 now)
{
}
#endif

int on_entry(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit_entry(ctx, &cookie) || !calls_locate(ctx, cookie, &task, &owner, &depth))
        return 0;
    if (site_counts_call(cookie)) {
        calls_count_hit(&task, &owner, 0);
        return 0;
    }
    landings_count_call(cookie & COOKIE_INDEX_MASK);
    struct stack *stack = calls_enter(ctx, &task, &owner, depth, cookie);
    if (stack)
        stack->top.start = calls_begin(&task, &owner, stack); /* last: before is not its time */
    return 0;
}

static __always_inline void record(struct pt_regs *ctx, u64 cookie, struct task *task,
                                   struct task_key *owner, struct open_call *call, u64 level,
                                   u64 hits, u64 now)
{
    u64 elapsed = now - call->start;
    u32 number = 0;
    u32 row = GOTRACE_BY_FILE    ? cookie >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK
              : GOTRACE_ROWS > 1 ? call->function
                                 : 0;
    if (!histogram_number(row, &number))
        return;
    struct why_key parts = {.id = task->row, .tgid = owner->tgid};
    struct call_key place = {.task = owner->task, .tgid = owner->tgid, .level = level};
    parts_add_call(&parts, &place, number, elapsed);
    histogram_add(number, elapsed, hits);
    record_goroutine(cookie, task, owner, number, elapsed, hits);
    report_slow(ctx, task, owner, call, hits, now);
    why_returned(&parts, &place);
}

/* Measure the calls that end at a RET. */
int on_return(struct pt_regs *ctx)
{
    u64 now = bpf_ktime_get_ns(); /* first: what comes after is not the call's time */
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit_return(ctx, &cookie))
        return 0;
    struct stack *stack = calls_returning(ctx, cookie, &task, &owner, &depth, &now);
    if (!stack)
        return 0;
    if (GOTRACE_WHY) {
        task.goid = calls_unknown(stack, task.goid);
        task.g = calls_unknown(stack, task.g);
    }
    /* Functions that came here by tail jumps return with this one. */
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_TAIL_JUMPS; i++) {
        if (i && !calls_return_together(ctx, &task, stack, depth))
            break;
        struct open_call call = stack->top;
        u64 hits = calls_hits_within(stack), level = stack->level;
        calls_pop(&owner, stack);
        if (GOTRACE_OUTERMOST && stack->level) {
            struct why_key row = {.id = task.row, .tgid = owner.tgid};
            struct call_key place = {.task = owner.task, .tgid = owner.tgid, .level = level};
            why_returned(&row, &place);
            continue;
        }
        record(ctx, cookie, &task, &owner, &call, level, hits, now);
    }
    stack->hits++;
    calls_settle(&task, &owner, stack);
    return 0;
}

int on_goexit(struct pt_regs *ctx)
{
    struct task task = {};
    struct task_key owner = {};
    if (calls_goroutine_ended(ctx, &task, &owner))
        end_goroutine(&task, &owner);
    return 0;
}
