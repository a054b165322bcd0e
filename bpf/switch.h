/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The programs at the kernel's sched_switch.
 *
 * Settings (common.h), all but the first two optional:
 *   GOTRACE_TASK_PID, GOTRACE_TASK_STATE   offsets in the kernel's task_struct; without them these
 *                                programs are left out
 *   GOTRACE_TASK_THROTTLED       likewise: Linux 6.18
 *   GOTRACE_TASK_CFS_RQ          of se.cfs_rq
 *   GOTRACE_CFS_RQ_THROTTLED     before Linux 6.18: of throttle_count
 */
#pragma once
#include "site.h"

#ifdef GOTRACE_TASK_PID

/* nowhere_raw: what nowhere of stack.h is, for programs of another type. */
BPF_PROG_ARRAY(nowhere_raw, 1);

/* Whether the kernel takes the task off its CPU because a quota is used up. */
static __always_inline bool switch_is_throttled(u64 task)
{
    u32 count = 0;
    u64 queue = 0, flag = GOTRACE_TASK_THROTTLED, counter = GOTRACE_CFS_RQ_THROTTLED;
    if (flag) {
        bpf_probe_read_kernel(&count, 1, (void *)(task + flag));
    } else if (counter) {
        bpf_probe_read_kernel(&queue, sizeof(queue), (void *)(task + GOTRACE_TASK_CFS_RQ));
        bpf_probe_read_kernel(&count, sizeof(count), (void *)(queue + counter));
    }
    return count != 0;
}

/* What a CPU's thread gives way to. */
struct task_switch {
    u64 task;  /* struct task_struct of the current thread */
    u64 next;  /* of the other one */
    u64 waits; /* what the current one waits for, 0 where it could go on */
};

/* What follows the kernel's scheduler defines it. */
static __always_inline void switched(struct task_switch to);

static __always_inline void switch_hit(struct bpf_raw_tracepoint_args *ctx, u64 state)
{
    u32 zero = 0, *over = halted.lookup(&zero);
    if (!ctx->args[1])
        nowhere_raw.call(ctx, 0); /* never: see stack.h */
    site_hit_switch();
    /* What is preempted goes on running, whatever its state: it may just have been about to wait. */
    if (over && !*over)
        switched((struct task_switch){
            .task = ctx->args[1], .next = ctx->args[2], .waits = ctx->args[0] & 1 ? 0 : state});
}

/* At the raw tracepoint sched_switch(preempt, prev, next, prev_state), since Linux 5.18. */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
    switch_hit(ctx, ctx->args[3] & 0xffffffff);
    return 0;
}

/* Before, without prev_state: a wake-up that comes just now makes it 0. */
int on_switch_without_state(struct bpf_raw_tracepoint_args *ctx)
{
    u32 state = 0;
    bpf_probe_read_kernel(&state, sizeof(state), (void *)(ctx->args[1] + GOTRACE_TASK_STATE));
    switch_hit(ctx, state);
    return 0;
}
#endif
