/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gooffcpu: add up how long goroutines are in a state, by their stacks, why, and who ended it; or,
 * for gooncpu --off, how long they are in each of all states, by where they were created, too.
 *
 * What is probed are the changes of a goroutine's status (gotrace/sites/scheduler.py). At the one
 * that begins the state the goroutine's stack is followed by its frame pointers and hashed; only a
 * stack that is met for the first time is stored. It cannot move meanwhile: the change is yet to be
 * made, and its thread is here. At the change that ends the state the thread is that of who ends
 * it, whose stack is followed likewise.
 *
 * Two CPUs never write to one row of followed at once: the runtime lets a goroutine be readied only
 * once it has been parked, after the probe there.
 *
 * Settings (common.h), beside those of interrupted.h:
 *   GOTRACE_STATE         the status that is added up: G_WAITING, G_RUNNABLE or G_SYSCALL, or
 *                         EVERY_STATE
 *   GOTRACE_FOLLOWED      goroutines that can be known at once
 *   GOTRACE_ROWS          combinations of stack, reason and the other's stack
 *   GOTRACE_G_WAITREASON, GOTRACE_G_GOPC, GOTRACE_G_COROARG  offsets in the target's runtime.g;
 *                         the last one optional
 */
#define FOLLOWS_STATES 1
#include "interrupted.h"
#include "scheduler.h"
#include "sums.h"

#define EVERY_STATE 0 /* shared with gotrace/session/waits/probes.py */

/* wait_row.ended_by: who ended it; shared with gotrace/session/waits/meter.py. */
#define ENDED_BY_NONE 0      /* the scheduler, or not known */
#define ENDED_BY_GOROUTINE 1 /* another goroutine */
#define ENDED_BY_RUNTIME 2   /* no goroutine: a timer, the network poller, the collector */
#define BEGAN_BEFORE 3       /* of all states: it had begun before the probes were there */

/* wait_row.reason: a wait reason, or with this bit the status before; shared likewise. */
#define REASON_STATUS 0x100

/* What distinguishes rows; a stack is its hash, 0 where it is not known. */
struct wait_row {
    u64 stack;
    u64 ended_by_stack;
    u64 created_by; /* of all states: return address of the go statement */
    u32 reason;
    u8 ended_by;
    u8 half;
    u16 status; /* of all states: which one */
};

/* Of a goroutine, what it is in now. */
struct followed_state {
    u64 since; /* ns, 0 while it is not in the state */
    u64 stack;
    u16 before;     /* of one state: the status before it */
    u16 status;     /* of all states: which one */
    u32 reason;     /* as far as it is known at the beginning */
    u64 created_by; /* of all states, as in rows */
};

/* followed: key = address of a g; those that have been in the state. Kept until the run is over. */
BPF_HASH(followed, u64, struct followed_state, GOTRACE_FOLLOWED);

/* wait_rows: the waits that have ended. Of a half; gone when that is read. */
BPF_HASH(wait_rows, struct wait_row, struct sums, GOTRACE_ROWS);

/* other_waits: key = half; those that found no row. */
BPF_ARRAY(other_waits, struct sums, 2);

/* earlier: key = wait reason; value = ends of waits that began before the probes were there. */
BPF_ARRAY(earlier, u64, 256);

/*
 * The stack of who runs now, from the caller of the function that was hit. That one's own frame is
 * there already where its site is after it was made. end: the stack's upper bound, or ~0.
 */
static __always_inline u64 own_stack(struct pt_regs *ctx, u64 cookie, u64 end)
{
    u64 lowered = cookie >> COOKIE_SP_SHIFT, entry = registers_sp(ctx) + lowered;
    u64 frame = registers_caller_frame(ctx, lowered);
    if (CALL_PUSHES && frame == entry - 8)
        frame = read_word(frame);
    return frames_keep(
        (struct frames_start){.pc = registers_return_pc(ctx, entry), .frame = frame, .end = end});
}

/* Where the runtime has left the goroutine's stack for another one, it has saved where. */
static __always_inline u64 saved_stack(u64 g)
{
    return frames_keep(saved_frames(g));
}

/* Return the goroutine's row: a new one has no time. Return 0 without room for it. */
static __always_inline struct followed_state *followed_of(u64 g)
{
    struct followed_state none = {}, *state = followed.lookup_or_try_init(&g, &none);
    if (!state)
        diagnostics_count(STATES_FULL, 1);
    return state;
}

