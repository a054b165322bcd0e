/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Records of calls: what is kept of a call from its entry on, and reported or added up in the end.
 *
 * Settings (common.h), beside those of the headers:
 *   GOTRACE_FUNCTIONS    functions that are traced
 *   GOTRACE_SAVED        calls whose arguments can be kept until they return
 *   GOTRACE_SAVED_BLOCKS 1 where operations at a return look at blocks of the entry; optional
 *   GOTRACE_FLIGHT       1 where records are only read if a call that begins a request has ended
 */
#pragma once
#include "diagnostics.h"
#include "floats.h"
#include "payload.h"
#include "rows.h"
#include "unwound.h"
#include "why.h"

/* What calls.h, which is to be included after this, does with calls that end without a return. */
#ifdef CALL_DROPPED
#error "calls.h was included before"
#endif
#define CALL_DROPPED(owner, level) records_forget(owner, level)
#if !GOTRACE_KEY
#define CALL_UNWOUND(ctx, owner, level, call) records_unwound(ctx, owner, level, call)
#endif

/* site_plan.flags */
#define PLAN_ENTRY_ONLY 1    /* report at the entry: the return is not seen, or not wanted */
#define PLAN_ENTRY_FLOATS 2  /* float registers hold arguments */
#define PLAN_RETURN_FLOATS 4 /* float registers hold results */
#define PLAN_LEAVES 8        /* the function can end by a jump to another one */
#define PLAN_BEGINS 16       /* a call begins a request; with GOTRACE_EDGES */
#define PLAN_FILE_SHIFT 8    /* above: number of the function's file */

struct site_plan {
    u64 site;   /* link-time address of the entry site */
    u32 entry;  /* first operation of the entry's plan */
    u32 result; /* first operation of the return's plan */
    u32 flags;
    u32 entry_leaves;  /* bytes of the payload, to the return and what comes after it */
    s16 next_pc;       /* of the instruction after the entry site, from that site */
    s16 next_sp;       /* what the entry site's instruction adds to SP */
    u32 return_leaves; /* bytes of the payload, to what comes after it */
};

/* plans: key = function number of the cookie. Filled before attaching. */
BPF_ARRAY(plans, struct site_plan, GOTRACE_FUNCTIONS);

/*
 * saved_calls: key = task and level of an open call; gone when that has returned. That of level 1
 * rests with the row of stacks: the next one is copied over it.
 */
BPF_HASH(saved_calls, struct call_key, struct call, GOTRACE_SAVED);

static __always_inline void records_forget(struct task_key *owner, u64 level)
{
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = level};
    saved_calls.delete(&key);
}

/*
 * Copy what is needed of a call at its return, with as much of the payload as is filled. Floats, and
 * where blocks of the entry are, may not be.
 */
static __always_inline void records_copy(struct call *to, struct call *from)
{
    u64 size = from->length, first = 0;
    BOUND(size, GOTRACE_PAYLOAD - 1);
    if (!GOTRACE_FLOATS)
        first = GOTRACE_SAVED_BLOCKS ? __builtin_offsetof(struct call, blocks)
                                     : __builtin_offsetof(struct call, blocks[MAX_BLOCKS]);
    size += __builtin_offsetof(struct call, payload) - first;
    bpf_probe_read_kernel((u8 *)to + first, size, (u8 *)from + first);
}

/* Keep a call until it returns. */
static __always_inline void records_save(struct call_key *key, struct call *call)
{
    struct call *resting = key->level == 1 ? saved_calls.lookup(key) : 0;
    if (resting)
        records_copy(resting, call);
    else if (saved_calls.update(key, call))
        diagnostics_count(SAVED_FULL, 1);
}

#if GOTRACE_WHY
/*
 * Append what the time of a call that ends went into; is_unwound is a constant. Of calls that are
 * added up it is reported where their key asks for it.
 */
static __always_inline void records_append_why(struct call *call, struct why_key *key,
                                               struct call_key *place, bool is_unwound)
{
    if (GOTRACE_KEY && !GOTRACE_WHY_CLASSES)
        return;
    struct why_row *before, *row = why_rows_of(key, place, &before);
    u64 at = (call->length + 7) & ~7;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    if (!row || at > GOTRACE_PAYLOAD - WHY_REPORT_SIZE || (!is_unwound && !why_own(key, place)))
        return;
    call->length = at + why_describe(row, before, call->payload + at, is_unwound);
    call->event.flags |= EVENT_WHY;
}
#else
static __always_inline void records_append_why(struct call *call, struct why_key *key,
                                               struct call_key *place, bool is_unwound)
{
}
#endif

#if GOTRACE_KEY
/* Add a call up. */
static __always_inline bool records_submit(struct pt_regs *ctx, struct call *call)
{
    u32 number = 0;
    rows_add_call(call, call->event.end - call->event.start, &number);
    return true;
}
#else
/* events: one record a call. */
BPF_PERF_OUTPUT(events);

#if GOTRACE_FLIGHT
/*
 * triggers: the records of events that are waited for. One that finds no room is not missed: there
 * are others that have not been read yet.
 */
BPF_PERF_OUTPUT(triggers);

static __always_inline void records_trigger(struct pt_regs *ctx, struct call *call, u64 size)
{
    u32 function = call->event.function;
    struct site_plan *plan = plans.lookup(&function);
    if (plan && plan->flags & PLAN_BEGINS && !(call->event.flags & EVENT_UNWANTED))
        triggers.perf_submit(ctx, &call->event, sizeof(struct event) + size);
}
#else
static __always_inline void records_trigger(struct pt_regs *ctx, struct call *call, u64 size)
{
}
#endif

/* Report a call; return whether there was room. */
static __always_inline bool records_submit(struct pt_regs *ctx, struct call *call)
{
    u64 size = call->length;
    BOUND(size, 2 * GOTRACE_PAYLOAD - 1);
    if (size > GOTRACE_PAYLOAD)
        return false;
    bool is_lost = events.perf_submit(ctx, &call->event, sizeof(struct event) + size) != 0;
    if (is_lost)
        diagnostics_count(EVENTS_LOST, 1);
    records_trigger(ctx, call, size);
    return !is_lost;
}
#endif

/* Report a call that has ended without a return, with the arguments saved when it was entered. */
static __always_inline void records_unwound(struct pt_regs *ctx, struct task_key *owner, u64 level,
                                            struct unwound *call)
{
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = level};
    struct call *saved = saved_calls.lookup(&key);
    u32 function = saved ? saved->event.function : 0;
    struct site_plan *plan = saved ? plans.lookup(&function) : 0;
    if (!plan)
        return;
    /* It may have jumped to another function, and both may have returned long ago. */
    if (plan->flags & PLAN_LEAVES) {
        diagnostics_count(UNWOUND_UNSEEN, 1);
        return;
    }
    saved->event.start = call->start;
    saved->event.end = call->end;
    saved->event.hits = call->hits;
    saved->event.hits_ns = call->hits_ns;
    saved->event.tid = site_user_pid_tgid();
    saved->event.flags |= call->how;
    records_append_why(saved, &call->row, &key, true);
    if (saved->has_floats)
        floats_append(saved, saved->floats, EVENT_ENTRY_FLOATS);
    records_submit(ctx, saved);
}
