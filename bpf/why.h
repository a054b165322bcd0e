/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the time of open calls goes into: Go's own states of the goroutine, and the kernel's of its
 * thread. Only with GOTRACE_WHY.
 *
 * A task that has calls open has a row: since when it has been in what state, in one word that is
 * changed by compare-and-swap, and how long it was in each of them before. Whatever interrupts a
 * program, each nanosecond from the outermost call's entry on is added to one part, so that parts
 * add up to durations exactly. A call within another keeps a copy of the row as it was at its
 * entry, and its parts are the difference.
 *
 * While a program needs the row to stay as it is, the state is WHY_TRACING, which the program at
 * sched_switch leaves alone: what the thread then spends off the CPU is held back in the row and
 * added at the end of that.
 *
 * Two CPUs never write to one row at once. A goroutine's state is changed by its own thread, or by
 * the one that readies it, which the runtime lets do so only once the first has parked it, after
 * the probe there.
 *
 * Settings (common.h), beside those of goroutine.h:
 *   GOTRACE_WHY_PARTS     parts that the target's wait reasons need, a power of two up to 256
 *   GOTRACE_WHY_ROWS      tasks that can have calls open at once
 *   GOTRACE_WHY_SAVED     open calls within others
 *   GOTRACE_WHY_THREADS   threads of the target
 *   GOTRACE_WHY_SITES     probed sites of casgstatus and reentersyscall, in all files
 *   GOTRACE_WHY_UNNAMED   1 where waits on the system stack may not say their reason (Go < 1.20)
 *   GOTRACE_WHY_CLASSES   1 where predicates ask for them; optional
 *   GOTRACE_WHY_CALLERS   1 where the longest wait or system call is kept with its stack, and with
 *                         a wait that of who ended it
 *   GOTRACE_G_STATUS, GOTRACE_G_WAITREASON, GOTRACE_G_SYSCALLPC, GOTRACE_G_SCHED_PC,
 *   GOTRACE_G_SCHED_BP, GOTRACE_G_COROARG  offsets in the target's runtime.g; the last one optional
 *   GOTRACE_TASK_RUN_DELAY, GOTRACE_TASK_LAST_QUEUED, GOTRACE_CFS_RQ_RQ, GOTRACE_RQ_CLOCK  offsets in
 *                         the kernel's structs, with GOTRACE_TASK_CFS_RQ; optional, all or none
 *   those of switch.h
 */
#pragma once
#include "atomic.h"
#include "diagnostics.h"
#include "scheduler.h"
#include "switch.h"
#include "walk.h"

struct why_key {
    u64 id; /* address of the goroutine's g; on a system stack and of a thread, task's id */
    u64 tgid;
};

#if GOTRACE_WHY
/* Parts; order shared with gotrace/session/why/parts.py. Up to WHY_TRACING they are states as well. */
enum why_part {
    WHY_NONE, /* no call is open */
    WHY_RUNNING,
    WHY_RUNNABLE,
    WHY_SYSCALL,
    WHY_CGO,
    WHY_WAITING,   /* a state only: when it ends, its reason is known */
    WHY_SCAN,      /* preempted for the garbage collector to scan the stack */
    WHY_PREEMPTED, /* ran, but for the kernel, which ran another thread */
    WHY_THROTTLED, /* likewise, for its CPU quota was used up */
    WHY_KERNEL,    /* likewise, for it waits in the kernel: for a page, for a lock */
    WHY_WOKEN,     /* likewise, for that wait is over and there is no CPU yet; no state */
    WHY_TRACING,   /* the programs here held it */
    WHY_STOPPED,   /* share of runnable in which the world was stopped */
    WHY_RUNTIME,   /* a wait without a reason of its own */
    WHY_OTHER,     /* a wait for a reason whose number has no part */
    WHY_UNKNOWN,   /* calls for which there was no room */
};
#define WHY_REASONS 16 /* from here on: wait reasons, as struct why_table has them */
#define WHY_PARTS GOTRACE_WHY_PARTS

