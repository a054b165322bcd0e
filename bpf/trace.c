/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gotrace: report calls with their arguments, results and durations, or add them up by some of them.
 *
 * Settings (common.h), beside those of the headers:
 *   GOTRACE_RETURNS      1 where any of them is reported at its return
 *   GOTRACE_USER_STACK   at most so many return addresses are reported
 *   GOTRACE_FLOATS       1 where float registers are wanted, with the setting of floats.h
 *   GOTRACE_WHY          1 where the parts of durations are reported, or added up, or what predicates
 *                        ask for, with the settings of why.h
 *   GOTRACE_EDGES        1 where it is reported how work goes from goroutine to goroutine, with the
 *                        settings of edges.h
 *   GOTRACE_NESTED       1 where calls say whether they were made within others, and, with
 *                        GOTRACE_EDGES, each outermost call begins a request
 *   GOTRACE_KEY          calls are not reported but added up by key, with the settings of rows.h
 *   GOTRACE_STACK_KEY    1 where return addresses belong to the key, all that are reported
 */
#include <uapi/linux/ptrace.h>
#include "records.h"
#include "calls.h"
#include "edges.h"
#include "interpreter.h"
#include "parts.h"
#include "walk.h"

/* Buffers of each CPU: as many programs as can preempt one another there, and one to spare. */
#define WORK_BUFFERS 16

/* works: buffers; struct work's busy says which of a CPU's are free. */
BPF_PERCPU_ARRAY(works, struct work, WORK_BUFFERS);

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

static __always_inline void read_registers(struct work *w, struct pt_regs *ctx, u64 cookie)
{
    w->regs[0] = GO_REGISTER(ctx, 0);
    w->regs[1] = GO_REGISTER(ctx, 1);
    w->regs[2] = GO_REGISTER(ctx, 2);
    w->regs[3] = GO_REGISTER(ctx, 3);
    w->regs[4] = GO_REGISTER(ctx, 4);
    w->regs[5] = GO_REGISTER(ctx, 5);
    w->regs[6] = GO_REGISTER(ctx, 6);
    w->regs[7] = GO_REGISTER(ctx, 7);
    w->regs[8] = GO_REGISTER(ctx, 8);
#if GO_INT_REGISTERS > 9
    w->regs[9] = GO_REGISTER(ctx, 9);
    w->regs[10] = GO_REGISTER(ctx, 10);
    w->regs[11] = GO_REGISTER(ctx, 11);
    w->regs[12] = GO_REGISTER(ctx, 12);
    w->regs[13] = GO_REGISTER(ctx, 13);
    w->regs[14] = GO_REGISTER(ctx, 14);
    w->regs[15] = GO_REGISTER(ctx, 15);
#endif
    w->regs[REGISTERS - 1] = registers_closure(ctx);
    w->sp = registers_sp(ctx) + (cookie >> COOKIE_SP_SHIFT);
    if ((cookie & COOKIE_LANDING) && !(cookie & COOKIE_FAULT))
        w->sp -= CALL_PUSHES; /* the return address, which is still there */
#if !CALL_PUSHES
    w->return_pc = registers_return_pc(ctx, w->sp);
#endif
}

/*
 * Append a block of return addresses: their number, 1 where there are more of them, and each in 8
 * bytes, innermost first.
 */
static __always_inline void append_stack(struct work *w, u64 frame)
{
    if (!GOTRACE_USER_STACK)
        return;
    u32 *header = payload_begin_block(w), count = 0;
    if (!header)
        return;
    u64 pc = payload_return_pc(w), hash = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < GOTRACE_USER_STACK; i++) {
        if (!pc || !payload_has_room(w, 8))
            break;
        payload_append_word(w, pc, 8);
        hash = walk_mix(hash, pc);
        count++;
        pc = walk_step(&frame);
    }
    header[-1] = count;
    header[0] = pc != 0;
    if (GOTRACE_STACK_KEY)
        key_word(w, hash, true);
    w->call.event.flags |= EVENT_STACK;
}

/* What of the time of a call that returns predicates ask for. */
static __always_inline void classify(struct work *w, struct why_key *key, struct call_key *place)
{
#if GOTRACE_WHY
    if (!GOTRACE_WHY_CLASSES)
        return;
    struct why_row *before, *row = why_rows_of(key, place, &before);
#pragma clang loop unroll(full)
    for (int i = 0; i < WHY_CLASSES; i++)
        w->classes[i] = row ? row->classes[i] - before->classes[i] : 0;
#endif
}

/* Report a call of this thread whose signal has not come: its floats are not available. */
static __always_inline void give_up_waiting(struct pt_regs *ctx)
{
    if (!GOTRACE_FLOATS)
        return;
    u32 tid = bpf_get_current_pid_tgid();
    struct waiting *found = waiting.lookup(&tid);
    if (!found)
        return;
    if (!found->wait.at_entry)
        records_submit(ctx, &found->call);
    waiting.delete(&tid);
}

/*
 * Have the float registers brought; return whether that is possible. saved: where the call is kept
 * until it returns, 0 where it is reported once they are there.
 */
