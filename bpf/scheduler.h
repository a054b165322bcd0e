/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the functions of Go's scheduler are given, at their sites: in registers, as of Go 1.19, the
 * first release whose scheduler is followed.
 *
 * Settings (common.h), beside those of goroutine.h:
 *   GOTRACE_G_COROARG    offset in the target's runtime.g; optional
 */
#pragma once
#include "goroutine.h"

/* A goroutine's change of status. Copying a stack goes around casgstatus in most releases. */
struct status_change {
    u64 g;
    u32 old;
    u32 new;
};

/* Return the arguments of runtime.casgstatus(gp, old, new). */
static __always_inline struct status_change sched_status_change(struct pt_regs *ctx)
{
    return (struct status_change){
        .g = GO_REGISTER(ctx, 0), .old = GO_REGISTER(ctx, 1), .new = GO_REGISTER(ctx, 2)};
}

/* Return the argument of runtime.preemptPark(gp) or coroswitch_m(gp). */
static __always_inline u64 sched_goroutine(struct pt_regs *ctx)
{
    return GO_REGISTER(ctx, 0);
}

/* Return the g that runs in place of one at coroswitch_m, 0 where that is not known. */
static __always_inline u64 sched_coroutine(u64 g)
{
#ifdef GOTRACE_G_COROARG
    u64 coro = read_word(g + GOTRACE_G_COROARG);
    return coro ? read_word(coro) : 0;
#else
    return 0;
#endif
}

/* Return the number of what a goroutine waits for, or has waited for last. */
static __always_inline u32 sched_wait_reason(u64 g)
{
    u8 reason = 0;
    bpf_probe_read_user(&reason, sizeof(reason), (void *)(g + GOTRACE_G_WAITREASON));
    return reason;
}
