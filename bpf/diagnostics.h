/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What could not be done or did not match, counted. */
#pragma once
#include "common.h"

/* Values shared with gotrace/session/open_calls.py. */
enum diagnostic {
    UNMATCHED,        /* returns of calls that were entered before the probes were there */
    UNWOUND,          /* calls ended by a panic or by runtime.Goexit instead of a RET */
    STACKS_FULL,      /* calls not measured: too many goroutines with open calls */
    OUTER_CALLS_FULL, /* calls not measured: too many open calls inside one another */
    NO_GOROUTINE,     /* hits where no g was found */
    ENDED_FULL,       /* ended goroutines whose rows stay, since the queue had no room */
    SLOW_LOST,        /* slow calls that could not be reported */
    EVENTS_LOST,      /* traced calls that could not be reported */
    WORK_BUSY,        /* traced calls for which no buffer was free */
    SAVED_FULL,       /* traced calls not reported: too many are open to keep their arguments */
    TAIL_CALLS,       /* traced calls not reported: they ended by jumping to another function */
    EXTREMES_LOST,    /* times in which calls may be missing from the minimum or maximum */
    UNWOUND_UNSEEN,   /* traced calls not reported: not seen how they ended, or too many at once */
    CALLS_UNDECIDED,  /* calls that no row has: whether the predicate wants them is not known */
    WHY_FULL,         /* calls whose parts are not known: no room */
    WHY_THREADS_FULL, /* times in which a thread was not followed: no room */
    NEW_CALLERS,      /* calls not measured: from where none came before RETs lost their probes */
    BEGINS_LOST,      /* beginnings of requests among what could not be reported */
    STATES_FULL, /* times that a goroutine's state, or a system call, was not followed: no room */
    PROCESSES_FULL,  /* times that a process was not known: no room */
    THREADS_FULL,    /* times that a thread without quota was not followed: no room */
    KEPT_FULL,       /* stacks that were not kept: no room; what has them counts without them */
    ERRORS_FULL,     /* errors of system calls that were not counted: too many different ones */
    CALLS_EARLIER,   /* system calls that had begun before the probes were there */
    EXECUTIONS_FULL, /* processes that were not followed: no room */
    DIAGNOSTICS
};

/* diagnostics: key = enum diagnostic; value = how often on this CPU. Only ever added to. */
BPF_PERCPU_ARRAY(diagnostics, u64, DIAGNOSTICS);

static __always_inline void diagnostics_count(u32 what, u64 times)
{
    u64 *count = diagnostics.lookup(&what);
    if (count)
        __sync_fetch_and_add(count, times);
}
