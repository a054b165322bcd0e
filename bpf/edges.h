/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * How work goes from goroutine to goroutine: go statements, timers, channels, coroutines, and who
 * ends waits. Each is an event of its own, among those of calls. Whose work it is follows in user
 * space from their order in time (gotrace/requests/belonging.py).
 *
 * The probes in chansend, chanrecv and selectgo are at calls that these make while they hold the
 * channel's lock, so that the events of a channel are in the order of what they report. Those that
 * find no item need none.
 *
 * Settings (common.h), all of one runtime:
 *   GOTRACE_EDGES           1 where events are reported
 *   GOTRACE_EDGE_SCHED_BP, GOTRACE_EDGE_SCHED_CTXT, GOTRACE_EDGE_SUDOG_ELEM
 *                           offsets in runtime.g and runtime.sudog
 *   GOTRACE_EDGE_COROARG    offset in runtime.g; optional
 *   GOTRACE_EDGE_STATES     1 where changes of goroutines' states are reported as well; optional
 *   GOTRACE_EDGE_RECEIVE, GOTRACE_EDGE_SELECT, GOTRACE_EDGE_WORK
 *                           the wait reasons of a receive, of a select, and of all goroutines that
 *                           wait for work: words in which the bits of the reasons' numbers are set
 *   GOTRACE_EDGE_REST, GOTRACE_EDGE_JOIN
 *                           those of sleeps and the network, and of sync.WaitGroup
 *   GOTRACE_EDGE_SEMAPHORE, GOTRACE_EDGE_JOIN_AT, GOTRACE_EDGE_JOIN_SIZE
 *                           that of semaphores if a sync.WaitGroup has no other, and where its code
 *                           is from the site of runtime.casgstatus, and its length; else 0
 *   GOTRACE_EDGE_OWN_AT, GOTRACE_EDGE_OWN_SIZE
 *                           where the runtime's code is from the site of newproc.func1, and its
 *                           length; else 0
 *   GOTRACE_FLIGHT_SIGNAL   number of the signal that is waited for; with GOTRACE_FLIGHT
 */
#pragma once
#include "context.h"
#include "records.h"
#include "scheduler.h"

/*
 * With GOTRACE_NESTED: ns after which an outermost call is not a request any more, but one of those
 * that last as long as the program, so that calls within it begin requests. Shared with
 * gotrace/requests/belonging.py.
 */
#define LONG_CALL_NS 30000000000ULL

#if GOTRACE_EDGES

/* event.function of an edge: above all functions. Shared with gotrace/requests/edges.py. */
#define EDGE_FIRST 0x1000000

/*
 * What is in an edge beside when that was (end) and the process and thread: goid is who does it, and
 * start, hits, hits_ns and flags are as each says, in this order.
 */
enum edge {
    /*
     * Enters a call that begins a request: when, its depth, its context, its function. With
     * GOTRACE_NESTED one that may: when, its depth, 0, its function; and all contexts that it is
     * given follow.
     */
    EDGE_BEGIN,
    EDGE_GO, /* executes a go statement: who begins, closure, code of that, 1 if the runtime's own */
    /* Makes or resets a timer: the code of the closure that it calls if it calls one, that. */
    EDGE_TIMER,
    EDGE_WRITE, /* puts an item into a buffer: the item's first word, the slot, the channel */
    EDGE_READ,  /* takes an item from there: 0, the slot, the channel, the depth of its frame */
    EDGE_HAND,  /* ends a goroutine's wait by an item: who, first word, channel, that one's depth */
    EDGE_TAKE,  /* takes an item that one waits to send: who, first word, channel, its own depth */
    EDGE_SENT,  /* ends a goroutine's select, which sends: who */
    EDGE_WAKE, /* ends a wait for work, if any goroutine does: whose, reason, 0, that one's depth */
    EDGE_SWITCH, /* goes on as another goroutine, a coroutine: who */
    EDGE_DROP,   /* receives no item, or throws it away: who waits to send, slot, channel, depth */
    EDGE_DEAD,   /* has ended */
    EDGE_FREED,  /* none: the collector knows what is not in use, which may be used again */
    /* Changes the state of a goroutine, if any does: whose, to which, why it waits or has waited. */
    EDGE_STATE,
    EDGE_REST, /* ends a sleep, a wait for the network, or a join, if any does: whose, if a join */
    EDGE_SIGNAL, /* no goroutine, but 1 if the process is known: it gets the signal waited for */
    EDGE_MISS,   /* finds no item, without a wait: 0, 0, channel if known, depth of its frame */
    EDGE_AFTER,  /* gives a context a closure to call when that ends: its code, the closure */
};

