/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gotraced: add up how long goroutines are blocked, by reason, and how long they could run and do
 * not; and how long threads are kept off their CPUs because a quota is used up. In all processes
 * that run a file, without stacks.
 *
 * What is probed are the changes of a goroutine's status (gotrace/sites/scheduler.py). A wait ends
 * with the change that follows it, and is added up then; one that began before the probes were
 * there is not.
 *
 * Two CPUs never write to one row of open_states at once: the runtime lets a goroutine be readied
 * only once it has been parked, and run only once it has been readied, each after the probe there.
 *
 * Settings (common.h), beside those of goroutine.h and switch.h:
 *   GOTRACE_STATES        goroutines that can be known at once
 *   GOTRACE_PROCESSES     processes likewise
 *   GOTRACE_QUOTA_THREADS threads that can be without quota at once
 *   GOTRACE_G_WAITREASON, GOTRACE_G_COROARG  offsets in the target's runtime.g; the last one optional
 */
#define FOLLOWS_STATES 1
#include "diagnostics.h"
#include "scheduler.h"
#include "switch.h"

/* Keys of state_sums beside wait reasons, which are bytes; shared with session/waits/states.py. */
#define SUM_RUNNABLE 256
#define SUM_THROTTLED 257
#define SUMS 258

/* A goroutine of a process; shared with gotrace/session/waits/states.py. */
struct state_key {
    u64 g; /* address of its g */
    u64 tgid;
};

/* What a goroutine is in now. */
struct open_state {
    u64 since; /* ns, 0 while it is in neither state */
    u64 status;
};

/* Shared with gotrace/session/waits/states.py. */
struct state_sum {
    u64 count;
    u64 ns;
};

/* open_states: goroutines that have been in one of the states. Kept until their process has ended. */
BPF_HASH(open_states, struct state_key, struct open_state, GOTRACE_STATES);

/* state_sums: key = a wait reason, or SUM_... Only ever added to. */
BPF_PERCPU_ARRAY(state_sums, struct state_sum, SUMS);

/* processes: key = tgid of a process that has been seen. Kept until it has ended. */
BPF_HASH(processes, u32, u8, GOTRACE_PROCESSES);

/* Atomic although per CPU: the kernel may preempt a uprobe's program between load and store. */
static __always_inline void add_up(u32 what, u64 ns)
{
    struct state_sum *sum = state_sums.lookup(&what);
    if (!sum)
        return;
    __sync_fetch_and_add(&sum->count, 1);
    __sync_fetch_and_add(&sum->ns, ns);
}

/* G_WAITING and G_RUNNABLE are added up, all others are not. */
static __always_inline void sched_changed(struct pt_regs *ctx, u64 cookie, struct sched_change to)
{
    bool begins = to.new == G_WAITING || to.new == G_RUNNABLE;
    if (!begins && to.old != G_WAITING && to.old != G_RUNNABLE)
        return;
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    struct state_key key = {.g = to.g, .tgid = tgid};
    struct open_state *open = open_states.lookup(&key);
    if (!open) {
        struct open_state none = {};
        u8 one = 1;
        if (!begins)
            return;
        if (!processes.lookup(&tgid) && processes.update(&tgid, &one))
            diagnostics_count(PROCESSES_FULL, 1);
        open_states.insert(&key, &none);
        open = open_states.lookup(&key);
        if (!open) {
            diagnostics_count(STATES_FULL, 1);
            return;
        }
    }
    u64 now = bpf_ktime_get_ns(), since = open->since;
    if (since && open->status == G_RUNNABLE)
        add_up(SUM_RUNNABLE, now - since);
    else if (since && (to.new == G_RUNNABLE || (to.site == SCHED_COROUTINE && !begins)))
        /*
         * A wait that ends by running is none, but that of a coroutine: the goroutine's thread has
         * done something for it on its system stack, and the collector was not to wait for that.
         */
        add_up(sched_wait_reason(to.g), now - since);
    open->status = to.new;
    open->since = begins ? now : 0;
}

#ifdef GOTRACE_TASK_PID
/* off_quota: key = thread; value = since when it has been without quota. Gone when it runs. */
BPF_HASH(off_quota, u32, u64, GOTRACE_QUOTA_THREADS);

static __always_inline void switched(struct task_switch to)
{
    u64 ids = bpf_get_current_pid_tgid(), now;
    u32 tgid = ids >> 32, tid = ids;
    if (!to.waits && processes.lookup(&tgid) && switch_is_throttled(to.task)) {
        now = bpf_ktime_get_ns();
        if (off_quota.update(&tid, &now))
            diagnostics_count(THREADS_FULL, 1);
    }
    bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(to.next + GOTRACE_TASK_PID));
    u64 *since = off_quota.lookup(&tid);
    if (since) {
        add_up(SUM_THROTTLED, bpf_ktime_get_ns() - *since);
        off_quota.delete(&tid);
    }
}
#endif
