/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Who is calling: the goroutine, or the thread where there is none.
 *
 * Settings (common.h), all from the target's runtime (gotrace/gotypes/runtime.py):
 *   GOTRACE_G_STACK_HI, GOTRACE_G_M, GOTRACE_G_GOID, GOTRACE_M_CURG, GOTRACE_G_WAITREASON
 *                        offsets
 *   GOTRACE_TLS_G        offset of g from the thread's FS base, as an unsigned number
 *   GOTRACE_TASK_FSBASE  offset of thread.fsbase in the kernel's task_struct; with 0, sites
 *                        that find g through TLS count as NO_GOROUTINE
 *   GOTRACE_LAYOUTS      files whose runtimes differ in these offsets, which are then looked up by
 *                        the file's number; optional
 */
#pragma once
#include "site.h"

/* Identities of tasks that are not goroutines: outside of what goids reach, below addresses. */
#define TASK_THREAD (1ULL << 62)

/* Statuses of a goroutine: runtime2.go, all releases from 1.15 to 1.27. */
#define G_RUNNABLE 1
#define G_RUNNING 2
#define G_SYSCALL 3
#define G_WAITING 4
#define G_DEAD 6
#define G_COPYSTACK 8
#define G_PREEMPTED 9
#define G_LEAKED 10
#define G_STATUS_MASK 0xfff /* without the bit of a scan */

struct task {
    u64 id;       /* goid; on a system stack the address of its g; TASK_THREAD | tid */
    u64 goid;     /* the goroutine that the work is done for, 0 when none */
    u64 g;        /* address of that goroutine's g, 0 when none */
    u64 stack_hi; /* where this stack begins; all ones for a thread */
    u64 row;      /* address of the g that this stack is of; id for a thread */
};

/* A task in maps. */
struct task_key {
    u64 task; /* struct task's id */
    u64 tgid;
};

/* One of its open calls: that of level 1 is the outermost. */
struct call_key {
    u64 task;
    u32 tgid;
    u32 level;
};

#ifdef GOTRACE_LAYOUTS
/* The offsets of one file's runtime; shared with gotrace/session/tasks.py. */
struct layout {
    u64 g_stack_hi;
    u64 g_m;
    u64 g_goid;
    u64 g_sched_sp;
    u64 g_startpc;
    u64 g_gopc;
    u64 m_curg;
    u64 g_waitreason;
    u64 tls_g; /* 0 where that is not known */
};

/* layouts: key = number of a file, as cookies have it. Filled before attaching. */
BPF_ARRAY(layouts, struct layout, GOTRACE_LAYOUTS);

/* Return what offsets are taken from; 0 where they are not known. */
static __always_inline struct layout *goroutine_layout(u64 cookie)
{
    u32 file = cookie >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK;
    return layouts.lookup(&file);
}

/* An offset: a layout's field, or where there are none the setting. */
#define OFFSET(layout, field, setting) ((layout)->field)
#else
/* All files have those of the settings: a pointer that nothing is read from, but not 0. */
static __always_inline struct layout *goroutine_layout(u64 cookie)
{
    return (struct layout *)1;
}

#define OFFSET(layout, field, setting) (setting)
#endif

static __always_inline u64 goroutine_g_from_tls(u64 cookie)
{
    u64 base = 0, offset = GOTRACE_TASK_FSBASE;
    if (!offset)
        return 0;
    struct layout *layout = goroutine_layout(cookie);
    if (!layout || !OFFSET(layout, tls_g, 1))
        return 0;
    bpf_probe_read_kernel(&base, sizeof(base), (void *)(bpf_get_current_task() + offset));
    return base ? read_word(base + OFFSET(layout, tls_g, GOTRACE_TLS_G)) : 0;
}

/* Fill in the task that has this g; return false if it is not one. */
static __always_inline bool goroutine_fill_task(u64 g, u64 cookie, struct task *task)
{
    task->row = g;
    struct layout *layout = goroutine_layout(cookie);
    if (!layout)
        return false;
    task->stack_hi = read_word(g + OFFSET(layout, g_stack_hi, GOTRACE_G_STACK_HI));
    if (!task->stack_hi)
        return false;
    task->goid = read_word(g + OFFSET(layout, g_goid, GOTRACE_G_GOID));
    if (task->goid) {
        task->id = task->goid;
        task->g = g;
        return true;
    }
    /* g0 or gsignal: its frames stay on this thread, the work is mostly curg's. */
    task->id = g;
    u64 m = read_word(g + OFFSET(layout, g_m, GOTRACE_G_M));
    u64 curg = m ? read_word(m + OFFSET(layout, m_curg, GOTRACE_M_CURG)) : 0;
    if (curg) {
        task->goid = read_word(curg + OFFSET(layout, g_goid, GOTRACE_G_GOID));
        task->g = curg;
    }
    return true;
}

/* Fill in the task; return false where a goroutine was to be found and was not. */
static __always_inline bool goroutine_find_task(struct pt_regs *ctx, u64 cookie, struct task *task)
{
    u64 g = 0;
    if (cookie & COOKIE_G_REGISTER) {
        g = registers_g(ctx);
    } else if (cookie & COOKIE_G_TLS) {
        g = goroutine_g_from_tls(cookie);
    } else {
        task->id = TASK_THREAD | (u32)bpf_get_current_pid_tgid();
        task->stack_hi = ~0ULL;
        task->row = task->id;
        return true;
    }
    return goroutine_fill_task(g, cookie, task);
}
