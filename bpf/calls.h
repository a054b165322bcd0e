/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which calls are open: entries and returns paired by task and depth.
 *
 * Settings (common.h), beside those of goroutine.h and landings.h:
 *   GOTRACE_STACKS       goroutines that can have calls open at once
 *   GOTRACE_OUTER_CALLS  open calls that can have another traced call inside
 *
 * A program that keeps more for an open call than struct open_call defines, before it includes this
 * file, what is to be done when a call ends without a return:
 *   CALL_DROPPED(owner, level)             it was not seen how
 *   CALL_UNWOUND(ctx, owner, level, call)  by a panic or runtime.Goexit; a struct unwound
 * One that defines COUNTS_UNWOUND as 1 has these calls counted in their functions' rows of hits.
 *
 * With GOTRACE_WHY, where their time goes is kept as well: why.h.
 */
#pragma once
#include "diagnostics.h"
#include "goroutine.h"
#include "landings.h"
#include "unwound.h"
#include "why.h"

#ifndef CALL_DROPPED
#define CALL_DROPPED(owner, level)
#endif
#ifndef CALL_UNWOUND
#define CALL_UNWOUND(ctx, owner, level, call)
#define REPORTS_UNWOUND 0
#else
#define REPORTS_UNWOUND 1
#endif
#ifndef COUNTS_UNWOUND
#define COUNTS_UNWOUND 0
#endif

/* The levels of open calls fit in this many bits: outer_calls has at most 2^17 rows. */
#define LEVEL_BITS 18

/*
 * Calls seen to be unwound that one run of a program drops. The verifier follows each of them, so
 * where there are more the program begins again, by a tail call: 34 runs, as the kernel has it.
 */
#define MAX_UNWOUND 32

/* Rows freed at once of calls not seen to end; any beyond stay until their level is used again. */
#define MAX_CLEARED 128

/* Functions that can have led to one another by tail jumps and return at one RET. */
#define MAX_TAIL_JUMPS 4

/* One open call. Its depth distinguishes it from all others of its task. */
struct open_call {
    u64 depth; /* stack_hi - SP at entry: survives moves of the stack */
    u64 start; /* ns */
    u32 function;
    u32 jumps;     /* whether the function can end by a jump to a traced one */
    u64 return_pc; /* 0 where nothing asks for it */
    u64 before;    /* the stack's hits when the call was entered, its own entry included */
    u64 before_ns; /* the same of its hits_ns */
};

struct stack {
    struct open_call top;
    u32 level; /* open calls, top included */
    u32 file;  /* whose row it is: the number in cookies */
    /* Since the outermost call was entered, only ever added to: */
    u64 hits;    /* of probes */
    u64 hits_ns; /* that programs took for them, where the program measures that */
    u64 scratch; /* a variable each value of which the verifier would follow */
    u64 epoch;   /* when the outermost call was entered: landings.h */
#if GOTRACE_NESTED
    u64 since; /* ns: when the outermost call was entered */
#endif
    u64 own_ns; /* of calls in rows by stack, their own time; only ever added to: rows.h */
};

/*
 * stacks: the open calls of a task, its latest one in place. Where none is open, the row rests for
 * the task's next call: to insert and delete it is a fifth of what programs do for a call. It is gone
 * with its goroutine or process, or when many rest.
 */
BPF_HASH(stacks, struct task_key, struct stack, GOTRACE_STACKS);

/*
 * resting: value RESTING_ROWS = rows of stacks inserted less those deleted here; value
 * RESTING_LIMIT = up to how many of them a row may rest, and value RESTING_HALF = half of what there
 * is room for, each and as many more as have been deleted from user space; value RESTING_SHARE = a
 * file's equal share of the other half, 0 until the room is divided among files. Each file has two
 * values from RESTING_FILES on: its rows inserted less those deleted here, and those deleted from user
 * space. So no value is written by both sides. Shared with gotrace/session/open_calls.py.
 */
enum resting {
    RESTING_ROWS,
    RESTING_LIMIT,
    RESTING_HALF,
    RESTING_SHARE,
    RESTING_FILES,
    RESTING = RESTING_FILES + 2 * (COOKIE_FILE_MASK + 1)
};
BPF_ARRAY(resting, u64, RESTING);

/* outer_calls: open calls below the latest; level 1 is the outermost. Gone when on top again. */
BPF_HASH(outer_calls, struct call_key, struct open_call, GOTRACE_OUTER_CALLS);

