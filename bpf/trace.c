/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gotrace: report calls with their arguments, results and durations, or add them up by some of them.
 *
 * Settings (common.h), beside those of the headers:
 *   GOTRACE_FUNCTIONS    functions that are traced
 *   GOTRACE_RETURNS      1 where any of them is reported at its return
 *   GOTRACE_SAVED        calls whose arguments can be kept until they return
 *   GOTRACE_HAS_STACKS   1 where return addresses are reported
 *   GOTRACE_USER_STACK   at most so many of them
 *   GOTRACE_BEHIND       bytes of the payload that return addresses and float registers want
 *   GOTRACE_FLOATS       1 where float registers are wanted, with the setting of floats.h
 *   GOTRACE_WHY          1 where the parts of durations are reported, or added up, or what predicates
 *                        ask for, with the settings of why.h
 *   GOTRACE_SAVED_BLOCKS 1 where operations at a return look at blocks of the entry; optional
 *   GOTRACE_NESTED       where calls say whether they were made within others, and which go statement
 *                        their goroutine comes from: of so many goroutines; optional
 *   GOTRACE_KEY          calls are not reported but added up by key, with the settings of rows.h
 *   GOTRACE_STACK_KEY    1 where return addresses belong to the key, all that are reported
 */
#include <uapi/linux/ptrace.h>
#include "common.h"
#ifdef GOTRACE_NESTED
#define KEEPS_STARTS
#endif
#define CALL_DROPPED(owner, level) forget(owner, level)
#ifndef GOTRACE_KEY
#define CALL_UNWOUND(ctx, owner, level, call) report_unwound(ctx, owner, level, call)
#endif
struct task_key;
struct unwound;
static __always_inline void forget(struct task_key *owner, unsigned long long level);
static __always_inline void report_unwound(struct pt_regs *ctx, struct task_key *owner,
                                           unsigned long long level, struct unwound *call);
#include "atomic.h"
#include "calls.h"
#include "interpreter.h"
#include "ret.h"
#ifdef GOTRACE_NESTED
#include "starts.h"
#endif
#ifdef GOTRACE_KEY
#include "rows.h"
#endif
#if GOTRACE_FLOATS
#include "floats.h"
#endif

/* Buffers of each CPU: as many programs as can preempt one another there, and one to spare. */
#define WORK_BUFFERS 16

/* site_plan.flags */
#define PLAN_ENTRY_ONLY 1    /* report at the entry: there is no return, or none is wanted */
#define PLAN_ENTRY_FLOATS 2  /* float registers hold arguments */
#define PLAN_RETURN_FLOATS 4 /* float registers hold results */
#define PLAN_LEAVES 8        /* the function can end by a jump to another one */
#define PLAN_FILE_SHIFT 8    /* above: number of the function's file */

struct site_plan {
    u64 site;   /* link-time address of the entry site */
    u32 entry;  /* first operation of the entry's plan */
    u32 result; /* first operation of the return's plan */
    u32 flags;
    u32 reserved; /* bytes of the payload that the entry leaves to the return and what follows */
    s16 next_pc;  /* of the instruction after the entry site, from that site */
    s16 next_sp;  /* what the entry site's instruction adds to SP */
};

/* plans: key = function number of the cookie. Filled before attaching. */
BPF_ARRAY(plans, struct site_plan, GOTRACE_FUNCTIONS);

/* works: buffers; struct work's busy says which of a CPU's are free. */
BPF_PERCPU_ARRAY(works, struct work, WORK_BUFFERS);

/*
 * saved_calls: key = task and level of an open call; gone when that has returned. That of level 1
 * rests with the row of stacks: the next one is copied over it.
 */
BPF_HASH(saved_calls, struct call_key, struct call, GOTRACE_SAVED);

#ifndef GOTRACE_KEY
/* events: one record a call. */
BPF_PERF_OUTPUT(events);
#endif

