/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stacks that are followed by frame pointers, and their hash. */
#pragma once
#include "common.h"

/* Return the hash of a stack and one more address. */
static __always_inline u64 walk_mix(u64 hash, u64 pc)
{
    hash = (hash ^ pc) * 0xff51afd7ed558ccdULL;
    return hash ^ hash >> 32;
}

/*
 * Step to the caller: return the return address, 0 after the last, and store its frame pointer. From
 * a system stack the chain goes on on the goroutine's, which may lie lower.
 */
static __always_inline u64 walk_step(u64 *frame)
{
    u64 link[2] = {};
    if (*frame)
        bpf_probe_read_user(link, sizeof(link), (void *)*frame);
    *frame = link[0] != *frame ? link[0] : 0;
    return link[1];
}