/*
 * The number in a cookie of a channel's probe: where the stack has the channel, where hchan has
 * elemtype, sendx and recvx, one after the other, all in words, how many frames are between and that
 * of who receives, and on arm64 what the branch around a copy tests.
 */
#define EDGE_SPILL(cookie) (((cookie) & 0xff) * 8)
#define EDGE_ELEMTYPE(cookie) (((cookie) >> 8 & 0xff) * 8)
#define EDGE_SENDX(cookie) (EDGE_ELEMTYPE(cookie) + 8)
#define EDGE_RECVX(cookie) (EDGE_ELEMTYPE(cookie) + 16)
#define EDGE_FRAMES(cookie) ((cookie) >> 16 & 3)
#define EDGE_TESTED(cookie) ((cookie) >> 18 & 1)

/* runtime.hchan, src/runtime/chan.go, releases 1.19 to 1.27. */
#define HCHAN_DATAQSIZ 8
#define HCHAN_BUF 16
#define HCHAN_ELEMSIZE 24

/* runtime._type, src/internal/abi/type.go, as far as it is read, and where a slice's has its item's. */
struct edge_type {
    u64 size;
    u64 pointers; /* so many bytes from the beginning have all pointers */
    u64 rest;     /* the upper byte has the kind, and flags */
};
#define EDGE_TYPE_ELEM 48
#define EDGE_KIND(type) ((type).rest >> 56 & 31)
#define EDGE_KIND_SLICE 23

/*
 * An item of nothing is a signal, that there is work somewhere. It is not reported where it is given
 * to who waits for it: the end of that wait is.
 */
#define EDGE_MIN_ITEM 1
/*
 * In place of the first word of items that do not say whose work is where they are received: one
 * word or less without a pointer may be a signal as well, and a slice a batch of several requests.
 * Shared with gotrace/requests/edges.py.
 */
#define EDGE_NOTHING (~0ULL)

/*
 * edge_receivers: key = a goroutine that has received an item since it was last reported to find
 * none, value = 1. Inserted at a receipt, deleted with the report, or as the least recently used.
 */
BPF_TABLE("lru_hash", struct task_key, u8, edge_receivers, 32768);

static __always_inline void edges_submit(struct pt_regs *ctx, enum edge what, u64 goid, u64 other,
                                         u64 first, u64 second, u64 third)
{
    u64 ids = site_user_pid_tgid();
    struct event event = {
        .end = bpf_ktime_get_ns(),
        .start = other,
        .goid = goid,
        .tgid = ids >> 32,
        .tid = ids,
        .function = EDGE_FIRST + what,
        .flags = third,
        .hits = first,
        .hits_ns = second,
    };
    if (events.perf_submit(ctx, &event, sizeof(event))) {
        diagnostics_count(EVENTS_LOST, 1);
        if (what == EDGE_BEGIN)
            diagnostics_count(BEGINS_LOST, 1);
    }
}

/* Return whether it is reported when a call is entered. */
static __always_inline bool edges_has_begun(struct site_plan *plan, struct call *call)
{
    return GOTRACE_NESTED ? (call->event.flags & EVENT_BEGUN) != 0
                          : (plan->flags & PLAN_BEGINS) != 0;
}

/* Report that a call is entered which begins a request, or may. */
static __always_inline void edges_begin(struct pt_regs *ctx, struct site_plan *plan, struct work *w,
                                        struct task *task, u64 depth, u64 now)
{
    if (!edges_has_begun(plan, &w->call))
        return;
#if !GOTRACE_NESTED
    edges_submit(ctx, EDGE_BEGIN, task->goid, now, depth, context_asked(w), w->call.event.function);
#else
    /* The call's own record is kept elsewhere by now. */
    struct event *event = &w->call.event;
    u32 function = event->function;
    event->end = bpf_ktime_get_ns();
    event->start = now;
    event->function = EDGE_FIRST + EDGE_BEGIN;
    event->flags = function;
    event->hits = depth;
    event->hits_ns = 0;
    w->call.length = 0;
    context_append_found(w);
    if (!records_submit(ctx, &w->call))
        diagnostics_count(BEGINS_LOST, 1);
#endif
}