static __always_inline void forget(struct task_key *owner, u64 level)
{
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = level};
    saved_calls.delete(&key);
}

/*
 * Take a free buffer. A program can be preempted by another thread's, on this CPU, so that one
 * buffer a CPU would mix their calls up.
 */
static __always_inline struct work *take_work(void)
{
    for (u32 i = 0; i < WORK_BUFFERS; i++) {
        u32 index = i;
        struct work *w = works.lookup(&index);
        if (w && atomic_compare_and_swap(&w->busy, 0, 1) == 0)
            return w;
    }
    diagnostics_count(WORK_BUSY, 1);
    return 0;
}

/* What of a call is not needed at its return: floats, and where blocks of the entry are. */
#if GOTRACE_FLOATS
#define COPIED_FROM 0
#elif GOTRACE_SAVED_BLOCKS
#define COPIED_FROM __builtin_offsetof(struct call, blocks)
#else
#define COPIED_FROM (__builtin_offsetof(struct call, blocks) + MAX_BLOCKS * sizeof(struct block))
#endif

/* Copy what is needed of a call at its return, with as much of the payload as is filled. */
static __always_inline void copy_call(struct call *to, struct call *from)
{
    u64 size = from->length;
    BOUND(size, GOTRACE_PAYLOAD - 1);
    size += __builtin_offsetof(struct call, payload) - COPIED_FROM;
    bpf_probe_read_kernel((u8 *)to + COPIED_FROM, size, (u8 *)from + COPIED_FROM);
}

/* Keep a call until it returns. */
static __always_inline void save_call(struct call_key *key, struct call *call)
{
    struct call *resting = key->level == 1 ? saved_calls.lookup(key) : 0;
    if (resting)
        copy_call(resting, call);
    else if (saved_calls.update(key, call))
        diagnostics_count(SAVED_FULL, 1);
}

static __always_inline void read_registers(struct work *w, struct pt_regs *ctx, u64 cookie)
{
    w->regs[0] = ctx->ax;
    w->regs[1] = ctx->bx;
    w->regs[2] = ctx->cx;
    w->regs[3] = ctx->di;
    w->regs[4] = ctx->si;
    w->regs[5] = ctx->r8;
    w->regs[6] = ctx->r9;
    w->regs[7] = ctx->r10;
    w->regs[8] = ctx->r11;
    w->regs[REGISTERS - 1] = ctx->dx;
    w->sp = ctx->sp + (cookie >> COOKIE_SP_SHIFT);
}

/* What a frame pointer leads to. */
struct link {
    u64 frame; /* the caller's frame pointer, 0 in the outermost function */
    u64 pc;    /* return address */
};

/* Spread what a word holds over all of it: a step of splitmix64, which has an inverse. */
static __always_inline u64 mixed(u64 word)
{
    word += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

/*
 * Append a block of return addresses: their number, 1 where there are more of them, and each in 8
 * bytes, innermost first.
 */
static __always_inline void append_stack(struct work *w, u64 frame)
{
#if GOTRACE_HAS_STACKS
    u32 *header = payload_begin_block(w), count = 0;
    if (!header)
        return;
    u64 pc = read_word(w->sp), hash = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < GOTRACE_USER_STACK; i++) {
        if (!pc || !payload_has_room(w, 8))
            break;
        payload_append_word(w, pc, 8);
        hash = mixed(hash ^ pc);
        count++;
        struct link link = {};
        if (frame)
            bpf_probe_read_user(&link, sizeof(link), (void *)frame);
        pc = link.pc;
        /* systemstack leads to a stack that may be lower */
        frame = link.frame != frame ? link.frame : 0;
    }
    header[-1] = count;
    header[0] = pc != 0;
#if GOTRACE_STACK_KEY
    key_word(w, hash, true);
#endif
    w->call.event.flags |= EVENT_STACK;
#endif
}