#define WHY_STATE_BITS 7
#define WHY_STATE_MASK 127ULL
#define WHY_ROUNDS 4 /* that a program tries: each one lost is one in which it was preempted */

/* What parts predicates can ask for; order shared with gotrace/session/why/parts.py. */
enum why_class {
    CLASS_NONE,
    CLASS_RUNNING,
    CLASS_RUNNABLE,
    CLASS_BLOCKED,
    CLASS_SYSCALL,
    CLASS_GC,
    CLASS_PREEMPTED,
    CLASS_THROTTLED,
    WHY_CLASSES /* a power of two */
};

#define WHY_FRAMES 16 /* of the stack of a wait, and of who ended it */

/* The longest time in one state but running. */
struct why_longest {
    u64 ns;
    u32 part;
    u32 is_woken;          /* 1 where it was a wait that another goroutine ended, or the runtime */
    u64 waker;             /* its goid, 0 for the runtime itself */
    u32 frames;            /* of stack */
    u32 waker_frames;      /* of waker_stack */
    u64 stack[WHY_FRAMES]; /* return addresses, innermost first */
    u64 waker_stack[WHY_FRAMES];
};

/* What has been since the outermost call was entered, but for longest: since the latest one was. */
struct why_seen {
    u64 changes; /* of the state, by the runtime */
    u64 parts[WHY_PARTS];
    struct why_longest longest;
};

/* A part of a call: ns << WHY_CELL_BITS | which; shared with gotrace/session/why/parts.py. */
#define WHY_CELL_BITS __builtin_ctz(WHY_PARTS)
#define WHY_CELL_MASK (WHY_PARTS - 1)

/*
 * What is reported of a call, followed by its parts and by stacks; shared with
 * gotrace/session/why/parts.py. Parts are cells, or, of a call that is unwound, all of the row's at
 * its end and all at its entry: working them out for many calls at once the verifier would not
 * follow.
 */
struct why_report {
    u64 changes;
    u64 longest_ns;
    u64 waker;
    u8 part;
    u8 is_woken;
    u8 cells;
    u8 frames;
    u8 waker_frames;
    u8 is_whole;  /* 1 where parts are not cells */
    u8 cell_bits; /* WHY_CELL_BITS */
    u8 unused;
};
/* Room for all of that, by the bounds that the verifier knows: for twice as many frames. */
#define WHY_REPORT_SIZE (sizeof(struct why_report) + 16 * WHY_PARTS + 32 * WHY_FRAMES)

struct why_row {
    u64 word;    /* since << WHY_STATE_BITS | state; 0 until the outermost call's time begins */
    u64 tid;     /* the thread that it runs on, or ran on last */
    u64 resume;  /* state to go back to from WHY_TRACING */
    u64 out;     /* when the thread was taken off the CPU in WHY_TRACING, else 0 */
    u64 kind;    /* of the part that this is */
    u64 held[4]; /* ns off the CPU in WHY_TRACING, from WHY_PREEMPTED on */
    u64 waited;  /* waited_for_cpu of the thread when it was taken off the CPU for WHY_KERNEL */
    u64 stopped; /* how long the world had been stopped when it became runnable */
    u64 classes[WHY_CLASSES];
    u64 owned;          /* how many parts the call has that returns: seen's, less those before it */
    u64 own[WHY_PARTS]; /* cells */
    struct why_seen seen;
};

/* Which rows may be running on a thread. */
struct why_thread {
    u64 ids[4]; /* of the goroutine, the system stack, the thread itself */
    u64 tgid;
};

/* What the target's wait reasons are; shared with gotrace/session/why/parts.py. */
struct why_table {
    u8 parts[256];         /* of each wait reason by its number */
    u8 classes[WHY_PARTS]; /* of each part */
};