/*
 * again: the programs that begin again; key = enum again, shared with gotrace/kernel/program.py;
 * value = that program. Filled when they are loaded; emptied by the kernel when the last descriptor
 * of the map is closed.
 */
enum again {
    AGAIN_RECOVERY,
    AGAIN_GOEXIT,
    AGAIN
};
BPF_PROG_ARRAY(again, AGAIN);

/* Return when a call begins that was just made the task's latest: now. */
static __always_inline u64 calls_begin(struct task *task, struct task_key *owner,
                                       struct stack *stack)
{
    return why_entered(owner, task->row, stack->level);
}

static __always_inline u64 *resting_value(u32 which)
{
    return resting.lookup(&which);
}

static __always_inline void add_rows(u32 which, u64 more)
{
    u64 *rows = resting_value(which);
    if (rows)
        __sync_fetch_and_add(rows, more);
}

static __always_inline void count_rows(u32 file, u64 more)
{
    add_rows(RESTING_ROWS, more);
    if (GOTRACE_FILE_ROWS)
        add_rows(RESTING_FILES + 2 * file, more);
}

/*
 * Return whether a file may have one row more: beyond its share, only while half of the room is free.
 * So all shares fit into the other half, however many files have more.
 */
static __always_inline bool has_room(u32 file)
{
    if (!GOTRACE_FILE_ROWS)
        return true;
    u64 *rows = resting_value(RESTING_ROWS), *half = resting_value(RESTING_HALF);
    u64 *own = resting_value(RESTING_FILES + 2 * file), *share = resting_value(RESTING_SHARE);
    u64 *deleted = resting_value(RESTING_FILES + 2 * file + 1);
    if (!rows || !half || !own || !share || !deleted)
        return false;
    u64 has = *own - *deleted;
    return !*share || has < *share || *rows < *half;
}

/* Return the row of a task that has none yet, 0 if there is no room: a call is missing then. */
static __always_inline struct stack *insert_task(struct task_key *owner, u64 cookie)
{
    struct stack none = {.file = cookie >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK};
    if (!has_room(none.file) || stacks.update(owner, &none)) {
        diagnostics_count(STACKS_FULL, 1);
        site_count_missing(cookie & COOKIE_INDEX_MASK, HIT_STACKS_FULL);
        return 0;
    }
    count_rows(none.file, 1);
    return stacks.lookup(owner);
}

static __always_inline void delete_task(struct task_key *owner)
{
    u32 file = 0;
    if (GOTRACE_FILE_ROWS) {
        struct stack *stack = stacks.lookup(owner);
        file = stack ? stack->file : 0;
    }
    if (!stacks.delete(owner))
        count_rows(file, -1);
    CALL_DROPPED(owner, 1); /* what is kept of an outermost call rests with its task */
}

/* Forget a task that has ended. */
static __always_inline void forget_task(struct task *task, struct task_key *owner)
{
    why_left(owner, task->row, 0);
    delete_task(owner);
}

/* Let the row of a task rest that has no call open any more. */
static __always_inline void calls_rest(struct task *task, struct task_key *owner)
{
    why_left(owner, task->row, 0);
    u64 *rows = resting_value(RESTING_ROWS), *limit = resting_value(RESTING_LIMIT);
    if (!rows || !limit || *rows > *limit)
        delete_task(owner);
}

/* Let a task whose calls have ended or were dropped rest, or its latest call go on. */
static __always_inline void calls_settle(struct task *task, struct task_key *owner,
                                         struct stack *stack)
{
    if (!stack->level)
        calls_rest(task, owner);
    else
        why_left(owner, task->row, stack->level);
}

/* Make the next outer call the top again. */
static __always_inline void calls_pop(struct task_key *owner, struct stack *stack)
{
    stack->level--;
    if (!stack->level)
        return;
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = stack->level};
    struct open_call *outer = outer_calls.lookup(&key);
    if (outer)
        stack->top = *outer;
    outer_calls.delete(&key);
}

/* Fill in what is particular to one call of a stack that is being unwound. */
static __always_inline void describe(struct unwound *call, struct stack *stack,
                                     struct open_call *open)
{
    call->start = open->start;
    call->hits = stack->hits - open->before;
    call->hits_ns = stack->hits_ns - open->before_ns;
}

/*
 * Drop calls at a depth greater than depth: they were unwound, their RET never comes. Depths grow
 * with levels, so the highest level that stays is found by halves, however many there are. Return
 * whether some are left, which are then the task's as before: it was seen how they ended, and they
 * are too many for one run.
 */