static __always_inline bool wait_for_floats(struct work *w, struct call_key *saved, u64 pc, u64 sp,
                                            u64 flag)
{
    u32 tid = bpf_get_current_pid_tgid();
    if (!GOTRACE_FLOATS || floats_signal_is_blocked())
        return false;
    w->wait.at_entry = saved != 0;
    if (saved)
        w->wait.key = *saved;
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
        if (saved && floats_read(&found->wait, registers_c_third(ctx), saved->floats))
            saved->has_floats = 1;
    } else {
        u64 values[GO_FLOAT_REGISTERS];
        if (floats_read(&found->wait, registers_c_third(ctx), values))
            floats_append(&found->call, values, found->wait.flag);
        records_submit(ctx, &found->call);
    }
    waiting.delete(&tid);
    return 0;
}

/*
 * Run a phase's plan, with so much of the payload left for what comes after it. It ends at a
 * multiple of 8; padding after a cut image would be taken for a part of that.
 */
static __always_inline void run_phase(struct work *w, u32 first, u32 left)
{
    w->limit = GOTRACE_PAYLOAD - 8 - left;
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
    if (GOTRACE_RETURNS)
        calls_count_hit(task, owner, bpf_ktime_get_ns() - began);
}

#if GOTRACE_NESTED
/* What the flags of a task's latest call, which is entered now, say of those outside of it. */
static __always_inline u64 nested(struct stack *stack, u64 now)
{
    if (stack->level == 1)
        return EVENT_BEGUN;
    return EVENT_NESTED | (now - stack->since > LONG_CALL_NS ? EVENT_BEGUN : 0);
}

/* Note when a task's outermost call was entered. */
static __always_inline void note_outermost(struct stack *stack, u64 now)
{
    if (stack->level == 1)
        stack->since = now;
}
#else
static __always_inline u64 nested(struct stack *stack, u64 now)
{
    return 0;
}

static __always_inline void note_outermost(struct stack *stack, u64 now)
{
}
#endif

#if ROWS_HAVE_OWN
static __always_inline void enter_own(struct call *call, struct stack *stack)
{
    call->own_ns = stack->own_ns;
}

/*
 * Note the own time of a call that returns: its duration without the time of calls within it that were
 * added up. A difference of two readings, it is right whatever has become of the calls between.
 */
static __always_inline void note_own(struct call *call, struct call_key *key, u64 duration)
{
    struct task_key owner = {.task = key->task, .tgid = key->tgid};
    struct stack *stack = stacks.lookup(&owner);
    if (!stack)
        return;
    call->own_ns = duration - (stack->own_ns - call->own_ns);
    if (!(call->event.flags & EVENT_UNDECIDED))
        stack->own_ns += call->own_ns;
}
#else
static __always_inline void enter_own(struct call *call, struct stack *stack)
{
}

static __always_inline void note_own(struct call *call, struct call_key *key, u64 duration)
{
}
#endif

/*
 * Report a call that has ended and is not wanted, without its values, if that matters for others:
 * they may wait for it, or it was reported when it began.
 */
static __always_inline void report_unwanted(struct pt_regs *ctx, struct site_plan *plan,
                                            struct call *call, bool has_others)
{
    if (!(GOTRACE_NESTED && has_others) && !edges_has_begun(plan, call))
        return;
    call->length = 0;
    call->event.args_length = 0;
    call->event.results_length = 0;
    call->event.flags |= EVENT_UNWANTED;
    records_submit(ctx, call);
}

int on_entry(struct pt_regs *ctx)
{
    u64 began = bpf_ktime_get_ns();
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit_entry(ctx, &cookie) || !calls_locate(ctx, cookie, &task, &owner, &depth))
        return 0;
    if (site_counts_call(cookie)) {
        opens_none(&task, &owner, began);
        return 0;
    }
    u32 function = cookie & COOKIE_INDEX_MASK;
    landings_count_call(function);
    struct site_plan *plan = plans.lookup(&function);
    struct work *w = plan ? take_work() : 0;
    if (!w) {
        opens_none(&task, &owner, began);
        return 0;
    }
    give_up_waiting(ctx);
    struct event *event = &w->call.event;
    u64 ids = site_user_pid_tgid();
    event->start = 0;
    event->goid = task.goid;
    event->tgid = ids >> 32;
    event->tid = ids;
    event->function = function;
    event->results_length = 0;
    event->flags = (registers_pc(ctx) - plan->site) & ~(u64)EVENT_FLAGS;
    event->hits = 0;
    event->hits_ns = 0;
    w->call.length = 0;
    w->call.has_floats = 0;
    key_begin(&w->call, function);
    w->phase = 0;
    w->file = plan->flags >> PLAN_FILE_SHIFT;
    w->g = task.g;
    read_registers(w, ctx, cookie);
    run_phase(w, plan->entry, plan->entry_leaves);
    /* An earlier call at this depth that has left by a jump must not be taken for this one. */
    if (w->dropped && !(cookie & COOKIE_LEAVES))
        goto unopened;
    event->args_length = w->call.length;
    if (plan->flags & PLAN_ENTRY_ONLY) {
        if (w->dropped)
            goto unopened;
        event->end = bpf_ktime_get_ns();
        append_stack(w, registers_caller_frame(ctx, cookie >> COOKIE_SP_SHIFT));
        if (plan->flags & PLAN_ENTRY_FLOATS &&
            wait_for_floats(w, 0, registers_pc(ctx) + plan->next_pc,
                            registers_sp(ctx) + plan->next_sp, EVENT_ENTRY_FLOATS))
            goto unopened;
        records_submit(ctx, &w->call);
        goto unopened;
    }
    struct stack *stack = calls_enter(ctx, &task, &owner, depth, cookie);
    if (!stack)
        goto out;
    if (w->dropped) {
        calls_pop(&owner, stack);
        if (!stack->level)
            calls_rest(&task, &owner);
        goto out;
    }
    struct call_key key = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
    event->flags |= nested(stack, began);
    enter_own(&w->call, stack);
    records_save(&key, &w->call);
    if (plan->flags & PLAN_ENTRY_FLOATS)
        wait_for_floats(w, &key, registers_pc(ctx) + plan->next_pc,
                        registers_sp(ctx) + plan->next_sp, EVENT_ENTRY_FLOATS);
    u64 now = calls_begin(&task, &owner, stack); /* last: before is not its time */
    stack->top.start = now;
    note_outermost(stack, now);
    edges_begin(ctx, plan, w, &task, depth, now);
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