/* Return the goroutine that runs, or waits for what its thread's system stack does; 0 if none. */
static __always_inline u64 edges_goid(struct pt_regs *ctx, u64 cookie)
{
    struct task task = {};
    return goroutine_find_task(ctx, cookie, &task) ? task.goid : 0;
}

/* The same of who sends: 0 if a timer does, whichever goroutine's thread it runs in. */
static __always_inline u64 edges_sender(struct pt_regs *ctx, u64 cookie)
{
    struct task task = {};
    return goroutine_find_task(ctx, cookie, &task) && task.id == task.goid ? task.goid : 0;
}

static __always_inline u64 edges_goid_of(u64 g)
{
    return read_word(g + GOTRACE_G_GOID);
}

/*
 * Follow frame pointers; return how far what they lead to is from the beginning of g's stack, and in
 * the upper half where its code goes on: which of its statements that is.
 */
static __always_inline u64 edges_depth(u64 g, u64 frame, u32 frames)
{
    u64 hi = read_word(g + GOTRACE_G_STACK_HI), words[2] = {};
#pragma clang loop unroll(full)
    for (u32 i = 0; i < 3; i++) {
        if (i >= frames || !frame)
            continue;
        if (bpf_probe_read_user(words, sizeof(words), (void *)frame))
            words[0] = 0;
        frame = words[0];
    }
    return frame && frame < hi ? words[1] << 32 | (u32)(hi - frame) : 0;
}

/* Return whether a wait reason is one of those whose bits are set. */
static __always_inline bool edges_is(u32 reason, u64 reasons)
{
    return reason < 64 && (reasons >> (reason & 63) & 1);
}

/* The same of a goroutine that waits for this reason: of the frame that has the statement. */
static __always_inline u64 edges_waiting_depth(u64 g, u32 reason)
{
    u32 frames = edges_is(reason, GOTRACE_EDGE_SELECT)    ? 2
                 : edges_is(reason, GOTRACE_EDGE_RECEIVE) ? 3
                                                          : 0;
    return frames ? edges_depth(g, read_word(g + GOTRACE_EDGE_SCHED_BP), frames) : 0;
}

/*
 * Return whether a goroutine that waits for this reason is one in sync.WaitGroup's Wait: its frame is
 * that before semacquire1's caller, or one further out if goparkunlock has a frame.
 */
static __always_inline bool edges_is_join(struct pt_regs *ctx, u64 g, u32 reason)
{
    u64 words[2] = {}, frame;
    if (edges_is(reason, GOTRACE_EDGE_JOIN))
        return true;
    if (!edges_is(reason, GOTRACE_EDGE_SEMAPHORE))
        return false;
    frame = read_word(g + GOTRACE_EDGE_SCHED_BP);
#pragma clang loop unroll(full)
    for (u32 i = 0; i < 4; i++) {
        if (bpf_probe_read_user(words, sizeof(words), (void *)frame))
            return false;
        if (words[1] - registers_pc(ctx) - GOTRACE_EDGE_JOIN_AT < GOTRACE_EDGE_JOIN_SIZE)
            return true;
        frame = words[0];
    }
    return false;
}

static __always_inline u32 edges_item_size(u64 channel)
{
    return (u16)read_word(channel + HCHAN_ELEMSIZE);
}

/* Return what tells an item from others: EDGE_NOTHING if it may say nothing of whose work it is. */
static __always_inline u64 edges_word(u64 type, u64 item)
{
    struct edge_type is = {};
    u64 words[2] = {};
    if (bpf_probe_read_user(&is, sizeof(is), (void *)type) ||
        (!is.pointers && is.size <= sizeof(u64)))
        return EDGE_NOTHING;
    if (EDGE_KIND(is) == EDGE_KIND_SLICE)
        return read_word(read_word(type + EDGE_TYPE_ELEM)) > 1 ? EDGE_NOTHING : read_word(item);
    if (is.size < sizeof(words))
        return read_word(item);
    /* An interface's first word is its type. */
    if (bpf_probe_read_user(words, sizeof(words), (void *)item))
        return 0;
    return words[0] ^ (words[1] << 32 | words[1] >> 32);
}

static __always_inline void edges_received(u64 goid)
{
    struct task_key key = {goid, site_user_pid_tgid() >> 32};
    u8 one = 1;
    edge_receivers.update(&key, &one);
}

