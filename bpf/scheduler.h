/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The changes of goroutines' states, at the sites of Go's scheduler (gotrace/sites/scheduler.py): what
 * its functions are given, in registers, as of Go 1.19, the first release whose scheduler is followed.
 *
 * What follows states defines sched_changed, which these programs call, and FOLLOWS_STATES as 1 before
 * this is included, unless it does so by GOTRACE_WHY. Programs at sites that it has no use for are
 * not loaded.
 *
 * Settings (common.h), beside those of goroutine.h:
 *   GOTRACE_G_COROARG    offset in the target's runtime.g; optional
 */
#pragma once
#include "goroutine.h"

/* At which site a status is changed: a constant in each program. */
enum sched_site {
    SCHED_STATUS,      /* runtime.casgstatus(gp, old, new) */
    SCHED_PREEMPT,     /* runtime.preemptPark(gp) */
    SCHED_SYSCALL,     /* runtime.reentersyscall(pc, sp, bp), of a goroutine on its own stack */
    SCHED_SYSCALL_END, /* runtime.exitsyscall(), likewise */
    SCHED_COROUTINE,   /* runtime.coroswitch_m(gp): gp waits, and another goroutine runs at once */
};

/* A goroutine's change of status. Copying a stack goes around casgstatus in most releases. */
struct sched_change {
    u64 g;
    u32 old;
    u32 new;
    enum sched_site site;
};

/* Return the arguments of runtime.casgstatus(gp, old, new). */
static __always_inline struct sched_change sched_status_change(struct pt_regs *ctx)
{
    return (struct sched_change){
        .g = GO_REGISTER(ctx, 0), .old = GO_REGISTER(ctx, 1), .new = GO_REGISTER(ctx, 2)};
}

/* Return the argument of runtime.preemptPark(gp) or coroswitch_m(gp). */
static __always_inline u64 sched_goroutine(struct pt_regs *ctx)
{
    return GO_REGISTER(ctx, 0);
}

/* Return the number of what a goroutine waits for, or has waited for last. */
static __always_inline u32 sched_wait_reason(u64 g)
{
    u8 reason = 0;
    bpf_probe_read_user(&reason, sizeof(reason), (void *)(g + GOTRACE_G_WAITREASON));
    return reason;
}

#ifndef FOLLOWS_STATES
#define FOLLOWS_STATES GOTRACE_WHY
#endif
#if FOLLOWS_STATES
/* Return the g that runs in place of one at coroswitch_m, 0 where that is not known. */
static __always_inline u64 sched_coroutine(u64 g)
{
    u64 offset = GOTRACE_G_COROARG, coro = offset ? read_word(g + offset) : 0;
    return coro ? read_word(coro) : 0;
}

static __always_inline void sched_changed(struct pt_regs *ctx, u64 cookie, struct sched_change to);

int on_status(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit(ctx, &cookie))
        sched_changed(ctx, cookie, sched_status_change(ctx));
    return 0;
}

/* This and the next two set the status by themselves, where they are probed. */
int on_preempt(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit(ctx, &cookie))
        sched_changed(
            ctx, cookie,
            (struct sched_change){sched_goroutine(ctx), G_RUNNING, G_PREEMPTED, SCHED_PREEMPT});
    return 0;
}

int on_syscall(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit(ctx, &cookie))
        sched_changed(ctx, cookie,
                      (struct sched_change){registers_g(ctx), G_RUNNING, G_SYSCALL, SCHED_SYSCALL});
    return 0;
}

int on_syscall_end(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit(ctx, &cookie))
        sched_changed(
            ctx, cookie,
            (struct sched_change){registers_g(ctx), G_SYSCALL, G_RUNNING, SCHED_SYSCALL_END});
    return 0;
}

int on_coroutine(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 g = sched_goroutine(ctx), next = sched_coroutine(g);
    if (next)
        sched_changed(ctx, cookie,
                      (struct sched_change){next, G_WAITING, G_RUNNING, SCHED_COROUTINE});
    sched_changed(ctx, cookie, (struct sched_change){g, G_RUNNING, G_WAITING, SCHED_COROUTINE});
    return 0;
}
#endif