/* Report a call that has returned, once its float registers are there if it has any. */
static __always_inline void finish(struct pt_regs *ctx, struct work *w, u32 flags)
{
    if (w->call.has_floats)
        floats_append(&w->call, w->call.floats, EVENT_ENTRY_FLOATS);
    if (flags & PLAN_RETURN_FLOATS &&
        wait_for_floats(w, 0, registers_return_pc(ctx, registers_sp(ctx)),
                        registers_sp(ctx) + CALL_PUSHES, EVENT_RETURN_FLOATS))
        return;
    records_submit(ctx, &w->call);
}

/*
 * Report the call that returns; its arguments, saved under key when it was entered, are taken. Its
 * open's before and before_ns are what came within it.
 */
static __always_inline void report_return(struct pt_regs *ctx, u64 cookie, struct task *task,
                                          struct call_key *key, struct open_call *open, u64 now)
{
    u32 function = open->function;
    struct site_plan *plan = plans.lookup(&function);
    struct call *saved = saved_calls.lookup(key);
    struct work *w = plan && saved ? take_work() : 0;
    if (!w)
        return;
    records_copy(&w->call, saved);
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
    struct why_key row = {.id = task->row, .tgid = key->tgid};
    classify(w, &row, key);
    w->phase = 1;
    w->file = plan->flags >> PLAN_FILE_SHIFT;
    read_registers(w, ctx, cookie);
    run_phase(w, plan->result, plan->return_leaves);
    if (!w->dropped) {
        event->results_length = w->call.length - event->args_length;
        append_stack(w, registers_caller_frame(ctx, cookie >> COOKIE_SP_SHIFT));
        records_append_why(&w->call, &row, key, false);
        note_own(&w->call, key, w->duration);
#ifdef GOTRACE_WHY_BANDS
        u32 number = 0;
        if (rows_add_call(&w->call, w->duration, &number))
            parts_add_call(&row, key, number, w->duration);
#else
        finish(ctx, w, plan->flags);
#endif
    } else {
        report_unwanted(ctx, plan, &w->call, key->level == 1 && open->before);
    }
    w->busy = 0;
}

/* Report the call that ends at a RET. */
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
    struct why_key row = {.id = task.row, .tgid = owner.tgid};
    struct call_key key = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
    struct open_call open = stack->top;
    open.before = calls_hits_within(stack);
    open.before_ns = stack->hits_ns - open.before_ns;
    give_up_waiting(ctx);
    calls_pop(&owner, stack);
    /* Functions that came here by tail jumps have returned with this one, unseen. */
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_TAIL_JUMPS; i++) {
        if (!calls_return_together(ctx, &task, stack, depth))
            break;
        diagnostics_count(TAIL_CALLS, 1);
        records_forget(&owner, stack->level);
        struct call_key place = {.task = owner.task, .tgid = owner.tgid, .level = stack->level};
        why_returned(&row, &place);
        calls_pop(&owner, stack);
    }
    stack->hits++;
    report_return(ctx, cookie, &task, &key, &open, now);
    why_returned(&row, &key);
    /* Looked up again: the verifier would distinguish all paths through the plan by what stack is. */
    stack = stacks.lookup(&owner);
    if (stack)
        stack->hits_ns += bpf_ktime_get_ns() - now;
    if (!stack || !stack->level)
        calls_rest(&task, &owner);
    else
        why_left(&owner, task.row, stack->level);
    return 0;
}

int on_goexit(struct pt_regs *ctx)
{
    struct task task = {};
    struct task_key owner = {};
    calls_goroutine_ended(ctx, &task, &owner);
    return 0;
}