/* Where runtime.cgocall is, from a site of casgstatus or reentersyscall. */
struct why_site {
    s64 cgo_start;
    s64 cgo_end;
};

/* why_rows: tasks that have calls open. From the outermost one's entry to its return. */
BPF_HASH(why_rows, struct why_key, struct why_row, GOTRACE_WHY_ROWS);

/* why_saved: a row as it was when the call of that level was entered, from level 2 on. */
BPF_HASH(why_saved, struct call_key, struct why_row, GOTRACE_WHY_SAVED);

/* why_blank: value 0 is all zeros, too large for a program's stack. */
BPF_ARRAY(why_blank, struct why_row, 1);

/* why_threads: key = thread; kept until the run is over, or its process. */
BPF_HASH(why_threads, u32, struct why_thread, GOTRACE_WHY_THREADS);

/*
 * why_worlds: key = process; value = while its world is stopped, (now - how long it was before) <<
 * 1 | 1, else how long it was, << 1. Kept until the run is over, or the process.
 */
BPF_HASH(why_worlds, u32, u64, 1024);

/* why_sites: key = number in the cookie. Filled before attaching. */
BPF_ARRAY(why_sites, struct why_site, GOTRACE_WHY_SITES);

/* why_tables: value 0. Filled before attaching. */
BPF_ARRAY(why_tables, struct why_table, 1);

/* How long the world of a process had been stopped up to a moment. */
static __always_inline u64 world_stopped(u32 tgid, u64 now)
{
    u64 *found = why_worlds.lookup(&tgid);
    u64 word = found ? *found : 0;
    return word & 1 ? now - (word >> 1) : word >> 1;
}

/* Add to a part. Without branches: the verifier would follow all their combinations. */
static __always_inline void add_part(struct why_row *row, u64 part, u64 ns)
{
    part &= WHY_PARTS - 1;
    __sync_fetch_and_add(&row->seen.parts[part], ns);
    if (!GOTRACE_WHY_CLASSES)
        return;
    u32 zero = 0;
    struct why_table *table = why_tables.lookup(&zero);
    if (table)
        __sync_fetch_and_add(&row->classes[table->classes[part] & (WHY_CLASSES - 1)], ns);
}

/*
 * Give a row a new state; return when, which is now, or later where the thread was taken off the
 * CPU since. What it was in until then is in seen and ns. Return 0 where no call is open.
 */
static __always_inline u64 change(struct why_row *row, u64 now, u64 state, u64 *seen, u64 *ns)
{
#pragma clang loop unroll(disable)
    for (int round = 0; round < WHY_ROUNDS; round++) {
        u64 word = row->word;
        if (!(word & WHY_STATE_MASK))
            return 0;
        u64 passed = (now << WHY_STATE_BITS) - (word & ~WHY_STATE_MASK);
        if ((s64)passed >= 0 &&
            atomic_compare_and_swap(&row->word, word, now << WHY_STATE_BITS | state) == word) {
            *seen = word & WHY_STATE_MASK;
            *ns = passed >> WHY_STATE_BITS;
            return now;
        }
        now = bpf_ktime_get_ns();
    }
    return 0;
}

/* Fill in return addresses, from a frame pointer on; return how many there are. */
static __always_inline u32 walk(u64 *stack, u64 pc, u64 frame)
{
    u32 count = 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < WHY_FRAMES; i++) {
        stack[i] = pc;
        count += pc != 0;
        pc = walk_step(&frame);
    }
    return count;
}

/* Keep the longest time in a state but running; return whether this is one. */
static __always_inline bool longest(struct why_row *row, u64 part, u64 ns)
{
    struct why_longest *found = &row->seen.longest;
    if (part == WHY_RUNNING || part == WHY_TRACING || ns <= found->ns)
        return false;
    found->ns = ns;
    found->part = part;
    found->is_woken = 0;
    found->waker = 0;
    found->frames = 0;
    found->waker_frames = 0;
    return true;
}