#ifdef GOTRACE_WHY
/*
 * Append what the time of a call that ends went into; is_unwound is a constant. Of calls that are
 * added up it is reported where their key asks for it.
 */
static __always_inline void append_why(struct call *call, struct why_key *key,
                                       struct call_key *place, bool is_unwound)
{
#if !defined(GOTRACE_KEY) || defined(GOTRACE_WHY_CLASSES)
    struct why_row *before, *row = why_rows_of(key, place, &before);
    u64 at = (call->length + 7) & ~7;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    if (!row || at > GOTRACE_PAYLOAD - WHY_REPORT_SIZE || (!is_unwound && !why_own(key, place)))
        return;
    call->length = at + why_describe(row, before, call->payload + at, is_unwound);
    call->event.flags |= EVENT_WHY;
#endif
}

/* What of the time of a call that returns predicates ask for. */
static __always_inline void classify(struct work *w, struct why_key *key, struct call_key *place)
{
#ifdef GOTRACE_WHY_CLASSES
    struct why_row *before, *row = why_rows_of(key, place, &before);
#pragma clang loop unroll(full)
    for (int i = 0; i < WHY_CLASSES; i++)
        w->classes[i] = row ? row->classes[i] - before->classes[i] : 0;
#endif
}
#endif

static __always_inline void submit(struct pt_regs *ctx, struct call *call)
{
#ifdef GOTRACE_KEY
    u32 number = 0;
    rows_add_call(call, call->event.end - call->event.start, &number);
#else
    u64 size = call->length;
    BOUND(size, 2 * GOTRACE_PAYLOAD - 1);
    if (size > GOTRACE_PAYLOAD)
        return;
    if (events.perf_submit(ctx, &call->event, sizeof(struct event) + size))
        diagnostics_count(EVENTS_LOST, 1);
#endif
}

#ifdef CALL_UNWOUND
/* Report a call that has ended without a return, with the arguments saved when it was entered. */
static __always_inline void report_unwound(struct pt_regs *ctx, struct task_key *owner, u64 level,
                                           struct unwound *call)
{
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = level};
    struct call *saved = saved_calls.lookup(&key);
    u32 function = saved ? saved->event.function : 0;
    struct site_plan *plan = saved ? plans.lookup(&function) : 0;
    if (!plan)
        return;
    /* It may have jumped to another function, and both may have returned long ago. */
    if (plan->flags & PLAN_LEAVES) {
        diagnostics_count(UNWOUND_UNSEEN, 1);
        return;
    }
    saved->event.start = call->start;
    saved->event.end = call->end;
    saved->event.hits = call->hits;
    saved->event.hits_ns = call->hits_ns;
    saved->event.tid = site_user_pid_tgid();
    saved->event.flags |= call->how;
#ifdef GOTRACE_NESTED
    saved->event.flags |= starts_within(call->went, call->start);
    if (level == 1)
        starts_append(saved, call->g, owner->tgid);
#endif
#ifdef GOTRACE_WHY
    append_why(saved, call->row, &key, true);
#endif
#if GOTRACE_FLOATS
    if (saved->has_floats)
        floats_append(saved, saved->floats, EVENT_ENTRY_FLOATS);
#endif
    submit(ctx, saved);
}
#endif

#if GOTRACE_FLOATS
/* Report a call of this thread whose signal has not come: its floats are not available. */
static __always_inline void give_up_waiting(struct pt_regs *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct waiting *found = waiting.lookup(&tid);
    if (!found)
        return;
    if (!found->wait.at_entry)
        submit(ctx, &found->call);
    waiting.delete(&tid);
}

/* Have the float registers brought; return whether that is possible. */
static __always_inline bool wait_for_floats(struct work *w, u64 pc, u64 sp, u64 flag)
{
    u32 tid = bpf_get_current_pid_tgid();
    if (floats_signal_is_blocked())
        return false;
    w->wait.pc = pc;
    w->wait.sp = sp;
    w->wait.flag = flag;
    if (waiting.update(&tid, (struct waiting *)&w->wait))
        return false;
    if (bpf_send_signal_thread(SIGURG)) {
        waiting.delete(&tid);
        return false;
    }
    return true;
}