/* Report that a goroutine has found no item, if it has received one since it did last. */
static __always_inline void edges_miss(struct pt_regs *ctx, u64 goid, u64 channel, u64 depth)
{
    struct task_key key = {goid, site_user_pid_tgid() >> 32};
    if (!edge_receivers.lookup(&key))
        return;
    edge_receivers.delete(&key);
    edges_submit(ctx, EDGE_MISS, goid, 0, 0, channel, depth);
}

/* Return the channel that a function works on, from where it keeps that. */
static __always_inline u64 edges_channel(struct pt_regs *ctx, u64 cookie)
{
    return read_word(registers_sp(ctx) + EDGE_SPILL(cookie));
}

/* Return whether a place is in a channel's buffer: what was read for a channel is one, then. */
static __always_inline bool edges_is_slot(u64 channel, u64 place)
{
    u64 from = place - read_word(channel + HCHAN_BUF), size = edges_item_size(channel);
    return from < read_word(channel + HCHAN_DATAQSIZ) * size || (!size && !from);
}

/* Return the slot at an index, of items that have a size or not: these are all at one address. */
static __always_inline u64 edges_slot(u64 channel, u64 index)
{
    u64 size = edges_item_size(channel);
    return size ? read_word(channel + HCHAN_BUF) + index * size : channel | (index + 1) << 48;
}

/* At chansend's and selectgo's call of typedmemmove(type, slot, item). */
int on_write(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 slot = GO_REGISTER(ctx, 1), channel = edges_channel(ctx, cookie);
    bool is_slot = edges_is_slot(channel, slot);
    if (is_slot)
        slot = edges_slot(channel, read_word(channel + EDGE_SENDX(cookie)));
    edges_submit(ctx, EDGE_WRITE, edges_sender(ctx, cookie),
                 edges_word(GO_REGISTER(ctx, 0), GO_REGISTER(ctx, 2)), slot, is_slot ? channel : 0,
                 0);
    return 0;
}

/*
 * Where chanrecv and selectgo have found an item in the buffer and go on to copy it, but for where
 * there is nowhere to: the branch is taken then.
 */
int on_read(struct pt_regs *ctx)
{
    u64 cookie = 0;
    struct task task = {};
    if (!site_hit(ctx, &cookie) || !goroutine_find_task(ctx, cookie, &task))
        return 0;
    u64 channel = edges_channel(ctx, cookie);
    u64 depth = edges_depth(task.g, registers_frame(ctx), EDGE_FRAMES(cookie));
    bool is_item =
        !registers_is_null(ctx, EDGE_TESTED(cookie)) && edges_item_size(channel) >= EDGE_MIN_ITEM;
    edges_submit(ctx, is_item ? EDGE_READ : EDGE_DROP, task.goid, 0,
                 edges_slot(channel, read_word(channel + EDGE_RECVX(cookie))), channel, depth);
    edges_received(task.goid);
    return 0;
}

/* At chansend's and selectgo's call of send(channel, sudog of who waits to receive, item). */
int on_send(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie) || edges_item_size(GO_REGISTER(ctx, 0)) < EDGE_MIN_ITEM ||
        !read_word(GO_REGISTER(ctx, 1) + GOTRACE_EDGE_SUDOG_ELEM)) /* it throws the item away */
        return 0;
    u64 g = read_word(GO_REGISTER(ctx, 1)), channel = GO_REGISTER(ctx, 0);
    u64 goid = edges_goid_of(g), type = read_word(channel + EDGE_ELEMTYPE(cookie));
    edges_submit(ctx, EDGE_HAND, edges_sender(ctx, cookie), goid,
                 edges_word(type, GO_REGISTER(ctx, 2)), channel,
                 edges_waiting_depth(g, sched_wait_reason(g)));
    edges_received(goid);
    return 0;
}

/*
 * At chanrecv's and selectgo's call of recv(channel, sudog of who waits to send, item): without a
 * buffer that one hands its item over. Else the first slot's is taken, and its own is put there.
 */