static __always_inline void add_up(struct wait_row *key, u64 ns)
{
    u32 half = sums_half();
    key->half = half;
    struct sums none = {}, *row = wait_rows.lookup_or_try_init(key, &none);
    sums_add(row ? row : other_waits.lookup(&half), ns);
}

/*
 * A goroutine gets from one state into another. The time of a state that had begun before the
 * probes were there is added as its end: user space knows when that was. A wait that ends by
 * running is none, as below, but where the goroutine was switched to.
 */
static __always_inline void changes(struct pt_regs *ctx, u64 cookie, u64 g, u32 old, u32 new,
                                    bool is_switch)
{
    u64 now = bpf_ktime_get_ns();
    struct followed_state *state = followed_of(g);
    if (!state)
        return;
    u64 since = state->since;
    if (since)
        old = state->status;
    struct wait_row key = {.status = old};
    if (old == G_WAITING && new == G_RUNNING && !is_switch)
        key.status = G_RUNNING;
    if (old == G_RUNNABLE || old == G_RUNNING || old == G_SYSCALL || old == G_WAITING) {
        if (!since) {
            state->created_by = read_word(g + GOTRACE_G_GOPC);
            key.ended_by = BEGAN_BEFORE;
        }
        key.created_by = state->created_by;
        if (key.status != G_RUNNING)
            key.stack = since ? state->stack : registers_g(ctx) == g ? 0 : saved_stack(g);
        if (key.status == G_WAITING)
            key.reason = sched_wait_reason(g);
        add_up(&key, now - since);
    } else {
        state->created_by = read_word(g + GOTRACE_G_GOPC);
    }
    state->status = new;
    state->reason = sched_wait_reason(g);
    state->stack = 0;
    if (new == G_RUNNABLE || new == G_SYSCALL || new == G_WAITING)
        state->stack = registers_g(ctx) == g ? own_stack(ctx, cookie, ~0ULL) : saved_stack(g);
    state->since = now;
}

/* A goroutine gets into the state. */
static __always_inline void begins(struct pt_regs *ctx, u64 cookie, u64 g, u32 before)
{
    struct followed_state *state = followed_of(g);
    if (!state)
        return;
    state->stack = registers_g(ctx) == g ? own_stack(ctx, cookie, ~0ULL) : saved_stack(g);
    state->before = before;
    state->reason = sched_wait_reason(g);
    state->since = bpf_ktime_get_ns();
}

/* It gets out of it: add the time up, but where it went on by itself. */
static __always_inline void ends(struct pt_regs *ctx, u64 cookie, u64 g, bool counts)
{
    u64 now = bpf_ktime_get_ns();
    struct followed_state *state = followed.lookup(&g);
    u32 reason = sched_wait_reason(g);
    if (!state || !state->since) {
        u64 *count = state || !counts ? 0 : earlier.lookup(&reason);
        if (count)
            __sync_fetch_and_add(count, 1);
        return;
    }
    u64 ns = now - state->since;
    state->since = 0;
    if (!counts)
        return;
    struct wait_row key = {.stack = state->stack, .reason = REASON_STATUS | state->before};
    if (GOTRACE_STATE == G_WAITING || state->before == G_WAITING)
        key.reason = reason;
    if (GOTRACE_STATE == G_WAITING) {
        struct task task = {};
        goroutine_find_task(ctx, cookie, &task);
        key.ended_by = task.goid ? ENDED_BY_GOROUTINE : ENDED_BY_RUNTIME;
        /* Without a goroutine the frame pointers of a system stack lead on to the last one's. */
        key.ended_by_stack = own_stack(ctx, cookie, task.goid ? ~0ULL : task.stack_hi);
    }
    add_up(&key, ns);
}

static __always_inline void sched_changed(struct pt_regs *ctx, u64 cookie, struct sched_change to)
{
    if (GOTRACE_STATE == EVERY_STATE)
        changes(ctx, cookie, to.g, to.old, to.site == SCHED_PREEMPT ? G_WAITING : to.new,
                to.site == SCHED_COROUTINE);
    else if (to.new == GOTRACE_STATE)
        begins(ctx, cookie, to.g, to.old);
    else if (to.old == GOTRACE_STATE && to.new != G_COPYSTACK)
        /*
         * A wait that ends by running is none: the goroutine's thread has done something for it on
         * its system stack, and the collector was not to wait for that.
         */
        ends(ctx, cookie, to.g,
             GOTRACE_STATE != G_WAITING || to.new == G_RUNNABLE || to.site == SCHED_COROUTINE);
}