/* Return the part that a wait is, now that it ends. */
static __always_inline u64 part_of_wait(u64 g, u64 state)
{
    u32 zero = 0;
    struct why_table *table = why_tables.lookup(&zero);
    if (!table)
        return WHY_OTHER;
    u64 part = table->parts[(u8)sched_wait_reason(g)];
    /* What goes on running has waited for none: the reason may be that of an earlier wait. */
    if (GOTRACE_WHY_UNNAMED && state == WHY_RUNNING &&
        table->classes[part & (WHY_PARTS - 1)] != CLASS_GC)
        return WHY_RUNTIME;
    return part;
}

/* What a change of state has ended, if that was the longest time in a state so far. */
enum why_ended {
    NOTHING_LONG,
    LONGEST_WAIT,
    LONGEST_SYSCALL /* or call of C */
};

/* A goroutine gets a new state by the runtime. */
static __always_inline enum why_ended go_on(struct why_row *row, struct why_key *key, u64 state)
{
    u64 part = 0, ns = 0, now = change(row, bpf_ktime_get_ns(), state, &part, &ns);
    if (!now)
        return NOTHING_LONG;
    bool waited = part == WHY_WAITING;
    if (waited)
        part = part_of_wait(key->id, state);
    if (part == WHY_RUNNABLE) {
        u64 stopped = world_stopped(key->tgid, now) - row->stopped;
        if (stopped) {
            stopped = stopped < ns ? stopped : ns;
            add_part(row, WHY_STOPPED, stopped);
            ns -= stopped;
        }
    }
    if (state == WHY_RUNNABLE)
        row->stopped = world_stopped(key->tgid, now);
    add_part(row, part, ns);
    row->seen.changes += part != state;
    if (!longest(row, part, ns))
        return NOTHING_LONG;
    if (waited)
        return LONGEST_WAIT;
    return part == WHY_SYSCALL || part == WHY_CGO ? LONGEST_SYSCALL : NOTHING_LONG;
}

/* Record who has ended the longest wait so far, and what both goroutines were doing. */
static __always_inline void woken(struct pt_regs *ctx, u64 cookie, struct why_row *row, u64 g)
{
    struct why_longest *found = &row->seen.longest;
    struct task waker = {};
    if (!GOTRACE_WHY_CALLERS)
        return;
    found->is_woken = 1;
    if (goroutine_find_task(ctx, cookie, &waker) && waker.goid) {
        found->waker = waker.goid;
        found->waker_frames = walk(found->waker_stack, registers_pc(ctx), registers_frame(ctx));
    }
    found->frames =
        walk(found->stack, read_word(g + GOTRACE_G_SCHED_PC), read_word(g + GOTRACE_G_SCHED_BP));
}

/* Record who was in the longest system call so far, which ends: a function's name says which. */
static __always_inline void called(struct why_row *row, u64 pc, u64 frame)
{
    if (GOTRACE_WHY_CALLERS)
        row->seen.longest.frames = walk(row->seen.longest.stack, pc, frame);
}

/* Let a row follow this thread. slot: see struct why_thread. */
static __always_inline void bind(struct why_row *row, struct why_key *key, u64 slot)
{
    u32 tid = bpf_get_current_pid_tgid();
    row->tid = tid;
    struct why_thread none = {}, *thread = why_threads.lookup_or_try_init(&tid, &none);
    if (!thread) {
        diagnostics_count(WHY_THREADS_FULL, 1);
        return;
    }
    thread->ids[slot & 3] = key->id;
    thread->tgid = key->tgid;
}

/* Hold a row as it is; return since when, which is now or later, 0 where nothing is open. */
static __always_inline u64 hold(struct why_row *row, u64 now)
{
    u64 part = 0, ns = 0;
    now = change(row, now, WHY_TRACING, &part, &ns);
    if (!now)
        return 0;
    row->resume = part;
    add_part(row, part, ns);
    return now;
}

