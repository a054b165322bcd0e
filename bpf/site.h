/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What every probe program does first: learn which site was hit, and whether the hit counts.
 *
 * Settings (common.h); what asks for a value that says that there is none, the verifier takes out:
 *   GOTRACE_TGID       count this thread group only; 0 for all
 *   GOTRACE_TGID_1 to GOTRACE_TGID_8
 *                      count these thread groups only, some of which may be the same; optional
 *   GOTRACE_PIDNS_DEV, GOTRACE_PIDNS_INO
 *                      processes and threads are numbered as that pid namespace does, not the
 *                      initial one; GOTRACE_TGID is such a number; optional
 *   GOTRACE_SEEN_TGID  what the user calls GOTRACE_TGID, where that namespace is not the user's;
 *                      optional
 *   GOTRACE_UID        count processes of this user only, as the initial user namespace has it; or
 *                      EVERY_USER
 *   GOTRACE_CGROUP     count processes of this version 2 control group, and of those in it, only:
 *                      its number, which is its directory's inode; or 0
 *   GOTRACE_SITE_BY_IP  look the cookie up by instruction pointer in this many rows, for kernels
 *                      whose attachments carry no cookie; optional
 *   GOTRACE_BUDGET     count hits, in this many rows: one for each function, after one for all
 *                      other hits; 0 to count none
 *   GOTRACE_HIT_ROWS   how many rows there are
 *   GOTRACE_FILE_ROWS  the first of rows for what belongs to no function, one for each file by its
 *                      number; or 0: row 0 is for all files
 */
#pragma once
#include "registers.h"
#include "stack.h"

/* Cookie layout, shared with gotrace/kernel/cookie.py. */
#define COOKIE_INDEX_MASK 0xffffffULL
#define COOKIE_FILE_SHIFT 24 /* above: the number of the site's file, where files are numbered */
#define COOKIE_FILE_MASK 0xffULL
#define COOKIE_BRANCH (1ULL << 32)     /* a stack check's: drop the hit if it is taken */
#define COOKIE_G_REGISTER (1ULL << 33) /* g is in its register here */
#define COOKIE_G_TLS (1ULL << 34)      /* g is in thread-local storage only */
#define COOKIE_JUMPS (1ULL << 35)      /* the function can end by a jump to a traced one */
#define COOKIE_LEAVES (1ULL << 36)     /* the function can end by a jump to another one */
/*
 * A landing: the index is how many bytes it is after the return address, and above that its row of
 * passes, 0 if it has none: landings.h.
 */
#define COOKIE_LANDING (1ULL << 39)
#define COOKIE_DISTANCE_MASK 0x3ffULL
#define COOKIE_PASSES_SHIFT 10
/* Of a landing: the entry of runtime.sigpanic, which a fault between the two seems to call. */
#define COOKIE_FAULT COOKIE_JUMPS
/* Of a landing: the kernel single-steps its instruction. */
#define COOKIE_STEPPED COOKIE_LEAVES
#define COOKIE_SP_SHIFT 40 /* above: what to add to SP to have the SP at entry */

/* bpf_get_attach_cookie, which BCC declares since 0.22; its number is the kernel's for ever. */
static u64 (*attach_cookie)(struct pt_regs *ctx) = (void *)174;

/*
 * halted: value 0 = 1 until all probes are in place, and once the run is over, set from user space.
 * Hits do not count then, although it takes the kernel a while to place and remove the probes.
 */
BPF_ARRAY(halted, u32, 1);

/* What a row of hits has. Shared with HIT_KINDS of gotrace/settings.py. */
enum hit {
    HIT_ENTRY,   /* hits of a function's entry; in row 0, of those without a row */
    HIT_RETURN,  /* hits of its RETs */
    HIT_LANDING, /* hits of landings that ended calls of it; in row 0, that ended none */
    HIT_STEPPED, /* the same of landings that the kernel single-steps */
    HIT_CALL,    /* calls of it that were counted, and not followed */
    HIT_SWITCH,  /* in row 0: of the kernel's scheduler, which takes no trap */
    HIT_OTHER,   /* in row 0: of what belongs to no function that users ask for */
    /* Its calls that are missing, as diagnostics.h describes; in row 0, those of any function: */
    HIT_STACKS_FULL,
    HIT_OUTER_CALLS_FULL,
    HIT_NEW_CALLERS,
    HIT_UNWOUND,
    HITS
};