static __always_inline bool drop_deeper(struct pt_regs *ctx, struct task *task,
                                        struct task_key *owner, struct stack *stack, u64 depth,
                                        u32 how)
{
    u64 open = stack->level;
    u32 function = stack->top.function;
    bool is_left = false;
    if (!open || stack->top.depth <= depth)
        return false;
    struct unwound call = {.how = how};
    if (REPORTS_UNWOUND && how) {
        describe(&call, stack, &stack->top);
        call.row.id = task->row;
        call.row.tgid = owner->tgid;
        call.end = why_leaving(&call.row, bpf_ktime_get_ns());
    }
    struct call_key key = {.task = owner->task, .tgid = owner->tgid};
    volatile u64 *stays = &stack->scratch;
    *stays = 0;
#pragma clang loop unroll(disable)
    for (int bit = LEVEL_BITS - 1; bit >= 0; bit--) {
        key.level = *stays + (1 << bit);
        if (key.level >= open)
            continue;
        struct open_call *outer = outer_calls.lookup(&key);
        if (outer && outer->depth <= depth) {
            stack->top = *outer;
            *stays = key.level;
        }
    }
    if (how && open > *stays + MAX_UNWOUND) {
        key.level = open - MAX_UNWOUND;
        struct open_call *next = outer_calls.lookup(&key);
        if (next) {
            stack->top = *next;
            *stays = key.level;
            is_left = true;
        }
    }
    stack->level = *stays;
    diagnostics_count(UNWOUND, open - *stays);
    if (REPORTS_UNWOUND && !how)
        diagnostics_count(UNWOUND_UNSEEN, open - *stays);
#pragma clang loop unroll(disable)
    for (int i = 0; i < (how ? MAX_UNWOUND : MAX_CLEARED) && open > *stays; i++) {
        if (COUNTS_UNWOUND)
            site_count_missing(function, HIT_UNWOUND);
        if (REPORTS_UNWOUND && how)
            CALL_UNWOUND(ctx, owner, open, &call);
        if (COUNTS_UNWOUND ? GOTRACE_BUDGET != 0 : REPORTS_UNWOUND && how) {
            key.level = open - 1;
            struct open_call *outer = outer_calls.lookup(&key);
            if (outer) {
                describe(&call, stack, outer);
                function = outer->function;
            }
        }
        CALL_DROPPED(owner, open);
        key.level = open;
        why_forget(&key);
        open--;
        key.level = open;
        outer_calls.delete(&key);
    }
    if (COUNTS_UNWOUND)
        site_count_unknown(open - *stays, HIT_UNWOUND);
    return is_left;
}

/*
 * Drop calls that were seen to be unwound, and begin the program again where they are many: then
 * this does not return. After too many runs, the rest is dropped as if it had not been seen.
 */
static __always_inline void drop_unwound(struct pt_regs *ctx, struct task *task,
                                         struct task_key *owner, struct stack *stack, u64 depth,
                                         u32 how, enum again program)
{
    if (!drop_deeper(ctx, task, owner, stack, depth, how))
        return;
    why_left(owner, task->row, 1);
    again.call(ctx, program);
    drop_deeper(0, task, owner, stack, depth, ENDED_UNSEEN);
}

/* Fill in owner and depth; return false where the hit has to be ignored. */
static __always_inline bool calls_locate(struct pt_regs *ctx, u64 cookie, struct task *task,
                                         struct task_key *owner, u64 *depth)
{
    if (!goroutine_find_task(ctx, cookie, task)) {
        if (!(cookie & COOKIE_LANDING)) /* that others than measured calls come to as well */
            diagnostics_count(NO_GOROUTINE, 1);
        return false;
    }
    owner->task = task->id;
    owner->tgid = bpf_get_current_pid_tgid() >> 32;
    *depth = task->stack_hi - (registers_sp(ctx) + (cookie >> COOKIE_SP_SHIFT));
    return true;
}

/*
 * Return whether the latest call, at the depth of one that is entered, has led to that by a tail
 * jump: then it returns to the same place. A function that is there already was called again.
 */
static __always_inline bool is_tail_call(struct task_key *owner, struct stack *stack, u64 depth,
                                         u64 function, u64 return_pc)
{
    if (!stack->top.jumps || stack->top.return_pc != return_pc || stack->top.function == function)
        return false;
    struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = stack->level};
#pragma clang loop unroll(disable)
    for (int i = 1; i < MAX_TAIL_JUMPS; i++) {
        key.level--;
        struct open_call *outer = outer_calls.lookup(&key);
        if (!outer || outer->depth != depth)
            return true;
        if (outer->function == function)
            return false;
    }
    return false;
}