/*
 * Add to a part of a row that may not be there. What is in it, clang 19 would address ahead of the
 * test, which the verifier refuses.
 */
static __always_inline void add_part_of(struct why_row *row, u64 part, u64 ns)
{
    if (row) {
        row = opaque(row);
        add_part(row, part, ns);
    }
}

/*
 * Let a row go on that was held, and return since when. A call whose copy of the row is saved
 * begins at that moment: what came before is not its time.
 */
static __always_inline u64 let_go(struct why_row *row, struct why_row *saved)
{
    u64 part = 0, ns = 0, now = change(row, bpf_ktime_get_ns(), row->resume, &part, &ns);
    if (!now)
        return 0;
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; i++) {
        u64 off = row->held[i];
        if (!off)
            continue;
        off = off < ns ? off : ns;
        row->held[i] = 0;
        ns -= off;
        add_part(row, WHY_PREEMPTED + i, off);
        add_part_of(saved, WHY_PREEMPTED + i, off);
    }
    add_part(row, WHY_TRACING, ns);
    add_part_of(saved, WHY_TRACING, ns);
    return now;
}

/* Return when the time of the call begins that was just made the task's latest: now. */
static __always_inline u64 why_entered(struct task_key *owner, u64 id, u64 level)
{
    struct why_key key = {.id = id, .tgid = owner->tgid};
    u32 zero = 0;
    struct why_row *row = why_rows.lookup(&key);
    if (level > 1) {
        struct call_key place = {.task = owner->task, .tgid = owner->tgid, .level = level};
        if (!row || !hold(row, bpf_ktime_get_ns())) {
            diagnostics_count(WHY_FULL, 1);
            return bpf_ktime_get_ns();
        }
        if (why_saved.update(&place, row))
            diagnostics_count(WHY_FULL, 1);
        struct why_row *saved = why_saved.lookup(&place);
        row->seen.longest.ns = 0;
        row->seen.longest.frames = 0;
        row->seen.longest.waker_frames = 0;
        u64 now = let_go(row, saved);
        return now ? now : bpf_ktime_get_ns();
    }
    struct why_row *blank = why_blank.lookup(&zero);
    if (!blank || why_rows.update(&key, blank) || !(row = why_rows.lookup(&key))) {
        diagnostics_count(WHY_FULL, 1);
        return bpf_ktime_get_ns();
    }
    /* A system stack's number is its g's address, a goroutine's is not. */
    u64 slot = owner->task & TASK_THREAD ? 2 : owner->task == id;
    bind(row, &key, slot);
    u64 state = WHY_RUNNING;
    if (!slot) {
        /* What is called between the runtime's entersyscall and exitsyscall. */
        u32 status = 0;
        bpf_probe_read_user(&status, sizeof(status), (void *)(key.id + GOTRACE_G_STATUS));
        if ((status & G_STATUS_MASK) == G_SYSCALL)
            state = WHY_SYSCALL;
    }
    u64 now = bpf_ktime_get_ns();
    row->word = now << WHY_STATE_BITS | state;
    return now;
}

/* Hold a task's row as calls of its end, at the time returned: now, or later. */
static __always_inline u64 why_leaving(struct why_key *key, u64 now)
{
    struct why_row *row = why_rows.lookup(key);
    u64 since = row ? hold(row, now) : 0;
    return since ? since : now;
}

/* Go on, or end where no call is open any more, after calls have ended or were dropped. */
static __always_inline void why_left(struct task_key *owner, u64 id, u64 level)
{
    struct why_key key = {.id = id, .tgid = owner->tgid};
    struct why_row *row = why_rows.lookup(&key);
    if (!row)
        return;
    if (!level)
        why_rows.delete(&key);
    else if ((row->word & WHY_STATE_MASK) == WHY_TRACING)
        let_go(row, 0);
}