int on_receive(struct pt_regs *ctx)
{
    u64 cookie = 0, channel = GO_REGISTER(ctx, 0);
    struct task task = {};
    if (!site_hit(ctx, &cookie) || !goroutine_find_task(ctx, cookie, &task))
        return 0;
    u64 g = read_word(GO_REGISTER(ctx, 1)), sender = edges_goid_of(g);
    if (edges_is(sched_wait_reason(g), GOTRACE_EDGE_SELECT))
        edges_submit(ctx, EDGE_SENT, task.goid, sender, 0, 0, 0);
    u64 slot = 0;
    u64 depth = edges_depth(task.g, registers_frame(ctx), EDGE_FRAMES(cookie));
    bool has_buffer = read_word(channel + HCHAN_DATAQSIZ) != 0;
    bool is_item = edges_item_size(channel) >= EDGE_MIN_ITEM;
    u64 word = edges_word(read_word(channel + EDGE_ELEMTYPE(cookie)),
                          read_word(GO_REGISTER(ctx, 1) + GOTRACE_EDGE_SUDOG_ELEM));
    if (has_buffer)
        slot = edges_slot(channel, read_word(channel + EDGE_RECVX(cookie)));
    if (!is_item || !GO_REGISTER(ctx, 2))
        edges_submit(ctx, EDGE_DROP, task.goid, has_buffer ? 0 : sender, slot, channel, depth);
    else if (has_buffer)
        edges_submit(ctx, EDGE_READ, task.goid, 0, slot, channel, depth);
    else
        edges_submit(ctx, EDGE_TAKE, task.goid, sender, word, channel, depth);
    if (has_buffer)
        edges_submit(ctx, EDGE_WRITE, sender, word, slot, channel, 0);
    edges_received(task.goid);
    return 0;
}

/*
 * Where chanrecv and selectgo clear what a receive from a closed channel is to give, and where
 * selectgo has found that none of its cases is ready, and does not wait.
 */
int on_miss(struct pt_regs *ctx)
{
    u64 cookie = 0;
    struct task task = {};
    if (site_hit(ctx, &cookie) && goroutine_find_task(ctx, cookie, &task))
        edges_miss(ctx, task.goid, 0,
                   edges_depth(task.g, registers_frame(ctx), EDGE_FRAMES(cookie)));
    return 0;
}

/*
 * At a call of selectnbrecv(place of the item, channel), whose result is not known yet. But whoever
 * looks for the next item is done with the last one, found or not.
 */
int on_try(struct pt_regs *ctx)
{
    u64 cookie = 0;
    struct task task = {};
    if (!site_hit(ctx, &cookie) || !GO_REGISTER(ctx, 0) || !goroutine_find_task(ctx, cookie, &task))
        return 0;
    edges_miss(ctx, task.goid, GO_REGISTER(ctx, 1), edges_depth(task.g, registers_frame(ctx), 0));
    return 0;
}

/* At newproc.func1's call of runqput(pp, the new g, next): it runs nowhere yet. */
int on_edge_go(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 g = GO_REGISTER(ctx, 1), closure = read_word(g + GOTRACE_EDGE_SCHED_CTXT);
    /* Whichever goroutine is the first to need one of the runtime's own starts that. */
    u64 statement = read_word(g + GOTRACE_G_GOPC) - registers_pc(ctx);
    bool is_own = statement - GOTRACE_EDGE_OWN_AT < GOTRACE_EDGE_OWN_SIZE;
    edges_submit(ctx, EDGE_GO, edges_goid(ctx, cookie), edges_goid_of(g), closure,
                 read_word(closure), is_own);
    return 0;
}

/*
 * At time.newTimer(when, period, function, argument), or at time.startTimer(timer) up to Go 1.22 and
 * time.resetTimer(timer, ...), whose argument's word is where the number in the cookie says. Of
 * time.AfterFunc that is the closure.
 */
int on_timer(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 at = cookie & COOKIE_INDEX_MASK;
    u64 closure = at ? read_word(GO_REGISTER(ctx, 0) + at) : GO_REGISTER(ctx, 4);
    edges_submit(ctx, EDGE_TIMER, edges_goid(ctx, cookie), read_word(closure), closure, 0, 0);
    return 0;
}

/* At context.AfterFunc(context, closure). */
int on_after(struct pt_regs *ctx)
{
    u64 cookie = 0, closure = GO_REGISTER(ctx, 2);
    if (site_hit(ctx, &cookie))
        edges_submit(ctx, EDGE_AFTER, edges_goid(ctx, cookie), read_word(closure), closure, 0, 0);
    return 0;
}

#if GOTRACE_FLIGHT
/*
 * scheduled: key = a process in which the program's scheduler has been seen; value = 1. It shows
 * which signals are the target's, of all that the host's processes get. The kernel drops the oldest.
 */