/*
 * hits: key = HITS * row + enum hit; value = as often on this CPU, in processes of others as well,
 * but for HIT_CALL and what is missing. Only ever added to.
 */
BPF_PERCPU_ARRAY(hits, u64, (HITS * GOTRACE_HIT_ROWS));

/* counted: key = row; value = 1 where calls are only counted. Written from user space alone. */
BPF_ARRAY(counted, u32, GOTRACE_HIT_ROWS);

static __always_inline void count_hits(u32 row, enum hit which, u64 times)
{
    u32 key = HITS * row + which;
    u64 *count = hits.lookup(&key);
    /* Atomic although per CPU: the kernel may preempt a program between load and store. */
    if (count)
        __sync_fetch_and_add(count, times);
}

static __always_inline void count_hit(u32 row, enum hit which)
{
    count_hits(row, which, 1);
}

/* Return the row of a site that belongs to a function: 0 if that has none of its own. */
static __always_inline u32 hit_row(u64 cookie)
{
    u64 row = (cookie & COOKIE_INDEX_MASK) + 1;
    return row >= GOTRACE_BUDGET ? 0 : row;
}

/* Count a call of a function that is missing. */
static __always_inline void site_count_missing(u32 function, enum hit why)
{
    if (GOTRACE_BUDGET)
        count_hit(hit_row(function), why);
}

/* The same of calls whose functions are not known. */
static __always_inline void site_count_unknown(u64 calls, enum hit why)
{
    if (GOTRACE_BUDGET && calls)
        count_hits(0, why, calls);
}

/* Return the row of a site that belongs to no function. */
static __always_inline u32 file_row(u64 cookie)
{
    u64 first = GOTRACE_FILE_ROWS;
    return first ? first + (cookie >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK) : 0;
}

static __always_inline enum hit landing_hit(u64 cookie)
{
    return cookie & COOKIE_STEPPED ? HIT_STEPPED : HIT_LANDING;
}

/* Count a hit of the target at a landing, which has ended a call of a function. */
static __always_inline void site_hit_landing(u64 cookie, u32 function)
{
    if (GOTRACE_BUDGET && cookie & COOKIE_LANDING)
        count_hit(hit_row(function), landing_hit(cookie));
}

/* Count a hit of the target at a landing, which has ended no call. */
static __always_inline void site_missed_landing(u64 cookie)
{
    if (GOTRACE_BUDGET && cookie & COOKIE_LANDING)
        count_hit(file_row(cookie), landing_hit(cookie));
}

/* To be called at each switch of the kernel's scheduler. */
static __always_inline void site_hit_switch(void)
{
    if (GOTRACE_BUDGET)
        count_hit(0, HIT_SWITCH);
}

/* Return whether calls of the function that a site belongs to are only counted. */
static __always_inline bool site_is_counted(u64 cookie)
{
    if (!GOTRACE_BUDGET)
        return false;
    u32 row = hit_row(cookie), *alone = counted.lookup(&row);
    return alone && *alone;
}

/* Count a call that is entered if its function's calls are only counted; return whether they are. */
static __always_inline bool site_counts_call(u64 cookie)
{
    if (!site_is_counted(cookie))
        return false;
    count_hit(hit_row(cookie), HIT_CALL);
    return true;
}

/* The current process and thread by their numbers, tgid << 32 | tid; 0 in another namespace. */
static __always_inline u64 pid_tgid(void)
{
#ifdef GOTRACE_PIDNS_INO
    struct bpf_pidns_info ns = {};
    bpf_get_ns_current_pid_tgid(GOTRACE_PIDNS_DEV, GOTRACE_PIDNS_INO, &ns, sizeof(ns));
    return (u64)ns.tgid << 32 | ns.pid;
#else
    return bpf_get_current_pid_tgid();
#endif
}

