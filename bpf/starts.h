/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which goroutine has started which, where that was in a traced call or in what such a call has
 * started. Who the parent is, of the calls that were open, follows from times in user space.
 *
 * Settings (common.h): GOTRACE_NESTED, the goroutines whose start is kept.
 */
#pragma once
#include "goroutine.h"
#include "payload.h"

#ifdef GOTRACE_NESTED

/* The go statement that a goroutine comes from. */
struct start {
    u64 goid;   /* of the goroutine */
    u64 parent; /* goid of the nearest one before it that had a traced call open */
    u64 at;     /* ns: when that executed a go statement */
    u64 since;  /* ns: when its outermost call had begun then */
    u64 waited; /* its latest wait reason, when its own outermost call was entered */
};

/* What of it is sent, after the return addresses; shared with gotrace/session/events.py. */
struct sent_start {
    u64 parent;
    u64 at;
    u64 since;
    u64 waited;
};

/*
 * starts: key = address of a goroutine's g, with its process. Programs reuse g's, so a row can be of
 * an earlier goroutine, which its goid shows. Rows go when they have not been used for the longest.
 */
BPF_TABLE("lru_hash", struct task_key, struct start, starts, GOTRACE_NESTED);

/*
 * Note what a goroutine, of this g, has waited for last before it enters an outermost call: one that
 * has waited for work may have it from elsewhere than what has started the goroutine.
 */
static __always_inline void starts_note_wait(u64 cookie, u64 g, u64 goid, u64 tgid)
{
    struct task_key key = {.task = g, .tgid = tgid};
    struct start *start = starts.lookup(&key);
    u8 reason = 0;
    struct layout *layout = goroutine_layout(cookie);
    if (!start || start->goid != goid || !layout)
        return;
    bpf_probe_read_user(&reason, sizeof(reason),
                        (void *)(g + OFFSET(layout, g_waitreason, GOTRACE_G_WAITREASON)));
    start->waited = reason;
}

/* Append to an outermost call's record which go statement its goroutine, of this g, comes from. */
static __always_inline void starts_append(struct call *call, u64 g, u64 tgid)
{
    struct task_key key = {.task = g, .tgid = tgid};
    struct start *start = starts.lookup(&key);
    u64 at = (call->length + 7) & ~7;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    if (!start || start->goid != call->event.goid ||
        at > GOTRACE_PAYLOAD - sizeof(struct sent_start))
        return;
    payload_put_word(call->payload + at, start->parent);
    payload_put_word(call->payload + at + 8, start->at);
    payload_put_word(call->payload + at + 16, start->since);
    payload_put_word(call->payload + at + 24, start->waited);
    call->length = at + sizeof(struct sent_start);
    call->event.flags |= EVENT_STARTED;
}

/* What a call's flags say of goroutines that were started, the latest at the time went. */
static __always_inline u64 starts_within(u64 went, u64 start)
{
    return (went > start) * EVENT_STARTS;
}
#else
static __always_inline void starts_append(struct call *call, u64 g, u64 tgid)
{
}

static __always_inline u64 starts_within(u64 went, u64 start)
{
    return 0;
}
#endif
