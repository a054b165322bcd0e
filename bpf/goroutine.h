/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Who is calling: the goroutine, or the thread where there is none.
 *
 * Settings (common.h), all from the target's runtime (gotrace/gotypes/runtime.py):
 *   GOTRACE_G_STACK_HI, GOTRACE_G_M, GOTRACE_G_GOID, GOTRACE_M_CURG   offsets
 *   GOTRACE_TLS_G        offset of g from the thread's FS base, as an unsigned number
 *   GOTRACE_TASK_FSBASE  offset of thread.fsbase in the kernel's task_struct; without it, sites
 *                        that find g through TLS count as NO_GOROUTINE
 */
#pragma once
#include "site.h"

/* Identities of tasks that are not goroutines: outside of what goids reach, below addresses. */
#define TASK_THREAD (1ULL << 62)

struct task {
    u64 id;       /* goid; on a system stack the address of its g; TASK_THREAD | tid */
    u64 goid;     /* the goroutine that the work is done for, 0 when none */
    u64 g;        /* address of that goroutine's g, 0 when none */
    u64 stack_hi; /* where this stack begins; all ones for a thread */
#ifdef GOTRACE_WHY
    u64 row; /* address of the g that this stack is of; id for a thread */
#endif
};

static __always_inline u64 read_word(u64 address)
{
    u64 word = 0;
    bpf_probe_read_user(&word, sizeof(word), (void *)address);
    return word;
}

static __always_inline u64 g_from_tls(void)
{
#ifdef GOTRACE_TASK_FSBASE
    u64 base = 0;
    void *field = (void *)(bpf_get_current_task() + GOTRACE_TASK_FSBASE);
    bpf_probe_read_kernel(&base, sizeof(base), field);
    return base ? read_word(base + GOTRACE_TLS_G) : 0;
#else
    return 0;
#endif
}

/* Fill in the task; return 0 where a goroutine was to be found and was not. */
static __always_inline int find_task(struct pt_regs *ctx, u64 cookie, struct task *task)
{
    u64 g = 0;
    if (cookie & COOKIE_G_REGISTER) {
        g = ctx->r14;
    } else if (cookie & COOKIE_G_TLS) {
        g = g_from_tls();
    } else {
        task->id = TASK_THREAD | (u32)bpf_get_current_pid_tgid();
        task->stack_hi = ~0ULL;
#ifdef GOTRACE_WHY
        task->row = task->id;
#endif
        return 1;
    }
#ifdef GOTRACE_WHY
    task->row = g;
#endif
    task->stack_hi = read_word(g + GOTRACE_G_STACK_HI);
    if (!task->stack_hi)
        return 0;
    task->goid = read_word(g + GOTRACE_G_GOID);
    if (task->goid) {
        task->id = task->goid;
        task->g = g;
        return 1;
    }
    /* g0 or gsignal: its frames stay on this thread, the work is mostly curg's. */
    task->id = g;
    u64 m = read_word(g + GOTRACE_G_M);
    u64 curg = m ? read_word(m + GOTRACE_M_CURG) : 0;
    if (curg) {
        task->goid = read_word(curg + GOTRACE_G_GOID);
        task->g = curg;
    }
    return 1;
}
