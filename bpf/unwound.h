/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Calls that end without a return. */
#pragma once
#include "why.h"

/* How calls end without a return: flags of events (payload.h), 0 where that was not seen. */
#define ENDED_UNSEEN 0
#define EVENT_PANIC 16  /* a panic that was recovered unwound the call */
#define EVENT_GOEXIT 32 /* its goroutine has ended, by runtime.Goexit */

/* A call that has ended without a return. */
struct unwound {
    u64 start;
    u64 end;            /* when that was seen */
    u64 hits;           /* of probes within it */
    u64 hits_ns;        /* that programs took for them */
    u32 how;            /* EVENT_PANIC or EVENT_GOEXIT */
    struct why_key row; /* whose time it was, with GOTRACE_WHY */
};