/*
 * Count a hit on a system stack in the open calls of the goroutine that waits for it there. The
 * difference of two readings of a stack's hits is exact whatever has become of the calls between.
 */
static __always_inline void hit_in_goroutine(struct task *task, struct task_key *owner)
{
    if (!task->goid || task->goid == owner->task)
        return;
    struct task_key goroutine = {.task = task->goid, .tgid = owner->tgid};
    struct stack *waiting = stacks.lookup(&goroutine);
    if (waiting)
        waiting->hits++;
}

/* Count a hit that opens no call, and the time that its program took. */
static __always_inline void calls_count_hit(struct task *task, struct task_key *owner,
                                            u64 nanoseconds)
{
    hit_in_goroutine(task, owner);
    struct stack *stack = stacks.lookup(owner);
    if (!stack)
        return;
    stack->hits++;
    stack->hits_ns += nanoseconds;
}

/* Make the verifier forget what a value can be: it would follow each of them to the end. */
static __always_inline u64 calls_unknown(struct stack *stack, u64 value)
{
    volatile u64 *scratch = &stack->scratch;
    *scratch = value;
    return *scratch;
}

/* Return how many hits there were within the latest call, before that of its RET. */
static __always_inline u64 calls_hits_within(struct stack *stack)
{
    return stack->hits - stack->top.before;
}

/*
 * Open a call: make it the task's latest and return its stack, with top.start yet to be set.
 * Return 0 where it cannot be kept.
 */
static __always_inline struct stack *calls_enter(struct pt_regs *ctx, struct task *task,
                                                 struct task_key *owner, u64 depth, u64 cookie)
{
    struct stack *stack = stacks.lookup(owner);
    if (!stack) {
        stack = insert_task(owner, cookie);
        if (!stack)
            return 0;
    }
    hit_in_goroutine(task, owner);
    stack->hits++;
    u64 function = cookie & COOKIE_INDEX_MASK, return_pc = 0, bias = 0;
    u32 way = landings_way(function, registers_pc(ctx), &bias);
    if (way || cookie & COOKIE_JUMPS || (stack->level && stack->top.depth >= depth))
        return_pc = registers_return_pc(ctx, task->stack_hi - depth);
    drop_deeper(0, task, owner, stack, depth, ENDED_UNSEEN);
    /* Others at this depth have ended unseen. */
    if (stack->level && stack->top.depth == depth &&
        !is_tail_call(owner, stack, depth, function, return_pc))
        drop_deeper(0, task, owner, stack, depth - 1, ENDED_UNSEEN);
    if (!landings_can_open(way, function, return_pc - bias)) {
        calls_settle(task, owner, stack);
        return 0;
    }
    if (stack->level) {
        struct call_key key = {.task = owner->task, .tgid = owner->tgid, .level = stack->level};
        struct open_call outer = stack->top;
        if (outer_calls.update(&key, &outer)) {
            diagnostics_count(OUTER_CALLS_FULL, 1);
            site_count_missing(function, HIT_OUTER_CALLS_FULL);
            return 0;
        }
    }
    if (!stack->level)
        stack->epoch = landings_epoch();
    stack->level++;
    stack->top.before = stack->hits;
    stack->top.depth = depth;
    stack->top.function = function;
    stack->top.jumps = (cookie & COOKIE_JUMPS) != 0;
    stack->top.return_pc = return_pc;
    return stack;
}

/* Count a RET at which no call is seen to return. */
static __always_inline void count_unmatched(u64 cookie)
{
    /* Else it was not opened, and counted. */
    if (!(cookie & COOKIE_LANDING) && !landings_only(cookie & COOKIE_INDEX_MASK) &&
        !site_is_counted(cookie))
        diagnostics_count(UNMATCHED, 1);
}

/*
 * Return whether the latest call ends here: at a RET of its function, or at the landing of its
 * return address, whichever comes first; or before a landing, at the entry of sigpanic.
 */
static __always_inline bool ends_here(struct pt_regs *ctx, u64 cookie, struct open_call *call,
                                      u64 entry_sp)
{
    u64 index = cookie & COOKIE_INDEX_MASK;
    if (!(cookie & COOKIE_LANDING))
        return call->function == index;
    if (cookie & COOKIE_FAULT)
        return landings_is_between(cookie, call->return_pc, call->function, read_word(entry_sp),
                                   registers_pc(ctx));
    return call->return_pc == registers_pc(ctx) - (index & COOKIE_DISTANCE_MASK);
}

