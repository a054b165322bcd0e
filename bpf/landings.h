/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Calls that are seen to return in their callers.
 *
 * The kernel single-steps a RET, which is most of the cost of a measured call. But most calls are
 * followed, in the caller, by an instruction that it emulates before the code can branch: their
 * *landing*. A call whose return address is known can be ended there, and its function's RETs need
 * no probes. User space knows the landings (gotrace/session/landings.py); here, unknown return
 * addresses are reported to it.
 *
 * Settings (common.h):
 *   GOTRACE_WAYS      functions whose calls may be ended at landings, those of the lowest numbers
 *   GOTRACE_LANDINGS  callers with a landing
 *   GOTRACE_PASSES    landings that other ways lead to, and one
 */
#pragma once
#include "diagnostics.h"
#include "site.h"

/* How the calls of a function are seen to return. Shared with gotrace/session/landings.py. */
enum way {
    WAY_RETS,     /* at its RETs */
    WAY_LEARNING, /* there, and unknown return addresses are reported */
    WAY_LANDINGS  /* at landings; a call that returns elsewhere is not opened, but counted */
};

/* All that is known of a function's calls; addresses are those in its file, here and below. */
struct returning {
    u32 way;
    u32 unused;
    u64 entry; /* where its entry is probed */
};

/* ways: key = a function's number; value = that. Written from user space alone. */
BPF_ARRAY(ways, struct returning, GOTRACE_WAYS);

/*
 * entered: key = a function's number; value = calls that it has had on this CPU. They are a rate by
 * which functions are chosen: a program that interrupts another one may take one of its calls.
 */
BPF_PERCPU_ARRAY(entered, u64, GOTRACE_WAYS);

/* A place that a function is called from. */
struct caller {
    u64 return_pc;
    u64 function;
};

/* Where calls of a caller can end. */
struct landing {
    u64 address;
    u64 calls; /* that were entered while the function was learning: about so many */
};

/*
 * landings: key = a caller whose calls can end at a landing; value = that. It has a probe if one of
 * the functions has moved. Written from user space, but for the calls: not every function's results
 * are intact at every landing.
 */
BPF_HASH(landings, struct caller, struct landing, GOTRACE_LANDINGS);

/*
 * moving: value MOVING_EPOCH = how often functions have begun to learn, and rows of stacks have that
 * of their outermost call; value MOVING_FAULTS and the number of a file = where the entry of
 * runtime.sigpanic is probed in it. Written from user space alone. Shared with
 * gotrace/session/landings.py.
 */
enum moving {
    MOVING_EPOCH,
    MOVING_FAULTS,
    MOVING = MOVING_FAULTS + COOKIE_FILE_MASK + 1
};
BPF_ARRAY(moving, u64, MOVING);

static __always_inline u64 moving_value(u32 which)
{
    u64 *value = moving.lookup(&which);
    return value ? *value : 0;
}

static __always_inline u64 landings_epoch(void)
{
    return moving_value(MOVING_EPOCH);
}

/* callers: key = a caller without a landing; value = its calls. Emptied from user space. */
BPF_HASH(callers, struct caller, u64, 4096);

/* unreported: value 0 = calls of callers for which callers had no room. Only ever added to. */
BPF_ARRAY(unreported, u64, 1);

/*
 * passes: key = row of a landing that other ways lead to, 0 for all of them; value = its hits on this
 * CPU. They are rates, like entered. Only ever added to.
 */
struct passes {
    u64 ended;  /* that ended a call */
    u64 missed; /* that ended none */
};
BPF_PERCPU_ARRAY(passes, struct passes, GOTRACE_PASSES);

/* Count a call: also one that is not wanted costs a hit where it returns. */
static __always_inline void landings_count_call(u32 function)
{
    u64 *calls = entered.lookup(&function);
    if (calls)
        ++*calls;
}

/*
 * Return how a function's calls are seen to return. At its entry, fill in the distance of addresses of
 * this process from those in the file: it may be another in each process.
 */
static __always_inline u32 landings_way(u32 function, u64 pc, u64 *bias)
{
    struct returning *found = ways.lookup(&function);
    if (!found)
        return WAY_RETS;
    *bias = pc - found->entry;
    return found->way;
}

/* Return whether a function's calls are to end at landings alone. */
static __always_inline bool landings_only(u32 function)
{
    u64 unused;
    return landings_way(function, 0, &unused) == WAY_LANDINGS;
}

/*
 * Return whether a call can be opened that is entered: its return will be seen. It will not be if
 * its caller has no landing and the RETs have no probes.
 */
static __always_inline bool landings_can_open(u32 way, u32 function, u64 return_pc)
{
    struct caller caller = {.return_pc = return_pc, .function = function};
    if (way == WAY_RETS)
        return true;
    struct landing *landing = landings.lookup(&caller);
    if (landing) {
        if (way == WAY_LEARNING)
            landing->calls++;
        return true;
    }
    u32 zero = 0;
    u64 none = 0, *calls = callers.lookup_or_try_init(&caller, &none);
    if (!calls)
        calls = unreported.lookup(&zero);
    if (calls)
        __sync_fetch_and_add(calls, 1);
    if (way != WAY_LANDINGS)
        return true;
    diagnostics_count(NEW_CALLERS, 1);
    site_count_missing(function, HIT_NEW_CALLERS);
    return false;
}

static __always_inline struct passes *passes_of(u64 cookie, bool of_all)
{
    u32 row = (cookie & COOKIE_INDEX_MASK) >> COOKIE_PASSES_SHIFT, all = 0;
    if (!(cookie & COOKIE_LANDING) || cookie & COOKIE_FAULT || !row)
        return 0;
    return passes.lookup(of_all ? &all : &row);
}

/* Count a hit of a landing that has ended a call of a function. */
static __always_inline void landings_ended(u64 cookie, u32 function)
{
    struct passes *own = passes_of(cookie, false);
    site_hit_landing(cookie, function);
    if (own)
        own->ended++;
}

/* Count a hit that has ended none. */
static __always_inline void landings_missed(u64 cookie)
{
    struct passes *own = passes_of(cookie, false), *all = passes_of(cookie, true);
    site_missed_landing(cookie);
    if (own)
        own->missed++;
    if (all)
        all->missed++;
}

/*
 * At the entry of runtime.sigpanic: return whether a fault at pc came after the return to a caller,
 * and before its landing: the runtime goes on as if the instruction had called it.
 */
static __always_inline bool landings_is_between(u64 cookie, u64 return_pc, u64 function, u64 pc,
                                                u64 sigpanic)
{
    u32 file = cookie >> COOKIE_FILE_SHIFT & COOKIE_FILE_MASK;
    u64 bias = sigpanic - moving_value(MOVING_FAULTS + file);
    return_pc -= bias;
    pc -= bias;
    struct caller caller = {.return_pc = return_pc, .function = function};
    struct landing *landing = landings.lookup(&caller);
    return landing && pc >= return_pc && pc < landing->address;
}