/*
 * Forget what was kept for a call that has returned, and let the longest wait be the outer call's
 * again where that is longer.
 */
static __always_inline void why_returned(struct why_key *key, struct call_key *place)
{
    struct why_row *saved = why_saved.lookup(place), *row = why_rows.lookup(key);
    if (!saved)
        return;
    if (GOTRACE_WHY_CALLERS && row && saved->seen.longest.ns > row->seen.longest.ns)
        bpf_probe_read_kernel(&row->seen.longest, sizeof(row->seen.longest), &saved->seen.longest);
    why_saved.delete(place);
}

/* Forget what was kept for a call that has ended unseen. */
static __always_inline void why_forget(struct call_key *place)
{
    why_saved.delete(place);
}

/*
 * Return the row of a call that ends, and in before what it was at its entry. Return 0 where its
 * parts are not known.
 */
static __always_inline struct why_row *why_rows_of(struct why_key *key, struct call_key *place,
                                                   struct why_row **before)
{
    u32 zero = 0;
    struct why_row *row = why_rows.lookup(key);
    *before = place->level > 1 ? why_saved.lookup(place) : why_blank.lookup(&zero);
    return *before && row && row->word ? row : 0;
}

/*
 * Work out the parts of a call that ends, in its row; return that, 0 where they are not known.
 * Without branches in the loop: the verifier would follow all their combinations.
 */
static __always_inline struct why_row *why_own(struct why_key *key, struct call_key *place)
{
    struct why_row *before, *row = why_rows_of(key, place, &before);
    if (!row)
        return 0;
    u64 count = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < WHY_PARTS; i++) {
        u64 ns = row->seen.parts[i] - before->seen.parts[i], negative = -ns;
        count &= WHY_PARTS - 1;
        row->own[count] = ns << WHY_CELL_BITS | i;
        asm volatile("" : "+r"(negative));
        count += (ns | negative) >> 63;
    }
    row->owned = count;
    return row;
}

/*
 * Copy what is reported of a call to a place with room for all of it; return its size. is_whole is
 * a constant: false where its parts have been worked out.
 */
static __always_inline u64 why_describe(struct why_row *row, struct why_row *before, u8 *place,
                                        bool is_whole)
{
    struct why_longest *found = &row->seen.longest;
    struct why_report *report = (struct why_report *)place;
    u64 at = sizeof(*report), size = 8 * (row->owned & WHY_CELL_MASK);
    report->changes = row->seen.changes - before->seen.changes;
    report->longest_ns = found->ns;
    report->waker = found->waker;
    report->part = found->part;
    report->is_woken = found->is_woken;
    report->cells = is_whole ? 0 : row->owned;
    report->is_whole = is_whole;
    report->cell_bits = WHY_CELL_BITS;
    report->frames = found->frames;
    report->waker_frames = found->waker_frames;
    if (is_whole) {
        bpf_probe_read_kernel(place + at, sizeof(row->seen.parts), row->seen.parts);
        at += sizeof(row->seen.parts);
        bpf_probe_read_kernel(place + at, sizeof(row->seen.parts), before->seen.parts);
        at += sizeof(row->seen.parts);
    } else {
        bpf_probe_read_kernel(place + at, size, row->own);
        at += size;
    }
    if (!GOTRACE_WHY_CALLERS)
        return at;
    size = 8 * (found->frames & (2 * WHY_FRAMES - 1));
    bpf_probe_read_kernel(place + at, size, found->stack);
    at += size;
    size = 8 * (found->waker_frames & (2 * WHY_FRAMES - 1));
    bpf_probe_read_kernel(place + at, size, found->waker_stack);
    at += size;
    return at;
}