/* At the entry of the runtime's signal handler. */
int on_signal(struct pt_regs *ctx)
{
    stack_keep_own(ctx);
    if (!site_is_target())
        return 0;
    u32 tid = bpf_get_current_pid_tgid();
    struct waiting *found = waiting.lookup(&tid);
    if (!found)
        return 0;
    if (found->wait.at_entry) {
        struct call *saved = saved_calls.lookup(&found->wait.key);
        if (saved && floats_read(&found->wait, ctx->dx, saved->floats))
            saved->has_floats = 1;
    } else {
        u64 values[FLOAT_REGISTERS];
        if (floats_read(&found->wait, ctx->dx, values))
            floats_append(&found->call, values, found->wait.flag);
        submit(ctx, &found->call);
    }
    waiting.delete(&tid);
    return 0;
}
#endif

/*
 * Run a phase's plan, with so much of the payload left for what comes after it. It ends at a
 * multiple of 8; padding after a cut image would be taken for a part of that.
 */
static __always_inline void run_phase(struct work *w, u32 first, u32 reserved)
{
    w->limit = GOTRACE_PAYLOAD - 8 - reserved;
    interpreter_run(w, first);
    w->limit = GOTRACE_PAYLOAD;
    if (w->full) {
        struct block *root = w->phase ? w->result_blocks : w->call.blocks;
        root->size = w->call.length - root->start;
    }
    w->call.length = (w->call.length + (w->full ? 0 : 7)) & ~7;
    w->full = 0;
}

/* Count a hit that opens no call in those that are open: they contain what it costs. */
static __always_inline void opens_none(struct task *task, struct task_key *owner, u64 began)
{
#if GOTRACE_RETURNS
    calls_count_hit(task, owner, bpf_ktime_get_ns() - began);
#endif
}

int on_entry(struct pt_regs *ctx)
{
    u64 began = bpf_ktime_get_ns();
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit(ctx, &cookie) || !calls_locate(ctx, cookie, &task, &owner, &depth))
        return 0;
    u32 function = cookie & COOKIE_INDEX_MASK;
    struct site_plan *plan = plans.lookup(&function);
    struct work *w = plan ? take_work() : 0;
    if (!w) {
        opens_none(&task, &owner, began);
        return 0;
    }
#if GOTRACE_FLOATS
    give_up_waiting(ctx);
#endif
    struct event *event = &w->call.event;
    u64 ids = site_user_pid_tgid();
    event->start = 0;
    event->goid = task.goid;
    event->tgid = ids >> 32;
    event->tid = ids;
    event->function = function;
    event->results_length = 0;
    event->flags = (ctx->ip - plan->site) & ~(u64)EVENT_FLAGS;
    event->hits = 0;
    event->hits_ns = 0;
    w->call.length = 0;
    w->call.has_floats = 0;
#ifdef GOTRACE_KEY
    key_begin(&w->call, function);
#endif
    w->phase = 0;
    w->file = plan->flags >> PLAN_FILE_SHIFT;
    read_registers(w, ctx, cookie);
    run_phase(w, plan->entry, plan->reserved);
    /* An earlier call at this depth that has left by a jump must not be taken for this one. */
    if (w->dropped && !(cookie & COOKIE_LEAVES))
        goto unopened;
    event->args_length = w->call.length;
    if (plan->flags & PLAN_ENTRY_ONLY) {
        if (w->dropped)
            goto unopened;
        event->end = bpf_ktime_get_ns();
        append_stack(w, ctx->bp);
#if GOTRACE_FLOATS
        w->wait.at_entry = 0;
        if (plan->flags & PLAN_ENTRY_FLOATS &&
            wait_for_floats(w, ctx->ip + plan->next_pc, ctx->sp + plan->next_sp,
                            EVENT_ENTRY_FLOATS))
            goto unopened;
#endif
        submit(ctx, &w->call);
        goto unopened;
    }
    struct stack *stack = calls_enter(&task, &owner, depth, cookie);
    if (!stack)
        goto out;
    if (w->dropped) {
        calls_pop(&owner, stack);
        if (!stack->level)
            calls_rest(&task, &owner);
        goto out;
    }
    struct call_key key = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