/* What the user is shown of them. */
static __always_inline u64 site_user_pid_tgid(void)
{
#ifdef GOTRACE_SEEN_TGID
    return (u64)GOTRACE_SEEN_TGID << 32 | (u32)pid_tgid();
#else
    return pid_tgid();
#endif
}

/* bpf_get_current_ancestor_cgroup_id, by its number for ever: BCC declares it since 0.15. */
static u64 (*ancestor_cgroup)(int level) = (void *)123;

#define CGROUP_LEVELS 16 /* of the control groups that the process's own is in */

static __always_inline bool in_cgroup(void)
{
#pragma unroll
    for (int level = 0; level < CGROUP_LEVELS; level++)
        if (ancestor_cgroup(level) == GOTRACE_CGROUP)
            return true;
    return false;
}

#define EVERY_USER (~0ULL)

/* Whether a hit counts: the run goes on and it is the target's. */
static __always_inline bool site_is_target(void)
{
    u32 zero = 0, *over = halted.lookup(&zero);
    if (!over || *over)
        return false;
    u64 uid = GOTRACE_UID, tgid = GOTRACE_TGID;
    if (uid != EVERY_USER && (u32)bpf_get_current_uid_gid() != uid)
        return false;
    if (GOTRACE_CGROUP && !in_cgroup())
        return false;
#ifdef GOTRACE_TGID_1
    tgid = pid_tgid() >> 32;
    return tgid == GOTRACE_TGID_1 || tgid == GOTRACE_TGID_2 || tgid == GOTRACE_TGID_3 ||
           tgid == GOTRACE_TGID_4 || tgid == GOTRACE_TGID_5 || tgid == GOTRACE_TGID_6 ||
           tgid == GOTRACE_TGID_7 || tgid == GOTRACE_TGID_8;
#else
    return !tgid || pid_tgid() >> 32 == tgid;
#endif
}

#ifdef GOTRACE_SITE_BY_IP
/* site_by_ip: key = address of the site in the target; value = cookie. Filled before attaching. */
BPF_HASH(site_by_ip, u64, u64, GOTRACE_SITE_BY_IP);

static __always_inline bool find_cookie(struct pt_regs *ctx, u64 *cookie)
{
    u64 ip = registers_pc(ctx);
    u64 *found = site_by_ip.lookup(&ip);
    if (found)
        *cookie = *found;
    return found != 0;
}
#else
static __always_inline bool find_cookie(struct pt_regs *ctx, u64 *cookie)
{
    *cookie = attach_cookie(ctx);
    return true;
}
#endif

/* Store the cookie of the site that was hit; return whether the hit is a call of the target. */
static __always_inline bool site_hit_as(struct pt_regs *ctx, u64 *cookie, enum hit which)
{
    stack_keep_own(ctx);
    if (!GOTRACE_BUDGET && !site_is_target())
        return false;
    if (!find_cookie(ctx, cookie))
        return false;
    if (GOTRACE_BUDGET) {
        bool is_target = site_is_target(); /* others pay for their hits as well */
        if (!(*cookie & COOKIE_LANDING))
            count_hit(which == HIT_OTHER ? file_row(*cookie) : hit_row(*cookie), which);
        else if (!is_target)
            site_missed_landing(*cookie);
        if (!is_target)
            return false;
    }
    if ((*cookie & COOKIE_BRANCH) && registers_grows(ctx))
        return false;
    return true;
}

/* At a site that belongs to no function that users ask for. */
static __always_inline bool site_hit(struct pt_regs *ctx, u64 *cookie)
{
    return site_hit_as(ctx, cookie, HIT_OTHER);
}

/* At the entry of a function. */
static __always_inline bool site_hit_entry(struct pt_regs *ctx, u64 *cookie)
{
    return site_hit_as(ctx, cookie, HIT_ENTRY);
}

/* At a RET of a function, or at a landing, whose hit is yet to be counted. */
static __always_inline bool site_hit_return(struct pt_regs *ctx, u64 *cookie)
{
    return site_hit_as(ctx, cookie, HIT_RETURN);
}