/* Whether pc is in runtime.cgocall. */
static __always_inline bool is_cgo(u64 ip, u64 cookie, u64 pc)
{
    u32 number = cookie & COOKIE_INDEX_MASK;
    struct why_site *site = why_sites.lookup(&number);
    s64 distance = pc - ip;
    return site && distance >= site->cgo_start && distance < site->cgo_end;
}

static __always_inline void sched_changed(struct pt_regs *ctx, u64 cookie, struct sched_change to)
{
    u64 g = to.g;
    struct why_key key = {.id = g, .tgid = bpf_get_current_pid_tgid() >> 32};
    struct why_row *row = why_rows.lookup(&key);
    /* What copies a stack is running. */
    if (!row || to.old == G_COPYSTACK || to.new == G_COPYSTACK)
        return;
    if (to.new == G_RUNNING) {
        bind(row, &key, 0);
        if (go_on(row, &key, WHY_RUNNING) == LONGEST_SYSCALL && to.site != SCHED_COROUTINE)
            called(row, registers_pc(ctx) + 1,
                   registers_frame(ctx)); /* as if it were a return address */
    } else if (to.new == G_RUNNABLE) {
        enum why_ended ended = go_on(row, &key, WHY_RUNNABLE);
        if (ended == LONGEST_WAIT)
            woken(ctx, cookie, row, g);
        else if (ended == LONGEST_SYSCALL) /* there was no processor: this is the system stack */
            called(row, read_word(g + GOTRACE_G_SCHED_PC), read_word(g + GOTRACE_G_SCHED_BP));
    } else if (to.new == G_SYSCALL) {
        u64 pc =
            to.site == SCHED_SYSCALL ? GO_REGISTER(ctx, 0) : read_word(g + GOTRACE_G_SYSCALLPC);
        go_on(row, &key, is_cgo(registers_pc(ctx), cookie, pc) ? WHY_CGO : WHY_SYSCALL);
    } else if (to.new == G_WAITING) {
        go_on(row, &key, WHY_WAITING);
    } else if (to.new == G_PREEMPTED) {
        go_on(row, &key, WHY_SCAN);
    } else if (to.new == G_DEAD) {
        why_rows.delete(&key);
    }
}

/* At runtime.stopTheWorldWithSema. */
int on_stop_world(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    u64 *found = why_worlds.lookup(&tgid), now = bpf_ktime_get_ns();
    u64 word = found ? *found : 0;
    if (word & 1)
        return 0;
    word = (now - (word >> 1)) << 1 | 1;
    if (found)
        *found = word;
    else if (why_worlds.update(&tgid, &word))
        diagnostics_count(WHY_FULL, 1);
    return 0;
}

/* At runtime.startTheWorldWithSema. */
int on_start_world(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    u64 *found = why_worlds.lookup(&tgid);
    if (found && *found & 1)
        *found = (bpf_ktime_get_ns() - (*found >> 1)) << 1;
    return 0;
}

/*
 * How long a task that is off its CPU has waited for one in its life, in ns: as the kernel counts
 * that, up to when it was queued last, and from then on by its run queue's clock.
 */
static __always_inline u64 waited_for_cpu(u64 task)
{
    u64 delay = 0;
#ifdef GOTRACE_TASK_RUN_DELAY
    u64 queued = 0, queue = 0, clock = 0;
    bpf_probe_read_kernel(&delay, sizeof(delay), (void *)(task + GOTRACE_TASK_RUN_DELAY));
    bpf_probe_read_kernel(&queued, sizeof(queued), (void *)(task + GOTRACE_TASK_LAST_QUEUED));
    if (!queued)
        return delay;
    bpf_probe_read_kernel(&queue, sizeof(queue), (void *)(task + GOTRACE_TASK_CFS_RQ));
    bpf_probe_read_kernel(&queue, sizeof(queue), (void *)(queue + GOTRACE_CFS_RQ_RQ));
    bpf_probe_read_kernel(&clock, sizeof(clock), (void *)(queue + GOTRACE_RQ_CLOCK));
    if (clock > queued)
        delay += clock - queued;
#endif
    return delay;
}