#ifdef GOTRACE_NESTED
    event->flags |= (u64)(stack->level > 1) * EVENT_NESTED;
#endif
    save_call(&key, &w->call);
#if GOTRACE_FLOATS
    w->wait.at_entry = 1;
    w->wait.key = key;
    if (plan->flags & PLAN_ENTRY_FLOATS)
        wait_for_floats(w, ctx->ip + plan->next_pc, ctx->sp + plan->next_sp, EVENT_ENTRY_FLOATS);
#endif
    u64 now = calls_begin(&task, &owner, stack); /* last: before is not its time */
    stack->top.start = now;
#ifdef GOTRACE_NESTED
    if (stack->level == 1) {
        stack->since = now;
        starts_note_wait(cookie, task.g, task.goid, owner.tgid);
    }
#endif
    stack->hits_ns += now - began;
    stack->top.before_ns = stack->hits_ns;
out:
    w->busy = 0;
    return 0;
unopened:
    w->busy = 0;
    opens_none(&task, &owner, began);
    return 0;
}

#ifdef GOTRACE_NESTED
/* Report that an outermost call has ended which is not wanted: what was within it may wait for it. */
static __always_inline void report_unwanted(struct pt_regs *ctx, struct call *call, u64 flags,
                                            u64 g, u64 tgid)
{
    call->length = 0;
    call->event.args_length = 0;
    call->event.results_length = 0;
    call->event.flags = flags | EVENT_UNWANTED;
    starts_append(call, g, tgid);
    submit(ctx, call);
}
#endif

#if GOTRACE_RETURNS
/* Report a call that has returned, once its float registers are there if it has any. */
static __always_inline void finish(struct pt_regs *ctx, struct work *w, u32 flags)
{
#if GOTRACE_FLOATS
    if (w->call.has_floats)
        floats_append(&w->call, w->call.floats, EVENT_ENTRY_FLOATS);
    w->wait.at_entry = 0;
    if (flags & PLAN_RETURN_FLOATS &&
        wait_for_floats(w, read_word(ctx->sp), ctx->sp + 8, EVENT_RETURN_FLOATS))
        return;
#endif
    submit(ctx, &w->call);
}

/*
 * Report the call that returns; its arguments, saved under key when it was entered, are taken. Its
 * open's before and before_ns are what came within it; flags are more of the event's.
 */