BPF_TABLE("lru_hash", u32, u8, scheduled, 4096);

static __always_inline void scheduled_in_process(void)
{
    u32 tgid = pid_tgid() >> 32;
    u8 yes = 1;
    if (GOTRACE_FLIGHT_SIGNAL && !scheduled.lookup(&tgid))
        scheduled.update(&tgid, &yes);
}
#else
static __always_inline void scheduled_in_process(void)
{
}
#endif

/* At runtime.casgstatus(gp, old, new). */
int on_edge_status(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (!site_hit(ctx, &cookie))
        return 0;
    scheduled_in_process();
    struct sched_change to = sched_status_change(ctx);
    bool is_state = to.new == G_RUNNABLE || to.new == G_RUNNING || to.new == G_WAITING;
    bool has_waited = to.old == G_WAITING;
    /* What is in a system call runs, or could, unless its thread has lost its processor meanwhile. */
    bool has_run = to.new == G_RUNNING &&to.old != G_RUNNABLE && !has_waited;
    /* Up to Go 1.19 the runtime notes only after some changes why a goroutine waits. */
    if (GOTRACE_EDGE_STATES && is_state && !has_run && to.old != G_COPYSTACK)
        edges_submit(ctx, EDGE_STATE, edges_goid(ctx, cookie), edges_goid_of(to.g), to.new,
                     to.new == G_WAITING || has_waited ? sched_wait_reason(to.g) : 0, 0);
    if (to.new == G_DEAD) {
        edges_submit(ctx, EDGE_DEAD, edges_goid_of(to.g), 0, 0, 0, 0);
    } else if (to.old == G_WAITING && to.new == G_RUNNABLE) {
        u32 reason = sched_wait_reason(to.g);
        bool is_join = edges_is_join(ctx, to.g, reason);
        if (edges_is(reason, GOTRACE_EDGE_WORK))
            edges_submit(ctx, EDGE_WAKE, edges_goid(ctx, cookie), edges_goid_of(to.g), reason, 0,
                         edges_waiting_depth(to.g, reason));
        else if (is_join || edges_is(reason, GOTRACE_EDGE_REST))
            edges_submit(ctx, EDGE_REST, edges_goid(ctx, cookie), edges_goid_of(to.g), is_join, 0,
                         0);
    }
    return 0;
}

/* At runtime.gcMarkTermination. */
int on_collected(struct pt_regs *ctx)
{
    u64 cookie = 0;
    if (site_hit(ctx, &cookie))
        edges_submit(ctx, EDGE_FREED, 0, 0, 0, 0, 0);
    return 0;
}

#if GOTRACE_FLIGHT
/* At the raw tracepoint signal_deliver(number, info, action), in the thread that gets the signal. */
int on_delivered(struct bpf_raw_tracepoint_args *ctx)
{
    if ((u32)ctx->args[0] != GOTRACE_FLIGHT_SIGNAL || !site_is_target())
        return 0;
    u64 ids = site_user_pid_tgid(), is_chosen = GOTRACE_TGID;
    u32 tgid = pid_tgid() >> 32;
#ifdef GOTRACE_TGID_1
    is_chosen = 1;
#endif
    struct event event = {
        .end = bpf_ktime_get_ns(),
        .goid = is_chosen || scheduled.lookup(&tgid),
        .tgid = ids >> 32,
        .tid = ids,
        .function = EDGE_FIRST + EDGE_SIGNAL,
    };
    triggers.perf_submit(ctx, &event, sizeof(event));
    return 0;
}
#endif

/* At runtime.coroswitch_m(gp): gp waits, and another goroutine runs in its place. */
int on_edge_coroutine(struct pt_regs *ctx)
{
    u64 cookie = 0, g = sched_goroutine(ctx);
    if (!site_hit(ctx, &cookie))
        return 0;
    u64 offset = GOTRACE_EDGE_COROARG, coro = offset ? read_word(g + offset) : 0;
    u64 other = coro ? read_word(coro) : 0;
    if (other)
        edges_submit(ctx, EDGE_SWITCH, edges_goid_of(g), edges_goid_of(other), 0, 0, 0);
    return 0;
}
#else
static __always_inline bool edges_has_begun(struct site_plan *plan, struct call *call)
{
    return false;
}

static __always_inline void edges_begin(struct pt_regs *ctx, struct site_plan *plan, struct work *w,
                                        struct task *task, u64 depth, u64 now)
{
}
#endif