/* The thread of a row is taken off its CPU. */
static __always_inline void off_cpu(u32 tid, u64 task, u64 id, u64 tgid, u64 now, u64 kind)
{
    struct why_key key = {.id = id, .tgid = tgid};
    struct why_row *row = id ? why_rows.lookup(&key) : 0;
    if (!row || row->tid != tid)
        return;
    u64 state = row->word & WHY_STATE_MASK, part = 0, ns = 0;
    if (kind == WHY_KERNEL && (state == WHY_RUNNING || state == WHY_TRACING))
        row->waited = waited_for_cpu(task);
    if (state == WHY_RUNNING) {
        if (change(row, now, kind, &part, &ns))
            add_part(row, part, ns);
    } else if (state == WHY_TRACING) {
        row->out = now;
        row->kind = kind;
    }
}

/* How much of ns off the CPU, in which it has waited in the kernel, its thread could have run. */
static __always_inline u64 woken_for(struct why_row *row, u64 task, u64 ns)
{
    u64 waited = waited_for_cpu(task) - row->waited;
    return waited < ns ? waited : ns;
}

/* It is back on one. */
static __always_inline void on_cpu(u32 tid, u64 task, u64 id, u64 tgid, u64 now)
{
    struct why_key key = {.id = id, .tgid = tgid};
    struct why_row *row = id ? why_rows.lookup(&key) : 0;
    if (!row || row->tid != tid)
        return;
    u64 state = row->word & WHY_STATE_MASK, part = 0, ns = 0, woken = 0;
    if (state == WHY_PREEMPTED || state == WHY_THROTTLED || state == WHY_KERNEL) {
        if (change(row, now, WHY_RUNNING, &part, &ns)) {
            if (part == WHY_KERNEL)
                woken = woken_for(row, task, ns);
            add_part(row, part, ns - woken);
            longest(row, part, ns - woken);
            add_part(row, WHY_WOKEN, woken);
            longest(row, WHY_WOKEN, woken);
        }
    } else if (state == WHY_TRACING && row->out) {
        if (row->kind == WHY_KERNEL)
            woken = woken_for(row, task, now - row->out);
        row->held[(row->kind - WHY_PREEMPTED) & 3] += now - row->out - woken;
        row->held[WHY_WOKEN - WHY_PREEMPTED] += woken;
        row->out = 0;
    }
}

static __always_inline void switched(struct task_switch to)
{
    u32 tid = bpf_get_current_pid_tgid();
    u64 now = bpf_ktime_get_ns();
    struct why_thread *thread = why_threads.lookup(&tid);
    if (thread) {
        u64 kind = to.waits                       ? WHY_KERNEL
                   : switch_is_throttled(to.task) ? WHY_THROTTLED
                                                  : WHY_PREEMPTED;
#pragma clang loop unroll(full)
        for (int i = 0; i < 3; i++)
            off_cpu(tid, to.task, thread->ids[i], thread->tgid, now, kind);
    }
    bpf_probe_read_kernel(&tid, sizeof(tid), (void *)(to.next + GOTRACE_TASK_PID));
    thread = why_threads.lookup(&tid);
    if (thread) {
#pragma clang loop unroll(full)
        for (int i = 0; i < 3; i++)
            on_cpu(tid, to.next, thread->ids[i], thread->tgid, now);
    }
}
#else
static __always_inline u64 why_entered(struct task_key *owner, u64 id, u64 level)
{
    return bpf_ktime_get_ns();
}

static __always_inline u64 why_leaving(struct why_key *key, u64 now)
{
    return now;
}

static __always_inline void why_left(struct task_key *owner, u64 id, u64 level)
{
}

static __always_inline void why_returned(struct why_key *key, struct call_key *place)
{
}

static __always_inline void why_forget(struct call_key *place)
{
}
#endif