static __always_inline void report_return(struct pt_regs *ctx, u64 cookie, struct task *task,
                                          struct call_key *key, struct open_call *open, u64 flags,
                                          u64 now)
{
    u32 function = open->function;
    struct site_plan *plan = plans.lookup(&function);
    struct call *saved = saved_calls.lookup(key);
    struct work *w = plan && saved ? take_work() : 0;
    if (!w)
        return;
    copy_call(&w->call, saved);
    /* A signal that comes late must not find another call in its place. */
    if (key->level > 1 || plan->flags & PLAN_ENTRY_FLOATS)
        saved_calls.delete(key);
    struct event *event = &w->call.event;
    event->start = open->start;
    event->end = now;
    event->tid = site_user_pid_tgid();
    event->hits = open->before;
    event->hits_ns = open->before_ns;
    w->duration = now - open->start;
#ifdef GOTRACE_WHY
    struct why_key row = {.id = task->row, .tgid = key->tgid};
    classify(w, &row, key);
#endif
    w->phase = 1;
    w->file = plan->flags >> PLAN_FILE_SHIFT;
    read_registers(w, ctx, cookie);
    run_phase(w, plan->result, GOTRACE_BEHIND);
    if (!w->dropped) {
        event->results_length = w->call.length - event->args_length;
        append_stack(w, ctx->bp);
#ifdef GOTRACE_NESTED
        event->flags |= flags;
        if (key->level == 1)
            starts_append(&w->call, task->g, key->tgid);
#endif
#ifdef GOTRACE_WHY
        append_why(&w->call, &row, key, false);
#endif
#ifdef GOTRACE_WHY_BANDS
        u32 number = 0;
        struct parted parted = {.row = row, .place = *key, .elapsed = w->duration};
        if (rows_add_call(&w->call, w->duration, &number)) {
            parted.number = number;
            call_add_to_parts(&parted);
        }
#else
        finish(ctx, w, plan->flags);
#endif
    }
#ifdef GOTRACE_NESTED
    else if (key->level == 1 && open->before)
        report_unwanted(ctx, &w->call, flags, task->g, key->tgid);
#endif
    w->busy = 0;
}

/* Where the program carries the RET out, RET_HIT says that it is the target's. */
#ifdef GOTRACE_EMULATE_RET
static __always_inline int returned(struct pt_regs *ctx)
#else
int on_return(struct pt_regs *ctx)
#endif
{
    u64 now = bpf_ktime_get_ns(); /* first: what comes after is not the call's time */
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit(ctx, &cookie))
        return 0;
    ret_begin(ctx, &cookie);
    if (!calls_locate(ctx, cookie, &task, &owner, &depth))
        return RET_HIT;
    struct stack *stack = calls_leaving(&task, &owner, depth, cookie & COOKIE_INDEX_MASK);
    if (!stack)
        return RET_HIT;
#ifdef GOTRACE_WHY
    struct why_key row = {.id = task.row, .tgid = owner.tgid};
    now = why_leaving(&row, now);
#endif
    struct call_key key = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
    struct open_call open = stack->top;
    open.before = calls_hits_within(stack);
    open.before_ns = stack->hits_ns - open.before_ns;
    u64 flags = 0;
#ifdef GOTRACE_NESTED
    flags = starts_within(stack->went, open.start);
#endif
#if GOTRACE_FLOATS
    give_up_waiting(ctx);
#endif
    calls_pop(&owner, stack);
    /* Functions that came here by tail jumps have returned with this one, unseen. */
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_TAIL_JUMPS; i++) {
        if (!stack->level || stack->top.depth != depth ||
            stack->top.return_pc != read_word(ctx->sp))
            break;
        diagnostics_count(TAIL_CALLS, 1);
        forget(&owner, stack->level);
#ifdef GOTRACE_WHY
        struct call_key place = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
        why_returned(&row, &place);
#endif
        calls_pop(&owner, stack);
    }
    stack->hits++;
    report_return(ctx, cookie, &task, &key, &open, flags, now);
#ifdef GOTRACE_WHY
    why_returned(&row, &key);
#endif
    /* Looked up again: the verifier would distinguish all paths through the plan by what stack is. */
    stack = stacks.lookup(&owner);
    if (stack)
        stack->hits_ns += bpf_ktime_get_ns() - now;
    if (!stack || !stack->level)
        calls_rest(&task, &owner);
#ifdef GOTRACE_WHY
    else
        why_left(&owner, task.row, stack->level);
#endif
    return RET_HIT;
}

#ifdef GOTRACE_EMULATE_RET
int on_return(struct pt_regs *ctx)
{
    if (returned(ctx))
        ret_end(ctx);
    return 0;
}
#endif

int on_goexit(struct pt_regs *ctx)
{
    struct task task = {};
    struct task_key owner = {};
    calls_goroutine_ended(ctx, &task, &owner);
    return 0;
}
#endif