/*
 * Return the stack whose top is the call that returns at depth, after dropping what was unwound
 * above it; 0 where that call was not seen to be entered. The hit is then yet to be counted in the
 * calls that stay.
 */
static __always_inline struct stack *leaving(struct pt_regs *ctx, u64 cookie, struct task *task,
                                             struct task_key *owner, u64 depth)
{
    hit_in_goroutine(task, owner);
    struct stack *stack = stacks.lookup(owner);
    if (!stack) {
        count_unmatched(cookie);
        return 0;
    }
    drop_deeper(0, task, owner, stack, depth, ENDED_UNSEEN);
    if (stack->level && stack->top.depth == depth &&
        ends_here(ctx, cookie, &stack->top, task->stack_hi - depth))
        return stack;
    count_unmatched(cookie);
    stack->hits++;
    if (!stack->level)
        calls_rest(task, owner);
    return 0;
}

/*
 * At a RET or a landing: return the stack whose top is the call that returns, and fill in whose it
 * is and how deep; 0 where none does. Its time ends at now, or later where its parts are kept.
 */
static __always_inline struct stack *calls_returning(struct pt_regs *ctx, u64 cookie,
                                                     struct task *task, struct task_key *owner,
                                                     u64 *depth, u64 *now)
{
    if (!calls_locate(ctx, cookie, task, owner, depth)) {
        landings_missed(cookie);
        return 0;
    }
    /* In the caller, the return address is off the stack. */
    if ((cookie & COOKIE_LANDING) && !(cookie & COOKIE_FAULT))
        *depth += CALL_PUSHES;
    struct stack *stack = leaving(ctx, cookie, task, owner, *depth);
    struct why_key row = {.id = task->row, .tgid = owner->tgid};
    if (stack) {
        *now = why_leaving(&row, *now);
        landings_ended(cookie, stack->top.function);
    } else {
        landings_missed(cookie);
    }
    return stack;
}

/*
 * Return whether the latest call returns with one of that depth, which has just been taken off: its
 * function has jumped to that one's. The return address is still where the call has put it.
 */
static __always_inline bool calls_return_together(struct pt_regs *ctx, struct task *task,
                                                  struct stack *stack, u64 depth)
{
    return stack->level && stack->top.depth == depth && stack->top.jumps &&
           stack->top.return_pc == registers_return_pc(ctx, task->stack_hi - depth);
}

/*
 * At runtime.recovery's call of gogo: gp.sched.sp is where the deferring function goes on. All
 * calls below it have been unwound by the panic. Where calls push nothing, those that the deferring
 * function has made have the very depth of that SP.
 */
int on_recovery(struct pt_regs *ctx)
{
    u64 cookie = 0, depth = 0;
    struct task task = {};
    struct task_key owner = {};
    if (!site_hit(ctx, &cookie) || !calls_locate(ctx, cookie, &task, &owner, &depth) || !task.g)
        return 0;
    owner.task = task.goid;
    task.row = task.g;
    struct stack *stack = stacks.lookup(&owner);
    if (!stack)
        return 0;
    struct layout *layout = goroutine_layout(cookie);
    if (!layout)
        return 0;
    u64 hi = read_word(task.g + OFFSET(layout, g_stack_hi, GOTRACE_G_STACK_HI));
    u64 sp = read_word(task.g + OFFSET(layout, g_sched_sp, GOTRACE_G_SCHED_SP));
    u64 depth_left = hi - sp - !CALL_PUSHES;
    drop_unwound(ctx, &task, &owner, stack, depth_left, EVENT_PANIC, AGAIN_RECOVERY);
    stack->hits++;
    calls_settle(&task, &owner, stack);
    return 0;
}

/*
 * Where the runtime ends a goroutine: it has run its last frame, whatever is open was unwound. Fill in
 * owner and task; return false where the hit has to be ignored.
 */
static __always_inline bool calls_goroutine_ended(struct pt_regs *ctx, struct task *task,
                                                  struct task_key *owner)
{
    u64 cookie = 0, depth = 0;
    if (!site_hit(ctx, &cookie) || !calls_locate(ctx, cookie, task, owner, &depth))
        return false;
    struct stack *stack = stacks.lookup(owner);
    if (stack) {
        drop_unwound(ctx, task, owner, stack, 0, EVENT_GOEXIT, AGAIN_GOEXIT);
        forget_task(task, owner);
    }
    return true;
}
